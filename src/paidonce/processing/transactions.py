"""Runs batches in transactions, and handles what the database refuses.

A lost race is run again. A batch with something that the database refuses, or with rows that stay
locked, is halved until that item is alone; then the item is stored without its effect, or
postponed. The other items are not affected.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from paidonce.clock import CLOCK
from paidonce.core.events import DEFERRED, Code, EventStatus, Outcome
from paidonce.core.input import storable
from paidonce.db.pool import (
    Database,
    OwnConnection,
    Trouble,
    away,
    is_lock_timeout,
    is_partition_missing,
    trouble,
)
from paidonce.db.schema import add_missing_partitions
from paidonce.processing.items import (
    BatchResult,
    Incoming,
    Item,
    QueuedEvent,
    Rejected,
    Result,
    ResultKind,
    Rules,
)
from paidonce.processing.process import process, process_without_locks
from paidonce.runtime.bisect import Bisection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_RUNS_TOGETHER: Final = 3
MAX_RUNS_ALONE: Final = 5
CAREFUL_FOR_S: Final = 2.0
"""How long rows are locked first, after a lock timeout."""
ONCE_S: Final = 0.1
"""The same after a lost race: long enough to run the batch again."""

Attempt = Callable[[Sequence[Item]], Awaitable[BatchResult]]
"""Processes the items in one transaction or savepoint: all of them, or none."""

Postpone = Callable[[Item, Exception], Awaitable[Result]]
"""Returns the result of an item that cannot be processed now."""


async def process_or_bisect(
    items: Sequence[Item], attempt: Attempt, postpone: Postpone, deadline_s: float | None = None
) -> BatchResult:
    """Process the items that can be processed, and postpone the others.

    Stops soon after the first failure: items behind a lock that is held for long must not be tried
    one by one. Raises when the database is away.
    """

    async def fail(item: Item, error: Exception, deadline_s: float) -> BatchResult:
        """Store an event without its effect: for later if it is locked, failed if it is refused."""
        is_locked = trouble(error) is Trouble.RERUN
        simpler = _deferred(item) if is_locked else _poisoned(item, error)
        if simpler is None:
            return await postpone_all([item], error)
        return await process_or_bisect([simpler], attempt, postpone, deadline_s)

    async def postpone_all(items: Sequence[Item], error: Exception) -> BatchResult:
        return BatchResult(CLOCK.now(), [await postpone(item, error) for item in items])

    bisection = Bisection(attempt, _max_runs, fail, postpone_all, BatchResult.and_then)
    return await bisection.run(items, deadline_s)


def _max_runs(error: Exception, size: int) -> int:
    if trouble(error) is Trouble.AWAY:
        return 0
    if trouble(error) is not Trouble.RERUN or is_lock_timeout(error):
        return 1
    return MAX_RUNS_ALONE if size == 1 else MAX_RUNS_TOGETHER


def _deferred(item: Item) -> Item | None:
    """The delivery, only to be stored; None if it was that already."""
    if isinstance(item, Incoming) and item.forced_outcome is None:
        return replace(item, forced_outcome=DEFERRED)
    return None


def _poisoned(item: Item, error: Exception) -> Item | None:
    """The event as failed, with texts that a column can hold; None if it was that already."""
    if isinstance(item, Rejected) and item.event is not None:
        log.error("expired_capture_not_recorded", request_id=item.request.id, exc_info=error)
        return replace(item, identity=None, event=None)
    if not isinstance(item, Incoming | QueuedEvent):
        return None
    if item.forced_outcome is not None and item.forced_outcome.code is Code.INTERNAL:
        return None
    log.error("event_poisoned", webhook_event_id=str(item.event_id), exc_info=error)
    fault = f"the database refused it: {type(error).__name__}"
    outcome = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
    values = {one.name: getattr(item.identity, one.name) for one in fields(item.identity)}
    texts: dict[str, Any] = {
        name: storable(text) for name, text in values.items() if isinstance(text, str)
    }
    identity = replace(item.identity, **texts)
    return replace(item, identity=identity, forced_outcome=outcome)


class Processor:
    """Processes batches on a connection of its own, one transaction each."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules
        self._connection = OwnConnection(database.dedicated)
        self._careful_until_s = 0.0

    async def process(self, items: Sequence[Item]) -> BatchResult:
        """Process and commit. After DatabaseUnavailableError it is unknown whether it committed."""
        try:
            return await process_or_bisect(items, self._attempt, self._put_off)
        except Exception as error:
            if trouble(error) is not Trouble.AWAY:
                raise
            await self.close()
            raise away(error) from error

    async def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._connection.close()

    async def _attempt(self, items: Sequence[Item]) -> BatchResult:
        connection = await self._connection.get()
        try:
            if time.monotonic() >= self._careful_until_s:
                processed = await process_without_locks(connection, items, self._rules)
                if processed is not None:
                    return processed
            async with connection.transaction():
                return await process(connection, items, self._rules)
        except Exception as error:
            if is_partition_missing(error):
                created = await add_missing_partitions(self._database)
                log.warning("partitions_created", names=created)
            elif trouble(error) is Trouble.RERUN:
                self._be_careful(error)
            raise

    def _be_careful(self, error: Exception) -> None:
        """Lock rows first: for this batch, and for a while after a lock timeout."""
        held_long = is_lock_timeout(error)
        self._careful_until_s = time.monotonic() + (CAREFUL_FOR_S if held_long else ONCE_S)

    async def _put_off(self, item: Item, error: Exception) -> Result:
        """Store nothing. A locked item may come again; a refused one may not."""
        if not isinstance(item, Incoming | Rejected):
            raise error
        may_wait = isinstance(item, Incoming) or item.event is not None
        if may_wait and trouble(error) is Trouble.RERUN:
            return Result(item, ResultKind.LOCKED, None)
        is_evidence = isinstance(item, Rejected)
        log.error(
            "evidence_lost" if is_evidence else "delivery_not_stored",
            request_id=item.request.id,
            exc_info=error,
        )
        result = ResultKind.FAILED_FINAL if is_evidence else ResultKind.NOT_STORED
        return Result(item, result, None)
