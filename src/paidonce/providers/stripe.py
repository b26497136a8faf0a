"""Stripe: snapshot events, signed in the header `Stripe-Signature`.

The header is `t=<seconds>,v1=<hex>`, with one `v1` more while a secret is being rolled and at times
a `v0`, which proves nothing: lower-case hex HMAC-SHA256 of `t.body`, keyed with the secret as text,
its `whsec_` included. Each attempt is signed anew. The key of an event is its id, `evt_…`. What the
events say is in `stripe_events.py`.

https://docs.stripe.com/webhooks, checked on 2026-11-16.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final
from uuid import uuid4

import orjson

from paidonce.domain.events import Code, Ignored, PaymentEvent
from paidonce.domain.money import format_minor, known_currency
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers.contract import Delivery, Identity, Provider, Sample, Setup, fingerprint
from paidonce.providers.signing import any_matches, hmac_sha256_hex, refuse_stale
from paidonce.providers.stripe_events import DECIMALS, read_event

HEADER: Final = "stripe-signature"
MAX_PARTS: Final = 32
"""How many parts of the header are read; Stripe sends two or three."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_KEPT: Final = ("content-type", "user-agent", HEADER)
_API_KEYS: Final = ("sk_", "rk_", "pk_")
_TEST: Final = Ignored(Code.TEST_PAYMENT, "it is not of Stripe's live mode")
_FOREIGN: Final = Ignored(
    Code.NON_SUCCESS_STATUS, "it is of another Stripe account than this source's"
)


@dataclass(frozen=True, slots=True)
class Stripe(Provider):
    """A source that is an endpoint of one Stripe account."""

    name: ClassVar = "stripe"
    content_types: ClassVar = frozenset({"application/json"})

    secrets: tuple[bytes, ...] = field(repr=False)
    tolerance_s: int | None
    accepts_test: bool
    account: str | None = None
    """The connected account whose events count; else only those of the endpoint's own do."""

    def verify(self, delivery: Delivery) -> None:
        timestamp, signatures = _signature(delivery.headers.get(HEADER))
        signed = f"{timestamp}.".encode() + delivery.body
        expected = [hmac_sha256_hex(secret, signed) for secret in self.secrets]
        if not [one for one in signatures if any_matches(one, expected)]:
            raise InvalidSignatureError("no signature matches the delivery")
        refuse_stale(int(timestamp), delivery.received_at, self.tolerance_s)

    def identify(self, delivery: Delivery) -> Identity:
        event = delivery.read(read_event)
        told = event.told
        if isinstance(told, Ignored):
            digest = fingerprint(event.type)
            return Identity(event.id, digest, event.type, event.id, occurred_at=event.occurred_at)
        amount = told.refunded or (told.refund and told.refund.amount) or told.amount
        return Identity(
            key=event.id,
            fingerprint=fingerprint(event.type, told.says, told.ids, told.amount, amount),
            type=event.type,
            event_id=event.id,
            payment_id=told.ids[0].value,
            order=told.order,
            amount=format_minor(amount.amount_minor, amount.currency) if amount else None,
            currency=amount.currency if amount else None,
            occurred_at=event.occurred_at,
        )

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        event = delivery.read(read_event)
        if not isinstance(event.told, PaymentEvent):
            return event.told
        if event.account != self.account:
            return _FOREIGN
        return event.told if event.is_live or self.accepts_test else _TEST

    def signature_method(self, delivery: Delivery) -> str:
        return "hmac-sha256"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: headers[name] for name in _KEPT if name in headers}

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps(_composed(sample))
        timestamp = int(sample.sent_at.timestamp())
        signature = hmac_sha256_hex(self.secrets[0], f"{timestamp}.".encode() + body).decode()
        return {"content-type": "application/json", HEADER: f"t={timestamp},v1={signature}"}, body


def configure(setup: Setup) -> Stripe:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"account"})
    secrets = [secret.strip() for secret in setup.needed_secrets()]
    for index, secret in enumerate(secrets):
        if secret.startswith(_API_KEYS):
            raise ConfigurationError(
                f"{setup.key}.secrets[{index}]: is an API key; give the signing secret of the "
                f"webhook's endpoint, whsec_…"
            )
    encoded = tuple(secret.encode() for secret in secrets)
    account = setup.needed_text("account", "acct_…") if "account" in setup.options else None
    return Stripe(encoded, setup.tolerance_s, setup.accepts_test, account)


def _signature(header: str | None) -> tuple[str, list[str]]:
    """The time as it was signed and the signatures. Raises InvalidSignatureError."""
    if header is None:
        raise InvalidSignatureError("there is no Stripe-Signature header")
    parts = [one.partition("=") for one in header.split(",", MAX_PARTS)[:MAX_PARTS]]
    if any(name in ("t", "v1") and not equals for name, equals, _ in parts):
        raise InvalidSignatureError("Stripe-Signature has a name without a value")
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not _TIMESTAMP.fullmatch(times[0]):
        raise InvalidSignatureError("Stripe-Signature tells no time, or several")
    return times[0], [value for name, _, value in parts if name == "v1"]


_COMPOSED: Final = {
    "pending": "payment_intent.created",
    "paid": "payment_intent.succeeded",
    "failed": "payment_intent.payment_failed",
    "canceled": "payment_intent.canceled",
    "refunded": "charge.refunded",
}


def _composed(sample: Sample) -> dict[str, Any]:
    kind = _COMPOSED.get(sample.status, sample.status)
    return {
        "id": sample.event_id or f"evt_{uuid4().hex}",
        "object": "event",
        "created": int(sample.sent_at.timestamp()),
        "data": {"object": _charge(sample) if kind == "charge.refunded" else _intent(sample)},
        "livemode": False,
        "type": kind,
    }


def _intent(sample: Sample) -> dict[str, Any]:
    amount = int(Decimal(sample.amount).scaleb(DECIMALS[known_currency(sample.currency)]))
    metadata = {"order": sample.order, "plan_id": sample.plan_id}
    return {
        "id": sample.payment_id,
        "object": "payment_intent",
        "amount": amount,
        "amount_received": amount,
        "currency": sample.currency.lower(),
        "metadata": {name: value for name, value in metadata.items() if value is not None},
        "receipt_email": sample.email,
    }


def _charge(sample: Sample) -> dict[str, Any]:
    """A charge that was refunded as a whole."""
    intent = _intent(sample)
    return intent | {
        "id": f"ch_{sample.payment_id}",
        "object": "charge",
        "payment_intent": sample.payment_id,
        "status": "succeeded",
        "captured": True,
        "amount_captured": intent["amount"],
        "amount_refunded": intent["amount"],
    }
