"""Asks gateways what events mean that say only "look", and settles them (REC-4, PRV-3).

Nothing is held while a gateway is asked: no transaction, no row. One process at a time asks for a
source, by a lock that ends with its session, so that limits hold for all processes together and a
killed one is followed at once. What an answer does is decided as ever: only then the event is
claimed, and it is settled in that transaction.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from paidonce.awaiting import comes_within
from paidonce.crashpoints import Point, passing
from paidonce.domain.events import EventId, SourceId
from paidonce.engine.bell import Bell
from paidonce.engine.claims import settle_claimed, settle_without_calls
from paidonce.engine.conversations import ask
from paidonce.engine.gateway_calls import Line, Patience, Telephone
from paidonce.engine.handling import broken_transaction
from paidonce.engine.items import Rules
from paidonce.engine.outcomes import report
from paidonce.engine.waiting import Answer
from paidonce.providers.contract import Delivery, Thin
from paidonce.store import asking, due
from paidonce.store.db import Database
from paidonce.store.locks import MAX_SILENCE_S
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_AT_ONCE: Final = 64
MAX_OF_SOURCE: Final = 8
"""How many questions may be under way, in all and to one gateway; one to each, however many."""
SLOWEST_LOOK_S: Final = 5.0
FASTEST_LOOK_S: Final = 0.05
"""However often the bell rings, the queue is not looked at more often than this."""
STANDBY_S: Final = 0.5
"""How often to look whether another process has stopped asking for what is due."""
PAUSE_AFTER_FAILURE_S: Final = 1.0


class Asker:
    """Asks for what is due, each source by itself, and settles what is answered."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        bell: Bell | None = None,
        max_at_once: int = MAX_AT_ONCE,
        patience: Patience | None = None,
    ) -> None:
        self._database = database
        self._rules = rules
        self._ear = (bell or Bell(database)).ear()
        self._patience = patience or Patience()
        self._telephone = Telephone(self._patience)
        self._lines = {
            source.id: Line(self._telephone, source.ask_rate, self._patience.away_s)
            for source in rules.sources.values()
        }
        # A share for each, so that many slow gateways together do not hold up one that answers.
        self._max_of_source = min(max(max_at_once // max(len(self._lines), 1), 1), MAX_OF_SOURCE)
        self._in_hand: dict[EventId, SourceId] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._conversing: set[asyncio.Task[None]] = set()
        self._held: set[SourceId] = set()  # whose gateways nobody else asks
        self._connection: Connection | None = None
        self._connection_in_use = asyncio.Lock()
        self._looked_s = 0.0
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Ask until stopped."""
        try:
            while not self._stop_asked.is_set():
                await self._work()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Ask for what is due, as far as the limits allow; returns how many events were settled."""
        begun = await self._begin()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._connected() as connection:
            await self._let_go(connection, self._held)
        return begun

    def finish(self) -> None:
        """Settle what is answered, and then stop. What is being asked will be asked again."""
        self._stop_asked.set()
        for task in self._conversing:
            task.cancel()
        self._ear.ring()

    async def close(self) -> None:
        """Let go of everything; what was not settled is still in the queue."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._telephone.close()
        self._disconnect()

    async def _work(self) -> None:
        try:
            await self._pause(self._looked_s + FASTEST_LOOK_S - time.monotonic())
            if await self._begin() == 0:
                await self._ear.heard(await self._idle_s())
        except Exception as error:
            log.warning("asker_failed", exc_info=error)
            self._disconnect()
            await self._pause(PAUSE_AFTER_FAILURE_S)

    # What is due

    async def _begin(self) -> int:
        """Begin to ask for what is due, as far as there is room; returns how many events."""
        self._looked_s = time.monotonic()
        async with self._connected() as connection:
            questions = await self._take(connection)
        if self._stop_asked.is_set():
            return 0
        for question in questions:
            self._in_hand[question.event_id] = question.source_id
            task = asyncio.create_task(self._ask_and_settle(question))
            self._tasks.add(task)
            self._conversing.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._conversing.discard)
        return len(questions)

    async def _take(self, connection: Connection) -> list[asking.Question]:
        room = self._room()
        found = await self._find(connection, room)
        if await self._hold(connection, {source_id for source_id, _ in found}):
            found = await self._find(connection, room)  # others may have settled some meanwhile
        left, chosen = Counter(room), []
        for source_id, event_id in found:
            if source_id in self._held and left[source_id] > 0:
                left[source_id] -= 1
                chosen.append(event_id)
        return await asking.read(connection, chosen)

    async def _find(
        self, connection: Connection, room: Mapping[SourceId, int]
    ) -> list[tuple[SourceId, EventId]]:
        if not room:
            return []
        return await asking.due_of_sources(connection, room, self._in_hand, self._max_of_source)

    def _room(self) -> dict[SourceId, int]:
        """How many more questions may be begun, of each source that may be asked now."""
        under_way = Counter(self._in_hand.values())
        room = {
            source_id: line.room(self._max_of_source) - under_way[source_id]
            for source_id, line in self._lines.items()
        }
        return {source_id: number for source_id, number in room.items() if number > 0}

    async def _hold(self, connection: Connection, wanted: set[SourceId]) -> bool:
        """Be the one who asks these sources, and let go of others; returns whether some are new."""
        await self._let_go(connection, self._held - wanted - set(self._in_hand.values()))
        unheld = wanted - self._held
        new = await asking.lock_sources(connection, unheld) if unheld else set()
        self._held |= new
        return bool(new)

    async def _let_go(self, connection: Connection, sources: set[SourceId]) -> None:
        if sources:
            await asking.unlock_sources(connection, sources)
            self._held -= sources

    async def _idle_s(self) -> float:
        """How long there is nothing to do, unless the bell rings or something in hand is done."""
        away_s = [line.away_for_s for line in self._lines.values() if line.away_for_s > 0]
        async with self._connected() as connection:
            next_s = await asking.next_in_s(connection, self._room(), self._in_hand)
        if next_s is not None:
            away_s.append(next_s if next_s > 0 else STANDBY_S)
        return min([*away_s, SLOWEST_LOOK_S])

    # One event

    async def _ask_and_settle(self, question: asking.Question) -> None:
        try:
            answer = await self._answer(question)
            self._conversing.discard(_this_task())
            passing(Point.ASKED)
            if not await self._settle(question, answer):
                await self._pause(PAUSE_AFTER_FAILURE_S)  # somebody else has it in hand
        except Exception as error:
            log.warning("asker_failed", exc_info=error)
            await self._pause(PAUSE_AFTER_FAILURE_S)
        finally:
            del self._in_hand[question.event_id]
            self._ear.ring()

    async def _answer(self, question: asking.Question) -> Answer | None:
        """What its gateway says; None if that need not be asked, or cannot."""
        if not question.waits:
            return None
        provider = self._rules.sources[question.source_id].provider
        try:
            event = provider.translate(
                Delivery(question.headers, question.body, question.received_at)
            )
        except Exception:
            return None  # settling it says what is wrong
        if not isinstance(event, Thin):
            return None
        return await ask(event, self._lines[question.source_id], self._patience.pauses_s)

    async def _settle(self, question: asking.Question, answer: Answer | None) -> bool:
        """Settle the event with what was answered; False if somebody else has it in hand."""
        answers = {} if answer is None else {question.event_id: answer}
        try:
            async with self._connected() as connection, connection.transaction():
                claim = await due.claim_events(connection, [question.event_id])
                settled = await settle_claimed(connection, claim, self._rules, answers=answers)
            is_taken = claim.number > 0
        except Exception as error:
            broken = broken_transaction(error)
            if broken is None:
                raise
            async with self._connected() as connection:
                settled = await settle_without_calls(connection, broken, self._rules, answers)
            is_taken = True
        report(settled)
        return is_taken

    # The connection that holds the locks, and settles one event after the other

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        async with self._connection_in_use:
            if self._connection is None or self._connection.is_closed():
                self._held.clear()  # they went with the connection
                self._connection = await self._database.dedicated(MAX_SILENCE_S)
            yield self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._held.clear()
        if connection is not None:
            connection.terminate()

    async def _pause(self, pause_s: float) -> None:
        """Wait, unless asked to stop."""
        await comes_within(self._stop_asked, pause_s)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
