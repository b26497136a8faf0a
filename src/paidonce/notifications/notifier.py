"""Sends notifications to people, outside of all transactions that process events (OBS-5).

Notifications are written in the transaction of their cause. For each channel the pending ones
become one message, which is committed before it is sent; a message that was sent but not recorded
is sent again, with the same id. One process at a time does it, as leader. Each channel is served
independently: one that hangs, or is away for hours, does not delay the others.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from paidonce.db.queries import Connection
from paidonce.errors import NotificationSendError
from paidonce.ids import new_id
from paidonce.notifications import store
from paidonce.notifications.channels import Channel
from paidonce.notifications.digest import compose
from paidonce.notifications.model import NotificationMessage
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.leader import Leader, Leadership, LeadershipLostError
from paidonce.runtime.service import Backoff, Service
from paidonce.telemetry import logger, metrics

log = logger(__name__)

ROLE: Final = "notifier"
POLL_S: Final = 1.0
RETRY: Final = Backoff(initial_s=1.0, factor=2.0, max_s=3600.0, jitter=0.0)
DELAYS_S: Final = tuple(RETRY.delay_s(failures) for failures in range(1, 14))
"""The delay after each failed attempt: a second, two, four, … and then an hour each."""
GIVE_UP_S: Final = 86_400.0
"""After this the message has failed; its notifications are part of the next message."""


class Notifier(Service):
    """Sends pending notifications to each channel, as long as this process leads."""

    def __init__(self, channels: Mapping[str, Channel], leader: Leader) -> None:
        super().__init__("notifier")
        self._channels = tuple(channels.values())
        self._leader = leader

    async def run(self) -> None:
        """Notify while this process leads; follow the leader otherwise."""
        await self._leader.follow(ROLE, self, self._lead)

    async def _lead(self, leadership: Leadership) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for channel in self._channels:
                    tasks.create_task(self._serve(channel, leadership))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _serve(self, channel: Channel, leadership: Leadership) -> None:
        while not self.is_finishing:
            try:
                await self.send_pending(channel, leadership)
            except LeadershipLostError:
                raise
            except Exception as error:  # the other channels continue
                self.record_failure(error, POLL_S, channel=channel.name)
            await self.pause(POLL_S)

    async def run_once(self) -> int:
        """Serve each channel once; returns how many messages were sent. No-op for a follower."""
        async with self._leader.lead(ROLE) as leadership:
            if leadership is None:
                return 0
            sending = (self.send_pending(channel, leadership) for channel in self._channels)
            return sum(await asyncio.gather(*sending))

    async def send_pending(self, channel: Channel, leadership: Leadership) -> bool:
        """Send the channel its next message, if one is due; returns whether it was accepted."""
        async with leadership.connection() as connection:
            if await store.is_message_due(connection, channel.name, channel.every_s):
                await _compose(connection, channel)
            message = await store.begin_attempt(connection, channel.name, DELAYS_S)
        if message is None:
            return False
        leadership.require()
        error = None
        try:
            await channel.sender.send(message)
        except NotificationSendError as failure:
            error = str(failure)
        maybe_crash(CrashPoint.NOTIFIED)
        async with leadership.connection() as connection, connection.transaction():
            await _record(connection, channel, message, error)
        return error is None


async def _compose(connection: Connection, channel: Channel) -> None:
    """Combine all pending notifications into one message."""
    async with connection.transaction():
        message_id = new_id()
        pending = await store.assign(connection, channel.name, message_id)
        if pending:
            content = compose(pending)
            await store.add_message(connection, message_id, channel.name, content)


async def _record(
    connection: Connection, channel: Channel, message: NotificationMessage, error: str | None
) -> None:
    is_final = message.age_s >= GIVE_UP_S
    status = "SENT" if error is None else "FAILED" if is_final else "PENDING"
    await store.end_attempt(connection, message.id, status, error)
    result = {"SENT": "sent", "PENDING": "retried", "FAILED": "failed"}[status]
    metrics.bound(metrics.NOTIFICATION_ATTEMPTS, channel.name, channel.kind, result).inc()
    fields = {"channel": channel.name, "message_id": str(message.id), "attempt": message.attempts}
    if error is None:
        log.info("notification_sent", **fields, notifications=message.content["total"])
    else:
        write = log.error if is_final else log.warning
        event = "notification_failed" if is_final else "notification_attempt_failed"
        write(event, **fields, error=error)
