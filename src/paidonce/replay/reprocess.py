"""Processes stored events again, from their raw bytes (OPS-4).

An event that was accepted is processed again while it is locked; what is applied is not applied
again. A delivery that was refused, and is authentic by the current settings, becomes a new event;
the evidence of the refusal stays.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from paidonce import errors
from paidonce.audit.model import OURSELVES, AuditEntry
from paidonce.audit.store import record_entries
from paidonce.clock import CLOCK
from paidonce.core.events import DEFERRED, EventId, EventStatus, SourceId
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.events.model import first_attempt
from paidonce.lookup.http_client import SHARE_OF_RATE
from paidonce.processing import items
from paidonce.processing.hook_calls import find_broken_transaction, without_hooks
from paidonce.processing.items import Rules, Source
from paidonce.processing.outcomes import report
from paidonce.processing.process import process
from paidonce.processing.transactions import process_or_bisect
from paidonce.queue import store
from paidonce.queue.claims import process_claimed
from paidonce.queue.store import Claim, Claimed, StoredEvent
from paidonce.replay.model import ReprocessKind, ReprocessResult, reprocess_result
from paidonce.replay.store import QUERIES
from paidonce.replay.verify import needs_lookup, verify, verify_refused
from paidonce.runtime.wakeup import notify_workers

PATIENCE_S: Final = 2.0
"""How long to wait for an event that is locked."""
LOCKED_PAUSE_S: Final = 0.02
MAX_AT_ONCE: Final = 4
TURN_S: Final = 10.0
"""How many events are processed again at once, and how long others wait for their turn."""

_FAILED: Final = (EventStatus.FAILED_RETRYABLE, EventStatus.FAILED_FINAL, EventStatus.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Initiator:
    """Who has events processed again, and as part of which replay."""

    actor: str
    replay: str | None = None


async def reprocess(
    connection: Connection, event_ids: Sequence[EventId], rules: Rules, initiator: Initiator
) -> list[ReprocessResult]:
    """Process events again in the open transaction, and record it in their audit trails.

    Events that others have locked are left out, or LOCKED. With handlers, give one event: raises
    BrokenTransactionError, and then the connection is closed. Raises a serialization failure if
    another transaction was first.
    """
    accepted, refused = list[StoredEvent](), list[StoredEvent]()
    done: list[ReprocessResult] = []
    for one in await store.lock(connection, event_ids):
        if one.is_erased:
            done.append(ReprocessResult(one, ReprocessKind.ERASED, code=one.error_code))
        elif one.source_id not in rules.sources:
            done.append(ReprocessResult(one, ReprocessKind.SOURCE_UNKNOWN))
        else:
            (accepted if one.is_accepted else refused).append(one)
    done += await _process_accepted(connection, accepted, rules)
    done += [await _process_refused(connection, one, rules) for one in refused]
    await _record(connection, done, initiator)
    return sorted(done, key=lambda one: one.stored.event_id)


async def record_skipped(
    connection: Connection, event_ids: Sequence[EventId], initiator: Initiator
) -> list[ReprocessResult]:
    """Record that events are skipped because others hold them for too long."""
    skipped = [
        ReprocessResult(one, ReprocessKind.LOCKED, code=one.error_code)
        for one in await store.read(connection, event_ids)
    ]
    await record_entries(connection, [_entry(one, initiator) for one in skipped])
    return skipped


def lookup_time_s(done: Sequence[ReprocessResult]) -> float:
    """How long the lookups of these events take, at the share of the rate that they may use."""
    found = [one.result.item for one in done if one.result is not None]
    sources = [
        item.source
        for item in found
        if isinstance(item, items.QueuedEvent | items.Incoming)
        and item.queue_name is items.QueueName.LOOKUP
        and item.forced_outcome is DEFERRED
    ]
    numbers = Counter(source.id for source in sources)
    return max((_lookup_s(source, numbers[source.id]) for source in sources), default=0.0)


def report_changed(done: Sequence[ReprocessResult]) -> None:
    """Log and count, after the commit, the events that changed."""
    changed = [one.result for one in done if one.result is not None and one.is_changed]
    report(items.BatchResult(CLOCK.now(), changed))


class Reprocessor:
    """Processes one event again, in a transaction of its own."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._rules = rules
        # Handlers may take long: they get connections outside the pool.
        is_slow = bool(rules.handlers)
        self._transaction = database.transaction_apart if is_slow else database.transaction
        self._turns = asyncio.Semaphore(rules.handlers.concurrency if is_slow else MAX_AT_ONCE)

    async def reprocess(
        self, event_id: EventId, actor: str, only: EventStatus | None = None
    ) -> ReprocessResult:
        """Process the event again.

        Raises NotFoundError, ConflictError if its status is not `only`, its source is not
        configured, or it stays rejected, or DatabaseUnavailableError if it is locked for too long
        or too many events wait for their turn.
        """
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise errors.DatabaseUnavailableError(
                "many events are being processed again; try again"
            ) from None
        try:
            return await self._reprocess(event_id, actor, only)
        finally:
            self._turns.release()

    async def _reprocess(
        self, event_id: EventId, actor: str, only: EventStatus | None
    ) -> ReprocessResult:
        rules, deadline_s = self._rules, time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                async with self._transaction() as connection:
                    done = await _reprocess_one(connection, event_id, rules, actor, only)
                report_changed([done])
                return done
            except Exception as error:
                broken = find_broken_transaction(error)
                if broken is not None:
                    rules = without_hooks(rules, broken.blocked)
                    deadline_s = time.monotonic() + PATIENCE_S  # however long the handler took
                elif not isinstance(error, _LockedError) and trouble(error) is not Trouble.RERUN:
                    raise
            await asyncio.sleep(LOCKED_PAUSE_S)
        raise errors.DatabaseUnavailableError("the event is held by another transaction; try again")


