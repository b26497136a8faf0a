"""Test notifications of Alipay, and the key that signs them.

Only Alipay has Alipay's private key. A process that may build test webhooks generates its own key,
which only that process trusts and which never leaves its memory.
"""

import base64
from collections.abc import Mapping
from datetime import timedelta, timezone
from typing import Final
from urllib.parse import urlencode

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

from paidonce.providers.contract import SampleEvent
from paidonce.providers.samples import reject_statuses

KEY_BITS: Final = 2048
CHINA: Final = timezone(timedelta(hours=8))

_STATUSES: Final = {
    "paid": "TRADE_SUCCESS",
    "canceled": "TRADE_CLOSED",
    "refunded": "TRADE_CLOSED",
    "pending": "WAIT_BUYER_PAY",
}


class SampleKey:
    """A private key of this process, generated on first use."""

    def __init__(self) -> None:
        self._key: rsa.RSAPrivateKey | None = None

    @property
    def public_keys(self) -> tuple[rsa.RSAPublicKey, ...]:
        """The public key; empty before the first signature."""
        return () if self._key is None else (self._key.public_key(),)

    def sign(self, content: bytes) -> bytes:
        """Return the signature in base64."""
        if self._key is None:
            self._key = rsa.generate_private_key(public_exponent=65_537, key_size=KEY_BITS)
        return base64.b64encode(self._key.sign(content, PKCS1v15(), SHA256()))


def build_notification(sample: SampleEvent, recipients: Mapping[str, str], key: SampleKey) -> bytes:
    """Build a signed form. Raises InvalidRequestError."""
    parameters = {**_parameters(sample), **recipients}
    content = "&".join(f"{name}={value}" for name, value in sorted(parameters.items()))
    signature = key.sign(content.encode()).decode()
    return urlencode({**parameters, "sign_type": "RSA2", "sign": signature}).encode()


def _parameters(sample: SampleEvent) -> dict[str, str]:
    reject_statuses(sample.status, "failed")
    at = sample.sent_at.astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S")
    parameters = {
        "charset": "utf-8",
        "notify_type": "trade_status_sync",
        "notify_id": sample.event_id or sample.payment_id,
        "notify_time": at,
        "trade_no": sample.payment_id,
        "trade_status": _STATUSES.get(sample.status, sample.status),
        "total_amount": sample.amount,
    }
    if sample.order is not None:
        parameters["out_trade_no"] = sample.order
    if sample.currency != "CNY":
        parameters["trans_currency"] = sample.currency
    if sample.status in ("paid", "refunded"):
        parameters["gmt_payment"] = at
    if sample.status == "refunded":
        parameters |= {"refund_fee": sample.amount, "gmt_refund": at, "gmt_close": at}
    return parameters
