"""Gateways that tell of orders, each in its own words, signed without the providers' code."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from paidonce.providers.contract import Delivery
from tests.providers.cases.alipay import ADDRESSEES, alipay_form, china_time, public_key
from tests.providers.cases.creem import creem_signed
from tests.providers.cases.generic import PAGE, mac
from tests.providers.cases.standard import v1, whsec
from tests.providers.cases.stripe import event as stripe_event
from tests.providers.cases.stripe import signed as stripe_signed
from tests.providers.conformance import FORM, JSON, RECEIVED_AT, header, with_header
from tests.support.service import BASIC, Reply
from tests.support.shop import Shop
from tests.support.tools import items

SECRETS: Final = ("whsec_of the shop's own", "whsec_the one before")


@dataclass(frozen=True)
class Told:
    """What has happened to a payment, in no gateway's words. A refund is one of all of it."""

    payment: str
    order: str | None
    kind: str = "paid"  # or "refunded"
    currency: str = "EUR"
    amount: str = "990.00"
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def event_id(self) -> str:
        return f"{self.kind}-{self.payment}"

    @property
    def minor(self) -> int:
        return int(self.amount.replace(".", ""))

    @property
    def refunded_minor(self) -> int:
        return self.minor if self.kind == "refunded" else 0


Tell = Callable[[Told, str, datetime], Delivery]


@dataclass(frozen=True)
class Gateway:
    """A source, and how its gateway speaks."""

    source: str
    tell: Tell
    signature: str
    """The header of the signature, or `form:NAME`."""
    currency: str = "EUR"
    signed_headers: tuple[str, ...] = ()
    tells_refunds: bool = True
    dictates: Callable[[str], bytes] | None = None
    """The answer that it wants to what it tells of an order, whatever became of it."""

    def __str__(self) -> str:
        return self.source

    def told(self, told: Told, secret: str = SECRETS[0], late_s: float = 0) -> Delivery:
        """What it sends now, or so many seconds ago."""
        sent_at = datetime.now(UTC) - timedelta(seconds=late_s)
        return self.tell(replace(told, currency=self.currency), secret, sent_at)

    def answer(self, reply: Reply, order: str, word: str) -> str | None:
        """The event's id, if the answer has one; raises what is wrong with it."""
        assert reply.http == 200, reply
        if self.dictates is not None:
            assert reply.body == self.dictates(order)
            return None
        assert reply.headers["content-type"] == "application/json"
        assert reply.json.keys() == {"status", "event_id"}
        assert reply.json["status"] == word
        return str(reply.json["event_id"])


def post(shop: Shop, source: str, delivery: Delivery) -> Reply:
    return shop.service.request("POST", f"/webhooks/{source}", delivery.body, delivery.headers)


def forgeries(delivery: Delivery, *headers: str) -> Iterator[Delivery]:
    """The delivery with a bit of each byte changed: of these headers, and then of the body."""
    for name in headers:
        for changed in _flipped(header(delivery, name).encode()):
            yield with_header(delivery, name, changed.decode())
    for changed in _flipped(delivery.body):
        yield Delivery(delivery.headers, changed, RECEIVED_AT)


def _flipped(right: bytes) -> Iterator[bytes]:
    for position in range(len(right)):
        yield right[:position] + bytes([right[position] ^ 1]) + right[position + 1 :]


def kept(shop: Shop, source: str, order: str) -> Any:
    """All that is known of an order, its payments and their events."""
    found = shop.found(order)
    wallet_id = found.get("wallet_id")
    wallet = wallet_id and shop.service.api("GET", f"/wallets/{wallet_id}").json
    payments = items(shop.service, "/payments", source=source, order=order)
    return found, wallet, payments, items(shop.service, "/events", source=source, order=order)


def alipay(told: Told, secret: str, sent_at: datetime) -> Delivery:
    said = ADDRESSEES | {
        "notify_type": "trade_status_sync",
        "notify_id": told.event_id,
        "notify_time": china_time(sent_at),
        "gmt_payment": "2026-11-15 19:00:00",
        "charset": "utf-8",
        "sign_type": "RSA2",
        "trade_no": told.payment,
        "out_trade_no": told.order or "",
        "trade_status": "TRADE_SUCCESS",
        "total_amount": told.amount,
        "subject": "会员 & 连续包月 + 1",
    }
    if told.refunded_minor:
        said |= {"refund_fee": told.amount, "gmt_refund": "2026-11-15 20:00:00.000"}
        said |= {"trade_status": "TRADE_CLOSED"}
    return Delivery(FORM, alipay_form(said, secret), RECEIVED_AT)


def creem(told: Told, secret: str, sent_at: datetime) -> Delivery:
    amount = {"amount": told.minor, "currency": told.currency}
    order = {"id": f"ord-{told.payment}", "transaction": told.payment, "status": "paid", **amount}
    checkout = {"id": f"ch-{told.payment}", "request_id": told.order}
    if told.kind == "paid":
        return creem_told(told, "checkout.completed", checkout | {"order": order}, secret)
    refund = {
        "id": f"ref-{told.payment}",
        "status": "succeeded",
        "refund_amount": told.refunded_minor,
        "refund_currency": told.currency,
        "transaction": {"id": told.payment, "refunded_amount": told.refunded_minor, **amount},
        "checkout": checkout,
        "order": order,
    }
    return creem_told(told, "refund.created", refund, secret)


def creem_told(told: Told, kind: str, thing: Mapping[str, Any], secret: str) -> Delivery:
    """One event has one time, however often it is sent."""
    at_ms = int(told.at.timestamp() * 1000)
    event = {"id": f"{kind}-{told.payment}", "eventType": kind, "created_at": at_ms}
    return creem_signed(event | {"object": dict(thing)}, secret)


