"""Tilda: the JSON contract of a site's own payment webhook, and the site's form webhook.

The JSON contract is

    {"external_payment_id": "…", "event_id": "…"?, "status": "paid", "amount": "990.00",
     "currency": "RUB", "email": "…"?, "plan_id": "…"?, "paid_at": "2026-11-15T10:00:00Z"?}

signed with `X-Signature: <lower-case hex HMAC-SHA256 of the raw body>`, or, without that header,
sent with the secret itself as the value of any other. Without an `event_id` the key is the hash of
the body. Only `paid` and `succeeded` count; any other status is ignored.

Forms (`form.py`) need a secret as API key, in a header or parameter of any name, which the merchant
chooses. Neither format has a signed time, so there is no tolerance to check.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final
from uuid import UUID

import orjson

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.errors import InvalidSignatureError, MalformedError
from paidonce.providers import contract, read
from paidonce.providers.fields import EventFields, external_ids
from paidonce.providers.signing import any_matches, hmac_sha256_hex
from paidonce.providers.tilda.form import (
    PAID,
    TildaForm,
    form_parameters,
    is_ping,
    paid_transaction,
    read_form,
)

SIGNATURE_HEADER: Final = "x-signature"
SUCCESSFUL: Final = frozenset({"paid", "succeeded"})

_OK: Final = ("text/plain", b"ok")
_KEY_PREFIXES: Final = ("form:", "lead:", "json:")


@dataclass(frozen=True, slots=True)
class Tilda(contract.Provider):
    """A source that uses the JSON contract, forms, or both."""

    name: ClassVar = "tilda"
    content_types: ClassVar = frozenset({contract.JSON_TYPE, contract.FORM_TYPE})
    evidence_header_names: ClassVar = (*contract.COMMON_HEADERS, SIGNATURE_HEADER)
    links_by_email: ClassVar = True

    secrets: tuple[bytes, ...] = field(repr=False)
    currency: str

    def answer_ping(self, body: bytes) -> contract.ResponseBody | None:
        return _OK if b"test" in body and is_ping(body, self._is_secret) else None

    def verify(self, delivery: contract.Delivery) -> None:
        signature = delivery.headers.get(SIGNATURE_HEADER)
        expected = [hmac_sha256_hex(one, delivery.body) for one in self.secrets]
        if signature is not None and any_matches(signature, expected):
            return
        parameters = _form_parameters(delivery)
        if parameters is None and signature is not None:
            raise InvalidSignatureError("X-Signature does not match the body")
        values = [*delivery.headers.values(), *(parameters or {}).values()]
        if not [one for one in values if isinstance(one, str) and self._is_secret(one)]:
            raise InvalidSignatureError("there is neither a signature nor an API key")

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        parsed = delivery.parse_once(self._parse)
        fields, key = parsed if isinstance(parsed, TildaForm) else (parsed, _json_key(parsed))
        key = key or hashlib.sha256(b"tilda" + delivery.body).hexdigest()
        return fields.identity(key, fields.fingerprint())

    def translate(self, delivery: contract.Delivery) -> PaymentEvent | Ignored:
        parsed = delivery.parse_once(self._parse)
        if isinstance(parsed, EventFields):
            if parsed.type not in SUCCESSFUL:
                return Ignored(Code.NON_SUCCESS_STATUS, "the status is neither paid nor succeeded")
            return parsed.payment_event(EventType.PAID, parsed.money())
        if parsed.fields.type != PAID:
            return Ignored(Code.NON_SUCCESS_STATUS, "the form names no transaction")
        # The order is a number made by Tilda, not a reference of the merchant.
        fields = parsed.fields._replace(order=None)
        return fields.payment_event(EventType.PAID, fields.money())

    def unreadable_payment(self, delivery: contract.Delivery) -> tuple[ExternalId, ...]:
        parameters = form_parameters(delivery)
        if parameters is not None:
            return external_ids(payment=paid_transaction(parameters))
        if read.text(delivery.json, "status") not in SUCCESSFUL:
            return ()
        return external_ids(payment=read.text(delivery.json, "external_payment_id"))

    def signature_method(self, delivery: contract.Delivery) -> str:
        return "hmac-sha256" if SIGNATURE_HEADER in delivery.headers else "api-key"

    def evidence_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {
            name: headers[name]
            for name in self.evidence_header_names
            if name in headers and headers[name].encode() not in self.secrets
        }

    def success_response(
        self, status: str, event_id: UUID, delivery: contract.Delivery
    ) -> contract.ResponseBody:
        is_form = isinstance(delivery.parse_once(self._parse), TildaForm)
        return _OK if is_form else contract.json_success(status, event_id)

    def signing_keys(self) -> tuple[bytes, ...]:
        return self.secrets

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        fields = {
            "external_payment_id": sample.payment_id,
            "event_id": sample.event_id,
            "status": sample.status,
            "amount": sample.amount,
            "currency": sample.currency,
            "email": sample.email,
            "plan_id": sample.plan_id,
        }
        body = orjson.dumps({key: value for key, value in fields.items() if value is not None})
        signature = hmac_sha256_hex(self.secrets[0], body).decode()
        return {"content-type": contract.JSON_TYPE, SIGNATURE_HEADER: signature}, body

    def default_currency(self) -> str:
        return self.currency

    def _is_secret(self, value: str) -> bool:
        return any_matches(value, self.secrets)

    def _parse(self, delivery: contract.Delivery) -> EventFields | TildaForm:
        parameters = form_parameters(delivery)
        if parameters is not None:
            return read_form(parameters, self.currency)
        return _read_contract(delivery.json, delivery.dropped)


def configure(config: contract.ProviderConfig) -> Tilda:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"currency"})
    secrets = tuple(secret.encode() for secret in config.require_secrets())
    return Tilda(secrets, config.currency("RUB"))


def _form_parameters(delivery: contract.Delivery) -> read.Object | None:
    """Return a form's parameters, empty if they cannot be read; None if it is not a form."""
    try:
        return form_parameters(delivery)
    except MalformedError:
        return {} if delivery.is_form else None


def _json_key(fields: EventFields) -> str | None:
    """Return the event's id as its key, which never equals the key of a form."""
    event_id = fields.event_id
    is_form_key = event_id is not None and event_id.startswith(_KEY_PREFIXES)
    return f"json:{event_id}" if is_form_key else event_id


def _read_contract(body: read.Object, dropped: list[str]) -> EventFields:
    return EventFields(
        type=read.required_text(body, "status"),
        payment_id=read.required_text(body, "external_payment_id"),
        event_id=read.text(body, "event_id"),
        amount=read.number(body, "amount"),
        currency=read.currency(body),
        email=read.email(body, dropped=dropped),
        plan_id=read.text(body, "plan_id"),
        occurred_at=_paid_at(body, dropped),
    )


def _paid_at(body: read.Object, dropped: list[str]) -> datetime | None:
    """Return the time of the payment. A number is no time of this contract."""
    try:
        return read.iso_time(body, "paid_at")
    except MalformedError:
        dropped.append("paid_at")
        return None
