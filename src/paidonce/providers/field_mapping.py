"""Event formats that the settings of a source describe: where each field is, what each type means.

    [sources.shop.fields]
    payment_id = "/data/object/id"         # a JSON pointer (RFC 6901)
    event_id = "header:x-event-id"
    [sources.shop.types]
    "order.paid" = "paid"                  # paid, failed, canceled, refunded, pending, ignored

Used by the providers `generic` and `standard`.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import orjson

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import money
from paidonce.errors import ConfigurationError, InvalidRequestError, MalformedError, did_you_mean
from paidonce.providers import contract, read
from paidonce.providers.fields import EventFields, canonical, external_ids

FIELDS: Final = (
    "event_id", "type", "payment_id", "order", "amount", "amount_minor", "refunded",
    "refunded_minor", "currency", "email", "plan_id", "occurred_at", "nonce",
)  # fmt: skip
_MONEY_FIELDS: Final = frozenset(
    {"payment_id", "amount", "amount_minor", "refunded", "refunded_minor", "currency"}
)
HEADER_PREFIX: Final = "header:"

TYPES: Final[Mapping[str, EventType | None]] = {
    "paid": EventType.PAID,
    "failed": EventType.FAILED,
    # Given up unpaid. Returned money is `refunded`, with its amount: a gateway's word alone does
    # not cancel a paid payment.
    "canceled": EventType.VOIDED,
    "refunded": EventType.REFUNDED,
    "pending": EventType.PENDING,
    "ignored": None,
}

_MINOR: Final = {"amount": "amount_minor", "refunded": "refunded_minor"}
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")


@dataclass(frozen=True, slots=True)
class JsonPointer:
    """A place in the JSON body."""

    steps: tuple[str, ...]

    def find(self, delivery: contract.Delivery) -> Any:
        """Return the value, None if there is none. Raises MalformedError for a bad body."""
        value: Any = delivery.json
        for step in self.steps:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return value


@dataclass(frozen=True, slots=True)
class HeaderField:
    """A header, by its name in lower case."""

    name: str

    def find(self, delivery: contract.Delivery) -> str | None:
        """Return the value, None if it was not sent. Raises MalformedError."""
        value = delivery.headers.get(self.name)
        if value is not None and not value.isprintable():
            raise MalformedError(f"the header {self.name} is not printable")
        return value


FieldLocation = JsonPointer | HeaderField


@dataclass(frozen=True, slots=True, eq=False)
class FieldMapping:
    """The event format of one source."""

    locations: Mapping[str, FieldLocation]
    types: Mapping[str, EventType | None]

    @property
    def headers(self) -> frozenset[str]:
        """The headers that contain fields."""
        return frozenset(
            one.name for one in self.locations.values() if isinstance(one, HeaderField)
        )

    def read_fields(self, delivery: contract.Delivery) -> EventFields:
        """Read the fields. Of an ignored type, only the name of the type has to be valid.

        Raises MalformedError.
        """
        kind = read.required_text(self._find(delivery, "type"), "type")
        if self.types.get(kind) is None:
            payment_id = self._read_valid_text(delivery, "payment_id")
            return EventFields(kind, payment_id, self._read_valid_text(delivery, "event_id"))
        found = {name: location.find(delivery) for name, location in self.locations.items()}
        code = read.currency(found)
        return EventFields(
            type=kind,
            payment_id=read.text(found, "payment_id"),
            event_id=read.text(found, "event_id"),
            order=read.text(found, "order"),
            amount=self._read_amount(found, "amount", code),
            currency=code,
            email=read.email(found, dropped=delivery.dropped),
            plan_id=read.text(found, "plan_id"),
            occurred_at=read.time_or_drop(found, "occurred_at", delivery.dropped),
            refunded=self._read_amount(found, "refunded", code),
        )

    def translate(self, fields: EventFields) -> PaymentEvent | Ignored:
        """Translate the fields into an event. Raises MalformedError.

        Where the total refunded is not sent beside the amount, the amount of a refund is that.
        """
        event_type = self.types.get(fields.type)
        if event_type is None:
            return Ignored(Code.NON_SUCCESS_STATUS, "this type of event has no effect")
        if event_type not in (EventType.PAID, EventType.REFUNDED):
            return fields.payment_event(event_type)
        if event_type is EventType.PAID and canonical(fields.refunded) in (None, "0"):
            return fields.payment_event(EventType.PAID, fields.money())
        if not {"refunded", "refunded_minor"} & self.locations.keys():
            return fields.payment_event(EventType.REFUNDED, refunded=fields.money())
        if fields.refunded is None:
            raise MalformedError("the refunded amount is missing")
        refunded = fields._replace(amount=fields.refunded).money()
        captured = None if fields.amount is None else fields.money()
        return fields.payment_event(EventType.REFUNDED, captured, refunded)

    def unreadable_payment(self, delivery: contract.Delivery) -> tuple[ExternalId, ...]:
        """Return the id of the payment that the delivery reports as paid. Raises MalformedError."""
        kind = read.required_text(self._find(delivery, "type"), "type")
        if self.types.get(kind) is not EventType.PAID:
            return ()
        return external_ids(payment=read.text(self._find(delivery, "payment_id"), "payment_id"))

    def unsigned_fields(self, signed_headers: Collection[str]) -> frozenset[str]:
        """Return the fields that are in headers which are not signed."""
        return frozenset(
            name
            for name, location in self.locations.items()
            if isinstance(location, HeaderField) and location.name not in signed_headers
        )

    def read_nonce(self, delivery: contract.Delivery) -> str | None:
        """Read the nonce. Raises MalformedError."""
        return read.text(self._find(delivery, "nonce"), "nonce")

    def meaning(self, kind: str) -> str:
        """Return what a type means, in the words of the settings."""
        event_type = self.types.get(kind)
        return "ignored" if event_type is None else event_type

    def build_sample(self, sample: contract.SampleEvent) -> tuple[bytes, dict[str, str]]:
        """Return a body with the fields of the sample, and the headers that contain some of them.

        Raises ConfigurationError when one field is inside another, InvalidRequestError when no type
        has the wanted meaning.
        """
        body: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for name, value in self._sample_values(sample).items():
            location = self.locations.get(name)
            if value is None or location is None:
                continue
            if isinstance(location, HeaderField):
                headers[location.name] = str(value)
            elif not _put(body, location.steps, value):
                path = "/".join(location.steps)
                raise ConfigurationError(f"no body can have {name} at /{path}")
        return orjson.dumps(body), headers

    def _sample_values(self, sample: contract.SampleEvent) -> dict[str, str | int | None]:
        kind = self._type_for(sample.status)
        amount_minor = money(sample.amount, sample.currency).amount_minor
        is_refund = self.types.get(kind) is EventType.REFUNDED
        return {
            "type": kind,
            "event_id": sample.event_id or f"evt_{uuid4().hex}",
            "payment_id": sample.payment_id,
            "order": sample.order,
            "amount": sample.amount,
            "amount_minor": amount_minor,
            "refunded": sample.amount if is_refund else "0",
            "refunded_minor": amount_minor if is_refund else 0,
            "currency": sample.currency,
            "email": sample.email,
            "plan_id": sample.plan_id,
            "occurred_at": sample.sent_at.isoformat(),
            "nonce": uuid4().hex,
        }

    def _type_for(self, status: str) -> str:
        """Return the type itself, or the first with this meaning. Raises InvalidRequestError."""
        if status in self.types or status not in TYPES:
            return status
        names = [name for name, event_type in self.types.items() if event_type is TYPES[status]]
        if not names:
            raise InvalidRequestError(f"status: no type of this source means {status}")
        return names[0]

    def _find(self, delivery: contract.Delivery, name: str) -> read.Object:
        """Return an object with this field only; empty if it has no location."""
        location = self.locations.get(name)
        return {} if location is None else {name: location.find(delivery)}

    def _read_valid_text(self, delivery: contract.Delivery, name: str) -> str | None:
        with suppress(MalformedError):
            return read.text(self._find(delivery, name), name)
        return None

    def _read_amount(self, found: read.Object, name: str, code: str | None) -> read.Number | None:
        minor = _MINOR[name]
        if minor not in self.locations:
            return read.number(found, name)
        return read.from_minor(read.number(found, minor), code)


@dataclass(frozen=True, slots=True, eq=False)
class MappedProvider(contract.Provider):
    """A provider whose events a mapping describes."""

    mapping: FieldMapping
    tolerance_s: int | None
    kept_headers: frozenset[str]
    unsigned: frozenset[str]

    def identity_of(
        self, fields: EventFields, key: str | None, delivery: contract.Delivery
    ) -> contract.Identity:
        """Return the identity of an event; without a key it is the digest of the body.

        What an unsigned header says must make no other event of a captured delivery: its type
        counts by its few meanings, as a part of the key, and its nonce not at all.
        """
        key = key or hashlib.sha256(delivery.body).hexdigest()
        if "type" in self.unsigned:
            digest = fields._replace(type=self.mapping.meaning(fields.type)).fingerprint()
            key = f"{key}:{digest.hex()}"
        else:
            digest = fields.fingerprint()
        identity = fields.identity(key, digest)
        if "nonce" in self.unsigned:
            return identity
        nonce = self.mapping.read_nonce(delivery)
        return identity if nonce is None else replace(identity, nonce=nonce)

    def translate(self, delivery: contract.Delivery) -> PaymentEvent | Ignored:
        return self.mapping.translate(delivery.parse_once(self.mapping.read_fields))

    def unreadable_payment(self, delivery: contract.Delivery) -> tuple[ExternalId, ...]:
        return self.mapping.unreadable_payment(delivery)

    def unsigned_fields(self) -> frozenset[str]:
        return self.unsigned

    def evidence_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name in self.kept_headers}


def check_unsigned(key: str, unsigned: Collection[str]) -> None:
    """Raise ConfigurationError when money, or the payment, would be read from an unsigned header.

    Whoever has seen one delivery could report any payment.
    """
    for name in FIELDS:
        if name in unsigned and name in _MONEY_FIELDS:
            raise ConfigurationError(
                f"{key}.fields.{name}: anybody who has seen a delivery can change an unsigned "
                "header; read it from the body"
            )


def load_mapping(
    config: contract.ProviderConfig, locations: Mapping[str, str], types: Mapping[str, str]
) -> FieldMapping:
    """Build the mapping from the options `fields` and `types` of a source, over these defaults.

    Raises ConfigurationError.
    """
    fields, meanings, defaults = config.table("fields"), config.table("types"), dict(locations)
    for name in fields.options:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS)
            raise fields.invalid(
                name, f"there is no such field; known are {', '.join(FIELDS)}{hint}"
            )
    for name, minor in _MINOR.items():
        if {name, minor} <= fields.options.keys():
            raise ConfigurationError(f"{fields.key}.{minor}: {name} is given too; give one of them")
        if minor in fields.options:
            defaults.pop(name, None)
    fields = replace(fields, options={**defaults, **fields.options})
    meanings = replace(meanings, options={**types, **meanings.options})
    return FieldMapping(
        {name: _load_location(fields, name) for name in fields.options},
        {name: _load_type(meanings, name) for name in meanings.options},
    )


def header_name(text: str) -> str:
    """Return a header's name in lower case. Raises ValueError."""
    name = text.strip().lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("this is not a valid header name")
    return name


