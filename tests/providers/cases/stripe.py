"""Deliveries of Stripe."""

import hashlib
import hmac
import json
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from paidonce.providers.contract import Delivery, Provider, ProviderConfig
from paidonce.providers.stripe import provider as stripe
from tests.providers.conformance import (
    JSON,
    KEY,
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
)

DECIMALS: Final = {"KRW": 0, "JPY": 0, "KWD": 3, "BHD": 3}


def stripe_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return stripe.configure(ProviderConfig(KEY, secrets, {}, tolerance_s))


def event(kind: str, expected: dict[str, Any], event_id: str = "evt_1", **more: Any) -> bytes:
    """An event about this object, as Stripe writes it."""
    usual = {
        "id": event_id,
        "object": "event",
        "api_version": "2025-09-30.clover",
        "created": 1794743940,
        "data": {"object": expected},
        "livemode": True,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": kind,
    }
    return json.dumps(usual | more, indent=2).encode()


def v1(secret: str, timestamp: int | str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def signed(body: bytes, secret: str, sent_at: datetime = RECEIVED_AT) -> Delivery:
    timestamp = int(sent_at.timestamp())
    header = f"t={timestamp},v1={v1(secret, timestamp, body)}"
    return Delivery(JSON | {"stripe-signature": header}, body, RECEIVED_AT)


def intent(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    kind = "payment_intent.succeeded" if expected.kind == "paid" else expected.kind
    amount = int(Decimal(expected.amount).scaleb(DECIMALS.get(expected.currency, 2)))
    paid = {
        "id": expected.payment_id,
        "object": "payment_intent",
        "amount": amount,
        "amount_received": amount,
        "currency": expected.currency.lower(),
        "metadata": {},
        "receipt_email": expected.email,
    }
    return signed(
        event(kind, paid, expected.event_id or f"evt_{expected.payment_id}"), secret, sent_at
    )


_RIGHT: Final = intent(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["stripe-signature"]
_T, _V1 = _RIGHT.split(",")
_ARABIC: Final = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")

STRIPE: Final = Case(
    name="stripe",
    provider=stripe_provider,
    deliver=intent,
    signature_header="stripe-signature",
    unknown_kind="customer.created",
    unknown_payment_id=None,
    wrong_signatures={
        "no time": _V1,
        "an empty time": f"t=,{_V1}",
        "a time without a value": f"t,{_V1}",
        "two times": f"{_T},{_T},{_V1}",
        "another time as well": f"{_T},t=1,{_V1}",
        "no signature": _T,
        "an empty signature": f"{_T},v1=",
        "a name without a value": f"{_T},v1",
        "a name without a value as well": f"{_RIGHT},v1",
        "only the old version": f"{_T},{_V1.replace('v1', 'v0')}",
        "an upper-case version": f"{_T},{_V1.replace('v1', 'V1')}",
        "upper case": f"{_T},v1={_V1[3:].upper()}",
        "blanks": f"{_T}, {_V1}",
        "a longer one": f"{_RIGHT}=",
        "a shorter one": _RIGHT[:-1],
        "another separator": f"{_T};{_V1}",
        "a time written otherwise": f"t=0{_T[2:]},{_V1}",
        "a time in other digits": f"{_T.translate(_ARABIC)},{_V1}",
        "commas": ",,",
        "the malformed ones of Stripe's own tests": "t,v1=,v0=",
    },
    signs_time=True,
)

CASES: Final = [STRIPE]
