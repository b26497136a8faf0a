"""PortOne (Korea), V2. V1 is in `v1.py`; `v2_api.py` queries the API.

V2 signs by Standard Webhooks. Its events only announce a change; what counts is the payment in the
API (`GET /payments/{paymentId}`). Bodies have one of two versions, which the merchant chooses:

    2024-04-25  {"type": "Transaction.Paid", "timestamp": "2026-11-15T10:00:00.000Z",
                 "data": {"paymentId": "…", "transactionId": "…", "storeId": "…"?,
                          "cancellationId": "…"?}}
    2024-01-01  {"payment_id": "…", "tx_id": "…", "status": "Paid"}, or the same as a form

`paymentId` is the merchant's own id, and the reference of the order; a `transactionId` is one
attempt to pay it. `Transaction.Confirm` (in the older version `total_amount` instead of a status)
is not an event but a question, sent before the money is taken: an answer of 200 approves.

https://developers.portone.io/opi/ko/integration/webhook/readme-v2,
https://developers.portone.io/opi/ko/extra/confirm-process/readme-v2 and
https://developers.portone.io/api/rest-v2/payment, checked on 2026-11-16.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final
from uuid import uuid4

import orjson

from paidonce import errors
from paidonce.core.events import Code, Ignored
from paidonce.providers import contract, read
from paidonce.providers.portone import payments, v1
from paidonce.providers.portone.v2_api import PortOneV2Api, require_payment_id
from paidonce.providers.standard_webhooks import (
    HEADERS,
    decode_secret,
    read_envelope,
    signed_headers,
)

API_URL: Final = "https://api.portone.io"
CONFIRM: Final = "Transaction.Confirm"
SAMPLE_TYPES: Final = {
    "paid": "Transaction.Paid",
    "failed": "Transaction.Failed",
    "canceled": "Transaction.Cancelled",
    "refunded": "Transaction.PartialCancelled",
    "pending": "Transaction.Ready",
}

_WHOLE: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ConfirmQuestion:
    """`Transaction.Confirm`: may this total be charged for this payment?"""

    payment_id: str
    store_id: str | None
    total: Any  # as it was sent
    type: str = CONFIRM


@dataclass(frozen=True, slots=True)
class UnrelatedEvent:
    """An event that is not about a payment, or of an unknown type."""

    type: str


PortOneWebhook = payments.PortOneChange | ConfirmQuestion | UnrelatedEvent


@dataclass(frozen=True, slots=True, eq=False)
class PortOne(contract.Provider):
    """A source of one store's V2 events."""

    name: ClassVar = "portone"
    content_types: ClassVar = frozenset({contract.JSON_TYPE, contract.FORM_TYPE})
    evidence_header_names: ClassVar = (*contract.COMMON_HEADERS, *HEADERS)

    secrets: tuple[bytes, ...] = field(repr=False)
    api: PortOneV2Api
    approves: bool
    """Whether questions are compared with their orders; if not, all are denied."""
    currency: str
    """The currency of questions, which name none."""
    tolerance_s: int | None

    def verify(self, delivery: contract.Delivery) -> None:
        envelope = read_envelope(delivery.headers)
        if not envelope.is_signed(delivery.body, self.secrets):
            raise errors.InvalidSignatureError("no signature matches the delivery")
        envelope.check_age(delivery, self.tolerance_s)

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        event_id, webhook = read_envelope(delivery.headers).id, delivery.parse_once(_parse)
        payment_id = None if isinstance(webhook, UnrelatedEvent) else webhook.payment_id
        parts: tuple[object, ...] = (webhook.type, payment_id)
        occurred_at = None
        if isinstance(webhook, payments.PortOneChange):
            parts += (webhook.transaction_id, webhook.cancellation_id)
            occurred_at = webhook.occurred_at
        return contract.Identity(
            key=event_id,
            fingerprint=contract.fingerprint(*parts),
            type=webhook.type,
            event_id=event_id,
            payment_id=payment_id,
            order=payment_id,
            occurred_at=occurred_at,
        )

    def translate(self, delivery: contract.Delivery) -> contract.Translation:
        webhook = delivery.parse_once(_parse)
        if isinstance(webhook, payments.PortOneChange):
            return contract.LookupRequired(partial(self._look_up, webhook))
        if isinstance(webhook, UnrelatedEvent):
            return Ignored(Code.NON_SUCCESS_STATUS, "the event is not about a payment")
        return self._confirmation(webhook)

    def error_response(self, code: str, detail: str) -> contract.ResponseBody | None:
        """PortOne shows the buyer why the payment was not approved."""
        if code != Code.NOT_APPROVED:
            return None
        return contract.JSON_TYPE, orjson.dumps({"errorMessage": detail})

    def signing_keys(self) -> tuple[bytes, ...]:
        return self.secrets

    def recipient(self) -> str | None:
        return self.api.store_id

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        data = {"paymentId": sample.order or sample.payment_id, "transactionId": sample.payment_id}
        if self.api.store_id is not None:
            data["storeId"] = self.api.store_id
        kind = SAMPLE_TYPES.get(sample.status, sample.status)
        at, event_id = sample.sent_at, sample.event_id or uuid4().hex
        body = orjson.dumps({"type": kind, "timestamp": at.isoformat(), "data": data})
        return signed_headers(event_id, at.timestamp(), body, self.secrets[0]), body

    def default_currency(self) -> str:
        return self.currency

    def statement_api(self) -> contract.StatementApi:
        return self.api

    def _confirmation(self, question: ConfirmQuestion) -> contract.ConfirmationRequest:
        if not self.approves:
            raise errors.NotApprovedError("payments are not confirmed here")
        if self.api.is_foreign(question.store_id):
            raise errors.NotApprovedError("it is of another store")
        if not _WHOLE.fullmatch(str(question.total)):
            raise errors.MalformedError("the total amount is not a whole number")
        return contract.ConfirmationRequest(question.payment_id, int(question.total), self.currency)

    def _look_up(self, change: payments.PortOneChange) -> contract.Lookup:
        if self.api.is_foreign(change.store_id):
            raise errors.GatewayMismatchError("the event is of another store than store_id")
        payment = yield from self.api.find(change.payment_id)
        if payment is None:
            raise errors.GatewayUnreachableError(
                "the API does not know the payment yet; if it is of another store, set store_id"
            )
        store_id = change.store_id or self.api.store_id
        payments.check_same("store", store_id, payment.store_id)
        return payments.translate_payment(payment, change, self.api.accepts_test)


