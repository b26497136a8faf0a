"""Deliveries of every source, signed without the providers' code."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from paidonce.providers.contract import Delivery
from tests.model.model import Fact, Payment, major
from tests.providers.cases.alipay import ADDRESSEES, alipay_form, china_time
from tests.providers.cases.creem import creem_signed
from tests.providers.cases.generic import mac
from tests.providers.cases.standard import whsec
from tests.providers.cases.stripe import event as stripe_event
from tests.providers.cases.stripe import signed as stripe_signed
from tests.providers.conformance import FORM, JSON, RECEIVED_AT
from tests.support import portone_server
from tests.support.gateways import CONFIG as GATEWAYS
from tests.support.gateways import SECRETS, standard_signed
from tests.support.portone_server import V2_SECRETS, Cancellation, PortOneGateway
from tests.support.service import SECRET as TILDA_SECRET
from tests.support.service import signature

SECRET: Final = SECRETS[0]
THIEF: Final = "whsec_that nobody was given"
EPOCH: Final = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
"""Minute 0 of the histories: everything in them has happened before it is told."""

CONFIG: Final = f"""{GATEWAYS}
[plans.weekly]
price = "300.00"
currency = "RUB"
days = 7
[plans.trial]
price = "0"
currency = "RUB"
days = 3
[sources.kr]
provider = "portone"
secrets = ["{whsec(SECRET)}"]
api_url = "GATEWAY_URL"
api_secret = "{V2_SECRETS[0]}"
lookup_rate = 1000
[server]
mode = "SERVER_MODE"
"""


@dataclass(frozen=True)
class Telling:
    """One event, to be written in the words of its source."""

    payment: Payment
    fact: Fact
    event_id: str
    secret: str = SECRET
    is_malformed: bool = False
    """Without the payment's id."""

    @property
    def name(self) -> str | None:
        return None if self.is_malformed else self.payment.name

    @property
    def at(self) -> datetime:
        return EPOCH + timedelta(minutes=self.fact.minute)

    @property
    def paid_at(self) -> datetime:
        return EPOCH + timedelta(minutes=self.payment.minute)

    @property
    def amount(self) -> str:
        """The sum that the event is about."""
        fact = self.fact
        about = fact.total if fact.kind == "refunded" else fact.captured
        return major(about or 0, self.payment.currency)


def names_target(source: str, fact: Fact) -> bool:
    """Whether the event says which order, or whose, the payment is for."""
    if source == "cards":
        return fact.kind not in ("refunded", "disputed", "won", "lost")
    return source != "shop" or fact.kind != "refunded" or fact.minute % 2 == 1


def tilda(told: Telling) -> Delivery:
    said = {
        "external_payment_id": told.name,
        "event_id": told.event_id,
        "status": told.fact.kind,
        "amount": told.amount,
        "currency": told.payment.currency,
        "email": told.payment.email,
        "plan_id": told.payment.plan,
    }
    body = _json(said)
    secret = TILDA_SECRET if told.secret == SECRET else told.secret
    return Delivery(JSON | {"x-signature": signature(body, secret)}, body, RECEIVED_AT)


STANDARD: Final = {
    "pending": "payment.pending",
    "failed": "payment.failed",
    "voided": "payment.canceled",
    "paid": "payment.succeeded",
    "refunded": "payment.refunded",
}


def standard(told: Telling) -> Delivery:
    payment, is_named = told.payment, names_target("shop", told.fact)
    data = {
        "payment_id": told.name,
        "order": payment.order if is_named else None,
        "email": payment.email if is_named else None,
        "plan_id": payment.plan,
        "amount": told.amount,
        "currency": payment.currency,
    }
    kind = STANDARD[told.fact.kind]
    said = {"type": kind, "timestamp": told.at.isoformat(), "data": _given(data)}
    return standard_signed(_json(said), told.event_id, told.secret, datetime.now(UTC))


