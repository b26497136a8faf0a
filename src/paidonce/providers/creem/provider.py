"""Creem: JSON events, signed with `creem-signature: <lower-case hex HMAC-SHA256 of the body>`.

The secret is used as text, including its `whsec_`. The time that is checked is the event's own
`created_at`, which retries repeat: a late delivery is kept, and applied with `stale = "accept"`.

The meaning of events is in `events.py`. `subscription.paid` has no amount: with an `api_key`, the
transaction is looked up; without one, the product's price is used, which counts only if it is the
order's or the plan's. The answer to each stored delivery is `{"status": "success", "orderId": …}`,
with the merchant's reference or else Creem's order.

https://docs.creem.io/code/webhooks and https://docs.creem.io/api-reference/endpoint/get-transaction,
checked on 2026-11-16.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import quote
from uuid import UUID, uuid4

import orjson

from paidonce.core.events import Code, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import money
from paidonce.errors import GatewayUnreachableError, InvalidSignatureError, MalformedError
from paidonce.providers import contract, read
from paidonce.providers.creem import events
from paidonce.providers.fields import build_event_identity
from paidonce.providers.samples import reject_statuses
from paidonce.providers.signing import any_matches, check_timestamp, hmac_sha256_hex

SIGNATURE_HEADER: Final = "creem-signature"
API_URL: Final = "https://api.creem.io"

_TEST: Final = Ignored(Code.TEST_PAYMENT, "the event is from Creem's test mode")


@dataclass(frozen=True, slots=True, eq=False)
class Creem(contract.Provider):
    """A source that receives the events of one Creem account."""

    name: ClassVar = "creem"
    evidence_header_names: ClassVar = (*contract.COMMON_HEADERS, SIGNATURE_HEADER)

    secrets: tuple[bytes, ...] = field(repr=False)
    api_key: str | None
    api_url: str
    tolerance_s: int | None
    accepts_test: bool

    def verify(self, delivery: contract.Delivery) -> None:
        signature = delivery.headers.get(SIGNATURE_HEADER, "")
        expected = [hmac_sha256_hex(one, delivery.body) for one in self.secrets]
        if not any_matches(signature, expected):
            raise InvalidSignatureError("creem-signature does not match the body")
        try:
            at = events.created_at(delivery.json)
        except MalformedError:
            return  # authentic; it is rejected when it is read
        check_timestamp(at.timestamp(), delivery.received_at, self.tolerance_s)

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        event_id, kind, at, event, _, _ = delivery.parse_once(events.read_event)
        if isinstance(event, Ignored):
            digest = contract.fingerprint(kind, event.reason)
        else:
            moved = event.refund.amount if event.refund else event.amount
            digest = contract.fingerprint(kind, event.ids[0].value, event.event_type, moved)
        return build_event_identity(event_id, kind, event, digest, at, event_id)

    def translate(self, delivery: contract.Delivery) -> contract.Translation:
        parsed = delivery.parse_once(events.read_event)
        event = parsed.event
        if isinstance(event, Ignored):
            return event
        if parsed.is_test and not self.accepts_test:
            return _TEST
        if parsed.type != events.SUBSCRIPTION_PAID:
            return event
        if self.api_key is not None:
            return contract.LookupRequired(partial(self._look_up, event, self.api_key))
        if event.amount is None:
            raise MalformedError("the price of the product is missing")
        return event

    def unreadable_payment(self, delivery: contract.Delivery) -> tuple[ExternalId, ...]:
        body = delivery.json
        is_test = events.is_test(read.part(body, "object"))
        return () if is_test and not self.accepts_test else events.unreadable_payment(body)

    def success_response(
        self, status: str, event_id: UUID, delivery: contract.Delivery
    ) -> contract.ResponseBody:
        parsed = delivery.parse_once(events.read_event)
        order = parsed.event.order if isinstance(parsed.event, PaymentEvent) else None
        answer = {"status": "success", "orderId": order or parsed.order_id}
        return contract.JSON_TYPE, orjson.dumps(answer)

    def signing_keys(self) -> tuple[bytes, ...]:
        return self.secrets

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        body = orjson.dumps(_sample_event(sample))
        signature = hmac_sha256_hex(self.secrets[0], body).decode()
        return {"content-type": contract.JSON_TYPE, SIGNATURE_HEADER: signature}, body

    def _look_up(self, event: PaymentEvent, api_key: str) -> contract.Lookup:
        """Look up the transaction that the event names."""
        transaction_id = event.ids[0].value
        response = yield contract.GatewayRequest(
            "GET",
            f"{self.api_url}/v1/transactions?transaction_id={quote(transaction_id, safe='')}",
            {"x-api-key": api_key, "accept": contract.JSON_TYPE},
        )
        transaction = _read_response(response)
        try:
            if not self.accepts_test and events.is_test(transaction):
                return _TEST
            return events.confirm_payment(event, transaction)
        except MalformedError as error:
            raise GatewayUnreachableError(f"the response cannot be read: {error}") from None


def configure(config: contract.ProviderConfig) -> Creem:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"api_key", "api_url"})
    secrets = tuple(secret.strip().encode() for secret in config.require_secrets())
    api_url = config.url("api_url", API_URL)
    has_key = config.optional_secret("api_key") is not None
    api_key = config.require_api_key("api_key", "env:CREEM_API_KEY") if has_key else None
    return Creem(secrets, api_key, api_url, config.tolerance_s, config.accepts_test)


def _read_response(response: contract.GatewayResponse) -> read.Object:
    """Return the transaction. Raises GatewayUnreachableError."""
    if response.status in (401, 403):
        raise GatewayUnreachableError("Creem rejects the api_key: give one that may read")
    if response.status == 404:
        raise GatewayUnreachableError("Creem does not know the transaction yet")
    if response.status != 200:
        raise GatewayUnreachableError(f"Creem answered with status {response.status}")
    return response.json


def _sample_event(sample: contract.SampleEvent) -> dict[str, Any]:
    reject_statuses(sample.status, "failed", "canceled")
    is_refund = sample.status == "refunded"
    return {
        "id": sample.event_id or f"evt_{uuid4().hex}",
        "eventType": events.REFUND_CREATED if is_refund else events.CHECKOUT_COMPLETED,
        "created_at": int(sample.sent_at.timestamp() * 1000),
        "object": _sample_refund(sample) if is_refund else _sample_checkout(sample, sample.status),
    }


def _sample_checkout(sample: contract.SampleEvent, status: str) -> dict[str, Any]:
    return {
        "object": "checkout",
        "request_id": sample.order,
        "order": {**_sample_charge(sample), "transaction": sample.payment_id, "status": status},
        "customer": {"email": sample.email},
        "metadata": {"plan_id": sample.plan_id},
        "mode": "test",
    }


def _sample_refund(sample: contract.SampleEvent) -> dict[str, Any]:
    """Build a refund of the whole payment."""
    checkout, charge = _sample_checkout(sample, "paid"), _sample_charge(sample)
    return {
        "object": "refund",
        "id": f"ref_{sample.payment_id}",
        "status": "succeeded",
        "refund_amount": charge["amount"],
        "refund_currency": charge["currency"],
        "transaction": {**charge, "id": sample.payment_id},
        "order": checkout["order"],
        "checkout": checkout,
        "customer": checkout["customer"],
        "mode": "test",
    }


def _sample_charge(sample: contract.SampleEvent) -> dict[str, Any]:
    paid = money(sample.amount, sample.currency)
    return {"amount": paid.amount_minor, "currency": paid.currency}
