"""All metrics."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from paidonce.settings import METRICS_FOLDER

disable_created_metrics()  # type: ignore[no-untyped-call]

PrometheusCounter = Counter

REGISTRY: Final = CollectorRegistry()

_BY_PROVIDER: Final = ("provider",)
_MILLISECONDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_LAG_MILLISECONDS: Final = (
    1, 5, 10, 50, 100, 500, 1_000, 5_000, 30_000, 60_000, 600_000, 3_600_000, 86_400_000
)  # fmt: skip


def _counter(name: str, text: str, labels: tuple[str, ...] = _BY_PROVIDER) -> Counter:
    return Counter(name, text, labels, registry=REGISTRY)


def _histogram(
    name: str,
    text: str,
    labels: tuple[str, ...] = _BY_PROVIDER,
    buckets: tuple[float, ...] = _LAG_MILLISECONDS,
) -> Histogram:
    return Histogram(name, text, labels, buckets=buckets, registry=REGISTRY)


REQUESTS: Final = _counter(
    "webhook_requests_total", "Requests to /webhooks by HTTP status.", ("provider", "http_code")
)
RECEIVED: Final = _counter("webhook_received_total", "Deliveries with a complete body.")
PROCESSED: Final = _counter("webhook_processed_total", "Processed events.")
IGNORED: Final = _counter("webhook_ignored_total", "Valid events without effect.")
DUPLICATES: Final = _counter("webhook_duplicate_total", "Duplicate deliveries.")
DEDUPED: Final = _counter("webhook_deduped_total", "Duplicate deliveries (second name).")
CONFLICTS: Final = _counter(
    "webhook_conflict_total", "Deliveries that contradict an earlier one with the same key."
)
FAILED: Final = _counter("webhook_failed_total", "Events that failed, retryable or final.")
FAILED_RETRYABLE: Final = _counter(
    "webhook_failed_retryable_total", "Events that failed and will be retried."
)
FAILED_FINAL: Final = _counter("webhook_failed_final_total", "Events that failed finally.")
DEAD_LETTERS: Final = _counter("webhook_dead_letter_total", "Events that became dead letters.")
INVALID_SIGNATURES: Final = _counter(
    "webhook_invalid_signature_total", "Deliveries with an invalid signature."
)
STALE: Final = _counter(
    "webhook_stale_total", "Authentic deliveries rejected for an expired timestamp."
)
RECOVERED: Final = _counter(
    "webhook_recovered_total", "Events that were processed after a failure."
)
UNLINKED: Final = _counter("payments_unlinked_total", "Payments without a user or an order.")
AMOUNT_MISMATCHES: Final = _counter(
    "payments_amount_mismatch_total", "Payments whose amount or currency does not match."
)
EVIDENCE_DROPPED: Final = _counter(
    "webhook_evidence_dropped_total", "Rejected deliveries that were counted but not stored."
)
RATE_LIMITED: Final = _counter("webhook_rate_limited_total", "Requests rejected by a rate limit.")
BANNED: Final = _counter(
    "webhook_banned_total", "Requests rejected because their address is banned."
)
NOTIFICATION_ATTEMPTS: Final = _counter(
    "notification_attempts_total",
    "Attempts to send a message to a channel, by channel, its kind, and result.",
    ("channel", "kind", "result"),
)
WALLET_COMMANDS: Final = _counter(
    "wallet_commands_total",
    "Commands on reservations, including repeats, by result.",
    ("command", "result"),
)
WALLET_PAYMENTS: Final = _counter(
    "wallet_payments_total", "What happened to payments out of a wallet.", ("type",)
)
CALLBACKS_DEAD: Final = _counter(
    "gateway_callbacks_dead_total",
    "Callbacks that found no payment and were given up.",
    ("source",),
)
SERVICE_CRASHES: Final = _counter(
    "service_crashes_total", "Background services that failed and were restarted.", ("service",)
)
BUS_PUBLISHED: Final = _counter("bus_published_total", "Messages that the relay has published.", ())
_BY_CONSUMER: Final = ("consumer",)
BUS_CONSUMED: Final = _counter(
    "bus_consumed_total", "Messages that a group has consumed.", _BY_CONSUMER
)
BUS_DUPLICATES: Final = _counter(
    "bus_duplicate_total", "Messages that were delivered to a group again.", _BY_CONSUMER
)
BUS_DEAD_LETTERED: Final = _counter(
    "bus_dead_letter_total", "Messages that became dead letters.", _BY_CONSUMER
)
BUS_INVALID: Final = _counter(
    "bus_invalid_total", "Records in our topics that are not valid messages.", _BY_CONSUMER
)
BUS_LOST: Final = _counter(
    "bus_lost_total", "Messages that were deleted before a group consumed them.", _BY_CONSUMER
)
BUS_LATENCY: Final = _histogram(
    "bus_latency_ms", "Time from publishing a message to consuming it.", _BY_CONSUMER
)
DURATION: Final = _histogram(
    "webhook_processing_duration_ms",
    "From the last byte of a delivery to the end of its transaction.",
    buckets=_MILLISECONDS,
)
LAG: Final = _histogram(
    "webhook_processing_lag_ms", "From an event's first arrival to its being final."
)


@cache
def bound(counter: Counter, *labels: str | int) -> Counter:
    """The counter with its labels, cached: looking them up is not cheap."""
    return counter.labels(*labels)


@cache
def bound_histogram(histogram: Histogram, *labels: str) -> Histogram:
    """The histogram with its labels, cached."""
    return histogram.labels(*labels)


@dataclass(frozen=True, slots=True)
class Measure:
    """A gauge that is read from the database at each scrape.

    So it is right in every process.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """The gauge with a value for each set of labels."""
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


