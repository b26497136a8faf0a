"""What the merchant's four gateways send, each signed by hand from its own documentation."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from typing import Any, Final, Self
from urllib.parse import quote_plus
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CHINA: Final = timezone(timedelta(hours=8))
APP: Final = {"app_id": "2021000000000007", "seller_id": "2088000000000007"}
SECRETS: Final = {
    "cn": "the key of Alipay",
    "creem": "whsec_of_creem",
    "payments": "first-secret",
    "shop": "whsec_" + base64.b64encode(b"what the shop and its gateway know").decode(),
}
CURRENCIES: Final = {"cn": "CNY", "creem": "EUR", "payments": "RUB", "shop": "USD"}


@dataclass(frozen=True)
class Sent:
    """One request, ready to be sent any number of times."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    def changed(self, old: str, new: str) -> Self:
        """The same headers over a body in which something else stands."""
        assert old.encode() in self.body
        return replace(self, body=self.body.replace(old.encode(), new.encode()))


@dataclass(frozen=True)
class Sale:
    """What a gateway tells of: money that was paid, for an order or, at Tilda, by a user."""

    source: str
    order: str | None = None
    email: str | None = None
    amount: Decimal = Decimal("990.00")
    currency: str = ""
    payment: str = field(default_factory=lambda: f"pay-{uuid4().hex[:12]}")
    event_id: str = field(default_factory=lambda: f"evt-{uuid4().hex[:12]}")
    sent_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def again(self) -> Self:
        """What the gateway tells of the same money in another event."""
        return replace(self, event_id=f"evt-{uuid4().hex[:12]}")

    def late(self, seconds: float) -> Self:
        """As it is told by whoever sent it so long ago; negative is in the future."""
        return replace(self, sent_at=datetime.now(UTC) - timedelta(seconds=seconds))

    @property
    def in_currency(self) -> str:
        return self.currency or CURRENCIES[self.source]

    def told(self, secret: str | None = None, **more: Any) -> Sent:
        """The delivery, with the gateway's own fields changed, and with its secret or another."""
        return _TELL[self.source](self, secret or SECRETS[self.source], more)


def alipay(sale: Sale, secret: str, more: Mapping[str, str]) -> Sent:
    said = {
        **APP,
        "notify_type": "trade_status_sync",
        "notify_id": sale.event_id,
        "notify_time": china_time(sale.sent_at),
        "gmt_payment": china_time(sale.sent_at),
        "charset": "utf-8",
        "version": "1.0",
        "sign_type": "RSA2",
        "trade_no": sale.payment,
        "out_trade_no": sale.order or "",
        "trade_status": "TRADE_SUCCESS",
        "total_amount": str(sale.amount),
        "subject": "会员 & 连续包月 + 1",
        "fund_bill_list": f'[{{"amount":"{sale.amount}","fundChannel":"ALIPAYACCOUNT"}}]',
    }
    if sale.in_currency != "CNY":
        said["trans_currency"] = sale.in_currency
    said |= more
    return form("cn", encoded(said, said["charset"]), secret)


def encoded(said: Mapping[str, str], charset: str) -> dict[str, bytes]:
    return {name: value.encode(charset) for name, value in said.items()}


def form(source: str, pairs: Mapping[str, bytes], secret: str) -> Sent:
    """Alipay's form, with a signature over what stands in it."""
    return _form(source, {**pairs, "sign": rsa2(pairs, secret)})


def rsa2(pairs: Mapping[str, bytes], secret: str) -> bytes:
    """Alipay's signature: sorted, joined, unescaped, without `sign_type` and what is empty."""
    counted = sorted(name for name in pairs if name not in {"sign", "sign_type"} and pairs[name])
    signed = b"&".join(name.encode() + b"=" + pairs[name] for name in counted)
    return base64.b64encode(private_key(secret).sign(signed, PKCS1v15(), SHA256()))


def forged_form(source: str, pairs: Mapping[str, bytes], sign: bytes) -> Sent:
    """Alipay's form with a signature from elsewhere."""
    return _form(source, {**pairs, "sign": sign})


def _form(source: str, pairs: Mapping[str, bytes]) -> Sent:
    body = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in pairs.items())
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    return Sent(f"/webhooks/{source}", headers, body.encode())


@cache
def private_key(secret: str) -> RSAPrivateKey:
    """A key of its own for each name, made once."""
    return generate_private_key(65537, 2048)


def public_key(secret: str) -> str:
    """As Alipay shows it to merchants."""
    public = private_key(secret).public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def china_time(at: datetime) -> str:
    return at.astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S")


def creem(sale: Sale, secret: str, more: Mapping[str, Any]) -> Sent:
    order = {
        "id": f"ord_{sale.payment}",
        "transaction": sale.payment,
        "amount": minor(sale.amount),
        "currency": sale.in_currency,
        "status": "paid",
        "type": "onetime",
    }
    thing = {
        "id": f"ch_{sale.payment}",
        "object": "checkout",
        "request_id": sale.order,
        "order": order,
        "status": "completed",
        "mode": "test",
    }
    said = {
        "id": sale.event_id,
        "eventType": "checkout.completed",
        "created_at": int(sale.sent_at.timestamp() * 1000),
        "object": thing,
    }
    body = json.dumps({**said, **more}).encode()
    return Sent("/webhooks/creem", JSON | {"creem-signature": hmac_hex(body, secret)}, body)


def minor(amount: Decimal) -> int:
    return int(amount * 100)


def tilda(sale: Sale, secret: str, more: Mapping[str, Any]) -> Sent:
    said = {
        "external_payment_id": sale.payment,
        "event_id": sale.event_id,
        "status": "paid",
        "amount": str(sale.amount),
        "currency": sale.in_currency,
        "email": sale.email,
    }
    body = json.dumps({**said, **more}).encode()
    return Sent("/webhooks/payments", JSON | {"x-signature": hmac_hex(body, secret)}, body)


def standard(sale: Sale, secret: str, more: Mapping[str, Any]) -> Sent:
    data = {
        "payment_id": sale.payment,
        "order": sale.order,
        "amount": str(sale.amount),
        "currency": sale.in_currency,
    }
    said = {"type": "payment.succeeded", "timestamp": sale.sent_at.isoformat(), "data": data}
    body = json.dumps({**said, **more}).encode()
    return Sent("/webhooks/shop", standard_headers(body, sale.event_id, sale.sent_at, secret), body)


def standard_headers(body: bytes, event_id: str, sent_at: datetime, secret: str) -> dict[str, str]:
    """The headers of Standard Webhooks."""
    timestamp = str(int(sent_at.timestamp()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return JSON | {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def hmac_hex(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


JSON: Final = {"content-type": "application/json"}
_TELL: Final[Mapping[str, Callable[[Sale, str, Mapping[str, Any]], Sent]]] = {
    "cn": alipay,
    "creem": creem,
    "payments": tilda,
    "shop": standard,
}

CONFIG: Final = f"""
environment = "development"
[sources.cn]
provider = "alipay"
public_keys = ["{public_key("the key before")}", "{public_key(SECRETS["cn"])}"]
app_id = "{APP["app_id"]}"
seller_id = "{APP["seller_id"]}"
[sources.creem]
provider = "creem"
secrets = ["{SECRETS["creem"]}"]
[sources.payments]
provider = "tilda"
secrets = ["{SECRETS["payments"]}"]
[sources.shop]
provider = "standard"
secrets = ["{SECRETS["shop"]}"]
[plans.monthly]
price = "990.00"
currency = "RUB"
days = 30
default = true
"""
"""A source of each of the four."""
