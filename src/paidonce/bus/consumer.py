"""Takes messages: each once, in the transaction of its effect, in order for each key (BUS-1).

A batch that fails is halved until the message at fault is alone. That one is tried again, after
longer and longer pauses, and then buried, so that the group goes on: a person is told of it, and
can have it given to the group again. A database or a bus that is away is waited for.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from paidonce import telemetry
from paidonce.awaiting import comes_within
from paidonce.bus.contract import Bus
from paidonce.bus.messages import Message
from paidonce.bus.ring import FASTEST_POLL_S, Patience, Ring
from paidonce.crashpoints import Point, passing
from paidonce.domain.notices import NoticeKind
from paidonce.errors import BusAwayError, MessageRefusedError
from paidonce.store import cursors, dead_messages, notices
from paidonce.store.db import Database, Trouble, is_away, trouble
from paidonce.store.dead_messages import Retried
from paidonce.store.notices import Notice, Telling
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_BATCH: Final = 500
MAX_RERUNS: Final = 20
"""How often in a row a lost race is run again before it counts as a failure."""
RERUN_PAUSE_S: Final = 0.05
MAX_FAILURES_KNOWN: Final = 1_000
PAUSE_AFTER_FAILURE_S: Final = 0.5
LOOK_EVERY_S: Final = 1.0
"""How often to look for what an operator wants to be taken again."""
SEEN_EVERY_S: Final = 10.0
_JITTER: Final = 0.2

Take = Callable[[Connection, Sequence[Message]], Awaitable[None]]
"""Writes the effect of some messages, none of which the group has taken before, in the transaction
that is open. Raises MessageRefusedError for what cannot be taken however often it comes."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a message that fails alone is tried, and after which pauses."""

    attempts: int = 5
    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0

    def pause_s(self, times: int) -> float:
        """How long to wait after it has failed this many times."""
        pause_s = min(self.initial_s * self.factor ** (times - 1), self.max_s)
        return pause_s * (1 + _JITTER * random.random())


@dataclass(frozen=True, slots=True)
class _Failure:
    """How often a message failed alone, at last with what, and whether that is enough."""

    attempts: int
    error: str
    is_final: bool


