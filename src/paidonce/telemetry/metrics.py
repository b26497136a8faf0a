"""Every metric, declared once."""

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


REQUESTS: Final = _counter(
    "webhook_requests_total",
    "Requests to /webhooks by answer.",
    ("provider", "http_code"),
)
RECEIVED: Final = _counter("webhook_received_total", "Deliveries that were read whole.")
PROCESSED: Final = _counter("webhook_processed_total", "Events that were processed.")
IGNORED: Final = _counter("webhook_ignored_total", "Events that say nothing that counts.")
DUPLICATES: Final = _counter("webhook_duplicate_total", "Deliveries of events known already.")
DEDUPED: Final = _counter("webhook_deduped_total", "The same, under its other name.")
CONFLICTS: Final = _counter("webhook_conflict_total", "Deliveries that contradict their event.")
FAILED: Final = _counter("webhook_failed_total", "Events that failed, for now or for good.")
FAILED_RETRYABLE: Final = _counter("webhook_failed_retryable_total", "Events that wait.")
FAILED_FINAL: Final = _counter("webhook_failed_final_total", "Events that failed for good.")
DEAD_LETTERS: Final = _counter("webhook_dead_letter_total", "Events that a person has to see.")
INVALID_SIGNATURES: Final = _counter(
    "webhook_invalid_signature_total", "Deliveries that are not authentic."
)
STALE: Final = _counter("webhook_stale_total", "Authentic deliveries refused for their time.")
RECOVERED: Final = _counter("webhook_recovered_total", "Events that waited and were processed.")
UNLINKED: Final = _counter("payments_unlinked_total", "Payments of which nobody is known.")
AMOUNT_MISMATCHES: Final = _counter(
    "payments_amount_mismatch_total",
    "Payments of another sum or currency than the price.",
)
EVIDENCE_DROPPED: Final = _counter(
    "webhook_evidence_dropped_total",
    "Refused deliveries that were counted but not kept.",
)
RATE_LIMITED: Final = _counter(
    "webhook_rate_limited_total", "Requests refused because there were too many."
)
BANNED: Final = _counter("webhook_banned_total", "Requests refused because of who sends them.")
NOTICES_SENT: Final = _counter(
    "notices_sent_total",
    "Messages to people, by channel, its kind, and what became of the attempt.",
    ("channel", "kind", "result"),
)
WALLET_COMMANDS: Final = _counter(
    "wallet_commands_total",
    "Commands on reservations, repeats included, and what became of them.",
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
PUBLISHED: Final = _counter("bus_published_total", "Messages that the relay has published.", ())
_BY_CONSUMER: Final = ("consumer",)
TAKEN: Final = _counter("bus_taken_total", "Messages that a group has taken.", _BY_CONSUMER)
BUS_DUPLICATES: Final = _counter(
    "bus_duplicate_total", "Messages that came to a group again.", _BY_CONSUMER
)
BURIED: Final = _counter(
    "bus_dead_letter_total", "Messages that a group could not take.", _BY_CONSUMER
)
BUS_FOREIGN: Final = _counter(
    "bus_foreign_total", "Messages on our topics that are none of ours.", _BY_CONSUMER
)
BUS_LOST: Final = _counter(
    "bus_lost_total", "Messages that were gone before a group took them.", _BY_CONSUMER
)
BUS_LATENCY: Final = Histogram(
    "bus_latency_ms",
    "From a message's being published to its being taken.",
    _BY_CONSUMER,
    buckets=_LAG_MILLISECONDS,
    registry=REGISTRY,
)
DURATION: Final = Histogram(
    "webhook_processing_duration_ms",
    "From the last byte of a delivery to the end of its transaction.",
    _BY_PROVIDER,
    buckets=_MILLISECONDS,
    registry=REGISTRY,
)
LAG: Final = Histogram(
    "webhook_processing_lag_ms",
    "From an event's first arrival to its being final.",
    _BY_PROVIDER,
    buckets=_LAG_MILLISECONDS,
    registry=REGISTRY,
)


@cache
def bound(counter: Counter, *labels: str | int) -> Counter:
    """The counter with its labels. They are few, and looking them up each time is not cheap."""
    return counter.labels(*labels)


@cache
def bound_histogram(histogram: Histogram, *labels: str) -> Histogram:
    """The same for a histogram."""
    return histogram.labels(*labels)


@dataclass(frozen=True, slots=True)
class Measure:
    """A gauge that is asked of the database whenever the metrics are read.

    Kept nowhere, it is right whichever process is asked.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """The gauge as Prometheus is told of it: a value for each set of labels."""
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


BACKLOG: Final = Measure("webhook_events_backlog", "Events that wait.", ("status",))
OLDEST_EVENT: Final = Measure(
    "webhook_events_oldest_seconds", "Age of the oldest event that waits.", ("status",)
)
UNAPPLIED: Final = Measure(
    "payments_unapplied", "Payments received and not applied.", ("currency", "reason")
)
UNAPPLIED_AMOUNT: Final = Measure(
    "payments_unapplied_amount", "Their sum, in major units.", ("currency", "reason")
)
RECONCILIATION_FINDINGS: Final = Measure(
    "reconciliation_findings",
    "Payments on which a gateway's books and ours do not agree.",
    ("source", "kind"),
)
RECONCILIATION_AGE: Final = Measure(
    "reconciliation_last_success_seconds",
    "Time since a source was last reconciled to the end.",
    ("source",),
)
OLDEST_UNAPPLIED: Final = Measure(
    "payments_unapplied_oldest_seconds", "Age of the oldest payment that was not applied."
)
OLDEST_UNLINKED: Final = Measure(
    "payments_unlinked_oldest_seconds", "Age of the oldest payment of which nobody is known."
)
REVIEW: Final = Measure(
    "payments_review", "Payments that a person should look at, applied or not.", ("reason",)
)
OLDEST_REVIEW: Final = Measure(
    "payments_review_oldest_seconds", "Age of the oldest of these.", ("reason",)
)

BANS: Final = Measure("addresses_banned", "Addresses that are banned now.")


UNTOLD: Final = Measure("notices_untold", "Notices that a channel has not been told.", ("channel",))
OLDEST_UNTOLD: Final = Measure(
    "notices_untold_oldest_seconds", "Age of the oldest of these.", ("channel",)
)


UNPUBLISHED: Final = Measure("bus_unpublished", "Messages that are not published yet.")
OLDEST_UNPUBLISHED: Final = Measure("bus_unpublished_oldest_seconds", "Age of the oldest of these.")
BUS_LAG: Final = Measure(
    "bus_lag", "Messages that are published, and not taken by a group.", ("consumer", "about")
)
BUS_ABSENT: Final = Measure(
    "bus_absent_seconds", "Time since a group was last at work.", ("consumer",)
)
OPEN_DEAD_LETTERS: Final = Measure(
    "bus_dead_letters", "Messages that wait for a person.", ("consumer",)
)
WALLET_PAYMENTS_REVIEW: Final = Measure(
    "wallet_payments_review",
    "Payments out of a wallet that a person should look at.",
    ("reason",),
)
DEAD_CALLBACKS: Final = Measure(
    "gateway_callbacks_dead", "Callbacks that found no payment and wait for a person."
)


def counted() -> CollectorRegistry:
    """All that was counted, by this process and by those that serve together with it."""
    if METRICS_FOLDER not in os.environ:
        return REGISTRY
    whole = CollectorRegistry()
    MultiProcessCollector(whole)  # type: ignore[no-untyped-call]
    return whole


def exposition(measured: Iterable[Metric]) -> bytes:
    """What Prometheus is told: all that was counted, and what has just been measured."""
    asked = CollectorRegistry()
    asked.register(_Measured(list(measured)))
    return generate_latest(counted()) + generate_latest(asked)


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
