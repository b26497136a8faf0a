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
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from paidonce.domain.events import Code, Ignored, PaymentEvent, Says
from paidonce.domain.money import EXPONENTS
from paidonce.errors import ConfigurationError, MalformedError
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import (
    Number,
    Said,
    address,
    currency,
    exact_money,
    iso_time,
    number,
    payment_event,
    text,
)

FIELDS: Final = (
    "event_id", "type", "payment_id", "order", "amount", "amount_minor", "currency", "email",
    "plan_id", "occurred_at", "nonce",
)  # fmt: skip
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
MAX_SECONDS: Final = 100_000_000_000
"""A count of more than this many is one of milliseconds: as seconds it would be the year 5138."""

_HEADER: Final = "header:"
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
            return Said(kind, self._known_text(delivery, "payment_id"))
        code = currency(self._find(delivery, "currency"), "currency")
        return Said(
            type=kind,
            payment_id=self._text(delivery, "payment_id"),
            event_id=self._text(delivery, "event_id"),
            order=self._text(delivery, "order"),
            amount=self._amount(delivery, code),
            currency=code,
            email=address(self._find(delivery, "email"), "email"),
            plan_id=self._text(delivery, "plan_id"),
            occurred_at=any_time(self._find(delivery, "occurred_at"), "occurred_at"),
        )

    def event(self, said: Said) -> PaymentEvent | Ignored:
        """What that means. Raises MalformedError."""
        says = self.types.get(said.type)
        if says is None:
            return Ignored(Code.NON_SUCCESS_STATUS, "this type of event says nothing that counts")
        return payment_event(said, says, exact_money(said) if says in _MONEY else None)

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

    def _amount(self, delivery: Delivery, code: str | None) -> Number | None:
        if "amount_minor" not in self.places:
            return number(self._find(delivery, "amount"), "amount")
        return _from_minor(number(self._find(delivery, "amount_minor"), "amount_minor"), code)


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
    if {"amount", "amount_minor"} <= chosen.keys():
        raise ConfigurationError(
            f"{key}.fields.amount_minor: amount is given too; give one of them"
        )
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


def any_time(value: Any, name: str) -> datetime | None:
    """An ISO 8601 time, or a count of seconds or milliseconds since 1970."""
    said = value if isinstance(value, Decimal) else text(value, name)
    if isinstance(said, str | None) and not (said and _WHOLE.fullmatch(said)):
        return iso_time(said, name)
    count = Decimal(said)
    seconds = count / 1000 if count > MAX_SECONDS else count
    if not 0 <= seconds <= MAX_SECONDS:
        raise MalformedError(f"{name} is not a time")
    return datetime.fromtimestamp(float(seconds), UTC)


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
    if text.startswith(_HEADER):
        name = text.removeprefix(_HEADER).strip().lower()
        if _HEADER_NAME.fullmatch(name):
            return Header(name)
    try:
        return pointer(text)
    except ValueError as error:
        raise ConfigurationError(
            f'{key} = {value!r}: {error}; write "/data/id" or "header:NAME"'
        ) from None


def _meaning(key: str, word: Any) -> Says | None:
    if not isinstance(word, str) or word not in WORDS:
        raise ConfigurationError(f"{key} = {word!r}: write one of {', '.join(WORDS)}")
    return WORDS[word]


def _without_other_amount(
    places: Mapping[str, Place], chosen: Mapping[str, Place]
) -> Mapping[str, Place]:
    """Whoever names one of the two amounts does not mean the other."""
    other = {"amount": "amount_minor", "amount_minor": "amount"}
    dropped = {other[name] for name in other if name in chosen}
    return {name: place for name, place in places.items() if name not in dropped}


def _from_minor(amount: Number | None, code: str | None) -> Number | None:
    """The amount in major units, or as it is when nobody knows its currency's."""
    if amount is None or code is None or code not in EXPONENTS:
        return amount
    if not _WHOLE.fullmatch(str(amount)):
        raise MalformedError("amount_minor is not a whole number")
    return Decimal(str(amount)).scaleb(-EXPONENTS[code])


_WHOLE: Final = re.compile(r"[0-9]{1,40}")
