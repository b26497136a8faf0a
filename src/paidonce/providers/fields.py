"""Readers of single fields, and the fields that most events have. Shared by the providers.

Each reader takes an object and the name of a field. It raises MalformedError when the value cannot
be used, with the name and never the value. An empty value counts as missing: the reader returns
None.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from paidonce.core.email import is_email
from paidonce.core.events import MAX_EXTERNAL_ID, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import EXPONENTS, Money, format_minor, money
from paidonce.errors import InvalidMoneyError, MalformedError
from paidonce.providers.contract import Identity, fingerprint

Number = str | int | Decimal
Object = Mapping[str, Any]
MAX_SECONDS: Final = 100_000_000_000
"""A larger count is in milliseconds: in seconds it would be after the year 5138."""

_WHOLE: Final = re.compile(r"[0-9]{1,40}")
_NUMBERS: Final = frozenset({int, Decimal})  # not bool, which is a subclass of int


class EventFields(NamedTuple):
    """The fields of an event that names one payment by one id."""

    type: str
    payment_id: str | None
    event_id: str | None = None
    order: str | None = None
    amount: Number | None = None  # in major units
    currency: str | None = None
    email: str | None = None
    plan_id: str | None = None
    occurred_at: datetime | None = None
    refunded: Number | None = None  # the total so far, where it is sent beside the amount


def fields_fingerprint(fields: EventFields) -> bytes:
    """Digest the payment, type, amount and currency (INB-2)."""
    amount = canonical(fields.amount)
    parts = (fields.payment_id, fields.type, amount, fields.currency)
    if fields.refunded is None:
        return fingerprint(*parts)
    return fingerprint(*parts, canonical(fields.refunded))


def build_identity(fields: EventFields, key: str, digest: bytes) -> Identity:
    """Build the identity of an event with this key and fingerprint."""
    kind, payment_id, event_id, order, amount, code, _, _, at, _ = fields
    shown = None if amount is None else str(amount)
    # Positional, because keyword arguments cost time on the path of every event.
    return Identity(key, digest, kind, event_id, payment_id, order, shown, code, at)


def build_event_identity(
    key: str,
    kind: str,
    event: PaymentEvent | Ignored,
    digest: bytes,
    occurred_at: datetime | None,
    event_id: str | None = None,
) -> Identity:
    """Build the identity of an event that is already translated; shows the amount that it moves."""
    if isinstance(event, Ignored):
        return Identity(key, digest, kind, event_id, occurred_at=occurred_at)
    moved = moved_amount(event)
    return Identity(
        key=key,
        fingerprint=digest,
        type=kind,
        event_id=event_id,
        payment_id=event.ids[0].value,
        order=event.order,
        amount=None if moved is None else format_minor(moved.amount_minor, moved.currency),
        currency=None if moved is None else moved.currency,
        occurred_at=occurred_at,
    )


def moved_amount(event: PaymentEvent) -> Money | None:
    """Return the amount of the refund, or of the payment if the event is not a refund."""
    return event.refund.amount if event.refund else event.refunded or event.amount


def build_payment_event(
    fields: EventFields, event_type: EventType, amount: Money | None
) -> PaymentEvent:
    """Build the event; the amount of a refund is the total refunded so far.

    Raises MalformedError when there is no payment id.
    """
    _, payment_id, _, order, _, _, email, plan_id, at, _ = fields
    if payment_id is None:
        raise MalformedError("the payment id is missing")
    ids = (ExternalId("payment", payment_id),)
    captured, refunded = (None, amount) if event_type is EventType.REFUNDED else (amount, None)
    return PaymentEvent(event_type, ids, captured, refunded, None, order, email, plan_id, at)


def require_money(fields: EventFields) -> Money:
    """Return the amount and currency as money. Raises MalformedError."""
    if fields.amount is None or fields.currency is None:
        missing = "currency" if fields.currency is None else "amount"
        raise MalformedError(f"{missing} is missing")
    try:
        return money(fields.amount, fields.currency)
    except InvalidMoneyError as error:
        raise MalformedError(str(error)) from None


@lru_cache(maxsize=4096)
def canonical(amount: Number | None) -> str | None:
    """Return one spelling of an amount: 990, 990.0 and "990.00" are equal."""
    try:
        return None if amount is None else str(Decimal(str(amount)).normalize())
    except ArithmeticError:
        return str(amount)


def read_text(body: Object, name: str) -> str | None:
    """Read text; an integer becomes text."""
    value = body.get(name)
    if value is None or value == "":
        return None
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        raise MalformedError(f"{name} is not text")
    if len(value) > MAX_EXTERNAL_ID:
        raise MalformedError(f"{name} is longer than {MAX_EXTERNAL_ID} characters")
    return value


def require_text(body: Object, name: str) -> str:
    """Read text that must be there."""
    value = read_text(body, name)
    if value is None:
        raise MalformedError(f"{name} is missing")
    return value


def read_number(body: Object, name: str) -> Number | None:
    """Read an amount as it was sent; it is not checked as money yet."""
    value = body.get(name)
    if isinstance(value, str):
        if len(value) > MAX_EXTERNAL_ID:
            raise MalformedError(f"{name} is too long")
        return value or None
    if value is not None and type(value) not in _NUMBERS:
        raise MalformedError(f"{name} is not a number")
    return value


def from_minor(amount: Number | None, code: str | None) -> Number | None:
    """Convert minor units to major units; unchanged when the currency is unknown."""
    if amount is None or code is None or code not in EXPONENTS:
        return amount
    if not _WHOLE.fullmatch(str(amount)):
        raise MalformedError("the amount is not a whole number of minor units")
    return Decimal(str(amount)).scaleb(-EXPONENTS[code])


def read_minor_money(
    body: Object, name: str, code: str | None, decimals: Mapping[str, int] = EXPONENTS
) -> Money | None:
    """Read an amount that is an integer of minor units of this currency."""
    minor = body.get(name)
    if minor is None:
        return None
    if type(minor) is not int:
        raise MalformedError(f"{name} is not a whole number")
    if code is None or code not in decimals:
        raise MalformedError("the currency is missing or not an ISO 4217 code")
    try:
        return money(Decimal(minor).scaleb(-decimals[code]), code)
    except InvalidMoneyError as error:
        raise MalformedError(f"{name}: {error}") from None


def read_currency(body: Object, name: str = "currency") -> str | None:
    """Read a currency code in upper case; it may be unknown."""
    code = read_text(body, name)
    return code and code.upper()


def read_email(body: Object, name: str = "email") -> str | None:
    """Read an e-mail address. An invalid one counts as missing: the payment stays unlinked."""
    email = (read_text(body, name) or "").strip()
    return email if is_email(email) else None


def read_iso_time(body: Object, name: str) -> datetime | None:
    """Read an ISO 8601 time, in UTC unless it has an offset."""
    value = read_text(body, name)
    if value is None:
        return None
    if "-" not in value:  # digits only, such as seconds since 1970, could be read as a date
        raise MalformedError(f"{name} is not an ISO 8601 time")
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is None:
            return time.replace(tzinfo=UTC)
        return time if time.tzinfo is UTC else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise MalformedError(f"{name} is not an ISO 8601 time") from None


def read_time(body: Object, name: str) -> datetime | None:
    """Read an ISO 8601 time, or seconds or milliseconds since 1970."""
    value = body.get(name)
    count = value if isinstance(value, Decimal) else read_text(body, name)
    if isinstance(count, str | None) and not (count and _WHOLE.fullmatch(count)):
        return read_iso_time(body, name)
    number = Decimal(count)
    seconds = number / 1000 if number > MAX_SECONDS else number
    if not 0 <= seconds <= MAX_SECONDS:
        raise MalformedError(f"{name} is not a time")
    return datetime.fromtimestamp(float(seconds), UTC)
