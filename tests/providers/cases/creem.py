"""Deliveries of Creem."""

import hashlib
import hmac
import json
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from paidonce.core.money import EXPONENTS
from paidonce.providers.contract import Delivery, Provider, ProviderConfig
from paidonce.providers.creem import provider as creem
from tests.providers.conformance import (
    JSON,
    KEY,
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
)


def creem_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return creem.configure(ProviderConfig(KEY, secrets, {}, tolerance_s))


def creem_signed(event: dict[str, Any], secret: str) -> Delivery:
    body = json.dumps(event).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return Delivery(JSON | {"creem-signature": signature}, body, RECEIVED_AT)


def checkout_completed(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    order = {
        "transaction": expected.payment_id,
        "amount": int(Decimal(expected.amount).scaleb(EXPONENTS[expected.currency])),
        "currency": expected.currency,
        "status": "paid",
    }
    event = {
        "id": expected.event_id or f"evt-of-{expected.payment_id}",
        "eventType": "checkout.completed" if expected.kind == "paid" else expected.kind,
        "created_at": int(sent_at.timestamp() * 1000),
        "object": {"order": order, "customer": {"id": "cust_1", "email": expected.email}},
    }
    return creem_signed(event, secret)


_RIGHT: Final = checkout_completed(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers[
    "creem-signature"
]

CASES: Final = [
    Case(
        name="creem",
        provider=creem_provider,
        deliver=checkout_completed,
        signature_header="creem-signature",
        unknown_kind="subscription.active",
        unknown_payment_id=None,
        wrong_signatures={
            "upper case": _RIGHT.upper(),
            "as Stripe writes it": f"t=1794744000,v1={_RIGHT}",
            "with a prefix": f"sha256={_RIGHT}",
            "with blanks": f" {_RIGHT} ",
            "cut short": _RIGHT[:-1],
            "sent twice": f"{_RIGHT}, {_RIGHT}",
            "the secret itself": SECRETS[0],
        },
        signs_time=True,
    )
]