class Consumer:
    """One of the processes of a group. Any number may run; each message is taken by one of them."""

    def __init__(
        self,
        bus: Bus,
        database: Database,
        *,
        name: str,
        about: Collection[str],
        take: Take,
        retries: Retries | None = None,
        told_to: Telling | None = None,
        ring: Ring | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._database = database
        self._name = name
        self._about = sorted(about)
        self._take = take
        self._reader = bus.reader(name, about)
        self._retries = retries or Retries()
        self._told_to = told_to or {}
        self._ring = ring or Ring()
        self._ear = self._ring.ear()
        self._max_batch = max_batch
        self._limit = max_batch
        self._fetched: Sequence[Message] = ()
        self._fresh: Sequence[Message] = ()
        self._failures: dict[UUID, _Failure] = {}
        self._reruns = 0
        self._pause_s = 0.0
        self._patience = Patience()
        self._connection: Connection | None = None
        self._due_s = {"look": 0.0, "seen": 0.0}
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped."""
        try:
            while not self._stop_asked.is_set():
                await self._work()
        finally:
            await self.close()

    def finish(self) -> None:
        """Finish the batch in hand, and then stop."""
        self._stop_asked.set()
        self._ear.ring()

    async def close(self) -> None:
        """Let go of the connection and of the reader."""
        self._let_go()
        await self._reader.close()

    async def run_once(self) -> int:
        """Take one batch; returns how many messages were fetched, taken before or not.

        A message that fails is not taken, and comes again with the next call; one that has failed
        often enough is buried by it. Raises what means that the database or the bus is away.
        """
        try:
            connection = await self._connected()
            taken = await self._take_batch(connection)
        except BaseException as error:
            await self._reader.rewind()
            if not isinstance(error, Exception) or self._is_away(error):
                raise
            self._fail(error)
            return 0
        if taken:
            self._succeed()
            await self._reader.acknowledge()
        return taken

    async def retry_once(self) -> bool:
        """Take one dead letter that an operator wants to be taken; returns whether there was one.

        It is out of its order: what came after it has been taken long ago.
        """
        connection = await self._connected()
        letter = None
        try:
            async with connection.transaction():
                letter = await dead_messages.next_retried(connection, self._name)
                if letter is None:
                    return False
                await self._take(connection, [_message_of(letter)])
                await dead_messages.taken(connection, letter.id)
        except Exception as error:
            if letter is None or self._is_away(error) or trouble(error) is Trouble.RERUN:
                raise
            log.warning("dead_letter_failed_again", letter_id=letter.id, exc_info=error)
            await dead_messages.failed_again(connection, letter.id, _told(error))
            return True
        self._ring.ring()
        telemetry.bound(telemetry.TAKEN, self._name).inc()
        return True

    async def _take_batch(self, connection: Connection) -> int:
        """In one transaction: what is fetched is known as taken, its effect is written."""
        self._fetched = self._fresh = ()
        async with connection.transaction():
            self._fetched = await self._reader.fetch(connection, self._limit)
            if not self._fetched:
                return 0
            passing(Point.FETCHED)
            self._fresh = await self._claimed(connection, self._fetched)
            hopeful = await self._bury_hopeless(connection, self._fresh)
            if hopeful:
                await self._take(connection, hopeful)
            await self._reader.settle(connection)
            passing(Point.TAKEN)
        passing(Point.TAKEN_FOR_GOOD)
        return len(self._fetched)

    async def _claimed(
        self, connection: Connection, messages: Sequence[Message]
    ) -> Sequence[Message]:
        """Those that the group has not taken before, each once."""
        first = {message.id: message for message in reversed(messages)}
        new = await cursors.claim(connection, self._name, first.keys())
        return [one for one in messages if one.id in new and one is first[one.id]]

    async def _bury_hopeless(
        self, connection: Connection, messages: Sequence[Message]
    ) -> Sequence[Message]:
        """Bury those that have failed often enough; returns the others."""
        hopeful: list[Message] = []
        for message in messages:
            failure = self._failures.get(message.id)
            if failure is None or not failure.is_final:
                hopeful.append(message)
            else:
                await self._bury(connection, message, failure)
        return hopeful

    async def _bury(self, connection: Connection, message: Message, failure: _Failure) -> None:
        await dead_messages.bury(
            connection,
            consumer=self._name,
            event_id=message.id,
            topic=message.topic,
            key=message.key,
            type_=message.type,
            version=message.version,
            time=message.time,
            body=message.body,
            error=failure.error,
            attempts=failure.attempts,
        )
        await self._reader.bury(connection, message, failure.error, failure.attempts)
        said = {"consumer": self._name, "type": message.type, "key": message.key}
        details = notices.clean({**said, "message": failure.error})
        notice = Notice(NoticeKind.BUS_DEAD_LETTER, datetime.now(UTC), details=details)
        await notices.add(connection, self._told_to, notice)

    def _succeed(self) -> None:
        """The batch is committed: count it, and take more at once the next time."""
        buried = 0
        now = datetime.now(UTC)
        latency = telemetry.bound_histogram(telemetry.BUS_LATENCY, self._name)
        for message in self._fresh:
            failure = self._failures.pop(message.id, None)
            if failure is not None and failure.is_final:
                buried += 1
                log.error("message_buried", consumer=self._name, event_id=str(message.id))
            elif message.published_at is not None:
                latency.observe(max((now - message.published_at).total_seconds() * 1000, 0.0))
        fresh, duplicates = len(self._fresh) - buried, len(self._fetched) - len(self._fresh)
        telemetry.bound(telemetry.TAKEN, self._name).inc(fresh)
        telemetry.bound(telemetry.BUS_DUPLICATES, self._name).inc(duplicates)
        telemetry.bound(telemetry.BURIED, self._name).inc(buried)
        self._limit = min(self._limit * 2, self._max_batch)
        self._reruns = 0
        self._ring.ring()

    def _fail(self, error: Exception) -> None:
        """Nothing of the batch was taken. Say how it is tried again: at once, in part, or later."""
        if trouble(error) is Trouble.RERUN and self._reruns < MAX_RERUNS:
            self._reruns += 1
            self._pause_s = RERUN_PAUSE_S * random.random()
            return
        self._reruns = 0
        hopeful = [one for one in self._fresh if not self._is_hopeless(one)]
        if len(hopeful) != 1:
            log.warning("batch_halved", consumer=self._name, messages=len(hopeful), exc_info=error)
            self._limit = max(len(self._fetched) // 2, 1)
            self._pause_s = 0.0 if hopeful else PAUSE_AFTER_FAILURE_S
            return
        self._fail_alone(hopeful[0], error)

    def _fail_alone(self, message: Message, error: Exception) -> None:
        before = self._failures.pop(message.id, None)
        attempts = before.attempts + 1 if before else 1
        is_final = isinstance(error, MessageRefusedError) or attempts >= self._retries.attempts
        self._failures[message.id] = _Failure(attempts, _told(error), is_final)
        while len(self._failures) > MAX_FAILURES_KNOWN:
            del self._failures[next(iter(self._failures))]
        self._pause_s = 0.0 if is_final else self._retries.pause_s(attempts)
        log.warning(
            "message_failed",
            consumer=self._name,
            event_id=str(message.id),
            attempt=attempts,
            exc_info=error,
        )

    def _is_hopeless(self, message: Message) -> bool:
        failure = self._failures.get(message.id)
        return failure is not None and failure.is_final

    async def _work(self) -> None:
        """One batch, and what has to be done now and then; then wait as long as is right."""
        self._pause_s = 0.0
        begun_s = time.monotonic()
        try:
            await self._now_and_then()
            taken = await self.run_once()
        except Exception as error:
            log.warning("consumer_waits", consumer=self._name, error=type(error).__name__)
            self._let_go()
            await self._pause(PAUSE_AFTER_FAILURE_S)
            return
        if taken:
            self._patience.found()
        elif self._pause_s:
            await self._pause(self._pause_s)
        elif not self._fetched:
            # Where the fetch itself has waited, that was waiting enough.
            waited_s = time.monotonic() - begun_s
            await self._ear.wait(max(self._patience.next_s() - waited_s, FASTEST_POLL_S))

    async def _now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._due_s["seen"]:
            self._due_s["seen"] = now_s + SEEN_EVERY_S
            connection = await self._connected()
            lag = await self._reader.lag(connection)
            await cursors.be_seen(connection, self._name, self._about, lag)
        if now_s >= self._due_s["look"]:
            has_more = await self.retry_once()
            self._due_s["look"] = 0.0 if has_more else now_s + LOOK_EVERY_S

    def _is_away(self, error: Exception) -> bool:
        return isinstance(error, BusAwayError) or is_away(error, self._connection)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
            await cursors.appear(self._connection, self._name, self._about)
        return self._connection

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _pause(self, pause_s: float) -> None:
        """Wait, unless asked to stop."""
        await comes_within(self._stop_asked, pause_s)


def _message_of(letter: Retried) -> Message:
    return Message(
        id=letter.event_id,
        topic=letter.topic,
        key=letter.key,
        type=letter.type,
        version=letter.version,
        time=letter.time,
        body=letter.body,
    )


def _told(error: Exception) -> str:
    """What is kept of an error. Others' own words may hold what is in the message."""
    refused = isinstance(error, MessageRefusedError)
    return notices.shown(f"{error}" if refused else type(error).__name__)
