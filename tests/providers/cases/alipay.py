"""Deliveries of Alipay."""

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Final
from urllib.parse import quote_plus

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256, HashAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from paidonce.providers.alipay import provider as alipay
from paidonce.providers.contract import Delivery, Provider, ProviderConfig
from tests.providers.conformance import FORM, KEY, RECEIVED_AT, TOLERANCE_S, Case, ExpectedEvent

CHINA: Final = timezone(timedelta(hours=8))
ADDRESSEES: Final = {"app_id": "2021000000000001", "seller_id": "2088000000000001"}
STATUSES: Final = {"paid": "TRADE_SUCCESS"}


@cache
def private_key(secret: str) -> RSAPrivateKey:
    """A key of its own for each secret, made once."""
    return generate_private_key(65537, 2048)


def public_key(secret: str) -> str:
    """As Alipay shows it to merchants: base64, without a frame."""
    if not secret:
        return ""
    public = private_key(secret).public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def alipay_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    options = {**ADDRESSEES, "public_keys": [public_key(one) for one in secrets]}
    return alipay.configure(ProviderConfig(KEY, (), options, tolerance_s))


def china_time(at: datetime) -> str:
    return at.astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S")


def alipay_form(
    parameters: Mapping[str, str],
    secret: str,
    *,
    charset: str = "utf-8",
    leaves_out: tuple[str, ...] = ("sign_type",),
    skips_empty: bool = True,
    algorithm: HashAlgorithm | None = None,
) -> bytes:
    """The body that Alipay would send: signed over bytes, by the rule of payments."""
    pairs = {name: value.encode(charset) for name, value in parameters.items()}
    signed = b"&".join(
        name.encode() + b"=" + pairs[name]
        for name in sorted(pairs)
        if name not in leaves_out and (pairs[name] or not skips_empty)
    )
    sign = private_key(secret).sign(signed, PKCS1v15(), algorithm or SHA256())
    return form(pairs | {"sign": base64.b64encode(sign)})


def form(pairs: Mapping[str, bytes]) -> bytes:
    return "&".join(f"{quote_plus(k)}={quote_plus(v)}" for k, v in pairs.items()).encode()


def trade(expected: ExpectedEvent, sent_at: datetime) -> dict[str, str]:
    return {
        **ADDRESSEES,
        "notify_type": "trade_status_sync",
        "notify_id": expected.event_id or f"of-{expected.payment_id}",
        "notify_time": china_time(sent_at),
        "charset": "utf-8",
        "sign_type": "RSA2",
        "trade_no": expected.payment_id,
        "out_trade_no": "order-1",
        "trade_status": STATUSES.get(expected.kind, expected.kind),
        "total_amount": expected.amount,
        "trans_currency": expected.currency,
        "subject": "语雀空间 500+1 & more",
        "buyer_logon_id": expected.email or "",
    }


def notification(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
    return Delivery(FORM, alipay_form(trade(expected, sent_at), secret), RECEIVED_AT)


CASES: Final = [
    Case(
        name="alipay",
        provider=alipay_provider,
        deliver=notification,
        signature_header="form:sign",
        unknown_kind="TRADE_PENDING",
        wrong_signatures={"hex": "ab" * 256, "a line break": "QUJD\n", "without padding": "QUI"},
        signs_whole_body=False,
        signs_time=True,
        secrets_setting="public_keys",
        tells_email=False,
    )
]
