"""Consumes messages: each once, in the transaction of its effect, in order for each key (BUS-1).

A batch that fails is halved until the failing message is alone. That message is retried with
growing delays, and then becomes a dead letter, so that the group continues: a notification is sent,
and an operator can retry it. The consumer waits for a database or a bus that is unavailable.
"""

import time
from collections.abc import Collection, Sequence
from typing import Final

from paidonce.bus import groups
from paidonce.bus.bisect import PAUSE_AFTER_FAILURE_S, BatchBisection, Retries
from paidonce.bus.contract import Bus, Consume
from paidonce.bus.dead_letters import DeadLetterQueue, error_text
from paidonce.bus.model import Message
from paidonce.clock import CLOCK
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database, Trouble, is_away, trouble
from paidonce.db.queries import Connection
from paidonce.errors import BusUnavailableError, InvalidMessageError
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes, clean
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.service import POLLING, Delays, Service
from paidonce.runtime.wakeup import Wakeup
from paidonce.telemetry import logger, metrics

log = logger(__name__)

MAX_BATCH: Final = 500
RETRY_POLL_S: Final = 1.0
"""How often to look for dead letters that an operator retries."""
RETRY_FOR_S: Final = 0.5
HEARTBEAT_S: Final = 10.0


class Consumer(Service):
    """One member of a consumer group. Any number may run; one of them consumes each message."""

    def __init__(
        self,
        bus: Bus,
        database: Database,
        *,
        name: str,
        aggregate_types: Collection[str],
        consume: Consume,
        retries: Retries | None = None,
        routes: Routes | None = None,
        wakeup: Wakeup | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        super().__init__(f"consumer {name}")
        self._database = database
        self._name = name
        self._aggregate_types = sorted(aggregate_types)
        self._consume = consume
        self._reader = bus.reader(name, aggregate_types)
        self._bisection = BatchBisection(retries or Retries(), max_batch)
        self._routes = routes or {}
        self._dead_letters = DeadLetterQueue(name, self._routes)
        self._wakeup = wakeup or Wakeup()
        self._listener = self._wakeup.listener()
        self._delays = Delays(POLLING)
        self._fetched: Sequence[Message] = ()
        self._new: Sequence[Message] = ()
        self._connection: Connection | None = None
        self._heartbeat_due_s = 0.0
        self._unreported_losses = 0
        self._retry_due_s = 0.0

    async def run(self) -> None:
        """Work until asked to finish."""
        try:
            while not self.is_finishing:
                await self._work()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection and the reader."""
        self._disconnect()
        await self._reader.close()

    async def run_once(self) -> int:
        """Consume one batch; returns how many messages were fetched, duplicates included.

        A message that fails is delivered again with the next call; one that has failed often
        enough becomes a dead letter. Raises if the database or the bus is unavailable.
        """
        await self._turn()
        return len(self._fetched)

    async def retry_once(self) -> bool:
        """Consume one dead letter that an operator retries; returns whether more may follow."""
        has_more = await self._dead_letters.retry_once(await self._connect(), self._consume)
        if has_more:
            self._wakeup.wake()
        return has_more

    async def _turn(self) -> float | None:
        """Consume one batch; returns the pause before the next turn if the batch failed."""
        self._fetched = self._new = ()
        try:
            connection = await self._connect()
            if await self._reader.wait(connection, self._bisection.limit):
                await self._consume_batch(connection)
        except Exception as error:  # after a cancellation, the next `wait` rewinds
            await self._reader.rewind()
            if isinstance(error, BusUnavailableError) or is_away(error, self._connection):
                raise
            self._fetched = ()
            return self._fail(error)
        if self._fetched:
            self._succeed()
            await self._reader.acknowledge()
        return None

    async def _consume_batch(self, connection: Connection) -> None:
        """Fetch, claim and consume messages in one transaction."""
        async with connection.transaction():
            self._fetched = await self._reader.fetch(connection, self._bisection.limit)
            if not self._fetched:
                return
            maybe_crash(CrashPoint.FETCHED)
            self._new = await self._claim(connection, self._fetched)
            open_ = await self._dead_letter_failed(connection, self._new)
            if open_:
                await self._consume(connection, open_)
            await self._reader.advance(connection)
            maybe_crash(CrashPoint.CONSUMED)
        maybe_crash(CrashPoint.CONSUMED_COMMITTED)

    async def _claim(
        self, connection: Connection, messages: Sequence[Message]
    ) -> Sequence[Message]:
        """Claim messages; returns those that the group has not consumed before, each once."""
        first = {message.id: message for message in reversed(messages)}
        new = await groups.claim(connection, self._name, first.keys())
        return [one for one in messages if one.id in new and one is first[one.id]]

    async def _dead_letter_failed(
        self, connection: Connection, messages: Sequence[Message]
    ) -> Sequence[Message]:
        """Store those that failed often enough as dead letters; returns the others."""
        others: list[Message] = []
        for message in messages:
            failure = self._bisection.final_failure(message)
            if failure is None:
                others.append(message)
            else:
                await self._dead_letters.add(connection, self._reader, message, failure)
        return others

    def _succeed(self) -> None:
        """Count the messages of a committed batch."""
        dead = [one for one in self._new if self._bisection.final_failure(one) is not None]
        for message in dead:
            log.error("message_dead_lettered", consumer=self._name, **_log_fields(message))
        now = CLOCK.now()
        latency = metrics.bound_histogram(metrics.BUS_LATENCY, self._name)
        for message in self._new:
            if message.published_at is not None and self._bisection.final_failure(message) is None:
                latency.observe(max((now - message.published_at).total_seconds() * 1000, 0.0))
        duplicates = len(self._fetched) - len(self._new)
        metrics.bound(metrics.BUS_CONSUMED, self._name).inc(len(self._new) - len(dead))
        metrics.bound(metrics.BUS_DUPLICATES, self._name).inc(duplicates)
        metrics.bound(metrics.BUS_DEAD_LETTERED, self._name).inc(len(dead))
        self._bisection.succeeded(self._new)
        self._wakeup.wake()

    def _fail(self, error: Exception) -> float:
        """Record a failed batch; returns the pause before the next try."""
        if trouble(error) is Trouble.RERUN and (pause_s := self._bisection.lost_race()) is not None:
            return pause_s
        is_refused = isinstance(error, InvalidMessageError)
        pause_s = self._bisection.failed(self._new, error_text(error), is_refused=is_refused)
        fields = _log_fields(self._new[0]) if len(self._new) == 1 else {"count": len(self._new)}
        log.warning("consume_failed", consumer=self._name, **fields, exc_info=error)
        return pause_s

    async def _work(self) -> None:
        """Consume a batch, and do the periodic work; then wait for messages."""
        started_s = time.monotonic()
        try:
            await self._heartbeat()
            await self._consume_retries()
            pause_s = await self._turn()
        except Exception as error:  # the reader stays: to join a group again takes seconds
            self.record_failure(error, PAUSE_AFTER_FAILURE_S)
            self._disconnect()
            await self.pause(PAUSE_AFTER_FAILURE_S)
            return
        if pause_s is not None:
            await self.pause(pause_s)
        elif self._fetched:
            self._delays.reset()
        else:
            # The reader may have waited itself.
            waited_s = time.monotonic() - started_s
            await self._listener.wait(max(self._delays.next_s() - waited_s, POLLING.initial_s))

    async def _heartbeat(self) -> None:
        """Record at times that the group is active, and its lag."""
        if time.monotonic() < self._heartbeat_due_s:
            return
        connection = await self._connect()
        lags = None
        try:
            lag = await self._reader.lag()
            self._unreported_losses += lag.lost
            lags = lag.by_type
        except BusUnavailableError as error:
            # Some partitions may be unavailable while messages of the others are consumed.
            log.warning("lag_unknown", consumer=self._name, detail=str(error))
        await groups.heartbeat(connection, self._name, self._aggregate_types, lags)
        self._heartbeat_due_s = time.monotonic() + HEARTBEAT_S
        if self._unreported_losses:
            await self._report_losses(connection)

    async def _report_losses(self, connection: Connection) -> None:
        number = self._unreported_losses
        details = clean({"consumer": self._name, "messages": number})
        notification = Notification(NotificationKind.BUS_LOSS, CLOCK.now(), details=details)
        await notifications_store.add(connection, self._routes, notification)
        log.error("messages_lost", consumer=self._name, count=number)
        metrics.bound(metrics.BUS_LOST, self._name).inc(number)
        self._unreported_losses = 0

    async def _consume_retries(self) -> None:
        """Consume retried dead letters for a moment; new messages must not wait for all of them."""
        started_s = time.monotonic()
        if started_s < self._retry_due_s:
            return
        self._retry_due_s = started_s + RETRY_POLL_S
        while not self.is_finishing and await self.retry_once():
            if time.monotonic() > started_s + RETRY_FOR_S:
                self._retry_due_s = 0.0
                return

    async def _connect(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
            await groups.register(self._connection, self._name, self._aggregate_types)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _log_fields(message: Message) -> dict[str, str]:
    return {"event_id": str(message.id), "type": message.type, "key": message.key}
