"""Deliveries with the signature schemes of `docs/howto/describe-a-gateway.md`.

The settings are read from that page, so they are known to work.
"""

import base64
import hashlib
import hmac
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from paidonce.providers.contract import Delivery, Provider, ProviderConfig
from paidonce.providers.generic import provider as generic
from tests.providers.conformance import (
    JSON,
    KEY,
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
    MakeDelivery,
    MakeProvider,
)

PAGE: Final = Path(__file__).parents[3] / "docs" / "howto" / "describe-a-gateway.md"
DECIMALS: Final = {"KRW": 0, "JPY": 0, "KWD": 3, "BHD": 3}
AT: Final = "2026-11-15T11:59:00Z"


def described() -> dict[str, dict[str, Any]]:
    """The sources of the page, by their names."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = [tomllib.loads(block)["sources"] for block in blocks]
    return {name: source for sources in found for name, source in sources.items()}


SOURCES: Final = described()


def options(name: str) -> dict[str, Any]:
    return {key: SOURCES[name][key] for key in ("signature", "fields", "types")}


def maker(described: Mapping[str, Any], as_given: Callable[[str], str] = str) -> MakeProvider:
    """Makes sources of this description, with secrets in the form in which they are given."""

    def provider(
        *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
    ) -> Provider:
        given = tuple(secret and as_given(secret) for secret in secrets)
        return generic.configure(ProviderConfig(KEY, given, described, tolerance_s))

    return provider


def minor(expected: ExpectedEvent) -> int:
    return int(Decimal(expected.amount).scaleb(DECIMALS.get(expected.currency, 2)))


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def mac(secret: str, content: bytes) -> bytes:
    return hmac.new(secret.encode(), content, hashlib.sha256).digest()


def hub(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    payment = {
        "id": expected.payment_id,
        "amount": expected.amount,
        "currency": expected.currency,
        "email": expected.email,
    }
    body = json.dumps({"action": expected.kind, "payment": payment}).encode()
    headers = {
        "x-hub-signature-256": f"sha256={mac(secret, body).hex()}",
        "x-github-delivery": expected.event_id,
    }
    return Delivery(JSON | without_none(headers), body, RECEIVED_AT)


def paddle(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    transaction = {
        "id": expected.payment_id,
        "custom_data": {"email": expected.email},
        "currency_code": expected.currency,
        "details": {"totals": {"total": str(minor(expected))}},
    }
    kind = "transaction.completed" if expected.kind == "paid" else expected.kind
    event = {
        "event_id": expected.event_id,
        "event_type": kind,
        "occurred_at": AT,
        "data": transaction,
    }
    body = json.dumps(without_none(event)).encode()
    timestamp = int(sent_at.timestamp())
    signature = mac(secret, f"{timestamp}:".encode() + body).hex()
    return Delivery(
        JSON | {"paddle-signature": f"ts={timestamp};h1={signature}"}, body, RECEIVED_AT
    )


def razorpay(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    entity = {
        "id": expected.payment_id,
        "amount": minor(expected),
        "amount_refunded": 0,
        "currency": expected.currency,
        "email": expected.email,
        "notes": [],
    }
    kind = "payment.captured" if expected.kind == "paid" else expected.kind
    payload = {"payment": {"entity": entity}}
    body = json.dumps({"event": kind, "payload": payload, "created_at": 1794743940}).encode()
    headers = {
        "x-razorpay-signature": mac(secret, body).hex(),
        "x-razorpay-event-id": expected.event_id,
    }
    return Delivery(JSON | without_none(headers), body, RECEIVED_AT)


def square(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    payment = {
        "id": expected.payment_id,
        "status": "COMPLETED" if expected.kind == "paid" else expected.kind,
        "total_money": {"amount": minor(expected), "currency": expected.currency},
        "buyer_email_address": expected.email,
    }
    event = {
        "type": "payment.updated",
        "event_id": expected.event_id,
        "created_at": AT,
        "data": {"type": "payment", "object": {"payment": payment}},
    }
    body = json.dumps(without_none(event)).encode()
    signature = mac(secret, b"https://pay.example.com/webhooks/square" + body)
    header = base64.b64encode(signature).decode()
    return Delivery(JSON | {"x-square-hmacsha256-signature": header}, body, RECEIVED_AT)


def bank(sign: Callable[[str, bytes], bytes]) -> MakeDelivery:
    def deliver(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
        event = {
            "type": "payment.received" if expected.kind == "paid" else expected.kind,
            "payment": expected.payment_id,
            "amount": expected.amount,
            "currency": expected.currency,
            "email": expected.email,
        }
        body = json.dumps(event).encode()
        event_id = expected.event_id or f"msg-{expected.payment_id}"
        timestamp = str(int(sent_at.timestamp()))
        signature = sign(secret, f"{event_id}.{timestamp}.".encode() + body)
        headers = {
            "x-event-id": event_id,
            "x-timestamp": timestamp,
            "x-signature": base64.b64encode(signature).decode(),
        }
        return Delivery(JSON | headers, body, RECEIVED_AT)

    return deliver


def ed25519(secret: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(secret.encode()).digest())


@lru_cache
def rsa(secret: str) -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def pem(key: Ed25519PrivateKey | RSAPrivateKey) -> str:
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public.decode()


def with_algorithm(name: str, algorithm: str) -> dict[str, Any]:
    described = options(name)
    return described | {"signature": described["signature"] | {"algorithm": algorithm}}


_HUB: Final = hub(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["x-hub-signature-256"]
_T, _H1 = paddle(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["paddle-signature"].split(";")
_SQUARE: Final = square(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers[
    "x-square-hmacsha256-signature"
]

CASES: Final = [
    Case(
        name="generic, like GitHub",
        provider=maker(options("hub")),
        deliver=hub,
        signature_header="x-hub-signature-256",
        unknown_kind="viewed",
        names_events=False,
        wrong_signatures={
            "without its prefix": _HUB.removeprefix("sha256="),
            "with another prefix": _HUB.replace("sha256", "sha1"),
            "with two prefixes": f"sha256={_HUB}",
            "upper case": _HUB.upper(),
            "sent twice": f"{_HUB}, {_HUB}",
            "with blanks": f" {_HUB} ",
            "the prefix alone": "sha256=",
        },
    ),
    Case(
        name="generic, like Paddle",
        provider=maker(options("paddle")),
        deliver=paddle,
        signature_header="paddle-signature",
        unknown_kind="customer.created",
        wrong_signatures={
            "no time": _H1,
            "an empty time": f"ts=;{_H1}",
            "two times": f"{_T};{_T};{_H1}",
            "a time that is no count": f"ts=x;{_H1}",
            "no signature": _T,
            "an empty signature": f"{_T};h1=",
            "a name without a value": f"{_T};h1",
            "under another name": f"{_T};h2{_H1[2:]}",
            "the signature alone": _H1[3:],
        },
        signs_time=True,
    ),
    Case(
        name="generic, like Razorpay",
        provider=maker(options("rzp")),
        deliver=razorpay,
        signature_header="x-razorpay-signature",
        unknown_kind="order.paid",
        names_events=False,
    ),
    Case(
        name="generic, like Square",
        provider=maker(options("square")),
        deliver=square,
        signature_header="x-square-hmacsha256-signature",
        unknown_kind="PENDING",
        wrong_signatures={
            "without padding": _SQUARE.rstrip("="),
            "with more padding": f"{_SQUARE}=",
            "hex": base64.b64decode(_SQUARE).hex(),
        },
    ),
    Case(
        name="generic, ed25519 over id and time",
        provider=maker(options("bank"), lambda secret: pem(ed25519(secret))),
        deliver=bank(lambda secret, content: ed25519(secret).sign(content)),
        signature_header="x-signature",
        unknown_kind="payment.seen",
        signed_headers=("x-event-id", "x-timestamp"),
        signs_time=True,
        composes=False,
    ),
    Case(
        name="generic, RSA over id and time",
        provider=maker(with_algorithm("bank", "rsa-sha256"), lambda secret: pem(rsa(secret))),
        deliver=bank(lambda secret, content: rsa(secret).sign(content, PKCS1v15(), SHA256())),
        signature_header="x-signature",
        unknown_kind="payment.seen",
        signed_headers=("x-event-id", "x-timestamp"),
        signs_time=True,
        composes=False,
    ),
    Case(
        name="generic, HMAC over id and time",
        provider=maker(with_algorithm("bank", "hmac-sha256")),
        deliver=bank(mac),
        signature_header="x-signature",
        unknown_kind="payment.seen",
        signed_headers=("x-event-id", "x-timestamp"),
        signs_time=True,
    ),
]
