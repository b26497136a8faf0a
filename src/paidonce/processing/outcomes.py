"""Log lines and metrics of a batch, after its commit."""

import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from paidonce.core.email import mask_email
from paidonce.core.events import Code, PaymentEvent
from paidonce.processing.items import (
    BatchResult,
    EventItem,
    FreeOrder,
    QueuedEvent,
    Reapply,
    Rejected,
    Result,
    ResultKind,
)
from paidonce.telemetry import OutcomeLine, log_outcomes, metrics

LATE_AFTER: Final = timedelta(days=1)

_MISMATCHES: Final = frozenset({Code.AMOUNT_MISMATCH, Code.CURRENCY_MISMATCH})


def report(processed: BatchResult) -> None:
    """Count and log the results. Items that were not processed are left out: they come again."""
    unprocessed = (ResultKind.LOCKED, ResultKind.NOT_STORED)
    done = [result for result in processed.results if result.kind not in unprocessed]
    finished_s = time.monotonic()
    _count(done, processed.now, finished_s)
    log_outcomes(processed.now, _lines(done, finished_s))


def _count(results: Iterable[Result], now: datetime, finished_s: float) -> None:
    totals: Counter[tuple[metrics.PrometheusCounter, tuple[str, str]]] = Counter()
    for result in results:
        item = result.item
        if isinstance(item, Reapply | FreeOrder):
            continue
        labels = item.source.labels
        for counter in _counters(result):
            totals[counter, labels] += 1
        duration_ms = _duration_ms(item, finished_s)
        metrics.bound_histogram(metrics.DURATION, *labels).observe(duration_ms)
        if result.kind in (ResultKind.PROCESSED, ResultKind.IGNORED):
            lag_ms = max((now - item.received_at).total_seconds(), 0) * 1000
            metrics.bound_histogram(metrics.LAG, *labels).observe(lag_ms)
    for (counter, labels), number in totals.items():
        metrics.bound(counter, *labels).inc(number)


_COUNTERS: Final[dict[ResultKind, tuple[metrics.PrometheusCounter, ...]]] = {
    ResultKind.PROCESSED: (metrics.PROCESSED,),
    ResultKind.IGNORED: (metrics.IGNORED,),
    ResultKind.DUPLICATE: (metrics.DUPLICATES, metrics.DEDUPED),
    ResultKind.CONFLICT: (metrics.CONFLICTS,),
    ResultKind.UNLINKED: (metrics.FAILED_RETRYABLE, metrics.FAILED),
    ResultKind.FAILED_RETRYABLE: (metrics.FAILED_RETRYABLE, metrics.FAILED),
    ResultKind.FAILED_FINAL: (metrics.FAILED_FINAL, metrics.FAILED),
    ResultKind.DEAD_LETTER: (metrics.DEAD_LETTERS, metrics.FAILED),
    ResultKind.ACCEPTED: (),
    ResultKind.LOCKED: (),
    ResultKind.NOT_STORED: (),
}


def _counters(result: Result) -> Iterable[metrics.PrometheusCounter]:
    yield from _COUNTERS[result.kind]
    code = result.outcome.code if result.outcome else None
    if code in _MISMATCHES:
        yield metrics.AMOUNT_MISMATCHES
    if isinstance(result.item, QueuedEvent):
        if result.kind is ResultKind.PROCESSED and result.item.has_failed:
            yield metrics.RECOVERED
    elif result.kind is ResultKind.UNLINKED:
        yield metrics.UNLINKED


def _lines(results: Iterable[Result], finished_s: float) -> Iterable[OutcomeLine]:
    for result in results:
        if not isinstance(result.item, Reapply | FreeOrder):
            yield _line(result, result.item, finished_s)


def _line(result: Result, item: EventItem, finished_s: float) -> OutcomeLine:
    """The line of an event. Of a refused delivery: what it says, and why it is refused."""
    identity, outcome, decision = item.identity, result.outcome, result.decision
    code: str | None = outcome.code if outcome else None
    event_key, email, age = None, None, None
    if isinstance(item, Rejected):
        decision, code = None, item.refusal.code
    else:
        event_key = f"{item.source.name}:{item.identity.key}"
        email = item.event.email if isinstance(item.event, PaymentEvent) else None
        if item.identity.occurred_at is not None:
            age = item.received_at - item.identity.occurred_at
    before = decision.payment_before if decision else None
    after = decision.payment if decision else None
    period_before = decision.subscription_before if decision else None
    period_after = decision.subscription if decision else None
    email = after.email if after else email
    message = outcome.message if outcome else None
    is_ignored = result.kind is ResultKind.IGNORED
    return OutcomeLine(
        request_id=item.request.id,
        provider=item.source.provider.name,
        source=item.source.name,
        result=result.kind,
        signature_valid=item.signature_valid if isinstance(item, Rejected) else True,
        duration_ms=_duration_ms(item, finished_s),
        webhook_event_id=result.event_id,
        external_event_id=identity.event_id if identity else None,
        external_payment_id=identity.payment_id if identity else None,
        event_key=event_key,
        event_type=identity.type if identity else None,
        incoming_status=identity.type if identity else None,
        amount=identity.amount if identity else None,
        currency=identity.currency if identity else None,
        order=identity.order if identity else None,
        email=mask_email(email) if email else None,
        user_id=after.user_id if after else None,
        payment_status_before=before.facts.status if before else None,
        payment_status_after=after.facts.status if after else None,
        subscription_end_before=period_before.current_period_end if period_before else None,
        subscription_end_after=period_after.current_period_end if period_after else None,
        subscription_applied_before=before.applied_at if before else None,
        subscription_applied_after=after.applied_at if after else None,
        event_age_ms=None if age is None else int(age.total_seconds() * 1000),
        late_webhook=age is not None and age > LATE_AFTER,
        test=item.request.is_test or code is Code.TEST_PAYMENT,
        error_code=code,
        error_message=None if is_ignored else message,
        reason=message if is_ignored else None,
    )


def _duration_ms(item: EventItem, finished_s: float) -> float:
    return round((finished_s - item.request.started_s) * 1000, 3)
