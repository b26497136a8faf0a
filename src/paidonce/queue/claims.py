"""Processes claimed events, in the transaction that claimed them.

Each attempt is a savepoint. An event that cannot be processed is postponed without harm to others.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from paidonce.clock import CLOCK
from paidonce.core.events import (
    APPROVED,
    Code,
    EventId,
    EventStatus,
    Ignored,
    Outcome,
    PaymentEvent,
)
from paidonce.db.pool import Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.errors import DatabaseUnavailableError, RejectedError
from paidonce.processing import hook_calls
from paidonce.processing.items import (
    MAX_MESSAGE,
    BatchResult,
    Item,
    QueuedEvent,
    QueueName,
    Reapply,
    Request,
    Result,
    ResultKind,
    Rules,
    Source,
)
from paidonce.processing.process import process
from paidonce.processing.transactions import process_or_bisect
from paidonce.providers.contract import ConfirmationRequest, Identity, LookupRequired, Translation
from paidonce.queue import store
from paidonce.queue.store import Claimed
from paidonce.runtime.wakeup import notify_workers
from paidonce.telemetry import logger

log = logger(__name__)

UNKNOWN_SOURCE_DELAY: Final = timedelta(hours=1)
"""When an event is due again whose source is not configured here."""
LOCKED_DELAY: Final = timedelta(seconds=1)
"""When an event is due again that lost every race."""
REFUSED_DELAY: Final = timedelta(minutes=1)
"""When an event is due again for which not even a failure can be recorded."""
NO_DELAY: Final = timedelta(0)
MAX_RECLAIMS: Final = 40
RECLAIM_PAUSE_S: Final = 0.05

LookupAnswer = PaymentEvent | Ignored | Outcome
"""The event as the gateway knows it, or the outcome of a failed lookup."""
LookupAnswers = Mapping[EventId, LookupAnswer]
NO_ANSWERS: Final[LookupAnswers] = MappingProxyType({})


async def process_claimed(
    connection: Connection,
    claim: store.Claim,
    rules: Rules,
    *,
    forced_outcome: Outcome | None = None,
    answers: LookupAnswers = NO_ANSWERS,
    reapplies: Sequence[Reapply] = (),
    queue_name: QueueName | None = None,
) -> BatchResult:
    """Process the claimed events, and payments to be applied with them.

    With a forced outcome the events only get that. Events that require a lookup use its answer, or
    move to the lookup queue. In the queue `PROCESS`, events with handlers move to the queue
    `HOOKS`. Raises when the database is away, and what a `Reapply` fails with.
    """
    await _put_back_unknown(connection, claim, rules)
    claimed = {one.event_id: one for one in claim.events}
    events = read_claimed(claim.events, rules, forced_outcome, answers)
    unanswered = [
        one
        for one in events
        if one.forced_outcome is None and isinstance(one.event, LookupRequired)
    ]
    await _move(QueueName.LOOKUP, connection, [claimed[one.event_id] for one in unanswered])
    with_hooks = _with_hooks(events, rules) if queue_name is QueueName.PROCESS else []
    await _move(QueueName.HOOKS, connection, [claimed[one.event_id] for one in with_hooks])
    moved = [*unanswered, *with_hooks]
    items: list[Item] = [*(one for one in events if one not in moved), *reapplies]

    async def attempt(items: Sequence[Item]) -> BatchResult:
        if rules.handlers:
            (item,) = items
            return await hook_calls.process_with_hooks(connection, item, rules)
        async with connection.transaction():
            return await process(connection, items, rules)

    async def postpone(item: Item, error: Exception) -> Result:
        if not isinstance(item, QueuedEvent):
            raise error
        log.error("event_postponed", webhook_event_id=str(item.event_id), exc_info=error)
        delay = LOCKED_DELAY if trouble(error) is Trouble.RERUN else REFUSED_DELAY
        await store.put_back(connection, claimed[item.event_id], delay)
        return Result(item, ResultKind.LOCKED, item.event_id)

    if not items:
        return BatchResult(CLOCK.now(), [])
    if not rules.handlers:
        return await process_or_bisect(items, attempt, postpone)
    processed = BatchResult(CLOCK.now(), [])
    for item in items:
        if not _was_blocked(item, processed):
            processed = processed.and_then(await process_or_bisect([item], attempt, postpone))
    return processed


async def process_without_hooks(
    connection: Connection,
    broken: hook_calls.BrokenTransactionError,
    rules: Rules,
    answers: LookupAnswers = NO_ANSWERS,
) -> BatchResult:
    """Process, on another connection, an event whose handler broke the transaction, as blocked.

    Raises DatabaseUnavailableError when the event stays locked.
    """
    assert broken.event_id is not None
    rules = hook_calls.without_hooks(rules, broken.blocked)
    for _ in range(MAX_RECLAIMS):
        async with connection.transaction():
            claim = await store.claim_events(connection, [broken.event_id])
            processed = await process_claimed(connection, claim, rules, answers=answers)
        if claim.number > 0:
            return processed
        await asyncio.sleep(RECLAIM_PAUSE_S)  # the server has not noticed the closed connection
    raise DatabaseUnavailableError(
        "an event is still locked by the connection that its handler broke"
    )


def _was_blocked(item: Item, processed: BatchResult) -> bool:
    """Whether an event of the payment was just blocked: its handlers were called then."""
    return isinstance(item, Reapply) and any(
        isinstance(result.item, QueuedEvent)
        and result.item.blocked is not None
        and result.decision is not None
        and result.decision.payment is not None
        and result.decision.payment.id == item.payment_id
        for result in processed.results
    )


def _with_hooks(events: Sequence[QueuedEvent], rules: Rules) -> list[QueuedEvent]:
    """The events for which handlers may have to be called."""
    if not rules.handlers:
        return []
    return [
        one for one in events if one.forced_outcome is None and isinstance(one.event, PaymentEvent)
    ]


async def _move(queue_name: QueueName, connection: Connection, claimed: Sequence[Claimed]) -> None:
    """Make the events due now in another queue."""
    for one in claimed:
        await store.put_back(connection, one, NO_DELAY, queue_name)
    if claimed:
        await notify_workers(connection)


async def _put_back_unknown(connection: Connection, claim: store.Claim, rules: Rules) -> None:
    """Events of a source that is not configured wait until it is configured again."""
    for one in claim.events:
        if one.source_id not in rules.sources:
            log.warning(
                "source_not_configured",
                webhook_event_id=str(one.event_id),
                source_number=one.source_id,
                remedy="configure the source again to process its events",
            )
            await store.put_back(connection, one, UNKNOWN_SOURCE_DELAY)


def read_claimed(
    claimed: Iterable[Claimed],
    rules: Rules,
    forced_outcome: Outcome | None = None,
    answers: LookupAnswers = NO_ANSWERS,
) -> list[QueuedEvent]:
    """Translate claimed events again from their raw bytes. They were verified when they arrived.

    Events of a source that is not configured are left out. With a forced outcome nothing is read.
    """
    return [
        _read_event(one, rules.sources[one.source_id], forced_outcome, answers.get(one.event_id))
        for one in claimed
        if one.source_id in rules.sources
    ]


def _read_event(
    claimed: Claimed, source: Source, forced_outcome: Outcome | None, answer: LookupAnswer | None
) -> QueuedEvent:
    identity = Identity(key="", fingerprint=b"", type="")
    event: Translation = Ignored(Code.INTERNAL, "was not read")
    if forced_outcome is None:
        delivery = claimed.delivery
        try:
            identity = source.provider.identify(delivery)
            event = source.provider.translate(delivery)
        except RejectedError as refusal:
            forced_outcome = Outcome(
                EventStatus.FAILED_FINAL, Code.MALFORMED, str(refusal)[:MAX_MESSAGE]
            )
        except Exception:
            log.exception("translate_failed", webhook_event_id=str(claimed.event_id))
            fault = "reading it failed; the log has the details"
            forced_outcome = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
    queue_name = QueueName.LOOKUP if isinstance(event, LookupRequired) else claimed.queue_name
    if isinstance(event, ConfirmationRequest):
        event = APPROVED  # otherwise it would not be in the queue
    if isinstance(event, LookupRequired):
        match answer:
            case Outcome():
                forced_outcome = answer
            case PaymentEvent() | Ignored():
                event = answer
    return QueuedEvent(
        event_id=claimed.event_id,
        source=source,
        request=Request(claimed.request_id, None, time.monotonic(), claimed.is_test),
        received_at=claimed.received_at,
        identity=identity,
        event=event,
        attempts=claimed.attempts,
        faults=claimed.faults,
        blocked_on=claimed.blocked_on,
        queue_name=queue_name,
        status=claimed.status,
        error_code=claimed.error_code,
        signature_method=claimed.signature_method,
        forced_outcome=forced_outcome,
        was_processed=claimed.was_processed or claimed.status is EventStatus.PROCESSED,
    )
