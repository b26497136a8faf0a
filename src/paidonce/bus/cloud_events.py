"""Messages as CloudEvents 1.0 in binary mode: attributes are headers, the body is the data.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md,
checked 2026-11-16. `sequence` is the extension of that name.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import orjson

from paidonce.bus.messages import OURS, Message
from paidonce.bus.schemas import schema_id
from paidonce.errors import MessageRefusedError

SPEC_VERSION: Final = "1.0"
JSON: Final = "application/json"
MAX_BODY_BYTES: Final = 262_144
MAX_KEY_BYTES: Final = 1024
MAX_TYPE_CHARS: Final = 200
MAX_SOURCE_CHARS: Final = 1024
MAX_HEADERS: Final = 64
MAX_VERSION: Final = 2**63 - 1
FIRST_VERSION: Final = 1
"""Of whoever does not say which: a first message, such as PaymentInitiated, needs no number."""

Headers = Sequence[tuple[str, bytes]]
RawHeaders = Iterable[tuple[str, bytes | str | None]]


def headers_of(message: Message) -> Headers:
    """The attributes of a message."""
    said = {
        "content-type": JSON,
        "ce_specversion": SPEC_VERSION,
        "ce_id": str(message.id),
        "ce_source": message.source,
        "ce_type": message.type,
        "ce_subject": message.key,
        "ce_time": message.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "ce_sequence": str(message.version),
        "ce_dataschema": schema_id(message.type),
    }
    return [(name, value.encode()) for name, value in said.items()]


def message_of(
    *,
    topic: str,
    key: bytes | None,
    headers: RawHeaders,
    body: bytes | None,
    published_at: datetime | None = None,
) -> Message:
    """What somebody sent. Raises MessageRefusedError, which says why and quotes nothing."""
    said = _texts(headers)
    if said.get("ce_specversion") != SPEC_VERSION:
        raise MessageRefusedError("it is no CloudEvent 1.0 in binary mode: ce_specversion")
    return Message(
        id=_id(said),
        topic=topic,
        key=_key(key),
        type=_type(said),
        version=_version(said),
        time=_time(said),
        body=_body(body),
        published_at=published_at,
        source=said.get("ce_source", OURS)[:MAX_SOURCE_CHARS],
    )


def _texts(headers: RawHeaders) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for number, (name, value) in enumerate(headers):
        if number >= MAX_HEADERS:
            raise MessageRefusedError(f"it has more than {MAX_HEADERS} headers")
        text = _text(value or b"", f"header {name[:40]!r}")
        if name.startswith("ce_") and found.setdefault(name, text) != text:
            raise MessageRefusedError(f"it says {name[:40]!r} twice")
    return found


def _text(value: bytes | str, what: str) -> str:
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise MessageRefusedError(f"its {what} is not UTF-8") from None
    if "\0" in text:
        raise MessageRefusedError(f"its {what} has a NUL character")
    return text


def _id(said: Mapping[str, str]) -> UUID:
    try:
        return UUID(said.get("ce_id", ""))
    except ValueError:
        raise MessageRefusedError("its ce_id is no UUID") from None


def _key(key: bytes | None) -> str:
    if not key or len(key) > MAX_KEY_BYTES:
        raise MessageRefusedError(f"its key is missing or longer than {MAX_KEY_BYTES} bytes")
    return _text(key, "key")


def _type(said: Mapping[str, str]) -> str:
    named = said.get("ce_type", "")
    if not 0 < len(named) <= MAX_TYPE_CHARS:
        raise MessageRefusedError("its ce_type is missing or too long")
    return named


def _version(said: Mapping[str, str]) -> int:
    number = said.get("ce_sequence", str(FIRST_VERSION))
    if not (number.isascii() and number.isdigit() and len(number) <= len(str(MAX_VERSION))):
        raise MessageRefusedError("its ce_sequence is no whole number")
    if not FIRST_VERSION <= int(number) <= MAX_VERSION:
        raise MessageRefusedError("its ce_sequence is out of range")
    return int(number)


def _time(said: Mapping[str, str]) -> datetime:
    try:
        time = datetime.fromisoformat(said.get("ce_time", ""))
        if time.tzinfo is None:
            raise ValueError
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise MessageRefusedError("its ce_time is no RFC 3339 time") from None


def _body(body: bytes | None) -> bytes:
    if not body:
        raise MessageRefusedError("it has no body")
    if len(body) > MAX_BODY_BYTES:
        raise MessageRefusedError(f"its body is longer than {MAX_BODY_BYTES} bytes")
    try:
        is_object = isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:
        raise MessageRefusedError("its body is no JSON object")
    return body
