"""Events that a source's settings describe: where each field stands, and what each type means.

    [sources.shop.fields]
    payment_id = "/data/object/id"         # a JSON pointer (RFC 6901)
    event_id = "header:x-event-id"
    [sources.shop.types]
    "order.paid" = "paid"                  # paid, failed, canceled, refunded, pending, ignored

Not a provider: providers whose senders can be described share it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import orjson

from paidonce.domain.events import Code, Ignored, PaymentEvent, Says
from paidonce.domain.money import money
from paidonce.errors import ConfigurationError, InvalidRequestError, MalformedError
from paidonce.providers.contract import Delivery, Identity, Sample
from paidonce.providers.fields import (
    Number,
    Said,
    address,
    any_time,
    canonical,
    currency,
    exact_money,
    from_minor,
    number,
    payment_event,
    text,
)

FIELDS: Final = (
    "event_id", "type", "payment_id", "order", "amount", "amount_minor", "refunded",
    "refunded_minor", "currency", "email", "plan_id", "occurred_at", "nonce",
)  # fmt: skip
HEADER: Final = "header:"
"""Before the name of a header, where a place in the body could stand as well."""

WORDS: Final[Mapping[str, Says | None]] = {
    "paid": Says.PAID,
    "failed": Says.FAILED,
    # Given up unpaid. Money that was returned is said by `refunded`, with its amount: that a paid
    # payment was canceled is only a word until somebody confirms it.
    "canceled": Says.VOIDED,
    "refunded": Says.REFUNDED,
    "pending": Says.PENDING,
    "ignored": None,
}

_AMOUNTS: Final = {"amount": "amount_minor", "refunded": "refunded_minor"}
_MONEY: Final = (Says.PAID, Says.REFUNDED)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in the JSON body."""

    steps: tuple[str, ...]

    def find(self, delivery: Delivery) -> Any:
        """The value there, None if there is none. Raises MalformedError when the body is none."""
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
class Header:
    """A header, by its name in lower case."""

    name: str

    def find(self, delivery: Delivery) -> str | None:
        """Its value, None if it was not sent."""
        value = delivery.headers.get(self.name)
        if value is not None and not value.isprintable():
            raise MalformedError(f"the header {self.name} is not printable")
        return value


Place = Pointer | Header


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """How one source's events are written."""

    places: Mapping[str, Place]
    types: Mapping[str, Says | None]

    @property
    def headers(self) -> frozenset[str]:
        """The headers in which fields stand."""
        return frozenset(one.name for one in self.places.values() if isinstance(one, Header))

    def read(self, delivery: Delivery) -> Said:
        """What the delivery says. Of a type that is ignored, no more than its name has to be right.

        Raises MalformedError.
        """
        kind = text(self._find(delivery, "type"), "type")
        if kind is None:
            raise MalformedError("type is missing")
        if self.types.get(kind) is None:
            payment_id = self._known_text(delivery, "payment_id")
            return Said(kind, payment_id, self._known_text(delivery, "event_id"))
        code = currency(self._find(delivery, "currency"), "currency")
        return Said(
            type=kind,
            payment_id=self._text(delivery, "payment_id"),
            event_id=self._text(delivery, "event_id"),
            order=self._text(delivery, "order"),
            amount=self._amount(delivery, "amount", code),
            currency=code,
            email=address(self._find(delivery, "email"), "email"),
            plan_id=self._text(delivery, "plan_id"),
            occurred_at=any_time(self._find(delivery, "occurred_at"), "occurred_at"),
            refunded=self._amount(delivery, "refunded", code),
        )

    def event(self, said: Said) -> PaymentEvent | Ignored:
        """What that means. Raises MalformedError."""
        says = self.types.get(said.type)
        if says is None:
            return Ignored(Code.NON_SUCCESS_STATUS, "this type of event says nothing that counts")
        if says not in _MONEY:
            return payment_event(said, says, None)
        if not {"refunded", "refunded_minor"} & self.places.keys():
            return payment_event(said, says, exact_money(said))
        return _with_refunds(said, says)

    def with_nonce(
        self, found: Identity, delivery: Delivery, signed_headers: Collection[str] = ()
    ) -> Identity:
        """The identity with what is to be used once, if the delivery says so.

        What nobody signed is a nonce of this meaning only: anybody could send it in advance.
        Raises MalformedError.
        """
        place, nonce = self.places.get("nonce"), self._text(delivery, "nonce")
        if nonce is None:
            return found
        is_signed = not isinstance(place, Header) or place.name in signed_headers
        return replace(found, nonce=nonce if is_signed else f"{nonce}:{found.fingerprint.hex()}")

    def compose(self, sample: Sample) -> tuple[bytes, dict[str, str]]:
        """A body that says what the sample asks for, and the headers in which a part of it stands.

        Raises ConfigurationError when no body can hold its fields, because one is within another,
        and InvalidRequestError when no type means what it asks for.
        """
        body: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for name, value in self._values(sample).items():
            place = self.places.get(name)
            if value is None or place is None:
                continue
            if isinstance(place, Header):
                headers[place.name] = str(value)
            elif not _put(body, place.steps, value):
                raise ConfigurationError(f"no body has {name} at /{'/'.join(place.steps)}")
        return orjson.dumps(body), headers

    def _values(self, sample: Sample) -> dict[str, str | int | None]:
        kind = self._type_named(sample.status)
        amount_minor = money(sample.amount, sample.currency).amount_minor
        is_refund = self.types.get(kind) is Says.REFUNDED
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

    def _type_named(self, status: str) -> str:
        """The type itself, or the first one of this meaning. Raises InvalidRequestError."""
        if status in self.types or status not in WORDS:
            return status
        names = [name for name, says in self.types.items() if says is WORDS[status]]
        if not names:
            raise InvalidRequestError(f"status: no type of this source means {status}")
        return names[0]

    def _find(self, delivery: Delivery, name: str) -> Any:
        place = self.places.get(name)
        return None if place is None else place.find(delivery)

    def _text(self, delivery: Delivery, name: str) -> str | None:
        return text(self._find(delivery, name), name)

    def _known_text(self, delivery: Delivery, name: str) -> str | None:
        try:
            return self._text(delivery, name)
        except MalformedError:
            return None

    def _amount(self, delivery: Delivery, name: str, code: str | None) -> Number | None:
        minor = f"{name}_minor"
        if minor not in self.places:
            return number(self._find(delivery, name), name)
        return from_minor(number(self._find(delivery, minor), minor), code)


