"""Every metric and every log line, declared once.

Logs are JSON, one object a line, on standard output. Outcome lines (one per event) are serialised
directly and written once per batch; everything else goes through structlog. Nothing here is ever
given a secret, a card number or a whole payload; e-mail addresses come masked.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, Protocol, TypedDict, cast
from uuid import UUID

import orjson
import structlog
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
MAX_FRAMES: Final = 8

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


class OutcomeLine(TypedDict):
    """What the log says of each delivery and each later attempt."""

    request_id: str
    provider: str
    source: str
    webhook_event_id: UUID | None
    external_event_id: str | None
    external_payment_id: str | None
    event_key: str | None
    event_type: str | None
    signature_valid: bool
    incoming_status: str | None
    amount: str | None
    currency: str | None
    order: str | None
    email: str | None  # masked
    user_id: UUID | None
    result: str
    payment_status_before: str | None
    payment_status_after: str | None
    subscription_end_before: datetime | None
    subscription_end_after: datetime | None
    subscription_applied_before: datetime | None
    subscription_applied_after: datetime | None
    event_age_ms: int | None
    late_webhook: bool
    test: bool
    error_code: str | None
    error_message: str | None
    reason: str | None
    duration_ms: float


class Mask(Protocol):
    """Hides what no log may hold."""

    def is_suspicious(self, text: str) -> bool:
        """Whether `line` might change the text; a quick look."""

    def line(self, text: str) -> str:
        """The text without it."""


_masks: list[Mask] = []
"""None until the settings are known, and then one."""


def mask_with(mask: Mask) -> None:
    """From now on, let it look at all that somebody outside may have written."""
    _masks[:] = [mask]


def masked(text: str) -> str:
    """A text of somebody's own, as it may be logged or recorded."""
    return _masks[0].line(text) if _masks else text


def _masked(line: OutcomeLine) -> OutcomeLine:
    """The line without what a sender may have put where it does not belong.

    Looked at all at once, because nearly always there is nothing.
    """
    sent = (
        f"{line['external_payment_id']}\n{line['external_event_id']}\n{line['event_key']}\n"
        f"{line['event_type']}\n{line['amount']}\n{line['order']}\n{line['error_message']}\n"
        f"{line['reason']}"
    )
    mask = _masks[0] if _masks else None
    if mask is None or not mask.is_suspicious(sent):
        return line
    masked = {
        name: mask.line(value) if isinstance(value, str) and name not in _OURS else value
        for name, value in line.items()
    }
    return cast("OutcomeLine", masked)


_OURS: Final = frozenset({"request_id", "provider", "source", "email", "result"})
"""What no sender writes, or what is masked already."""
_LOG_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


_is_quiet = False


def log_outcomes(at: datetime, lines: Iterable[OutcomeLine]) -> None:
    """Write one line for each; a process that is alone writes them all at once."""
    if _is_quiet:
        return
    said = {"timestamp": at, "level": "info", "event": "webhook_outcome"}
    texts = [orjson.dumps(said | _masked(line), default=str, option=_LOG_OPTIONS) for line in lines]
    # Several processes may write to one pipe: only what is short is written in one piece there.
    at_once = 1 if METRICS_FOLDER in os.environ else len(texts)
    try:
        for first in range(0, len(texts), max(at_once, 1)):
            sys.stdout.buffer.write(b"".join(texts[first : first + at_once]))
            sys.stdout.buffer.flush()
    except OSError:  # whoever reads the log has gone; events must not suffer for it
        return


def log_security(action: str, **said: object) -> None:
    """Write what somebody tried, or what was done about it. Never a line for each request."""
    logger("security").warning("security", action=action, **said)


def configure_logging() -> None:
    """Send structlog's lines, and warnings of libraries, to standard output as JSON."""
    _configure_structlog()
    library = logging.StreamHandler(sys.stdout)
    library.setFormatter(_LibraryLines())
    logging.basicConfig(handlers=[library], level=logging.WARNING, force=True)


def keep_quiet() -> None:
    """For a command: it says what it was asked for. Only warnings are logged, to standard error."""
    global _is_quiet  # noqa: PLW0603 - a process is a command or a service, for good
    _is_quiet = True
    _configure_structlog()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def configure_logging_if_nobody_has() -> None:
    """Send structlog's lines there, unless the program that holds us sends them elsewhere."""
    if not structlog.is_configured():
        _configure_structlog()


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_values,
            _without_secrets,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=False,
    )


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger for what is not an event's outcome."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger(room=name)
    return bound


def _without_values(_: Any, __: str, said: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An exception as its type and place. Its message may quote what somebody sent."""
    error = said.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        said["exception"] = type(error).__name__
        said["at"] = [
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
        ]
    return said


def _without_secrets(_: Any, __: str, said: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """All texts of a line as the mask leaves them, except for what we wrote ourselves."""
    for name, value in said.items():
        if isinstance(value, str) and name not in ("timestamp", "request_id"):
            said[name] = masked(value)
    return said


class _LibraryLines(logging.Formatter):
    """Lines of libraries in the same form as ours."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "room": record.name,
            "exc_info": record.exc_info[1] if record.exc_info else None,
        }
        said = dict(_without_secrets(None, "", _without_values(None, "", said)))
        return orjson.dumps(said, option=orjson.OPT_UTC_Z).decode()


def _dumps(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()
