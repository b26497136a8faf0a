"""Test notifications of Alipay, and the key that signs them.

Alipay's own key signs for Alipay alone. So a process that may make test webhooks has a key of its
own, which it made itself, which it alone believes, and which never leaves its memory.
"""

import base64
from datetime import timedelta, timezone
from typing import Final
from urllib.parse import urlencode

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

from paidonce.providers.contract import Sample
from paidonce.providers.samples import refuse_words

KEY_BITS: Final = 2048
CHINA: Final = timezone(timedelta(hours=8))

_STATUSES: Final = {
    "paid": "TRADE_SUCCESS",
    "canceled": "TRADE_CLOSED",
    "refunded": "TRADE_CLOSED",
    "pending": "WAIT_BUYER_PAY",
}


class SampleKey:
    """A key of this process alone, made when it is first needed."""

    def __init__(self) -> None:
        self._key: rsa.RSAPrivateKey | None = None

    @property
    def public_keys(self) -> tuple[rsa.RSAPublicKey, ...]:
        """What verifies its signatures; nothing while there are none."""
        return () if self._key is None else (self._key.public_key(),)

    def sign(self, signed: bytes) -> bytes:
        """The signature, in base64."""
        if self._key is None:
            self._key = rsa.generate_private_key(public_exponent=65_537, key_size=KEY_BITS)
        return base64.b64encode(self._key.sign(signed, PKCS1v15(), SHA256()))


def notification(sample: Sample, app_id: str, seller_id: str, key: SampleKey) -> bytes:
    """A form that says what the sample asks for. Raises InvalidRequestError."""
    said = _parameters(sample) | {"app_id": app_id, "seller_id": seller_id}
    signed = "&".join(f"{name}={value}" for name, value in sorted(said.items()))
    signature = key.sign(signed.encode()).decode()
    return urlencode({**said, "sign_type": "RSA2", "sign": signature}).encode()


def _parameters(sample: Sample) -> dict[str, str]:
    refuse_words(sample.status, "failed")
    at = sample.sent_at.astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S")
    said = {
        "charset": "utf-8",
        "notify_type": "trade_status_sync",
        "notify_id": sample.event_id or sample.payment_id,
        "notify_time": at,
        "trade_no": sample.payment_id,
        "trade_status": _STATUSES.get(sample.status, sample.status),
        "total_amount": sample.amount,
    }
    if sample.order is not None:
        said["out_trade_no"] = sample.order
    if sample.currency != "CNY":
        said["trans_currency"] = sample.currency
    if sample.status in ("paid", "refunded"):
        said["gmt_payment"] = at
    if sample.status == "refunded":
        said |= {"refund_fee": sample.amount, "gmt_refund": at, "gmt_close": at}
    return said
