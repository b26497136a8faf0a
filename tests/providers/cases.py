"""What each gateway sends, made without the providers' code."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from paidonce.providers import standard, tilda
from paidonce.providers.contract import Delivery, Provider, Setup
from tests.providers.conformance import RECEIVED_AT, SECRETS, TOLERANCE_S, Case, Said

KEY: Final = "sources.test"
JSON: Final = {"content-type": "application/json"}
FORM: Final = {"content-type": "application/x-www-form-urlencoded"}


def tilda_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return tilda.configure(Setup(KEY, secrets, {"currency": currency}, tolerance_s))


def contract_body(said: Said) -> bytes:
    fields = {
        "external_payment_id": said.payment_id,
        "event_id": said.event_id,
        "status": said.kind,
        "amount": said.amount,
        "currency": said.currency,
        "email": said.email,
    }
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


def signed_contract(said: Said, secret: str, sent_at: datetime) -> Delivery:
    body = contract_body(said)
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return Delivery(JSON | {"x-signature": signature}, body, RECEIVED_AT)


def contract_with_secret(said: Said, secret: str, sent_at: datetime) -> Delivery:
    return Delivery(JSON | {"x-shared-secret": secret}, contract_body(said), RECEIVED_AT)


def payment_part(said: Said) -> dict[str, str]:
    return {
        "sys": "tinkoff" if said.kind == "paid" else said.kind,
        "systranid": said.payment_id,
        "orderid": said.event_id or "",
        "amount": said.amount,
    }


def form_with_json(said: Said) -> tuple[dict[str, str], bytes]:
    part = json.dumps(payment_part(said) | {"products": ["5 км=490"]}, ensure_ascii=False)
    fields = {"Name": "Покупатель", "Email": said.email or "", "payment": part}
    return FORM, urlencode({**fields, "formid": "form1", "tranid": "1:2"}).encode()


def form_as_json(said: Said) -> tuple[dict[str, str], bytes]:
    part = payment_part(said) | {"products": [{"name": "x", "quantity": 3, "price": "2"}]}
    return JSON, json.dumps({"Email": said.email, "payment": part, "tranid": "1:2"}).encode()


def form_with_brackets(said: Said) -> tuple[dict[str, str], bytes]:
    part = {f"payment[{name}]": value for name, value in payment_part(said).items()}
    fields = {"email": said.email or "", **part, "payment[products][0][name]": "x"}
    return FORM, urlencode(fields).encode()


Shape = Callable[[Said], tuple[dict[str, str], bytes]]
SHAPES: Final[dict[str, Shape]] = {
    "json in a field": form_with_json,
    "json": form_as_json,
    "brackets": form_with_brackets,
}


def form_case(name: str, shape: Shape) -> Case:
    def deliver(said: Said, secret: str, sent_at: datetime) -> Delivery:
        headers, body = shape(said)
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


def standard_body(said: Said) -> bytes:
    types = {"paid": "payment.succeeded"}
    data: dict[str, Any] = {
        "payment_id": said.payment_id,
        "amount": said.amount,
        "currency": said.currency,
        "email": said.email,
    }
    at = "2026-11-15T11:59:00Z"
    return json.dumps(
        {"type": types.get(said.kind, said.kind), "timestamp": at, "data": data}
    ).encode()


def envelope(said: Said, sent_at: datetime, sign: Callable[[bytes], str]) -> Delivery:
    body = standard_body(said)
    event_id = said.event_id or f"msg-{said.payment_id}"
    timestamp = str(int(sent_at.timestamp()))
    headers = JSON | {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign(f"{event_id}.{timestamp}.".encode() + body),
    }
    return Delivery(headers, body, RECEIVED_AT)


def whsec(secret: str) -> str:
    return "whsec_" + base64.b64encode(secret.encode()).decode()


def v1(secret: str | bytes, signed: bytes) -> str:
    key = secret.encode() if isinstance(secret, str) else secret
    mac = hmac.new(key, signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(mac).decode()


def private_key(secret: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(secret.encode()).digest())


def whpk(secret: str) -> str:
    public = private_key(secret).public_key().public_bytes_raw() if secret else b""
    return "whpk_" + base64.b64encode(public).decode()


def v1a(secret: str, signed: bytes) -> str:
    return "v1a," + base64.b64encode(private_key(secret).sign(signed)).decode()


def standard_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return standard.configure(Setup(KEY, tuple(map(whsec, secrets)), {}, tolerance_s))


def standard_provider_of_keys(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return standard.configure(Setup(KEY, tuple(map(whpk, secrets)), {}, tolerance_s))


def standard_v1(said: Said, secret: str, sent_at: datetime) -> Delivery:
    return envelope(said, sent_at, lambda signed: v1(secret, signed))


def standard_v1a(said: Said, secret: str, sent_at: datetime) -> Delivery:
    return envelope(said, sent_at, lambda signed: v1a(secret, signed))


_HEX: Final = signed_contract(Said(), SECRETS[0], RECEIVED_AT).headers["x-signature"]
_V1: Final = standard_v1(Said(), SECRETS[0], RECEIVED_AT).headers["webhook-signature"]
_V1A: Final = standard_v1a(Said(), SECRETS[0], RECEIVED_AT).headers["webhook-signature"]


def _wrong_in_a_list(right: str) -> dict[str, str]:
    version, _, signature = right.partition(",")
    other = {"v1": "v1a", "v1a": "v1"}[version]
    return {
        "without its version": signature,
        "of an unknown version": f"v2,{signature}",
        "of the other version": f"{other},{signature}",
        "of an upper-case version": f"{version.upper()},{signature}",
        "without padding": right.rstrip("="),
        "with more padding": f"{right}=",
        "with a part more": f"{right},x",
        "with a line break": f"{version},\n{signature}",
        "malformed entries": "v1 v1, ,v1 ,, v1a, v1a,=== v1,é v1a,é",
        "hex": f"{version},{base64.b64decode(signature).hex()}",
    }


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
STANDARD: Final = Case(
    name="standard v1",
    provider=standard_provider,
    deliver=standard_v1,
    signature_header="webhook-signature",
    unknown_kind="payment.disputed",
    wrong_signatures=_wrong_in_a_list(_V1),
    signed_headers=("webhook-id", "webhook-timestamp"),
    signs_time=True,
)
STANDARD_OF_KEYS: Final = Case(
    name="standard v1a",
    provider=standard_provider_of_keys,
    deliver=standard_v1a,
    signature_header="webhook-signature",
    unknown_kind="payment.disputed",
    wrong_signatures=_wrong_in_a_list(_V1A),
    signed_headers=("webhook-id", "webhook-timestamp"),
    signs_time=True,
    composes=False,
)

CASES: Final = [
    TILDA,
    TILDA_WITH_SECRET,
    *(form_case(name, shape) for name, shape in SHAPES.items()),
    STANDARD,
    STANDARD_OF_KEYS,
]
