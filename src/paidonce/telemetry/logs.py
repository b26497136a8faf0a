"""Every line of the log, declared once.

JSON, one object a line, on standard output. Outcome lines (one per event) are serialised directly
and written once per batch; everything else goes through structlog. Nothing here is ever given a
secret, a card number or a whole payload; e-mail addresses come masked.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypedDict, cast
from uuid import UUID

import orjson
import structlog

from paidonce.settings import METRICS_FOLDER

MAX_FRAMES: Final = 8


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
    # It warns of each request that is no HTTP, and anybody can send those.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


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


_NAMES: Final = frozenset({"timestamp", "level", "event", "room", "action", "request_id"})
"""What we write ourselves."""


def _without_secrets(_: Any, __: str, said: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """All texts of a line as the mask leaves them, except for what we wrote ourselves."""
    for name, value in said.items():
        if isinstance(value, str) and name not in _NAMES:
            said[name] = masked(value)
    return said


class _LibraryLines(logging.Formatter):
    """Lines of libraries in the same form as ours."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": masked(record.getMessage()),
            "room": record.name,
            "exc_info": record.exc_info[1] if record.exc_info else None,
        }
        said = dict(_without_secrets(None, "", _without_values(None, "", said)))
        return orjson.dumps(said, option=orjson.OPT_UTC_Z).decode()


def _dumps(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()
