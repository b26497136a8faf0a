"""Deliveries by Standard Webhooks."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from paidonce.providers import standard
from paidonce.providers.contract import Delivery, Provider, ProviderConfig
from tests.providers.conformance import (
    JSON,
    KEY,
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
)


def standard_body(expected: ExpectedEvent) -> bytes:
    types = {"paid": "payment.succeeded"}
    data: dict[str, Any] = {
        "payment_id": expected.payment_id,
        "amount": expected.amount,
        "currency": expected.currency,
        "email": expected.email,
    }
    at = "2026-11-15T11:59:00Z"
    return json.dumps(
        {"type": types.get(expected.kind, expected.kind), "timestamp": at, "data": data}
    ).encode()


def envelope(expected: ExpectedEvent, sent_at: datetime, sign: Callable[[bytes], str]) -> Delivery:
    body = standard_body(expected)
    event_id = expected.event_id or f"msg-{expected.payment_id}"
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
    return standard.configure(ProviderConfig(KEY, tuple(map(whsec, secrets)), {}, tolerance_s))


def standard_provider_of_keys(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return standard.configure(ProviderConfig(KEY, tuple(map(whpk, secrets)), {}, tolerance_s))


def standard_v1(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    return envelope(expected, sent_at, lambda signed: v1(secret, signed))


def standard_v1a(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    return envelope(expected, sent_at, lambda signed: v1a(secret, signed))


_V1: Final = standard_v1(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["webhook-signature"]
_V1A: Final = standard_v1a(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["webhook-signature"]


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

CASES: Final = [STANDARD, STANDARD_OF_KEYS]
