"""Takes messages: each once, in the transaction of its effect, in order for each key (BUS-1).

A batch that fails is halved until the message at fault is alone. That one is tried again, after
longer and longer pauses, and then buried, so that the group goes on: a person is told of it, and
can have it given to the group again. A database or a bus that is away is waited for.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from paidonce import telemetry
from paidonce.awaiting import comes_within
from paidonce.bus.blame import PAUSE_AFTER_FAILURE_S, Blame, Retries
from paidonce.bus.contract import Bus, Take
from paidonce.bus.dead_letters import DeadLetters, told
from paidonce.bus.messages import Message
from paidonce.bus.ring import FASTEST_POLL_S, Patience, Ring
from paidonce.crashpoints import Point, passing
from paidonce.domain.notices import NoticeKind
from paidonce.errors import BusAwayError, MessageRefusedError
from paidonce.store import cursors, notices
from paidonce.store.db import Database, Trouble, is_away, trouble
from paidonce.store.notices import Notice, Telling
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_BATCH: Final = 500
LOOK_EVERY_S: Final = 1.0
"""How often to look for what an operator wants to be taken again."""
LOOK_S: Final = 0.5
SEEN_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """What came of looking for messages once."""

    fetched: int = 0
    pause_s: float | None = None
    """How long to wait before the next turn, if a batch has failed."""


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
        self._blame = Blame(retries or Retries(), max_batch)
        self._told_to = told_to or {}
        self._dead_letters = DeadLetters(name, self._told_to)
        self._ring = ring or Ring()
        self._ear = self._ring.ear()
        self._patience = Patience()
        self._fetched: Sequence[Message] = ()
        self._fresh: Sequence[Message] = ()
        self._connection: Connection | None = None
        self._seen_due_s = 0.0
        self._untold_losses = 0
        self._look_due_s = 0.0
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
        return (await self._turn()).fetched

    async def retry_once(self) -> bool:
        """Take one dead letter that an operator wants to be taken; returns whether to go on."""
        has_more = await self._dead_letters.retry_once(await self._connected(), self._take)
        if has_more:
            self._ring.ring()
        return has_more

    async def _turn(self) -> _Turn:
        self._fetched = self._fresh = ()
        try:
            connection = await self._connected()
            if await self._reader.wait(connection, self._blame.limit):
                await self._take_batch(connection)
        except Exception as error:  # who is cut off rewinds when it waits again, if ever
            await self._reader.rewind()
            if self._is_away(error):
                raise
            return _Turn(pause_s=self._fail(error))
        if self._fetched:
            self._succeed()
            await self._reader.acknowledge()
        return _Turn(len(self._fetched))

    async def _take_batch(self, connection: Connection) -> None:
        """In one transaction: what is fetched is known as taken, its effect is written."""
        async with connection.transaction():
            self._fetched = await self._reader.fetch(connection, self._blame.limit)
            if not self._fetched:
                return
            passing(Point.FETCHED)
            self._fresh = await self._claimed(connection, self._fetched)
            hopeful = await self._bury_hopeless(connection, self._fresh)
            if hopeful:
                await self._take(connection, hopeful)
            await self._reader.settle(connection)
            passing(Point.TAKEN)
        passing(Point.TAKEN_FOR_GOOD)

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
            failure = self._blame.final(message)
            if failure is None:
                hopeful.append(message)
            else:
                await self._dead_letters.bury(connection, self._reader, message, failure)
        return hopeful

    def _succeed(self) -> None:
        """The batch is committed: count it."""
        buried = [one for one in self._fresh if self._blame.final(one) is not None]
        for message in buried:
            log.error("message_buried", consumer=self._name, **_named(message))
        now = datetime.now(UTC)
        latency = telemetry.bound_histogram(telemetry.BUS_LATENCY, self._name)
        for message in self._fresh:
            if message.published_at is not None and self._blame.final(message) is None:
                latency.observe(max((now - message.published_at).total_seconds() * 1000, 0.0))
        duplicates = len(self._fetched) - len(self._fresh)
        telemetry.bound(telemetry.TAKEN, self._name).inc(len(self._fresh) - len(buried))
        telemetry.bound(telemetry.BUS_DUPLICATES, self._name).inc(duplicates)
        telemetry.bound(telemetry.BURIED, self._name).inc(len(buried))
        self._blame.succeeded(self._fresh)
        self._ring.ring()

    def _fail(self, error: Exception) -> float:
        """Nothing of the batch was taken; returns the pause before the next try."""
        if trouble(error) is Trouble.RERUN and (pause_s := self._blame.lost_race()) is not None:
            return pause_s
        is_refused = isinstance(error, MessageRefusedError)
        pause_s = self._blame.failed(self._fresh, told(error), is_refused=is_refused)
        named = _named(self._fresh[0]) if len(self._fresh) == 1 else {"count": len(self._fresh)}
        log.warning("messages_failed", consumer=self._name, **named, exc_info=error)
        return pause_s

    async def _work(self) -> None:
        """One batch, and what has to be done now and then; then wait as long as is right."""
        begun_s = time.monotonic()
        try:
            await self._be_seen()
            await self._look_for_retries()
            turn = await self._turn()
        except Exception as error:
            detail = str(error) if isinstance(error, BusAwayError) else type(error).__name__
            log.warning("consumer_waits", consumer=self._name, detail=detail)
            self._let_go()
            await self._pause(PAUSE_AFTER_FAILURE_S)
            return
        if turn.pause_s is not None:
            await self._pause(turn.pause_s)
        elif turn.fetched:
            self._patience.found()
        else:
            # Where the reader itself has waited, that was waiting enough.
            waited_s = time.monotonic() - begun_s
            await self._ear.wait(max(self._patience.next_s() - waited_s, FASTEST_POLL_S))

    async def _be_seen(self) -> None:
        """Say now and then that the group is at work, and how far behind it is."""
        if time.monotonic() < self._seen_due_s:
            return
        connection = await self._connected()
        try:
            behind = await self._reader.behind(connection)
        except BusAwayError as error:
            # A part of a bus may be silent: what the others give is taken all the same.
            log.warning("lag_unknown", consumer=self._name, detail=str(error))
            await cursors.be_here(connection, self._name, self._about)
        else:
            lags = None if behind is None else behind.lags
            self._untold_losses += 0 if behind is None else behind.lost
            await cursors.be_seen(connection, self._name, self._about, lags)
        self._seen_due_s = time.monotonic() + SEEN_EVERY_S
        if self._untold_losses:
            await self._tell_of_losses(connection)

    async def _tell_of_losses(self, connection: Connection) -> None:
        number = self._untold_losses
        details = notices.clean({"consumer": self._name, "messages": number})
        notice = Notice(NoticeKind.BUS_LOSS, datetime.now(UTC), details=details)
        await notices.add(connection, self._told_to, notice)
        log.error("messages_gone_untaken", consumer=self._name, count=number)
        telemetry.bound(telemetry.BUS_LOST, self._name).inc(number)
        self._untold_losses = 0

    async def _look_for_retries(self) -> None:
        """Take dead letters for a moment; what is new must not wait for all of them."""
        begun_s = time.monotonic()
        if begun_s < self._look_due_s:
            return
        self._look_due_s = begun_s + LOOK_EVERY_S
        while not self._stop_asked.is_set() and await self.retry_once():
            if time.monotonic() > begun_s + LOOK_S:
                self._look_due_s = 0.0
                return

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


def _named(message: Message) -> dict[str, str]:
    """Which message it is, for the log."""
    return {"event_id": str(message.id), "type": message.type, "key": message.key}