class _LockedError(Exception):
    """Another transaction holds the event, or a row that it needs."""


async def _reprocess_one(
    connection: Connection,
    event_id: EventId,
    rules: Rules,
    actor: str,
    only: EventStatus | None,
) -> ReprocessResult:
    found = await store.read(connection, [event_id])
    if not found:
        raise errors.NotFoundError(f"there is no event {event_id}")
    if only is not None and found[0].status is not only:
        raise errors.ConflictError(f"event {event_id} is {found[0].status}, not {only}")
    results = await reprocess(connection, [event_id], rules, Initiator(actor))
    if not results or (only and results[0].stored.status is not only):
        raise _LockedError
    (done,) = results
    match done.kind:
        case ReprocessKind.LOCKED:
            raise _LockedError
        case ReprocessKind.REFUSED:
            assert done.code is not None
            raise errors.ConflictError(f"it is still refused: {done.message}", done.code)
        case ReprocessKind.ERASED:
            raise errors.ConflictError("its content was erased with its user", "ERASED")
        case ReprocessKind.SOURCE_UNKNOWN:
            raise errors.ConflictError("its source is not configured here: configure it again")
    return done


async def _process_accepted(
    connection: Connection, locked: Sequence[StoredEvent], rules: Rules
) -> list[ReprocessResult]:
    """Process accepted events; queue those that need a lookup."""
    stored = {one.event_id: one for one in await store.dequeue(connection, locked)}
    signatures = {
        one.event_id: verify(rules.sources[one.source_id], one) for one in stored.values()
    }
    lookups, others = list[Claimed](), list[Claimed]()
    for one in stored.values():
        source = rules.sources[one.source_id]
        if needs_lookup(source, one):
            lookups.append(replace(one, queue_name=items.QueueName.LOOKUP))
        else:
            others.append(replace(one, queue_name=source.queue_name))
    claim, other_claim = Claim(len(lookups), lookups), Claim(len(others), others)
    processed = await process_claimed(connection, claim, rules, forced_outcome=DEFERRED)
    await _spread_lookups(connection, lookups, rules)
    processed = processed.and_then(await process_claimed(connection, other_claim, rules))
    if processed.schedules:
        await notify_workers(connection)
    return [
        reprocess_result(stored[result.item.event_id], signatures[result.item.event_id], result)
        for result in processed.results
        if isinstance(result.item, items.QueuedEvent)
    ]


