"""What became of each item, as log lines and metrics: once per batch, after its commit."""

import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from paidonce import telemetry
from paidonce.domain.email import masked
from paidonce.domain.events import Code, PaymentEvent
from paidonce.engine.items import Incoming, Refused, Result, Settled, Verdict, Waiting
from paidonce.telemetry import OutcomeLine

LATE_AFTER: Final = timedelta(days=1)

_MISMATCHES: Final = frozenset({Code.AMOUNT_MISMATCH, Code.CURRENCY_MISMATCH})


def report(settled: Settled) -> None:
    """Count and log the batch. What was not settled is left out: it comes again."""
    left_out = (Result.BUSY, Result.NOT_STORED)
    done = [verdict for verdict in settled.verdicts if verdict.result not in left_out]
    finished_s = time.monotonic()
    _count(done, settled.now, finished_s)
    telemetry.log_outcomes(settled.now, _lines(done, finished_s))


def _count(verdicts: Iterable[Verdict], now: datetime, finished_s: float) -> None:
    totals: Counter[tuple[telemetry.PrometheusCounter, str]] = Counter()
    for verdict in verdicts:
        item = verdict.item
        if not isinstance(item, Incoming | Refused | Waiting):
            continue
        provider = item.source.provider.name
        for counter in _counters(verdict):
            totals[counter, provider] += 1
        _time(verdict, item, provider, now, finished_s)
    for (counter, provider), number in totals.items():
        telemetry.bound(counter, provider).inc(number)


def _time(
    verdict: Verdict,
    item: Incoming | Refused | Waiting,
    provider: str,
    now: datetime,
    finished_s: float,
) -> None:
    telemetry.bound_histogram(telemetry.DURATION, provider).observe(_duration_ms(item, finished_s))
    if verdict.result in (Result.PROCESSED, Result.IGNORED):
        lag = now - _received_at(item)
        telemetry.bound_histogram(telemetry.LAG, provider).observe(
            max(lag.total_seconds(), 0) * 1000
        )


_COUNTERS: Final[dict[Result, tuple[telemetry.PrometheusCounter, ...]]] = {
    Result.PROCESSED: (telemetry.PROCESSED,),
    Result.IGNORED: (telemetry.IGNORED,),
    Result.DUPLICATE: (telemetry.DUPLICATES, telemetry.DEDUPED),
    Result.CONFLICT: (telemetry.CONFLICTS,),
    Result.UNLINKED: (telemetry.FAILED_RETRYABLE, telemetry.FAILED),
    Result.FAILED_RETRYABLE: (telemetry.FAILED_RETRYABLE, telemetry.FAILED),
    Result.FAILED_FINAL: (telemetry.FAILED_FINAL, telemetry.FAILED),
    Result.DEAD_LETTER: (telemetry.DEAD_LETTERS, telemetry.FAILED),
    Result.ACCEPTED: (),
    Result.BUSY: (),
    Result.NOT_STORED: (),
}


def _counters(verdict: Verdict) -> Iterable[telemetry.PrometheusCounter]:
    yield from _COUNTERS[verdict.result]
    code = verdict.outcome.code if verdict.outcome else None
    if code in _MISMATCHES:
        yield telemetry.AMOUNT_MISMATCHES
    if isinstance(verdict.item, Waiting):
        if verdict.result is Result.PROCESSED:
            yield telemetry.RECOVERED
    elif verdict.result is Result.UNLINKED:
        yield telemetry.UNLINKED


def _lines(verdicts: Iterable[Verdict], finished_s: float) -> Iterable[OutcomeLine]:
    for verdict in verdicts:
        match verdict.item:
            case Incoming() | Waiting() as item:
                yield _line(verdict, item, finished_s)
            case Refused() as item:
                yield _refused_line(verdict, item, finished_s)


def _line(verdict: Verdict, item: Incoming | Waiting, finished_s: float) -> OutcomeLine:
    identity, event, decision = item.identity, item.event, verdict.decision
    before = decision.payment_before if decision else None
    after = decision.payment if decision else None
    period_before = decision.subscription_before if decision else None
    period_after = decision.subscription if decision else None
    email = after.email if after else event.email if isinstance(event, PaymentEvent) else None
    age = _age(item)
    code = verdict.outcome.code if verdict.outcome else None
    message = verdict.outcome.message if verdict.outcome else None
    is_ignored = verdict.result is Result.IGNORED
    return OutcomeLine(
        request_id=item.request.id,
        provider=item.source.provider.name,
        source=item.source.name,
        result=verdict.result,
        signature_valid=True,
        duration_ms=_duration_ms(item, finished_s),
        webhook_event_id=verdict.event_id,
        external_event_id=identity.event_id,
        external_payment_id=identity.payment_id,
        event_key=f"{item.source.name}:{identity.key}",
        event_type=identity.type,
        incoming_status=identity.type,
        amount=identity.amount,
        currency=identity.currency,
        order=identity.order,
        email=masked(email) if email else None,
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


def _refused_line(verdict: Verdict, item: Refused, finished_s: float) -> OutcomeLine:
    identity = item.identity
    return OutcomeLine(
        request_id=item.request.id,
        provider=item.source.provider.name,
        source=item.source.name,
        webhook_event_id=verdict.event_id,
        external_event_id=identity.event_id if identity else None,
        external_payment_id=identity.payment_id if identity else None,
        event_key=None,
        event_type=identity.type if identity else None,
        signature_valid=item.signature_valid,
        incoming_status=identity.type if identity else None,
        amount=identity.amount if identity else None,
        currency=identity.currency if identity else None,
        order=identity.order if identity else None,
        email=None,
        user_id=None,
        result=verdict.result,
        payment_status_before=None,
        payment_status_after=None,
        subscription_end_before=None,
        subscription_end_after=None,
        subscription_applied_before=None,
        subscription_applied_after=None,
        event_age_ms=None,
        late_webhook=False,
        test=item.request.is_test,
        error_code=item.refusal.code,
        error_message=verdict.outcome.message if verdict.outcome else None,
        reason=None,
        duration_ms=_duration_ms(item, finished_s),
    )


def _duration_ms(item: Incoming | Refused | Waiting, finished_s: float) -> float:
    return round((finished_s - item.request.started_s) * 1000, 3)


def _age(item: Incoming | Waiting) -> timedelta | None:
    occurred_at = item.identity.occurred_at
    return None if occurred_at is None else _received_at(item) - occurred_at


def _received_at(item: Incoming | Refused | Waiting) -> datetime:
    return item.received_at if isinstance(item, Waiting) else item.delivery.received_at
