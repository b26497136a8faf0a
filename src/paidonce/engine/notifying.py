"""Tells people what they should know, outside of everything that settles (OBS-5).

Notices were written with the facts that they are of. For each channel those that are untold become
one message, which is committed with its id and its words before it is sent; what is sent and not
recorded is sent again, with the same id. One process at a time does it, and each channel by itself:
one that hangs, or is away for hours, holds up nobody.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from uuid_utils.compat import uuid7

from paidonce import telemetry
from paidonce.awaiting import comes_within
from paidonce.crashpoints import Point, passing
from paidonce.engine.channels import Channel
from paidonce.engine.composing import composed, trial_content
from paidonce.errors import NotTakenError
from paidonce.store import notices
from paidonce.store.db import Database
from paidonce.store.locks import held_by_us
from paidonce.store.notices import Message
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

LOCK: Final = "notifier"
POLL_S: Final = 1.0
FOLLOWER_POLL_S: Final = 5.0
"""How often a process looks whether the one that tells people is gone."""
DELAYS_S: Final = (*(float(2**power) for power in range(12)), 3600.0)
"""How long to wait after each attempt in vain: a second, two, four, … and then an hour each."""
GIVE_UP_S: Final = 86_400.0
"""After that the message is given up; what it told is in the next one, with what has come since."""


class Notifier:
    """Sends to each channel what it is to be told."""

    def __init__(self, database: Database, channels: Mapping[str, Channel]) -> None:
        self._database = database
        self._channels = tuple(channels.values())
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped; without channels there is nothing to do."""
        while self._channels and not self._stop_asked.is_set():
            await self.lead()
            await self._pause(FOLLOWER_POLL_S)

    def finish(self) -> None:
        """Begin nothing new."""
        self._stop_asked.set()

    async def run_once(self) -> int:
        """See to each channel once; returns how many messages were taken."""
        sent = await asyncio.gather(*(self.tend(channel) for channel in self._channels))
        return sum(sent)

    async def tend(self, channel: Channel) -> bool:
        """Send the channel what is due; returns whether a message was taken."""
        async with self._database.connection() as connection:
            if await notices.is_time_for(connection, channel.name, channel.every_s):
                await self._compose(connection, channel)
            message = await notices.begin_attempt(connection, channel.name, DELAYS_S)
        if message is None:
            return False
        error = await _sent(channel, message)
        passing(Point.TOLD)
        await self._record(channel, message, error)
        return error is None

    async def _compose(self, connection: Connection, channel: Channel) -> None:
        """Put all that is untold into one message."""
        async with connection.transaction():
            message_id = uuid7()
            taken = await notices.take(connection, channel.name, message_id)
            if taken:
                content = composed(taken)
                await notices.add_message(connection, message_id, channel.name, content)

    async def _record(self, channel: Channel, message: Message, error: str | None) -> None:
        is_over = message.age_s >= GIVE_UP_S
        status = "SENT" if error is None else "GIVEN_UP" if is_over else "WAITING"
        async with self._database.transaction() as connection:
            await notices.end(connection, message.id, status, error)
        result = {"SENT": "sent", "WAITING": "failed", "GIVEN_UP": "given_up"}[status]
        telemetry.bound(telemetry.NOTICES_SENT, channel.name, channel.kind, result).inc()
        said = {"channel": channel.name, "message_id": str(message.id), "attempt": message.attempts}
        if error is None:
            log.info("notices_sent", **said, notices=message.content["total"])
        else:
            tell = log.error if is_over else log.warning
            tell("notices_given_up" if is_over else "notices_not_sent", **said, error=error)

    async def lead(self) -> None:
        """Be the one that tells people until stopped or cut off; not if somebody else is."""
        try:
            connection = await self._database.dedicated()
        except Exception as error:
            log.warning("notifier_failed", error=type(error).__name__)
            return
        try:
            async with held_by_us(connection, LOCK) as is_ours:
                if is_ours:
                    tending = (self._tend_always(one, connection) for one in self._channels)
                    await asyncio.gather(*tending)
        except Exception as error:
            log.warning("notifier_failed", exc_info=error)
        finally:
            connection.terminate()

    async def _tend_always(self, channel: Channel, lock: Connection) -> None:
        while not self._stop_asked.is_set() and not lock.is_closed():
            try:
                await self.tend(channel)
            except Exception as error:
                log.warning("notifier_failed", channel=channel.name, exc_info=error)
            await self._pause(POLL_S)

    async def _pause(self, pause_s: float) -> None:
        """Wait, unless asked to stop."""
        await comes_within(self._stop_asked, pause_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a test message."""

    channel: str
    kind: str
    is_taken: bool
    said: str


async def tried(channel: Channel) -> Trial:
    """Send the channel a test message, which is kept nowhere."""
    message = Message(uuid7(), datetime.now(UTC), trial_content(channel.name), 1, 0.0)
    try:
        said = await channel.way.send(message)
    except NotTakenError as error:
        return Trial(channel.name, channel.kind, False, str(error))
    return Trial(channel.name, channel.kind, True, said)


async def _sent(channel: Channel, message: Message) -> str | None:
    """Send it; returns what went wrong, if anything did."""
    try:
        await channel.way.send(message)
    except NotTakenError as error:
        return str(error)
    return None
