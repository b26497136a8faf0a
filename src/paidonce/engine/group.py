"""Group commit: deliveries that arrive together share one transaction.

There is no timer. A flusher that is free takes everything that waits; a lone delivery goes at
once, and under load the batches grow by themselves.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paidonce.crashpoints import Point, passing
from paidonce.domain.email import email_key
from paidonce.domain.events import DEFERRED, PaymentEvent
from paidonce.engine.bell import Bell
from paidonce.engine.items import (
    Incoming,
    Refused,
    Result,
    Rules,
    Verdict,
)
from paidonce.engine.outcomes import report
from paidonce.engine.transactions import Settler
from paidonce.errors import DatabaseAwayError, IntakeFullError
from paidonce.store.db import Database
from paidonce.telemetry import logger

log = logger(__name__)

FLUSHERS: Final = 2
MAX_BATCH: Final = 128
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_PASSED_OVER: Final = 512
BUSY_PAUSE_S: Final = 0.02
BUSY_PATIENCE_S: Final = 0.5
BUSY_LIMIT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 1.0

Arrival = Incoming | Refused


@dataclass(slots=True, eq=False)
class _Entry:
    """A delivery that waits for its transaction, and whoever waits for the answer."""

    item: Arrival
    answer: asyncio.Future[Verdict]
    since_s: float
    touches: frozenset[Hashable]  # what two flushers should not have in hand at once


class Group:
    """The queue before the database, and the flushers that empty it."""

    def __init__(
        self, database: Database, rules: Rules, max_waiting: int, bell: Bell | None = None
    ) -> None:
        self._database = database
        self._bell = bell or Bell(database)
        self._rules = rules
        self._max_waiting = max_waiting
        self._waiting: deque[_Entry] = deque()
        self._in_hand: set[_Entry] = set()
        self._pausing: set[_Entry] = set()  # busy: they rejoin in a moment
        self._is_given_up = False
        self._in_flight: set[Hashable] = set()
        self._arrived = asyncio.Event()
        self._emptied = asyncio.Event()
        self._flushers: list[asyncio.Task[None]] = []

    async def submit(self, item: Arrival) -> Verdict:
        """Settle the delivery together with others; returns after the commit.

        Raises IntakeFullError or DatabaseAwayError, and then nothing was promised.
        """
        if self._is_given_up:
            raise DatabaseAwayError("the service is stopping")
        if len(self._waiting) + len(self._in_hand) + len(self._pausing) >= self._max_waiting:
            raise IntakeFullError("too many deliveries wait for the database")
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(item, answer, time.monotonic(), _touches(item)))
        self._arrived.set()
        return await answer

    def start(self) -> None:
        """Start the flushers."""
        self._flushers = [
            asyncio.create_task(self._flush_forever(), name=f"flusher-{number}")
            for number in range(FLUSHERS)
        ]

    @property
    def is_running(self) -> bool:
        """Whether there is a flusher to empty the queue."""
        return any(not flusher.done() for flusher in self._flushers)

    def give_up(self) -> None:
        """Answer whoever still waits that he has to come again: the service stops.

        What is being settled may be committed all the same; then it is known when it comes again.
        """
        self._is_given_up = True
        left = [*self._waiting, *self._in_hand, *self._pausing]
        _fail(left, DatabaseAwayError("the service is stopping"))
        self._waiting.clear()

    async def stop(self) -> None:
        """Settle what waits, then stop; by force after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._empty()
        for flusher in self._flushers:
            flusher.cancel()
        if self._flushers:
            await asyncio.wait(self._flushers, timeout=STOP_TIMEOUT_S)

    async def _empty(self) -> None:
        while (self._waiting or self._in_hand or self._pausing) and self.is_running:
            self._emptied.clear()
            await self._emptied.wait()

    async def _flush_forever(self) -> None:
        settler = Settler(self._database, self._rules)
        try:
            while True:
                batch = self._take()
                if batch:
                    await self._flush(settler, batch)
                else:
                    self._emptied.set()
                    self._arrived.clear()
                    await self._arrived.wait()
        finally:
            await settler.close()

    def _take(self) -> list[_Entry]:
        """What waits, up to the limits, without what touches what another flusher has in hand.

        Two deliveries of one event, payment or address would only wait for each other.
        """
        batch: list[_Entry] = []
        passed_over: list[_Entry] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            if len(passed_over) == MAX_PASSED_OVER:
                break
            entry = self._waiting.popleft()
            if entry.answer.done():  # the client went away, and nothing was promised
                continue
            if not self._in_flight.isdisjoint(entry.touches):
                passed_over.append(entry)
                continue
            batch.append(entry)
            size += len(entry.item.delivery.body)
        self._waiting.extendleft(reversed(passed_over))
        return batch

    async def _flush(self, settler: Settler, batch: list[_Entry]) -> None:
        touched = frozenset[Hashable]().union(*(entry.touches for entry in batch))
        self._in_flight |= touched
        self._in_hand.update(batch)
        try:
            await self._settle(settler, batch)
        except DatabaseAwayError as error:
            log.warning("database_away", deliveries=len(batch), error=str(error))
            _fail(batch, error)
        except Exception as error:
            log.exception("flush_failed", deliveries=len(batch))
            _fail(batch, DatabaseAwayError(f"settling failed: {type(error).__name__}"))
        finally:
            self._in_hand.difference_update(batch)
            self._in_flight -= touched
            self._arrived.set()
            self._emptied.set()

    async def _settle(self, settler: Settler, batch: Sequence[_Entry]) -> None:
        settled = await settler.settle([entry.item for entry in batch])
        passing(Point.COMMITTED)
        for entry, verdict in zip(batch, settled.verdicts, strict=True):
            if verdict.result is Result.BUSY:
                self._come_again(entry)
            elif entry.answer.done():
                continue
            elif verdict.result is Result.NOT_STORED:
                entry.answer.set_exception(DatabaseAwayError("it could not be stored"))
            else:
                entry.answer.set_result(verdict)
        if settled.schedules:
            self._bell.ring()
        report(settled)

    def _come_again(self, entry: _Entry) -> None:
        """One locked row must not stall the rest: its delivery rejoins, and at last is stored.

        If even that is held up for long, whoever sent it has to send it again.
        """
        waited_s = time.monotonic() - entry.since_s
        if waited_s > BUSY_LIMIT_S or self._is_given_up:
            _fail([entry], DatabaseAwayError("others held what it needs for too long"))
            return
        if waited_s > BUSY_PATIENCE_S and isinstance(entry.item, Incoming):
            entry.item = replace(entry.item, preset=DEFERRED)
        self._pausing.add(entry)
        asyncio.get_running_loop().call_later(BUSY_PAUSE_S, self._rejoin, entry)

    def _rejoin(self, entry: _Entry) -> None:
        self._pausing.discard(entry)
        self._waiting.append(entry)
        self._arrived.set()


def _touches(item: Arrival) -> frozenset[Hashable]:
    if not isinstance(item.event, PaymentEvent):
        return frozenset((item.key,)) - {None}
    event = item.event
    whom = event.order or (email_key(event.email) if event.email else None)
    return frozenset((item.key, whom, *event.ids)) - {None}


def _fail(batch: Sequence[_Entry], error: DatabaseAwayError) -> None:
    for entry in batch:
        if not entry.answer.done():
            entry.answer.set_exception(error)