STRIPE: Final = {
    "pending": "payment_intent.created",
    "processing": "payment_intent.processing",
    "failed": "payment_intent.payment_failed",
    "voided": "payment_intent.canceled",
    "paid": "payment_intent.succeeded",
    "refunded": "charge.refunded",
    "disputed": "charge.dispute.created",
    "won": "charge.dispute.closed",
    "lost": "charge.dispute.closed",
}
CHARGED: Final = {"captured": True, "status": "succeeded"}


def stripe(told: Telling) -> Delivery:
    payment, fact = told.payment, told.fact
    intent, charge = (told.name and f"{kind}_{told.name}" for kind in ("pi", "ch"))
    currency = payment.currency.lower()
    if fact.kind == "refunded":
        thing: dict[str, Any] = {
            "id": charge,
            "payment_intent": intent,
            "amount": fact.captured,
            "amount_captured": fact.captured,
            "amount_refunded": fact.total,
            "currency": currency,
            "created": int(told.paid_at.timestamp()),
            **CHARGED,
        }
    elif fact.kind in ("disputed", "won", "lost"):
        status = "needs_response" if fact.kind == "disputed" else fact.kind
        dispute, amount = fact.refund or (f"du_{payment.name}", 100)
        thing = {"id": dispute, "charge": charge, "payment_intent": intent, "status": status}
        thing |= {"amount": amount, "currency": currency}
    else:
        thing = {"id": intent, "currency": currency, "metadata": {"order": payment.order}}
        thing |= {"amount_received": fact.captured or 0}
        thing |= {"latest_charge": charge} if fact.ids == "all" else {}
    kind, created = STRIPE[fact.kind], int(told.at.timestamp())
    if fact.ids == "charge":
        kind, thing = "charge.succeeded", {"id": charge, "amount": fact.captured, **CHARGED}
        thing |= {"currency": currency, "metadata": {"order": payment.order}}
    body = stripe_event(kind, _given(thing), told.event_id, created=created)
    return stripe_signed(body, told.secret, datetime.now(UTC))


ALIPAY: Final = {
    "pending": "WAIT_BUYER_PAY",
    "voided": "TRADE_CLOSED",
    "paid": "TRADE_SUCCESS",
    "refunded": "TRADE_SUCCESS",
}


def alipay(told: Telling) -> Delivery:
    payment, fact = told.payment, told.fact
    said = ADDRESSEES | {
        "notify_type": "trade_status_sync",
        "notify_id": told.event_id,
        "notify_time": china_time(datetime.now(UTC)),
        "gmt_payment": china_time(told.paid_at),
        "charset": "utf-8",
        "sign_type": "RSA2",
        "trade_no": told.name or "",
        "out_trade_no": payment.order or "",
        "trade_status": ALIPAY[fact.kind],
        "total_amount": major(fact.captured or 100, payment.currency),
        "trans_currency": payment.currency,
    }
    if fact.total is not None:
        refund = {"gmt_refund": f"{china_time(told.at)}.000", "out_biz_no": told.event_id}
        said |= refund | {"refund_fee": major(fact.total, payment.currency)}
    return Delivery(FORM, alipay_form(said, told.secret), RECEIVED_AT)


CREEM: Final = {
    "paid": "checkout.completed",
    "refunded": "refund.created",
    "disputed": "dispute.created",
}


def creem(told: Telling) -> Delivery:
    payment, fact = told.payment, told.fact
    amount = {"amount": fact.captured, "currency": payment.currency}
    order = {"transaction": told.name, "status": "paid", **amount}
    checkout = {"request_id": payment.order}
    thing: dict[str, Any] = checkout | {"order": order}
    if fact.kind != "paid":
        transaction = _given({"id": told.name, "refunded_amount": fact.total, **amount})
        thing = {"transaction": transaction, "checkout": checkout, "order": order}
    if fact.kind == "refunded" and fact.refund:
        refund, part = fact.refund
        thing |= {"id": refund, "status": "succeeded", "refund_amount": part}
        thing |= {"refund_currency": payment.currency}
    elif fact.kind == "disputed":
        thing |= {"id": f"disp-{payment.name}", **amount}
    event = {"id": told.event_id, "eventType": CREEM[fact.kind], "object": thing}
    created_at = int(datetime.now(UTC).timestamp() * 1000)
    return creem_signed(event | {"created_at": created_at}, told.secret)


