"""Group commit: items that arrive together share one transaction.

There is no timer. A free flusher takes everything that waits: a lone item goes at once, and under
load the batches grow.
"""

import asyncio
import contextlib
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from paidonce.errors import DatabaseUnavailableError, QueueFullError
from paidonce.telemetry import logger

log = logger(__name__)

FLUSHERS: Final = 2
MAX_BATCH: Final = 128
MAX_SKIPPED: Final = 512
STOP_TIMEOUT_S: Final = 1.0


class Session(Protocol):
    """Where a flusher commits its batches."""

    async def close(self) -> None:
        """Close the connection; the next batch opens a new one."""


T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound=Session)


@dataclass(slots=True, eq=False)
class Entry(Generic[T, R]):
    """An item in the queue, and the future of its result."""

    item: T
    answer: asyncio.Future[R]
    keys: Collection[Hashable]
    since_s: float

    def resolve(self, result: R) -> None:
        """Answer, unless the caller is gone."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless the caller is gone."""
        if not self.answer.done():
            self.answer.set_exception(error)


class GroupCommit(ABC, Generic[T, R, S]):
    """A bounded queue before the database, and the flushers that empty it while it is filled."""

    max_batch_size: float = math.inf
    """A batch takes no more items once their sizes add up to this."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: deque[Entry[T, R]] = deque()
        self._in_hand: set[Entry[T, R]] = set()
        self._pausing: set[Entry[T, R]] = set()
        self._in_flight: set[Hashable] = set()
        self._flushers: set[asyncio.Task[None]] = set()
        self._idle: list[S] = []
        self._flushed = asyncio.Event()
        self._stored_s = -math.inf
        self._failure: tuple[float, Exception] | None = None
        self._is_started = False
        self._is_closed = False

    @abstractmethod
    def open_session(self) -> S:
        """A session for a flusher."""

    @abstractmethod
    async def commit(self, session: S, batch: list[Entry[T, R]]) -> None:
        """Commit a batch, and then resolve, fail or retry each of its entries."""

    @abstractmethod
    def keys(self, item: T) -> Collection[Hashable]:
        """What the item changes. Two batches at a time never have a common key."""

    def size(self, item: T) -> int:
        """How much of `max_batch_size` the item takes."""
        return 0

    @property
    def is_running(self) -> bool:
        """Whether items that arrive are committed."""
        return self._is_started and not self._is_closed

    @property
    def oldest_s(self) -> float:
        """How long the oldest item waits; 0 if none does."""
        waiting = (*self._in_hand, *self._pausing, *itertools.islice(self._waiting, 1))
        return max((time.monotonic() - one.since_s for one in waiting), default=0.0)

    @property
    def stored_ago_s(self) -> float:
        """How long ago a batch stored something."""
        return time.monotonic() - self._stored_s

    def note_stored(self) -> None:
        """A batch has stored something."""
        self._stored_s, self._failure = time.monotonic(), None

    def failure_within(self, age_s: float) -> Exception | None:
        """Why the last batch failed, if that was so recently and nothing was stored since."""
        if self._failure is None or time.monotonic() - self._failure[0] > age_s:
            return None
        return self._failure[1]

    def start(self) -> None:
        """Begin to commit; items wait until then."""
        self._is_started = True
        if self._waiting:
            self._wake()

    async def submit(self, item: T) -> R:
        """Commit the item together with others; returns after the commit.

        Raises QueueFullError. After DatabaseUnavailableError it is unknown whether it committed.
        """
        if self._is_closed:
            raise DatabaseUnavailableError("the service is stopping")
        if len(self._waiting) + len(self._in_hand) + len(self._pausing) >= self._max_waiting:
            raise QueueFullError("too many wait for the database")
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(Entry(item, answer, self.keys(item), time.monotonic()))
        self._wake()
        return await answer

    def retry(self, entry: Entry[T, R], pause_s: float) -> None:
        """Put an entry of the current batch back into the queue, after a pause."""
        if self._is_closed:
            entry.fail(DatabaseUnavailableError("the service is stopping"))
            return
        self._pausing.add(entry)
        asyncio.get_running_loop().call_later(pause_s, self._rejoin, entry)

    def give_up(self) -> None:
        """Answer everyone who still waits that they have to try again: the service stops.

        A batch that is in a transaction may be committed all the same.
        """
        self._is_closed = True
        _fail([*self._waiting, *self._in_hand, *self._pausing], "the service is stopping")
        self._waiting.clear()

    async def stop(self) -> None:
        """Commit what waits, then stop; after a timeout give up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._drain()
        self.give_up()
        flushers = set(self._flushers)
        for flusher in flushers:
            flusher.cancel()
        if flushers:
            await asyncio.wait(flushers, timeout=STOP_TIMEOUT_S)
        for session in self._idle:
            await session.close()

    async def _drain(self) -> None:
        while self.is_running and (self._waiting or self._in_hand or self._pausing):
            self._flushed.clear()
            await self._flushed.wait()

    def _wake(self) -> None:
        if self._is_started and len(self._flushers) < FLUSHERS:
            self._flushers.add(asyncio.create_task(self._flush_all(), name="flusher"))

    def _rejoin(self, entry: Entry[T, R]) -> None:
        self._pausing.discard(entry)
        self._waiting.append(entry)
        self._wake()

    async def _flush_all(self) -> None:
        """Flush until nothing is left for this flusher. A later arrival starts another one."""
        session = self._idle.pop() if self._idle else self.open_session()
        try:
            while batch := self._take():
                await self._flush(session, batch)
        finally:
            self._idle.append(session)
            self._flushers -= {asyncio.current_task()}
            self._flushed.set()

    def _take(self) -> list[Entry[T, R]]:
        """The next batch, without items that share a key with a batch of another flusher.

        They would only wait for each other.
        """
        batch: list[Entry[T, R]] = []
        skipped: list[Entry[T, R]] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH and size < self.max_batch_size:
            if len(skipped) == MAX_SKIPPED:
                break
            entry = self._waiting.popleft()
            if entry.answer.done():  # the caller is gone, and nothing was promised
                continue
            if not self._in_flight.isdisjoint(entry.keys):
                skipped.append(entry)
                continue
            batch.append(entry)
            size += self.size(entry.item)
        self._waiting.extendleft(reversed(skipped))
        return batch

    async def _flush(self, session: S, batch: list[Entry[T, R]]) -> None:
        keys = frozenset[Hashable]().union(*(entry.keys for entry in batch))
        self._in_flight |= keys
        self._in_hand.update(batch)
        try:
            await self.commit(session, batch)
        except Exception as error:
            self._failure = time.monotonic(), error
            if isinstance(error, DatabaseUnavailableError):
                log.warning("database_away", batch=len(batch), error=str(error))
            else:
                log.exception("batch_failed", batch=len(batch))
            await session.close()
            _fail(batch, f"the batch failed: {type(error).__name__}: {error}")
        finally:
            self._in_hand.difference_update(batch)
            self._in_flight -= keys
            self._flushed.set()


def _fail(entries: Iterable[Entry[T, R]], reason: str) -> None:
    for entry in entries:
        entry.fail(DatabaseUnavailableError(reason))
