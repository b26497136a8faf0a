"""Tilda: the JSON contract of a site's own payment webhook.

    {"external_payment_id": "…", "event_id": "…"?, "status": "paid", "amount": "990.00",
     "currency": "RUB", "email": "…"?, "plan_id": "…"?, "paid_at": "2026-11-15T10:00:00Z"?}

signed with `X-Signature: <lower-case hex HMAC-SHA256 of the raw body>`. Without an `event_id` the
event is known by the hash of its body. Only `paid` and `succeeded` count; any other status is
ignored. The contract carries no time that is signed for the delivery, so there is no tolerance to
check.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple
from uuid import UUID

import orjson

from paidonce.domain.email import is_email
from paidonce.domain.events import (
    MAX_EXTERNAL_ID,
    Code,
    ExternalId,
    Ignored,
    PaymentEvent,
    Says,
)
from paidonce.domain.money import Money, money
from paidonce.errors import (
    ConfigurationError,
    InvalidMoneyError,
    InvalidSignatureError,
    MalformedError,
)
from paidonce.providers.contract import Delivery, Identity, Sample, fingerprint
from paidonce.providers.signing import any_matches, hmac_sha256_hex

SIGNATURE_HEADER: Final = "x-signature"
SUCCESSFUL: Final = frozenset({"paid", "succeeded"})


@dataclass(frozen=True, slots=True)
class Tilda:
    """A source that speaks the JSON contract."""

    name: ClassVar = "tilda"
    signature_method: ClassVar = "hmac-sha256"
    content_types: ClassVar = frozenset({"application/json"})
    evidence_headers: ClassVar = frozenset({"content-type", "user-agent", SIGNATURE_HEADER})
    links_by_email: ClassVar = True

    secrets: tuple[bytes, ...]

    def verify(self, delivery: Delivery) -> None:
        given = delivery.headers.get(SIGNATURE_HEADER)
        if given is None:
            raise InvalidSignatureError("there is no X-Signature header")
        expected = (hmac_sha256_hex(secret, delivery.body) for secret in self.secrets)
        if not any_matches(given, expected):
            raise InvalidSignatureError("X-Signature does not match the body")

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.read(_said)
        return Identity(
            key=said.event_id or hashlib.sha256(b"tilda" + delivery.body).hexdigest(),
            fingerprint=fingerprint(
                said.payment_id, said.status, _canonical(said.amount), said.currency
            ),
            type=said.status,
            event_id=said.event_id,
            payment_id=said.payment_id,
            amount=None if said.amount is None else str(said.amount),
            currency=said.currency,
            occurred_at=said.paid_at,
        )

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        said = delivery.read(_said)
        if said.status not in SUCCESSFUL:
            return Ignored(Code.NON_SUCCESS_STATUS, "the status is neither paid nor succeeded")
        return PaymentEvent(
            says=Says.PAID,
            ids=(ExternalId("payment", said.payment_id),),
            amount=_money(said),
            email=said.email,
            plan_id=said.plan_id,
            occurred_at=said.paid_at,
        )

    def acknowledge(self, status: str, event_id: UUID) -> tuple[str, bytes]:
        said = {"status": status, "event_id": event_id}
        return "application/json", orjson.dumps(said, default=str)

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        said = {
            "external_payment_id": sample.payment_id,
            "event_id": sample.event_id,
            "status": sample.status,
            "amount": sample.amount,
            "currency": sample.currency,
            "email": sample.email,
            "plan_id": sample.plan_id,
        }
        body = orjson.dumps({key: value for key, value in said.items() if value is not None})
        signature = hmac_sha256_hex(self.secrets[0], body)
        return {"content-type": "application/json", SIGNATURE_HEADER: signature}, body


def configure(secrets: Sequence[str], options: Mapping[str, Any], key: str) -> Tilda:
    """A source from its settings. Raises ConfigurationError."""
    if not secrets:
        raise ConfigurationError(f'{key}.secrets: is needed, such as ["env:TILDA_SECRET"]')
    for option in options:
        raise ConfigurationError(f"{key}.{option}: provider tilda has no such setting")
    return Tilda(tuple(secret.encode() for secret in secrets))


class _Said(NamedTuple):
    """The fields of the contract, each as far as it can be read by itself."""

    payment_id: str
    status: str
    event_id: str | None
    amount: str | int | Decimal | None
    currency: str | None
    email: str | None
    plan_id: str | None
    paid_at: datetime | None


def _said(body: Mapping[str, Any]) -> _Said:
    payment_id, status = _text(body, "external_payment_id"), _text(body, "status")
    if payment_id is None or status is None:
        missing = "external_payment_id" if payment_id is None else "status"
        raise MalformedError(f"{missing} is missing")
    currency = _text(body, "currency")
    return _Said(
        payment_id=payment_id,
        status=status,
        event_id=_text(body, "event_id"),
        amount=_amount(body),
        currency=currency and currency.upper(),
        email=_email(body),
        plan_id=_text(body, "plan_id"),
        paid_at=_time(body, "paid_at"),
    )


def _text(body: Mapping[str, Any], name: str) -> str | None:
    """A text field; numbers are taken as text, an empty one as missing."""
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


def _amount(body: Mapping[str, Any]) -> str | int | Decimal | None:
    value = body.get("amount")
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal | None):
        raise MalformedError("amount is not a number")
    if isinstance(value, str) and len(value) > MAX_EXTERNAL_ID:
        raise MalformedError("amount is too long")
    return None if value == "" else value


@lru_cache(maxsize=4096)
def _canonical(amount: str | int | Decimal | None) -> str | None:
    """One spelling for one amount: 990, 990.0 and "990.00" mean the same."""
    try:
        return None if amount is None else str(Decimal(str(amount)).normalize())
    except ArithmeticError:
        return str(amount)


def _money(said: _Said) -> Money:
    if said.amount is None or said.currency is None:
        missing = "amount" if said.amount is None else "currency"
        raise MalformedError(f"{missing} is missing")
    try:
        return money(said.amount, said.currency)
    except InvalidMoneyError as error:
        raise MalformedError(str(error)) from None


def _email(body: Mapping[str, Any]) -> str | None:
    """What is no address is as good as none: the payment is kept, and listed as unlinked."""
    email = (_text(body, "email") or "").strip()
    return email if is_email(email) else None


def _time(body: Mapping[str, Any], name: str) -> datetime | None:
    text = _text(body, name)
    if text is None:
        return None
    if "-" not in text:  # digits alone, such as a count of seconds, could be read as a date
        raise MalformedError(f"{name} is not an ISO 8601 time")
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            return time.replace(tzinfo=UTC)
        return time if time.tzinfo is UTC else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise MalformedError(f"{name} is not an ISO 8601 time") from None
