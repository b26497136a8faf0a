"""Log lines as text: JSON for programs, a short line for people."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from paidonce.core.printable import printable, printable_json

MAX_VALUE: Final = 200
"""The longest value in a line for people; JSON has it whole."""

_CUTS: Final = (200, 100, 50, 25)
"""How long values are in a line that is too long: the first that fits."""
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z
_OWN: Final = ("timestamp", "level", "event", "module")
_COLOURS: Final[Mapping[str, str]] = {
    "debug": "\x1b[2m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}
_PLAIN: Final = "\x1b[0m"


def json_line(line: Mapping[str, Any], max_bytes: int | None = None) -> bytes:
    """All fields as JSON. Long values are cut if the line would have more than `max_bytes`."""
    text = printable_json(orjson.dumps(line, default=str, option=_OPTIONS))
    if max_bytes is None or len(text) <= max_bytes:
        return text
    for longest in _CUTS:
        cut = {name: _shortened(value, longest) for name, value in line.items()}
        text = printable_json(orjson.dumps(cut, default=str, option=_OPTIONS))
        if len(text) <= max_bytes:
            break
    return text


def console_line(line: Mapping[str, Any], *, is_coloured: bool) -> bytes:
    """What people want to know first, in one line."""
    is_outcome = line.get("event") == "webhook_outcome"
    text = _outcome(line) if is_outcome else _others(line)
    level = str(line.get("level", "info"))
    shown = f"{level:<7}"
    if is_coloured:
        shown = f"{_COLOURS.get(level, '')}{shown}{_PLAIN}"
    whole = f"{_clock(line.get('timestamp'))} {shown} {text}\n"
    return whole.encode("utf-8", "backslashreplace")


def _shortened(value: object, longest: int) -> object:
    is_long = isinstance(value, str) and len(value) > longest
    return f"{str(value)[:longest]}…" if is_long else value


def _outcome(line: Mapping[str, Any]) -> str:
    """The line of a delivery, or of a later attempt."""
    amount = " ".join(_value(line[name]) for name in ("amount", "currency") if line[name])
    message = line["error_message"] or line["reason"]
    order = f"order {_value(line['order'])}" if line["order"] else ""
    parts = [
        f"{line['result']:<16}",
        _value(line["source"]),
        _value(line["event_type"] or "-"),
        _value(line["external_payment_id"] or "-"),
        amount,
        order,
        _value(line["error_code"] or ""),
        _cut(message or ""),
        "late" if line["late_webhook"] else "",
        "test" if line["test"] else "",
        f"event {line['webhook_event_id']}" if line["webhook_event_id"] else "",
        f"{line['duration_ms']:.1f} ms",
    ]
    return "  ".join(part for part in parts if part)


def _others(line: Mapping[str, Any]) -> str:
    fields = [f"{name}={_value(value)}" for name, value in line.items() if name not in _OWN]
    return "  ".join([_cut(line.get("event", "")), *fields])


def _value(value: object) -> str:
    """In quotes if it could be taken for several values."""
    text = _cut(value)
    return f"'{text}'" if " " in text else text


def _cut(value: object) -> str:
    text = str(value)
    shown = printable(text[:MAX_VALUE])
    return shown if len(text) <= MAX_VALUE else f"{shown}…"


def _clock(time: object) -> str:
    """The time of day in UTC: a terminal shows today."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if not isinstance(time, datetime):
        return "-" * 13
    return time.astimezone(UTC).strftime("%H:%M:%S.") + f"{time.microsecond // 1000:03}Z"
