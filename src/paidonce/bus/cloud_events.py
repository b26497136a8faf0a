"""Messages as CloudEvents 1.0 in binary mode: attributes in headers, data in the body.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md,
checked 2026-11-16. `sequence` is the extension of that name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import orjson

from paidonce.bus.model import SOURCE, Message
from paidonce.bus.schemas import schema_id
from paidonce.core.input import to_utc
from paidonce.errors import InvalidMessageError

SPEC_VERSION: Final = "1.0"
JSON: Final = "application/json"
MAX_BODY_BYTES: Final = 262_144
MAX_KEY_BYTES: Final = 1024
MAX_TYPE_CHARS: Final = 200
MAX_SOURCE_CHARS: Final = 1024
MAX_HEADERS: Final = 64
MAX_VERSION: Final = 2**63 - 1
FIRST_VERSION: Final = 1
"""The default: a first message, such as PaymentInitiated, needs no number."""

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic."""

    topic: str
    key: bytes | None
    headers: Headers
    body: bytes | None


def headers_of(message: Message) -> Headers:
    """The CloudEvents attributes of a message."""
    attributes = {
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
    return [(name, value.encode()) for name, value in attributes.items()]


def message_of(record: Record, topic: str, published_at: datetime | None) -> Message:
    """Parse a record. Raises InvalidMessageError, whose text quotes nothing of it."""
    attributes = _attributes(record.headers)
    if attributes.get("ce_specversion") != SPEC_VERSION:
        raise InvalidMessageError("not a CloudEvent 1.0 in binary mode: ce_specversion")
    return Message(
        id=_id(attributes),
        topic=topic,
        key=_key(record.key),
        type=_type(attributes),
        version=_version(attributes),
        time=_time(attributes),
        body=_body(record.body),
        published_at=published_at,
        source=attributes.get("ce_source", SOURCE)[:MAX_SOURCE_CHARS],
    )


def _attributes(headers: Headers) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for number, (name, value) in enumerate(headers):
        if number >= MAX_HEADERS:
            raise InvalidMessageError(f"more than {MAX_HEADERS} headers")
        text = _text(value or b"", f"header {name[:40]!r}")
        if name.startswith("ce_") and found.setdefault(name, text) != text:
            raise InvalidMessageError(f"header {name[:40]!r} is given twice")
    return found


def _text(value: bytes, what: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidMessageError(f"{what} is not UTF-8") from None
    if "\0" in text:
        raise InvalidMessageError(f"{what} contains a NUL character")
    return text


def _id(attributes: Mapping[str, str]) -> UUID:
    try:
        return UUID(attributes.get("ce_id", ""))
    except ValueError:
        raise InvalidMessageError("ce_id is not a UUID") from None


def _key(key: bytes | None) -> str:
    if not key or len(key) > MAX_KEY_BYTES:
        raise InvalidMessageError(f"the key is missing or longer than {MAX_KEY_BYTES} bytes")
    return _text(key, "the key")


def _type(attributes: Mapping[str, str]) -> str:
    type_ = attributes.get("ce_type", "")
    if not 0 < len(type_) <= MAX_TYPE_CHARS:
        raise InvalidMessageError("ce_type is missing or too long")
    return type_


def _version(attributes: Mapping[str, str]) -> int:
    number = attributes.get("ce_sequence", str(FIRST_VERSION))
    if not (number.isascii() and number.isdigit() and len(number) <= len(str(MAX_VERSION))):
        raise InvalidMessageError("ce_sequence is not a whole number")
    if not FIRST_VERSION <= int(number) <= MAX_VERSION:
        raise InvalidMessageError("ce_sequence is out of range")
    return int(number)


def _time(attributes: Mapping[str, str]) -> datetime:
    try:
        time = datetime.fromisoformat(attributes.get("ce_time", ""))
        if time.tzinfo is None:
            raise ValueError
        return to_utc(time)
    except ValueError:
        raise InvalidMessageError("ce_time is not an RFC 3339 time") from None


def _body(body: bytes | None) -> bytes:
    if not body:
        raise InvalidMessageError("the body is missing")
    if len(body) > MAX_BODY_BYTES:
        raise InvalidMessageError(f"the body is longer than {MAX_BODY_BYTES} bytes")
    try:
        is_object = isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:
        raise InvalidMessageError("the body is not a JSON object")
    return body
