"""Deliveries of Tilda."""

import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from paidonce.providers.contract import Delivery, Provider, ProviderConfig
from paidonce.providers.tilda import provider as tilda
from tests.providers.conformance import (
    FORM,
    JSON,
    KEY,
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
)


def tilda_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return tilda.configure(ProviderConfig(KEY, secrets, {"currency": currency}, tolerance_s))


def contract_body(expected: ExpectedEvent) -> bytes:
    fields = {
        "external_payment_id": expected.payment_id,
        "event_id": expected.event_id,
        "status": expected.kind,
        "amount": expected.amount,
        "currency": expected.currency,
        "email": expected.email,
    }
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


def signed_contract(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    body = contract_body(expected)
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return Delivery(JSON | {"x-signature": signature}, body, RECEIVED_AT)


def contract_with_secret(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    return Delivery(JSON | {"x-shared-secret": secret}, contract_body(expected), RECEIVED_AT)


def payment_part(expected: ExpectedEvent) -> dict[str, str]:
    return {
        "sys": "tinkoff" if expected.kind == "paid" else expected.kind,
        "systranid": expected.payment_id,
        "orderid": expected.event_id or "",
        "amount": expected.amount,
    }


def form_with_json(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    part = json.dumps(payment_part(expected) | {"products": ["5 км=490"]}, ensure_ascii=False)
    fields = {"Name": "Покупатель", "Email": expected.email or "", "payment": part}
    return FORM, urlencode({**fields, "formid": "form1", "tranid": "1:2"}).encode()


def form_as_json(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    part = payment_part(expected) | {"products": [{"name": "x", "quantity": 3, "price": "2"}]}
    return JSON, json.dumps({"Email": expected.email, "payment": part, "tranid": "1:2"}).encode()


def form_with_brackets(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    part = {f"payment[{name}]": value for name, value in payment_part(expected).items()}
    fields = {"email": expected.email or "", **part, "payment[products][0][name]": "x"}
    return FORM, urlencode(fields).encode()


Shape = Callable[[ExpectedEvent], tuple[dict[str, str], bytes]]
SHAPES: Final[dict[str, Shape]] = {
    "json in a field": form_with_json,
    "json": form_as_json,
    "brackets": form_with_brackets,
}


def form_case(name: str, shape: Shape) -> Case:
    def deliver(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
        headers, body = shape(expected)
        return Delivery(headers | {"x-api-key": secret}, body, RECEIVED_AT)

    return Case(
        name=f"tilda form, {name}",
        provider=tilda_provider,
        deliver=deliver,
        signature_header="x-api-key",
        unknown_kind="none",
        unknown_payment_id=None,
        signs_whole_body=False,
        keeps_proof=False,
    )


_HEX: Final = signed_contract(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["x-signature"]

TILDA: Final = Case(
    name="tilda",
    provider=tilda_provider,
    deliver=signed_contract,
    signature_header="x-signature",
    unknown_kind="refund_requested",
    wrong_signatures={
        "upper case": _HEX.upper(),
        "with a prefix": f"sha256={_HEX}",
        "with blanks": f" {_HEX} ",
        "cut short": _HEX[:-1],
        "of sha1's length": _HEX[:40],
        "sent twice": f"{_HEX}, {_HEX}",
        "the secret itself": SECRETS[0],
    },
)
TILDA_WITH_SECRET: Final = Case(
    name="tilda with its secret in a header",
    provider=tilda_provider,
    deliver=contract_with_secret,
    signature_header="x-shared-secret",
    unknown_kind="refund_requested",
    wrong_signatures={"in a longer text": f"Bearer {SECRETS[0]}", "twice": SECRETS[0] * 2},
    signs_whole_body=False,
    keeps_proof=False,
)
CASES: Final = [
    TILDA,
    TILDA_WITH_SECRET,
    *(form_case(name, shape) for name, shape in SHAPES.items()),
]
