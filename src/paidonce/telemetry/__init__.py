"""The log: JSON lines on standard output. `metrics.py` holds the metrics.

Outcome lines (one for each event) are serialised directly and written once for each batch; all
other lines go through structlog. No line holds a secret, a card number or a whole payload; e-mail
addresses are masked.
"""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO, TypedDict, cast
from uuid import UUID

import orjson
import structlog

from paidonce.core.masking import Masker
from paidonce.settings import METRICS_FOLDER

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
_LOG_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z


_is_quiet = False


def log_outcomes(at: datetime, lines: Iterable[OutcomeLine]) -> None:
    """Write one line for each outcome; a single process writes them all at once."""
    if _is_quiet:
        return
    head = {"timestamp": at, "level": "info", "event": "webhook_outcome"}
    texts = [orjson.dumps(head | _masked(line), default=str, option=_LOG_OPTIONS) for line in lines]
    # Several processes may write to one pipe, where only short writes are atomic.
    at_once = 1 if METRICS_FOLDER in os.environ else len(texts)
    try:
        for first in range(0, len(texts), max(at_once, 1)):
            sys.stdout.buffer.write(b"".join(texts[first : first + at_once]))
            sys.stdout.buffer.flush()
    except OSError:  # the reader of the log is gone; that must not affect events
        return


def log_security(action: str, **details: object) -> None:
    """Log an attack or the reaction to it. Never one line for each request."""
    logger("security").warning("security", action=action, **details)


def configure_logging() -> None:
    """Write structlog's lines and warnings of libraries to standard output as JSON."""
    _configure_structlog()
    library = logging.StreamHandler(sys.stdout)
    library.setFormatter(_LibraryLines())
    logging.basicConfig(handlers=[library], level=logging.WARNING, force=True)
    # It warns of each invalid HTTP request, and anybody can send those.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def keep_quiet() -> None:
    """For commands: log only warnings, to standard error."""
    global _is_quiet  # noqa: PLW0603 - set once, at the start of a command
    _is_quiet = True
    _configure_structlog()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=_printing_to("stderr"),
    )


def configure_logging_unless_configured() -> None:
    """Configure structlog, unless the host application has done so."""
    if not structlog.is_configured():
        _configure_structlog()


class _Output:
    """A stream whose failure affects nobody: the reader of the log may be gone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            getattr(sys, self._name).write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            getattr(sys, self._name).flush()


def _printing_to(name: str) -> structlog.PrintLoggerFactory:
    return structlog.PrintLoggerFactory(cast("TextIO", _Output(name)))


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _summarise_exception,
            _mask_values,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=_printing_to("stdout"),
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


class _LibraryLines(logging.Formatter):
    """Formats the lines of libraries like ours."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": masked(record.getMessage()),
            "module": record.name,
            "exc_info": record.exc_info[1] if record.exc_info else None,
        }
        line = dict(_mask_values(None, "", _summarise_exception(None, "", line)))
        return orjson.dumps(line, option=orjson.OPT_UTC_Z).decode()


def _dumps(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()
