"""Readers of single fields: `read.text(body, "id")`. Shared by the providers.

Each reader takes an object and the name of a field. It raises MalformedError when the value cannot
be used, with the name and never the value. An empty value counts as missing: the reader returns
None. An event counts without its time and its e-mail address: `email` and `time_or_drop` add the
name of an unusable one to a list, `Delivery.dropped`.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from paidonce.core.email import is_email
from paidonce.core.events import MAX_EXTERNAL_ID
from paidonce.core.input import to_utc
from paidonce.core.money import EXPONENTS, Money, money
from paidonce.errors import InvalidMoneyError, MalformedError

Number = str | int | Decimal
Object = Mapping[str, Any]
MAX_SECONDS: Final = 100_000_000_000
"""A larger count is in milliseconds: in seconds it would be after the year 5138."""

_WHOLE: Final = re.compile(r"[0-9]{1,40}")
_NUMBERS: Final = frozenset({int, Decimal})  # not bool, which is a subclass of int


def part(body: Object, *path: str) -> Object:
    """Read the object at the end of the path; anything else counts as an empty one."""
    for step in path:
        inner = body.get(step)
        body = inner if isinstance(inner, dict) else {}
    return body


def parts(body: Object, name: str) -> list[Object]:
    """Read the objects in a list; anything else is left out."""
    items = body.get(name)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def text(body: Object, name: str) -> str | None:
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


def required_text(body: Object, name: str) -> str:
    """Read text that must be there."""
    value = text(body, name)
    if value is None:
        raise MalformedError(f"{name} is missing")
    return value


def number(body: Object, name: str) -> Number | None:
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


def minor_money(
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


def required_minor_money(
    body: Object, name: str, code: str | None, decimals: Mapping[str, int] = EXPONENTS
) -> Money:
    """Read an amount of minor units that must be there."""
    amount = minor_money(body, name, code, decimals)
    if amount is None:
        raise MalformedError(f"{name} is missing")
    return amount


def currency(body: Object, name: str = "currency") -> str | None:
    """Read a currency code in upper case; it may be unknown."""
    code = text(body, name)
    return code and code.upper()


def email(body: Object, name: str = "email", dropped: list[str] | None = None) -> str | None:
    """Read an e-mail address. An invalid one is dropped: the payment stays unlinked."""
    value = body.get(name)
    address = valid_email(value)
    if address is None and dropped is not None and value not in (None, ""):
        dropped.append(name)
    return address


def valid_email(value: object) -> str | None:
    """Return the value, stripped, if it is an e-mail address."""
    address = value.strip() if isinstance(value, str) else ""
    return address if is_email(address) else None


def iso_time(body: Object, name: str) -> datetime | None:
    """Read an ISO 8601 time, in UTC unless it has an offset."""
    value = text(body, name)
    if value is None:
        return None
    if "-" not in value:  # digits only, such as seconds since 1970, could be read as a date
        raise MalformedError(f"{name} is not an ISO 8601 time")
    try:
        at = datetime.fromisoformat(value)
        return to_utc(at.replace(tzinfo=UTC) if at.tzinfo is None else at)
    except ValueError:
        raise MalformedError(f"{name} is not an ISO 8601 time") from None


def time_or_drop(body: Object, name: str, dropped: list[str] | None = None) -> datetime | None:
    """Read a time as `time` does. One that cannot be read is dropped: the rest counts."""
    try:
        return time(body, name)
    except MalformedError:
        if dropped is not None:
            dropped.append(name)
        return None


def time(body: Object, name: str) -> datetime | None:
    """Read an ISO 8601 time, or seconds or milliseconds since 1970."""
    value = body.get(name)
    count = value if isinstance(value, Decimal) else text(body, name)
    if isinstance(count, str | None) and not (count and _WHOLE.fullmatch(count)):
        return iso_time(body, name)
    seconds = Decimal(count)
    if seconds > MAX_SECONDS:
        seconds /= 1000
    if not 0 <= seconds <= MAX_SECONDS:
        raise MalformedError(f"{name} is not a time")
    return datetime.fromtimestamp(float(seconds), UTC)
