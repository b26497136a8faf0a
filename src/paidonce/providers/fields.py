"""What an event says, field by field, as a careful receiver reads it. Shared by the providers.

Each reader takes a value as it was sent and the name to tell; what cannot be read is a
MalformedError, what is empty is missing.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from paidonce.domain.email import is_email
from paidonce.domain.events import MAX_EXTERNAL_ID, ExternalId, PaymentEvent, Says
from paidonce.domain.money import EXPONENTS, Money, money
from paidonce.errors import InvalidMoneyError, MalformedError
from paidonce.providers.contract import Identity, fingerprint

Number = str | int | Decimal
MAX_SECONDS: Final = 100_000_000_000
"""A count of more than this many is one of milliseconds: as seconds it would be the year 5138."""

_WHOLE: Final = re.compile(r"[0-9]{1,40}")
_NUMBERS: Final = frozenset({int, Decimal})  # and no bool, which is an int too


class Said(NamedTuple):
    """The fields of one event, each as far as it can be read by itself."""

    type: str
    payment_id: str | None
    event_id: str | None = None
    order: str | None = None
    amount: Number | None = None  # in major units
    currency: str | None = None
    email: str | None = None
    plan_id: str | None = None
    occurred_at: datetime | None = None
    refunded: Number | None = None  # all of it so far, where that is told beside the amount


def meaning(said: Said) -> bytes:
    """The fingerprint: another payment, type, amount or currency is another meaning (INB-2)."""
    amount = canonical(said.amount)
    if said.refunded is None:
        return fingerprint(said.payment_id, said.type, amount, said.currency)
    return fingerprint(said.payment_id, said.type, amount, said.currency, canonical(said.refunded))


def identity(said: Said, key: str, digest: bytes) -> Identity:
    """Which event it is, under this key and with this fingerprint."""
    kind, payment_id, event_id, order, amount, code, _, _, at, _ = said
    shown = None if amount is None else str(amount)
    # By position: on the path of every event, names are not cheap.
    return Identity(key, digest, kind, event_id, payment_id, order, shown, code, at)


def payment_event(said: Said, says: Says, amount: Money | None) -> PaymentEvent:
    """What it says of its payment; a refund's amount is all that was refunded so far.

    Raises MalformedError when it names no payment.
    """
    _, payment_id, _, order, _, _, email, plan_id, at, _ = said
    if payment_id is None:
        raise MalformedError("the payment's id is missing")
    ids = (ExternalId("payment", payment_id),)
    captured, refunded = (None, amount) if says is Says.REFUNDED else (amount, None)
    return PaymentEvent(says, ids, captured, refunded, None, order, email, plan_id, at)


def text(value: Any, name: str) -> str | None:
    """A text field; whole numbers are taken as text, an empty one as missing."""
    if value is None or value == "":
        return None
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        raise MalformedError(f"{name} is not text")
    if len(value) > MAX_EXTERNAL_ID:
        raise MalformedError(f"{name} is longer than {MAX_EXTERNAL_ID} characters")
    return value


def number(value: Any, name: str) -> Number | None:
    """An amount as it was sent, not yet money."""
    if isinstance(value, str):
        if len(value) > MAX_EXTERNAL_ID:
            raise MalformedError(f"{name} is too long")
        return value or None
    if value is not None and type(value) not in _NUMBERS:
        raise MalformedError(f"{name} is not a number")
    return value  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def canonical(amount: Number | None) -> str | None:
    """One spelling for one amount: 990, 990.0 and "990.00" mean the same."""
    try:
        return None if amount is None else str(Decimal(str(amount)).normalize())
    except ArithmeticError:
        return str(amount)


def exact_money(said: Said) -> Money:
    """The amount of an event that has to have one."""
    if said.amount is None or said.currency is None:
        missing = "currency" if said.currency is None else "amount"
        raise MalformedError(f"{missing} is missing")
    try:
        return money(said.amount, said.currency)
    except InvalidMoneyError as error:
        raise MalformedError(str(error)) from None


def from_minor(
    amount: Number | None, code: str | None, decimals: Mapping[str, int] = EXPONENTS
) -> Number | None:
    """An amount of minor units in major ones, or as it is when nobody knows its currency's."""
    if amount is None or code is None or code not in decimals:
        return amount
    if not _WHOLE.fullmatch(str(amount)):
        raise MalformedError("the amount is not a whole number of minor units")
    return Decimal(str(amount)).scaleb(-decimals[code])


def currency(value: Any, name: str) -> str | None:
    """A currency's code in upper case, known or not."""
    code = text(value, name)
    return code and code.upper()


def address(value: Any, name: str) -> str | None:
    """An e-mail address. What is none is as good as missing: the payment is kept, unlinked."""
    email = (text(value, name) or "").strip()
    return email if is_email(email) else None


def iso_time(value: Any, name: str) -> datetime | None:
    """An ISO 8601 time, in UTC unless it says otherwise."""
    said = text(value, name)
    if said is None:
        return None
    if "-" not in said:  # digits alone, such as a count of seconds, could be read as a date
        raise MalformedError(f"{name} is not an ISO 8601 time")
    try:
        time = datetime.fromisoformat(said)
        if time.tzinfo is None:
            return time.replace(tzinfo=UTC)
        return time if time.tzinfo is UTC else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise MalformedError(f"{name} is not an ISO 8601 time") from None


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