BACKLOG: Final = Measure("webhook_events_backlog", "Unfinished events.", ("status",))
OLDEST_EVENT: Final = Measure(
    "webhook_events_oldest_seconds", "Age of the oldest unfinished event.", ("status",)
)
UNAPPLIED: Final = Measure(
    "payments_unapplied", "Payments received and not applied.", ("currency", "reason")
)
UNAPPLIED_AMOUNT: Final = Measure(
    "payments_unapplied_amount",
    "Sum of payments received and not applied, in major units.",
    ("currency", "reason"),
)
RECONCILIATION_FINDINGS: Final = Measure(
    "reconciliation_findings",
    "Open differences between the gateway's statement and our payments.",
    ("source", "kind"),
)
RECONCILIATION_AGE: Final = Measure(
    "reconciliation_last_success_seconds",
    "Time since the last complete reconciliation of a source.",
    ("source",),
)
OLDEST_UNAPPLIED: Final = Measure(
    "payments_unapplied_oldest_seconds", "Age of the oldest payment received and not applied."
)
OLDEST_UNLINKED: Final = Measure(
    "payments_unlinked_oldest_seconds", "Age of the oldest payment without a user or an order."
)
REVIEW: Final = Measure("payments_review", "Payments that need a review.", ("reason",))
OLDEST_REVIEW: Final = Measure(
    "payments_review_oldest_seconds", "Age of the oldest payment that needs a review.", ("reason",)
)

DISPUTES: Final = Measure("payments_disputed", "Payments with a dispute that was not won.")

BANS: Final = Measure("addresses_banned", "Banned addresses.")


NOTIFICATIONS_PENDING: Final = Measure(
    "notifications_pending", "Notifications that a channel has not received.", ("channel",)
)
NOTIFICATIONS_OLDEST_PENDING: Final = Measure(
    "notifications_pending_oldest_seconds", "Age of the oldest of these.", ("channel",)
)


BUS_UNPUBLISHED: Final = Measure("bus_unpublished", "Messages that are not published yet.")
BUS_OLDEST_UNPUBLISHED: Final = Measure(
    "bus_unpublished_oldest_seconds", "Age of the oldest of these."
)
BUS_LAG: Final = Measure(
    "bus_lag", "Published messages that a group has not consumed.", ("consumer", "aggregate_type")
)
BUS_INACTIVE: Final = Measure(
    "bus_inactive_seconds", "Time since a group was last active.", ("consumer",)
)
BUS_DEAD_LETTERS: Final = Measure(
    "bus_dead_letters", "Open dead letters of a group.", ("consumer",)
)
WALLET_PAYMENTS_REVIEW: Final = Measure(
    "wallet_payments_review", "Payments out of a wallet that a person should look at.", ("reason",)
)
DEAD_CALLBACKS: Final = Measure(
    "gateway_callbacks_dead", "Callbacks that found no payment and wait for a person."
)

CLOCK_SKEW: Final = Measure(
    "clock_skew_seconds",
    "By how much the database's clock is ahead of this machine's, if it is more than 5 s.",
)


def counted() -> CollectorRegistry:
    """The counters of all processes that serve together."""
    if METRICS_FOLDER not in os.environ:
        return REGISTRY
    whole = CollectorRegistry()
    MultiProcessCollector(whole)  # type: ignore[no-untyped-call]
    return whole


def exposition(measured: Iterable[Metric]) -> bytes:
    """The metrics in Prometheus' text format."""
    return generate_latest(counted()) + generate_latest(_Measured(measured))


def total(counter: Counter) -> int:
    """The sum over all labels and processes."""
    (name,) = {metric.name for metric in counter.describe()}
    samples = [one for metric in counted().collect() for one in metric.samples]
    return int(sum(one.value for one in samples if one.name == f"{name}_total"))


class _Measured(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
