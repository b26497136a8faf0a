"""Tilda: the JSON contract of a site's own payment webhook, and the site's form webhook.

The JSON contract is

    {"external_payment_id": "…", "event_id": "…"?, "status": "paid", "amount": "990.00",
     "currency": "RUB", "email": "…"?, "plan_id": "…"?, "paid_at": "2026-11-15T10:00:00Z"?}

signed with `X-Signature: <lower-case hex HMAC-SHA256 of the raw body>`, or, without that header,
sent with the secret itself as the value of any other. Without an `event_id` the event is known by
the hash of its body. Only `paid` and `succeeded` count; any other status is ignored.

Forms are in `tilda_form.py`. They are believed only with a secret as API key, in a header or a
parameter of any name: which one is for the merchant to choose. Neither carries a time that is
signed for the delivery, so there is no tolerance to check.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from uuid import UUID

import orjson

from paidonce.domain.events import Code, Ignored, PaymentEvent, Says
from paidonce.domain.money import known_currency
from paidonce.errors import (
    ConfigurationError,
    InvalidMoneyError,
    InvalidSignatureError,
    MalformedError,
)
from paidonce.providers.contract import (
    Delivery,
    Identity,
    Provider,
    Sample,
    Setup,
    json_acknowledgement,
)
from paidonce.providers.fields import (
    Said,
    address,
    currency,
    exact_money,
    identity,
    iso_time,
    meaning,
    number,
    payment_event,
    text,
)
from paidonce.providers.form_strict import CONTENT_TYPE, is_form
from paidonce.providers.signing import any_matches, hmac_sha256_hex
from paidonce.providers.tilda_form import (
    PAID,
    Form,
    is_ping,
    parameters,
    read_form,
)

SIGNATURE_HEADER: Final = "x-signature"
SUCCESSFUL: Final = frozenset({"paid", "succeeded"})
DEFAULT_CURRENCY: Final = "RUB"

_NO_TRANSACTION: Final = Ignored(
    Code.NON_SUCCESS_STATUS, "the form names no transaction by which it was paid"
)
_NO_SUCCESS: Final = Ignored(Code.NON_SUCCESS_STATUS, "the status is neither paid nor succeeded")
_KEPT: Final = ("content-type", "user-agent", SIGNATURE_HEADER)
_OK: Final = ("text/plain", b"ok")
_OTHER_KEYS: Final = ("form:", "lead:", "json:")


@dataclass(frozen=True, slots=True)
class Tilda(Provider):
    """A source that speaks the JSON contract, sends forms, or both."""

    name: ClassVar = "tilda"
    content_types: ClassVar = frozenset({"application/json", CONTENT_TYPE})
    links_by_email: ClassVar = True

    secrets: tuple[bytes, ...] = field(repr=False)
    currency: str

    def pong(self, body: bytes) -> tuple[str, bytes] | None:
        return _OK if b"test" in body and is_ping(body, self._is_secret) else None

    def verify(self, delivery: Delivery) -> None:
        given = delivery.headers.get(SIGNATURE_HEADER)
        if given is not None and self._signs(given, delivery.body):
            return
        fields = _form_fields(delivery)
        if fields is None and given is not None:
            raise InvalidSignatureError("X-Signature does not match the body")
        offered = [*delivery.headers.values(), *(fields or {}).values()]
        if not [one for one in offered if isinstance(one, str) and self._is_secret(one)]:
            raise InvalidSignatureError("there is neither a signature nor an API key")

    def identify(self, delivery: Delivery) -> Identity:
        read = delivery.read(self._read)
        said, key = read if isinstance(read, Form) else (read, _own_key(read.event_id))
        digest = meaning(said)
        return identity(said, key or hashlib.sha256(b"tilda" + delivery.body).hexdigest(), digest)

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        read = delivery.read(self._read)
        if isinstance(read, Form):
            # Its order is a number that Tilda gave it: no reference that the merchant knows of.
            said = read.said._replace(order=None)
            is_paid, otherwise = said.type == PAID, _NO_TRANSACTION
        else:
            said, is_paid, otherwise = read, read.type in SUCCESSFUL, _NO_SUCCESS
        return payment_event(said, Says.PAID, exact_money(said)) if is_paid else otherwise

    def signature_method(self, delivery: Delivery) -> str:
        return "hmac-sha256" if SIGNATURE_HEADER in delivery.headers else "api-key"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {
            name: headers[name]
            for name in _KEPT
            if name in headers and headers[name].encode() not in self.secrets
        }

    def acknowledge(self, status: str, event_id: UUID, delivery: Delivery) -> tuple[str, bytes]:
        if isinstance(delivery.read(self._read), Form):
            return _OK
        return json_acknowledgement(status, event_id)

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
        signature = hmac_sha256_hex(self.secrets[0], body).decode()
        return {"content-type": "application/json", SIGNATURE_HEADER: signature}, body

    def usual_currency(self) -> str:
        return self.currency

    def _signs(self, signature: str, body: bytes) -> bool:
        return any_matches(signature, [hmac_sha256_hex(one, body) for one in self.secrets])

    def _is_secret(self, value: str) -> bool:
        return any_matches(value, self.secrets)

    def _read(self, delivery: Delivery) -> Said | Form:
        fields = parameters(delivery)
        return _contract(delivery.json) if fields is None else read_form(fields, self.currency)


def configure(setup: Setup) -> Tilda:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"currency"})
    secrets = tuple(secret.encode() for secret in setup.needed_secrets())
    chosen = setup.options.get("currency", DEFAULT_CURRENCY)
    try:
        return Tilda(secrets, known_currency(str(chosen)))
    except InvalidMoneyError as error:
        raise ConfigurationError(
            f'{setup.key}.currency = {chosen!r}: {error}; give a code such as "RUB"'
        ) from None


def _form_fields(delivery: Delivery) -> Mapping[str, Any] | None:
    """A form's parameters; None if it is no form, or none that can be read."""
    try:
        return parameters(delivery)
    except MalformedError:
        return {} if is_form(delivery) else None


def _own_key(event_id: str | None) -> str | None:
    """The event's id as its key, which no form's key can equal."""
    is_other = event_id is not None and event_id.startswith(_OTHER_KEYS)
    return f"json:{event_id}" if is_other else event_id


def _contract(body: Mapping[str, Any]) -> Said:
    payment_id = text(body.get("external_payment_id"), "external_payment_id")
    status = text(body.get("status"), "status")
    if payment_id is None or status is None:
        missing = "external_payment_id" if payment_id is None else "status"
        raise MalformedError(f"{missing} is missing")
    return Said(
        type=status,
        payment_id=payment_id,
        event_id=text(body.get("event_id"), "event_id"),
        amount=number(body.get("amount"), "amount"),
        currency=currency(body.get("currency"), "currency"),
        email=address(body.get("email"), "email"),
        plan_id=text(body.get("plan_id"), "plan_id"),
        occurred_at=iso_time(body.get("paid_at"), "paid_at"),
    )
