"""The log: lines on standard output, as JSON or for people. `metrics.py` holds the metrics.

Outcome lines (one for each event) are serialised directly and queued once for each batch; all
other lines go through structlog. `log_writer.py` writes them, and nobody waits for that. No line
holds a secret, a card number or a whole payload; e-mail addresses are masked.
"""

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, cast
from uuid import UUID

import structlog

from paidonce.clock import CLOCK
from paidonce.core.events import Code
from paidonce.core.masking import Masker
from paidonce.settings import METRICS_FOLDER
from paidonce.settings.sections import LogSettings
from paidonce.telemetry.log_format import console_line, json_line
from paidonce.telemetry.log_writer import MAX_ATOMIC_BYTES, LogWriter

MAX_FRAMES: Final = 8


class OutcomeLine(TypedDict):
    """The log line of a delivery, and of each later attempt."""

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


_masks: list[Masker] = []
"""Empty until the settings are loaded, then one."""


def mask_with(mask: Masker) -> None:
    """Use this mask for all text from outside."""
    _masks[:] = [mask]


def masked(text: str) -> str:
    """Text from outside, as it may be logged or recorded."""
    return _masks[0].line(text) if _masks else text


def _masked(line: OutcomeLine) -> OutcomeLine:
    """The line without card numbers and secrets that a sender put into other fields.

    All fields are checked at once, because nearly always there is nothing to remove.
    """
    sent = (
        f"{line['external_payment_id']}|{line['external_event_id']}|{line['event_key']}|"
        f"{line['event_type']}|{line['amount']}|{line['order']}|{line['error_message']}|"
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
"""Fields that no sender writes, or that are masked already."""


@dataclass(slots=True)
class _Log:
    """How lines are written; set once, at the start."""

    level: int = logging.INFO
    is_console: bool = False
    is_coloured: bool = False

    def line(self, line: MutableMapping[str, Any]) -> bytes:
        """A line as it is written, with its line break."""
        if self.is_console:
            return console_line(line, is_coloured=self.is_coloured)
        return json_line(line, MAX_ATOMIC_BYTES if _writer.is_shared else None)


_log: Final = _Log()


def log_outcomes(at: datetime, lines: Iterable[OutcomeLine]) -> None:
    """Log one line for each outcome. Never waits for the reader of the log."""
    texts = []
    for line in lines:
        level = logging.WARNING if is_warning(line) else logging.INFO
        if level >= _log.level:
            head = {"timestamp": at, "level": _NAMES_OF[level], "event": "webhook_outcome"}
            texts.append(_log.line(head | _masked(line)))
    if texts:
        _writer.write(texts)


_NAMES_OF: Final = {logging.WARNING: "warning", logging.INFO: "info"}
_WARNING_RESULTS: Final = frozenset({"conflict", "dead_letter"})
_WARNING_CODES: Final = frozenset(
    {
        Code.AMOUNT_MISMATCH,
        Code.CURRENCY_MISMATCH,
        Code.EXCESS,
        Code.REFUND_EXCESS,
        Code.REFUND_CURRENCY_MISMATCH,
        Code.LINK_CONFLICT,
        Code.PROVIDER_MISMATCH,
        Code.DUPLICATE_PAYMENT,
    }
)


def is_warning(line: OutcomeLine) -> bool:
    """Whether a person should know: money that does not fit, contradictions, dead letters."""
    return line["result"] in _WARNING_RESULTS or line["error_code"] in _WARNING_CODES


def log_security(action: str, **details: object) -> None:
    """Log an attack or the reaction to it. Never one line for each request."""
    logger("security").warning("security", action=action, **details)


def configure_logging(settings: LogSettings) -> None:
    """Write structlog's lines and warnings of libraries to standard output."""
    _apply(settings)
    _configure_structlog()
    logging.basicConfig(
        handlers=[_LibraryLines()], level=max(logging.WARNING, _log.level), force=True
    )
    # It warns of each invalid HTTP request, and anybody can send those.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def keep_quiet() -> None:
    """For commands: log only warnings, to standard error."""
    _log.level = logging.CRITICAL  # of outcomes, nothing
    _configure_structlog()
    structlog.configure(
        processors=[*_PROCESSORS, lambda _, __, line: json_line(line).decode().rstrip("\n")],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def configure_logging_unless_configured(settings: LogSettings) -> None:
    """Configure the log of outcomes, and structlog unless the host application has done so."""
    _apply(settings)
    if not structlog.is_configured():
        _configure_structlog()


def flush_log() -> bool:
    """Write what waits, within a second; returns whether everything is written."""
    return _writer.flush()


def _apply(settings: LogSettings) -> None:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    _log.level = logging.getLevelNamesMapping()[settings.level.upper()]
    _log.is_console = settings.format == "console" or (settings.format == "auto" and is_terminal)
    _log.is_coloured = is_terminal and not os.environ.get("NO_COLOR")
    _writer.is_shared = METRICS_FOLDER in os.environ


def _configure_structlog() -> None:
    structlog.configure(
        processors=[*_PROCESSORS, lambda _, __, line: {"line": line}],
        wrapper_class=structlog.make_filtering_bound_logger(_log.level),
        logger_factory=lambda *_: _QueueLogger(),
        cache_logger_on_first_use=False,
    )


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger for everything but outcomes of events."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger(module=name)
    return bound


def _summarise_exception(
    _: Any, __: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Log an exception by its type and place. Its message may quote input."""
    error = line.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        line["exception"] = type(error).__name__
        line["at"] = [
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
        ]
    return line


_NAMES: Final = frozenset({"timestamp", "level", "event", "module", "action", "request_id"})
"""Fields that only our own code writes."""


def _mask_values(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask all texts of a line except our own."""
    for name, value in line.items():
        if isinstance(value, str) and name not in _NAMES:
            line[name] = masked(value)
    return line


class _LibraryLines(logging.Handler):
    """Logs the lines of libraries like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": masked(record.getMessage()),
            "module": record.name,
            "exc_info": record.exc_info[1] if record.exc_info else None,
        }
        _writer.write([_log.line(_mask_values(None, "", _summarise_exception(None, "", line)))])


class _QueueLogger:
    """Where structlog's lines go."""

    def queue(self, line: MutableMapping[str, Any]) -> None:
        _writer.write([_log.line(line)])

    debug = info = warning = error = critical = exception = msg = queue


_PROCESSORS: Final = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _summarise_exception,
    _mask_values,
)


def _count_dropped(number: int) -> None:
    from paidonce.telemetry import metrics  # only a service has metrics

    metrics.LOG_LINES_DROPPED.inc(number)


def _dropped_line(number: int) -> bytes:
    line = {
        "timestamp": CLOCK.now(),
        "level": "warning",
        "event": "log_lines_dropped",
        "lines": number,
        "detail": f"{number} lines dropped: the reader of the log was too slow",
    }
    return _log.line(line)


_writer: Final = LogWriter(_count_dropped, _dropped_line)
atexit.register(flush_log)