def described(
    key: str, options: Mapping[str, Any], places: Mapping[str, Place], types: Mapping[str, str]
) -> Description:
    """The description in a source's options `fields` and `types`, over what is usual.

    Raises ConfigurationError, which names the key, the value and the remedy.
    """
    chosen = {
        name: _place(f"{key}.fields.{name}", value)
        for name, value in _table(key, options, "fields", FIELDS).items()
    }
    for name, minor in _AMOUNTS.items():
        if {name, minor} <= chosen.keys():
            raise ConfigurationError(f"{key}.fields.{minor}: {name} is given too; give one of them")
    words = {**types, **_table(key, options, "types")}
    return Description(
        _without_other_amount({**places, **chosen}, chosen),
        {name: _meaning(f"{key}.types.{name}", word) for name, word in words.items()},
    )


def pointer(text: str) -> Pointer:
    """The place that a JSON pointer names. Raises ValueError."""
    if not text.startswith("/") or _BAD_ESCAPE.search(text):
        raise ValueError('a JSON pointer begins with "/", and ~ is written ~0')
    steps = text[1:].split("/")
    return Pointer(tuple(step.replace("~1", "/").replace("~0", "~") for step in steps))


def header_name(text: str) -> str:
    """A header's name in lower case. Raises ValueError."""
    name = text.strip().lower()
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("this cannot be the name of a header")
    return name


_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")


def _table(
    key: str, options: Mapping[str, Any], name: str, known: Collection[str] | None = None
) -> Mapping[str, Any]:
    table = options.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{key}.{name} = {table!r}: write a table, [{key}.{name}]")
    for one in table:
        if known is not None and one not in known:
            raise ConfigurationError(
                f"{key}.{name}.{one} = {table[one]!r}: there is no such field; "
                f"known are {', '.join(known)}"
            )
    return table


def _place(key: str, value: Any) -> Place:
    text = value if isinstance(value, str) else ""
    try:
        if text.startswith(HEADER):
            return Header(header_name(text.removeprefix(HEADER)))
        return pointer(text)
    except ValueError as error:
        raise ConfigurationError(
            f'{key} = {value!r}: {error}; write "/data/id" or "header:NAME"'
        ) from None


def _put(body: dict[str, Any], steps: tuple[str, ...], value: str | int) -> bool:
    """Whether the value could be put there."""
    *path, last = steps
    for step in path:
        body = body.setdefault(step, {})
        if not isinstance(body, dict):
            return False
    if isinstance(body.get(last), dict):
        return False
    body[last] = value
    return True


def _with_refunds(said: Said, says: Says) -> PaymentEvent:
    """Both what was captured and what of it was refunded, where a sender tells both."""
    if says is Says.PAID and canonical(said.refunded) in (None, "0"):
        return payment_event(said, Says.PAID, exact_money(said))
    if said.refunded is None:
        raise MalformedError("what was refunded is missing")
    refunded = exact_money(said._replace(amount=said.refunded))
    captured = None if said.amount is None else exact_money(said)
    return replace(payment_event(said, Says.REFUNDED, refunded), amount=captured)


def _meaning(key: str, word: Any) -> Says | None:
    if not isinstance(word, str) or word not in WORDS:
        raise ConfigurationError(f"{key} = {word!r}: write one of {', '.join(WORDS)}")
    return WORDS[word]


def _without_other_amount(
    places: Mapping[str, Place], chosen: Mapping[str, Place]
) -> Mapping[str, Place]:
    """Whoever names one of the two amounts does not mean the other."""
    other = {**_AMOUNTS, **{minor: name for name, minor in _AMOUNTS.items()}}
    dropped = {other[name] for name in other if name in chosen}
    return {name: place for name, place in places.items() if name not in dropped}