def configure(config: contract.ProviderConfig) -> contract.Provider:
    """Build the provider of a source, of V2 or V1. Raises ConfigurationError."""
    if config.choice("version", ("v2", "v1")) == "v1":
        return v1.configure(config)
    config.reject_unknown_options(
        {"version", "api_url", "api_secret", "store_id", "confirm", "currency"}
    )
    secrets = [decode_secret(secret, key, "whsec_…") for key, secret in config.named_secrets()]
    api = PortOneV2Api(
        url=config.url("api_url", API_URL),
        secret=config.require_api_key("api_secret", "env:PORTONE_API_SECRET"),
        store_id=config.optional_text("store_id", "store-…"),
        accepts_test=config.accepts_test,
    )
    approves = config.choice("confirm", ("refuse", "match-order")) == "match-order"
    return PortOne(tuple(secrets), api, approves, config.currency("KRW"), config.tolerance_s)


def reject_shared_stores(sources: Mapping[str, contract.Provider]) -> None:
    """Raise ConfigurationError for V2 sources, by name, that would receive the same payments.

    Without a store_id, an API secret has access to the payments of its own store.
    """
    by_secret: dict[tuple[str, str], dict[str | None, str]] = {}
    for name, source in sources.items():
        if isinstance(source, PortOne):
            store_id = source.api.store_id
            others = by_secret.setdefault((source.api.url, source.api.secret), {})
            if others and (store_id is None or None in others or store_id in others):
                other = others.get(store_id) or next(iter(others.values()))
                raise errors.ConfigurationError(
                    f"sources.{name}.store_id, sources.{other}.store_id: both sources have the "
                    "same api_secret, so they would receive the same payments; give each its own "
                    "store_id"
                )
            others[store_id] = name


def _parse(delivery: contract.Delivery) -> PortOneWebhook:
    if delivery.is_form:
        return _parse_2024_01(delivery.form)
    body = delivery.json
    if "type" in body:
        return _parse_2024_04(body, delivery.dropped)
    return _parse_2024_01(body)


def _parse_2024_04(body: read.Object, dropped: list[str]) -> PortOneWebhook:
    kind = read.required_text(body, "type")
    data = read.part(body, "data")
    if kind not in payments.MIN_STATUS:
        return _parse_other(kind, data, "paymentId", "totalAmount")
    payment_id = require_payment_id(data, "paymentId")
    return payments.PortOneChange(
        type=kind,
        payment_id=payment_id,
        order=payment_id,
        transaction_id=read.text(data, "transactionId"),
        cancellation_id=read.text(data, "cancellationId"),
        store_id=read.text(data, "storeId"),
        occurred_at=read.time_or_drop(body, "timestamp", dropped),
    )


def _parse_2024_01(body: read.Object) -> PortOneWebhook:
    status = read.text(body, "status")
    if status is None and "total_amount" not in body:
        raise errors.MalformedError("status is missing")
    kind = CONFIRM if status is None else f"Transaction.{status}"
    if kind not in payments.MIN_STATUS:
        return _parse_other(kind, body, "payment_id", "total_amount")
    payment_id = require_payment_id(body, "payment_id")
    return payments.PortOneChange(kind, payment_id, payment_id, read.text(body, "tx_id"))


def _parse_other(kind: str, body: read.Object, name: str, total: str) -> PortOneWebhook:
    """A body with a total may be a question of an unknown type.

    To ignore it would mean to answer 200, which approves it.
    """
    if kind != CONFIRM and total not in body:
        return UnrelatedEvent(kind)
    payment_id, store_id = require_payment_id(body, name), read.text(body, "storeId")
    return ConfirmQuestion(payment_id, store_id, body.get(total))