def _load_location(fields: contract.ProviderConfig, name: str) -> FieldLocation:
    text = fields.options[name] if isinstance(fields.options[name], str) else ""
    try:
        if text.startswith(HEADER_PREFIX):
            return HeaderField(header_name(text.removeprefix(HEADER_PREFIX)))
        return _json_pointer(text)
    except ValueError as error:
        raise fields.invalid(name, f'{error}; write "/data/id" or "header:NAME"') from None


def _json_pointer(text: str) -> JsonPointer:
    if not text.startswith("/") or _BAD_ESCAPE.search(text):
        raise ValueError('a JSON pointer begins with "/", and ~ is written ~0')
    steps = text[1:].split("/")
    return JsonPointer(tuple(step.replace("~1", "/").replace("~0", "~") for step in steps))


def _load_type(types: contract.ProviderConfig, name: str) -> EventType | None:
    meaning = types.options[name]
    if not isinstance(meaning, str) or meaning not in TYPES:
        raise types.invalid(name, f"write one of {', '.join(TYPES)}")
    return TYPES[meaning]


def _put(body: dict[str, Any], steps: tuple[str, ...], value: str | int) -> bool:
    """Put the value at this path; False if another value is in the way."""
    *path, last = steps
    for step in path:
        body = body.setdefault(step, {})
        if not isinstance(body, dict):
            return False
    if isinstance(body.get(last), dict):
        return False
    body[last] = value
    return True