def stripe(told: Told, secret: str, sent_at: datetime) -> Delivery:
    intent = {
        "id": f"pi_{told.payment}",
        "amount_received": told.minor,
        "currency": told.currency.lower(),
        "latest_charge": f"ch_{told.payment}",
        "metadata": {"order": told.order},
    }
    charge = {
        "id": f"ch_{told.payment}",
        "payment_intent": f"pi_{told.payment}",
        "amount": told.minor,
        "amount_captured": told.minor,
        "amount_refunded": told.refunded_minor,
        "currency": told.currency.lower(),
        "captured": True,
        "status": "succeeded",
    }
    body = (
        stripe_event("payment_intent.succeeded", intent, f"evt_{told.event_id}")
        if told.kind == "paid"
        else stripe_event("charge.refunded", charge, f"evt_{told.event_id}")
    )
    return stripe_signed(body, secret, sent_at)


def standard(told: Told, secret: str, sent_at: datetime) -> Delivery:
    types = {"paid": "payment.succeeded", "refunded": "payment.refunded"}
    data = {
        "payment_id": told.payment,
        "order": told.order,
        "amount": told.amount,
        "currency": told.currency,
    }
    said = {"type": types[told.kind], "timestamp": "2026-11-15T10:00:00Z", "data": data}
    return standard_signed(json.dumps(said).encode(), told.event_id, secret, sent_at)


def standard_signed(body: bytes, event_id: str, secret: str, sent_at: datetime) -> Delivery:
    timestamp = str(int(sent_at.timestamp()))
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": v1(secret, f"{event_id}.{timestamp}.".encode() + body),
    }
    return Delivery(JSON | headers, body, RECEIVED_AT)


def like_github(told: Told, secret: str, sent_at: datetime) -> Delivery:
    payment = {
        "id": told.payment,
        "reference": told.order,
        "amount": told.amount,
        "currency": told.currency,
    }
    body = json.dumps({"action": told.kind, "payment": payment}).encode()
    signature = f"sha256={mac(secret, body).hex()}"
    headers = {"x-hub-signature-256": signature, "x-github-delivery": told.event_id}
    return Delivery(JSON | headers, body, RECEIVED_AT)


def like_paddle(told: Told, secret: str, sent_at: datetime) -> Delivery:
    data = {
        "id": told.payment,
        "custom_data": {"order": told.order},
        "currency_code": told.currency,
        "details": {"totals": {"total": str(told.minor)}},
    }
    types = {"paid": "transaction.completed", "refunded": "adjustment.created"}
    said = {"event_id": told.event_id, "event_type": types[told.kind], "data": data}
    body = json.dumps(said | {"occurred_at": "2026-11-15T11:59:00Z"}).encode()
    timestamp = int(sent_at.timestamp())
    signature = mac(secret, f"{timestamp}:".encode() + body).hex()
    headers = {"paddle-signature": f"ts={timestamp};h1={signature}"}
    return Delivery(JSON | headers, body, RECEIVED_AT)


def like_razorpay(told: Told, secret: str, sent_at: datetime) -> Delivery:
    entity = {
        "id": told.payment,
        "amount": told.minor,
        "amount_refunded": told.refunded_minor,
        "currency": told.currency,
        "notes": {"order": told.order},
    }
    types = {"paid": "payment.captured", "refunded": "refund.processed"}
    said = {"event": types[told.kind], "payload": {"payment": {"entity": entity}}}
    body = json.dumps(said | {"created_at": 1794743940}).encode()
    headers = {"x-razorpay-signature": mac(secret, body).hex()}
    return Delivery(JSON | headers | {"x-razorpay-event-id": told.event_id}, body, RECEIVED_AT)


GATEWAYS: Final = [
    Gateway("cn", alipay, "form:sign", "CNY", dictates=lambda order: b"success"),
    Gateway(
        "creem",
        creem,
        "creem-signature",
        dictates=lambda order: f'{{"status":"success","orderId":"{order}"}}'.encode(),
    ),
    Gateway("cards", stripe, "stripe-signature"),
    Gateway(
        "shop",
        standard,
        "webhook-signature",
        signed_headers=("webhook-id", "webhook-timestamp"),
    ),
    Gateway("hub", like_github, "x-hub-signature-256"),
    Gateway("paddle", like_paddle, "paddle-signature", tells_refunds=False),
    Gateway("rzp", like_razorpay, "x-razorpay-signature", "INR"),
]


def _page_settings() -> str:
    """The descriptions of the documentation, with the secrets that are known here."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    described = [one for one in blocks if re.match(r"\[sources\.(hub|paddle|rzp)\]", one)]
    return re.sub(r'"env:\w+"', _listed(*SECRETS), "\n".join(described))


def _listed(*texts: str) -> str:
    return ", ".join(f'"{one}"' for one in texts)


CONFIG: Final = f"""{BASIC}
[limits]
unverified = ""
[security]
ban_threshold = 0
[sources.cn]
provider = "alipay"
public_keys = [{_listed(*map(public_key, SECRETS))}]
app_id = "{ADDRESSEES["app_id"]}"
seller_id = "{ADDRESSEES["seller_id"]}"
[sources.creem]
provider = "creem"
secrets = [{_listed(*SECRETS)}]
[sources.cards]
provider = "stripe"
secrets = [{_listed(*SECRETS)}]
[sources.shop]
provider = "standard"
secrets = [{_listed(*map(whsec, SECRETS))}]
{_page_settings()}
"""
"""All of them, and `payments`, which is Tilda's. Forgeries may come in great numbers."""