async def _spread_lookups(connection: Connection, lookups: Sequence[Claimed], rules: Rules) -> None:
    """Make lookups due one after the other, so that new webhooks do not wait for all of them."""
    numbers, delays_s = Counter[SourceId](), list[float]()
    for one in lookups:
        delays_s.append(_lookup_s(rules.sources[one.source_id], numbers[one.source_id]))
        numbers[one.source_id] += 1
    if len(lookups) > len(numbers):  # else each is due now
        event_ids = [one.event_id for one in lookups]
        await QUERIES["delay"].run(connection, event_id=event_ids, delay_s=delays_s)


def _lookup_s(source: Source, number: int) -> float:
    return number / (source.lookup_rate * SHARE_OF_RATE)


async def _process_refused(
    connection: Connection, stored: StoredEvent, rules: Rules
) -> ReprocessResult:
    """Make a refused delivery an event, if it is authentic now."""
    found = verify_refused(rules.sources[stored.source_id], stored)
    if isinstance(found, ReprocessResult):
        return found
    incoming, signature = found

    async def attempt(batch: Sequence[items.Item]) -> items.BatchResult:
        savepoint = connection.transaction()
        await savepoint.start()
        try:
            processed = await process(connection, batch, rules)
        except BaseException:
            await savepoint.rollback()
            raise
        kind = reprocess_result(stored, signature, processed.results[0]).kind
        is_refused = kind is ReprocessKind.REFUSED
        await (savepoint.rollback() if is_refused else savepoint.commit())
        return processed

    async def put_off(item: items.Item, error: Exception) -> items.Result:
        if trouble(error) is not Trouble.RERUN:
            raise error
        return items.Result(item, items.ResultKind.LOCKED, None)

    processed = await process_or_bisect([incoming], attempt, put_off)
    if processed.schedules:
        await notify_workers(connection)
    return reprocess_result(stored, signature, processed.results[0])


async def _record(
    connection: Connection, done: Sequence[ReprocessResult], initiator: Initiator
) -> None:
    entries: list[AuditEntry] = []
    for one in done:
        if one.kind is not ReprocessKind.LOCKED:
            entries += _first_attempt(one.stored)
            entries += [_entry(one, initiator), *_origin(one, initiator)]
    await record_entries(connection, entries)


def _first_attempt(stored: StoredEvent) -> list[AuditEntry]:
    """The entries of the first attempt, if the columns that hold it are about to change."""
    return [
        AuditEntry(
            OURSELVES, action, event_id=stored.event_id, details=details, at=stored.processed_at
        )
        for action, details in first_attempt(stored.attempts, stored.status, stored.error_code)
    ]


def _entry(done: ReprocessResult, initiator: Initiator) -> AuditEntry:
    details = {
        "was": done.stored.status,
        "was_error_code": done.stored.error_code,
        "is": done.new_status,
        "error_code": done.code,
        "signature": done.signature,
        "event_id": done.new_event_id,
        "replay": initiator.replay,
    }
    given = {name: value for name, value in details.items() if value is not None}
    is_done = done.kind in (ReprocessKind.PROCESSED, ReprocessKind.DUPLICATE)
    success = is_done and done.new_status not in _FAILED
    return AuditEntry(
        initiator.actor,
        "event_reprocessed",
        success,
        event_id=done.stored.event_id,
        details=given,
        **(done.result.named if done.result else {}),
    )


def _origin(done: ReprocessResult, initiator: Initiator) -> list[AuditEntry]:
    """An event that was created from evidence refers to it."""
    if done.kind is not ReprocessKind.PROCESSED or done.new_event_id is None:
        return []
    evidence = {"evidence": str(done.stored.event_id), "signature": done.signature}
    return [
        AuditEntry(
            initiator.actor,
            "event_created_from_evidence",
            event_id=done.event_id,
            details=evidence,
            **(done.result.named if done.result else {}),
        )
    ]
