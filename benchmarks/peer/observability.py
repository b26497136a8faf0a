"""Part 4 of the reference: one JSON log line per delivery, and its counters."""

import sys
from datetime import UTC, datetime
from time import perf_counter

import orjson
import structlog
from prometheus_client import Counter, Histogram

from benchmarks.peer.delivery import PROVIDER, Answer, Delivery, Trail

DURATION_BUCKETS_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.JSONRenderer(serializer=orjson.dumps),
    ],
    wrapper_class=structlog.make_filtering_bound_logger("info"),
    logger_factory=structlog.BytesLoggerFactory(sys.stdout.buffer),
    cache_logger_on_first_use=True,
)
log = structlog.get_logger()

requests = Counter("webhook_requests", "Answers by code", ["provider", "http_code"])
unlinked = Counter("payments_unlinked", "Payments without a user", ["provider"])
mismatched = Counter("payments_amount_mismatch", "Amount differs from the plan", ["provider"])
forged = Counter("webhook_invalid_signature", "Wrong signatures", ["provider"])
results = {
    "processed": Counter("webhook_processed", "Applied", ["provider"]),
    "ignored": Counter("webhook_ignored", "Not a success", ["provider"]),
    "duplicate": Counter("webhook_duplicate", "Repeated deliveries", ["provider"]),
    "unlinked": Counter("webhook_failed_retryable", "Postponed", ["provider"]),
    "failed_final": Counter("webhook_failed_final", "Refused", ["provider"]),
}
duration = Histogram(
    "webhook_processing_duration_ms", "Handling", ["provider"], buckets=DURATION_BUCKETS_MS
)
causes = {
    "USER_MISSING": unlinked,
    "UNLINKED_PAYMENT": unlinked,
    "AMOUNT_MISMATCH": mismatched,
    "INVALID_SIGNATURE": forged,
}


def observe(delivery: Delivery, answer: Answer, trail: Trail) -> None:
    """Count and log one handled delivery; its answer is counted where it is sent."""
    duration_ms = (perf_counter() - trail.started_at) * 1000
    results[answer.result].labels(PROVIDER).inc()
    duration.labels(PROVIDER).observe(duration_ms)
    if trail.error_code in causes:
        causes[trail.error_code].labels(PROVIDER).inc()
    write_line(delivery, answer, trail, duration_ms)


def write_line(delivery: Delivery, answer: Answer, trail: Trail, duration_ms: float) -> None:
    """Log every field the reference asks for; never the payload."""
    payload = delivery.payload
    log.info(
        "webhook",
        request_id=trail.request_id,
        provider=PROVIDER,
        webhook_event_id=str(trail.webhook_event_id),
        external_event_id=payload.event_id,
        external_payment_id=payload.external_payment_id,
        event_key=delivery.event_key,
        signature_valid=trail.signature_valid,
        incoming_status=payload.status,
        amount=str(payload.amount),
        currency=payload.currency,
        email=payload.email,
        user_id=None if trail.user_id is None else str(trail.user_id),
        result=answer.result,
        payment_status_before=trail.payment_status_before,
        payment_status_after=trail.payment_status_after,
        subscription_end_before=trail.subscription_end_before,
        subscription_end_after=trail.subscription_end_after,
        subscription_applied_before=trail.applied_before,
        subscription_applied_after=trail.applied_after,
        event_age_ms=age_ms(payload.paid_at),
        error_code=trail.error_code,
        error_message=trail.error_message,
        duration_ms=duration_ms,
    )


def age_ms(moment: datetime | None) -> float | None:
    """How long ago the payment was made, by the payload's own clock."""
    if moment is None or moment.tzinfo is None:
        return None
    return (datetime.now(UTC) - moment).total_seconds() * 1000
