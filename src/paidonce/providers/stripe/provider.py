"""Stripe: snapshot events, signed in the header `Stripe-Signature`.

The header is `t=<seconds>,v1=<hex>`, with a second `v1` while a secret is rolled and sometimes a
`v0`, which is ignored: lower-case hex HMAC-SHA256 of `t.body`, keyed with the secret as text,
including its `whsec_`. Each attempt is signed anew. The key of an event is its id, `evt_…`. The
meaning of the events is in `events.py`.

https://docs.stripe.com/webhooks, checked on 2026-11-16.
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final
from uuid import uuid4

import orjson

from paidonce.core.events import Code, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import known_currency
from paidonce.errors import ConfigurationError, InvalidSignatureError
from paidonce.providers import contract, read
from paidonce.providers.fields import build_event_identity, moved_amount
from paidonce.providers.signing import any_matches, check_timestamp, hmac_sha256_hex
from paidonce.providers.stripe.events import DECIMALS, read_event, unreadable_payment

HEADER: Final = "stripe-signature"
MAX_PARTS: Final = 32
"""How many parts of the header are read; Stripe sends two or three."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_API_KEYS: Final = ("sk_", "rk_", "pk_")


@dataclass(frozen=True, slots=True)
class Stripe(contract.Provider):
    """A source that is an endpoint of one Stripe account."""

    name: ClassVar = "stripe"
    evidence_header_names: ClassVar = (*contract.COMMON_HEADERS, HEADER)

    secrets: tuple[bytes, ...] = field(repr=False)
    tolerance_s: int | None
    accepts_test: bool
    account: str | None = None
    """The connected account whose events count; None: those of the endpoint's own account."""

    def verify(self, delivery: contract.Delivery) -> None:
        timestamp, signatures = _parse_signature(delivery.headers.get(HEADER))
        content = f"{timestamp}.".encode() + delivery.body
        expected = [hmac_sha256_hex(secret, content) for secret in self.secrets]
        if not [one for one in signatures if any_matches(one, expected)]:
            raise InvalidSignatureError("no signature matches the delivery")
        check_timestamp(int(timestamp), delivery.received_at, self.tolerance_s)

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        event_id, kind, at, _, _, event = delivery.parse_once(read_event)
        parts: tuple[object, ...] = ()
        if isinstance(event, PaymentEvent):
            parts = (event.event_type, event.ids, event.amount, moved_amount(event))
        return build_event_identity(
            event_id, kind, event, contract.fingerprint(kind, *parts), at, event_id
        )

    def translate(self, delivery: contract.Delivery) -> PaymentEvent | Ignored:
        parsed = delivery.parse_once(read_event)
        if isinstance(parsed.event, Ignored):
            return parsed.event
        if parsed.account != self.account:
            reason = "the event is of another Stripe account than this source's"
            return Ignored(Code.NON_SUCCESS_STATUS, reason)
        if not (parsed.is_live or self.accepts_test):
            return Ignored(Code.TEST_PAYMENT, "the event is from Stripe's test mode")
        return parsed.event

    def unreadable_payment(self, delivery: contract.Delivery) -> tuple[ExternalId, ...]:
        body = delivery.json
        is_live = body.get("livemode") is True
        if read.text(body, "account") != self.account or not (is_live or self.accepts_test):
            return ()
        return unreadable_payment(body)

    def signing_keys(self) -> tuple[bytes, ...]:
        return self.secrets

    def recipient(self) -> str:
        return self.account or "the endpoint's own account"

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        body = orjson.dumps(_sample_event(sample))
        timestamp = int(sample.sent_at.timestamp())
        signature = hmac_sha256_hex(self.secrets[0], f"{timestamp}.".encode() + body).decode()
        return {"content-type": contract.JSON_TYPE, HEADER: f"t={timestamp},v1={signature}"}, body


def configure(config: contract.ProviderConfig) -> Stripe:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"account"})
    for key, secret in config.named_secrets():
        if secret.startswith(_API_KEYS):
            raise ConfigurationError(
                f"{key}: is an API key; give the signing secret of the webhook endpoint, whsec_…"
            )
    secrets = tuple(secret.encode() for _, secret in config.named_secrets())
    account = config.optional_text("account", "acct_…")
    return Stripe(secrets, config.tolerance_s, config.accepts_test, account)


def _parse_signature(header: str | None) -> tuple[str, list[str]]:
    """Return the signed time as text, and the signatures. Raises InvalidSignatureError."""
    if header is None:
        raise InvalidSignatureError("there is no Stripe-Signature header")
    parts = [one.partition("=") for one in header.split(",", MAX_PARTS)[:MAX_PARTS]]
    if any(name in ("t", "v1") and not equals for name, equals, _ in parts):
        raise InvalidSignatureError("Stripe-Signature has a name without a value")
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not _TIMESTAMP.fullmatch(times[0]):
        raise InvalidSignatureError("Stripe-Signature needs exactly one time")
    return times[0], [value for name, _, value in parts if name == "v1"]


_SAMPLE_TYPES: Final = {
    "pending": "payment_intent.created",
    "paid": "payment_intent.succeeded",
    "failed": "payment_intent.payment_failed",
    "canceled": "payment_intent.canceled",
    "refunded": "charge.refunded",
}


def _sample_event(sample: contract.SampleEvent) -> dict[str, Any]:
    kind = _SAMPLE_TYPES.get(sample.status, sample.status)
    is_charge = kind == "charge.refunded"
    return {
        "id": sample.event_id or f"evt_{uuid4().hex}",
        "object": "event",
        "created": int(sample.sent_at.timestamp()),
        "data": {"object": _sample_charge(sample) if is_charge else _sample_intent(sample)},
        "livemode": False,
        "type": kind,
    }


def _sample_intent(sample: contract.SampleEvent) -> dict[str, Any]:
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


def _sample_charge(sample: contract.SampleEvent) -> dict[str, Any]:
    """Build a charge that is refunded in full."""
    intent = _sample_intent(sample)
    return intent | {
        "id": f"ch_{sample.payment_id}",
        "object": "charge",
        "payment_intent": sample.payment_id,
        "status": "succeeded",
        "captured": True,
        "amount_captured": intent["amount"],
        "amount_refunded": intent["amount"],
    }