def hub(told: Telling) -> Delivery:
    payment = told.payment
    names = {"paid": "paid", "failed": "declined", "refunded": "refunded"}
    said = {
        "id": told.name,
        "reference": payment.order,
        "amount": told.amount,
        "currency": payment.currency,
    }
    body = _json({"action": names[told.fact.kind], "payment": _given(said)})
    headers = {"x-hub-signature-256": f"sha256={mac(told.secret, body).hex()}"}
    return Delivery(JSON | headers | {"x-github-delivery": told.event_id}, body, RECEIVED_AT)


PADDLE: Final = {
    "paid": "transaction.completed",
    "failed": "transaction.payment_failed",
    "voided": "transaction.canceled",
}


def paddle(told: Telling) -> Delivery:
    payment = told.payment
    data = {
        "id": told.name,
        "custom_data": {"order": payment.order},
        "currency_code": payment.currency,
        "details": {"totals": {"total": str(told.fact.captured or 0)}},
    }
    said = {"event_id": told.event_id, "event_type": PADDLE[told.fact.kind], "data": _given(data)}
    body = _json(said | {"occurred_at": told.at.isoformat()})
    timestamp = int(datetime.now(UTC).timestamp())
    sign = mac(told.secret, f"{timestamp}:".encode() + body).hex()
    return Delivery(JSON | {"paddle-signature": f"ts={timestamp};h1={sign}"}, body, RECEIVED_AT)


PORTONE: Final = {
    "pending": "Ready",
    "processing": "PayPending",
    "failed": "Failed",
    "voided": "Cancelled",
    "paid": "Paid",
    "refunded": "PartialCancelled",
    "canceled": "Cancelled",
}
PORTONE_STATUSES: Final = {
    "pending": "READY",
    "processing": "PAY_PENDING",
    "failed": "FAILED",
    "voided": "CANCELLED",
    "paid": "PAID",
    "refunded": "PARTIAL_CANCELLED",
    "canceled": "CANCELLED",
}
RANKS: Final = list(PORTONE_STATUSES)
"""In the order in which they follow each other."""


def portone(told: Telling) -> Delivery:
    data = {"paymentId": told.name, "storeId": "store-1", "transactionId": f"tx-{told.name}"}
    kind = f"Transaction.{PORTONE[told.fact.kind]}"
    said = {"type": kind, "timestamp": told.at.isoformat(), "data": _given(data)}
    return standard_signed(_json(said), told.event_id, told.secret, datetime.now(UTC))


class PortOne:
    """The gateway's API, which knows what its webhooks are about before they arrive."""

    def __init__(self, gateway: PortOneGateway) -> None:
        self._gateway = gateway
        self._known: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def learn(self, payment: Payment, fact: Fact) -> None:
        """Let it know a fact, unless it knows later ones."""
        rank = (RANKS.index(fact.kind), fact.total or 0)
        with self._lock:
            if rank <= self._known.get(payment.name, (-1, 0)):
                return
            self._known[payment.name] = rank
            self._gateway.add(_at_portone(payment, fact))


def _at_portone(payment: Payment, fact: Fact) -> portone_server.Payment:
    returned = (Cancellation(f"c-{payment.name}", fact.total),) if fact.total else ()
    return portone_server.Payment(
        payment.name,
        PORTONE_STATUSES[fact.kind],
        total_minor=fact.captured or 100,
        currency=payment.currency,
        transaction_id=f"tx-{payment.name}",
        was_paid=fact.kind != "voided",
        email=None,
        cancellations=returned,
        paid_at_s=int((EPOCH + timedelta(minutes=payment.minute)).timestamp()),
    )


TELL: Final[Mapping[str, Callable[[Telling], Delivery]]] = {
    "payments": tilda,
    "shop": standard,
    "cards": stripe,
    "cn": alipay,
    "creem": creem,
    "hub": hub,
    "paddle": paddle,
    "kr": portone,
}
"""By source."""


def _given(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(_given(said)).encode()
