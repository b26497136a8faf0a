"""Purchases with several events, in any order."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import permutations
from typing import Any, Final

import pytest

from paidonce.providers.contract import Delivery
from tests.providers.cases.alipay import ADDRESSEES, alipay_form, china_time
from tests.providers.cases.generic import mac
from tests.providers.cases.standard import whsec
from tests.providers.cases.stripe import event as stripe_event
from tests.providers.cases.stripe import signed as stripe_signed
from tests.providers.conformance import FORM, JSON, RECEIVED_AT
from tests.support import gateways
from tests.support.gateways import SECRETS, Told, creem_told, kept, post, standard_signed
from tests.support.servers import Shared
from tests.support.service import Reply
from tests.support.shop import Shop
from tests.support.tools import actions_of, event, is_problem, items

SECRET: Final = SECRETS[0]
CONFIG: Final = f"""{gateways.CONFIG}
[sources.bank]
provider = "generic"
secrets = ["{SECRET}"]
[sources.bank.signature]
header = "X-Signature"
[sources.bank.fields]
type = "/type"
payment_id = "/payment"
order = "/order"
amount = "/amount"
currency = "/currency"
nonce = "/nonce"
[sources.bank.types]
"payment.received" = "paid"
[sources.club]
provider = "standard"
secrets = ["{whsec(SECRET)}"]
[sources.club.fields]
nonce = "/data/nonce"
"""


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def outcome(shop: Shop, reply: Reply) -> tuple[str, str | None]:
    assert reply.http == 200, reply
    found = event(shop.service, reply.json["event_id"])
    return found["status"], found["error_code"]


# Creem


def purchase(shop: Shop, order: str, names_transaction: bool) -> list[Delivery]:
    """The three events of one purchase of a subscription."""
    told = Told(shop.name("tran"), order)
    sub, at = f"sub-{told.payment}", "2026-11-15T10:53:18Z"
    paid = {"id": f"ord-{told.payment}", "amount": 99_000, "currency": "EUR", "status": "paid"}
    if names_transaction:
        paid["transaction"] = told.payment
    subscription = {
        "id": sub,
        "product": {"id": "prod_1", "price": 99_000, "currency": "EUR"},
        "customer": {"id": "cust_1", "email": "creem@example.com"},
        "last_transaction_id": told.payment,
        "last_transaction_date": at,
        "created_at": at,
    }
    checkout = {"id": f"ch-{told.payment}", "request_id": order, "order": paid}
    return [
        creem_told(told, "checkout.completed", checkout | {"subscription": {"id": sub}}, SECRET),
        creem_told(told, "subscription.active", subscription, SECRET),
        creem_told(told, "subscription.paid", subscription, SECRET),
    ]


@pytest.mark.parametrize("names_transaction", [True, False], ids=["by transaction", "by sub"])
@pytest.mark.parametrize("places", list(permutations(range(3))), ids=str)
def test_the_events_of_one_purchase_at_creem_credit_once(
    shop: Shop, places: Sequence[int], names_transaction: bool
) -> None:
    """PRV-5 PAY-1 PAY-3 PAY-5: whichever comes first, and again when all come again."""
    wallet = shop.wallet("EUR")
    order = shop.order(kind="wallet", currency="EUR", wallet_id=wallet)
    events = purchase(shop, order, names_transaction)
    for place in (*places, *places):
        reply = post(shop, "creem", events[place])
        assert (reply.http, reply.json["status"]) == (200, "success")
        assert reply.json["orderId"] == (order if place == 0 else None)
    assert (shop.status(order), shop.balance(wallet)) == ("PAID", ("990.00", "0.00"))
    assert len(items(shop.service, "/payments", order=order)) == 1


# Alipay


def test_the_life_of_an_order_at_alipay(shop: Shop) -> None:
    """PRV-4 INB-2 PAY-2 FUL-4 REC-7: refunds are cumulative, and what is finished stays paid."""
    wallet = shop.wallet("CNY")
    order = shop.order(kind="wallet", currency="CNY", wallet_id=wallet)
    trade = shop.name("trade")

    def notify(notify_id: str, **more: str) -> tuple[str, str, str]:
        fields = ADDRESSEES | {
            "notify_type": "trade_status_sync",
            "notify_id": f"{notify_id}-{trade}",
            "notify_time": china_time(datetime.now(UTC)),
            "charset": "gbk",
            "sign_type": "RSA2",
            "trade_no": trade,
            "out_trade_no": order,
            "trade_status": "TRADE_SUCCESS",
            "total_amount": "990.00",
            "subject": "会员 & 连续包月",
        }
        body = alipay_form(fields | more, SECRET, charset="gbk")
        reply = post(shop, "cn", Delivery(FORM, body, RECEIVED_AT))
        assert (reply.http, reply.body) == (200, b"success")
        (payment,) = items(shop.service, "/payments", order=order)
        return shop.status(order), payment["status"], shop.balance(wallet)[0]

    def refund(total: str) -> dict[str, str]:
        return {"refund_fee": total, "gmt_refund": "2026-11-15 20:00:00.000"}

    assert notify("wait", trade_status="WAIT_BUYER_PAY") == ("PENDING", "PENDING", "0.00")
    assert notify("paid") == ("PAID", "SUCCEEDED", "990.00")
    assert notify("done", trade_status="TRADE_FINISHED") == ("PAID", "SUCCEEDED", "990.00")
    assert notify("part", **refund("90.00")) == ("PAID", "PARTIALLY_REFUNDED", "900.00")
    *seen, _ = kept(shop, "cn", order)
    assert notify("part", **refund("90.00")) == ("PAID", "PARTIALLY_REFUNDED", "900.00")
    assert notify("paid") == ("PAID", "PARTIALLY_REFUNDED", "900.00")
    assert kept(shop, "cn", order)[:-1] == (*seen,)
    closed = {"trade_status": "TRADE_CLOSED"}
    assert notify("all", **refund("990.00"), **closed) == ("REFUNDED", "REFUNDED", "0.00")
    events = {one["key"]: one["id"] for one in items(shop.service, "/events", order=order)}
    assert len(events) == 5
    assert actions_of(shop.service, events[f"part-{trade}"]).count("event_deduped") == 1


# Stripe


def stripe(shop: Shop, kind: str, fields: Mapping[str, Any], name: str) -> Reply:
    body = stripe_event(kind, {"metadata": {}, **fields}, f"evt_{kind}_{name}")
    return post(shop, "cards", stripe_signed(body, SECRET, datetime.now(UTC)))


def session(name: str, order: str, status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"cs_{name}",
        "payment_intent": f"pi_{name}",
        "payment_status": status,
        "client_reference_id": order,
        "amount_total": 99_000,
        "currency": "eur",
        **more,
    }


def test_a_session_that_is_paid_later_pays_its_order_then(shop: Shop) -> None:
    """PRV-6 PAY-2: a bank transfer is complete before there is money."""
    order, name = shop.order(kind="booking", currency="EUR"), shop.name("s")
    reply = stripe(shop, "checkout.session.completed", session(name, order, "unpaid"), name)
    assert (outcome(shop, reply), shop.status(order)) == (("PROCESSED", None), "PENDING")
    paid = session(name, order, "paid")
    reply = stripe(shop, "checkout.session.async_payment_succeeded", paid, name)
    assert outcome(shop, reply) == ("PROCESSED", None)
    assert (shop.status(order), shop.booking(order)["status"]) == ("PAID", "CONFIRMED")
    late = stripe(shop, "checkout.session.async_payment_failed", paid, name)
    assert outcome(shop, late) == ("IGNORED", "OUT_OF_ORDER")
    assert shop.status(order) == "PAID"


@pytest.mark.parametrize("is_intent_first", [True, False], ids=["intent first", "session first"])
def test_an_intent_without_a_reference_is_applied_by_its_session(
    shop: Shop, is_intent_first: bool
) -> None:
    """PRV-6 PAY-1 PAY-5"""
    wallet, name = shop.wallet("EUR"), shop.name("i")
    order = shop.order(kind="wallet", currency="EUR", wallet_id=wallet)
    intent = {"id": f"pi_{name}", "amount_received": 99_000, "currency": "eur"}
    told = [
        ("payment_intent.succeeded", intent),
        ("checkout.session.completed", session(name, order, "paid")),
    ]
    (kind, fields), last = told if is_intent_first else told[::-1]
    first = stripe(shop, kind, fields, name)
    waits = ("FAILED_RETRYABLE", "UNLINKED_PAYMENT")
    assert outcome(shop, first) == (waits if is_intent_first else ("PROCESSED", None))
    assert shop.status(order) == ("PENDING" if is_intent_first else "PAID")
    assert outcome(shop, stripe(shop, *last, name)) == ("PROCESSED", None)
    assert (shop.status(order), shop.balance(wallet)) == ("PAID", ("990.00", "0.00"))
    (payment,) = items(shop.service, "/payments", order=order)
    assert {one["id"] for one in payment["ids"]} == {f"pi_{name}", f"cs_{name}"}


@pytest.mark.parametrize(
    ("amount", "currency", "stripes"),
    [
        ("10000", "KRW", 10_000),
        ("500", "JPY", 500),
        ("1.230", "KWD", 1_230),
        ("700", "ISK", 70_000),
    ],
)
def test_an_order_in_a_currency_with_other_decimals_is_paid_exactly(
    shop: Shop, amount: str, currency: str, stripes: int
) -> None:
    """PRV-9 PAY-1 PAY-4: ISK has none, and Stripe counts it as if it had two."""
    order, other = (shop.order(amount=amount, currency=currency) for _ in range(2))
    for reference, received in ((order, stripes), (other, stripes * 100)):
        intent = {"id": f"pi_{reference}", "amount_received": received, "currency": currency}
        fields = intent | {"metadata": {"order": reference}}
        assert stripe(shop, "payment_intent.succeeded", fields, reference).http == 200
    assert (shop.status(order), shop.status(other)) == ("PAID", "PENDING")
    (payment,) = items(shop.service, "/payments", order=order)
    (too_much,) = items(shop.service, "/payments", order=other)
    assert (payment["captured"], payment["applied_at"] is None) == (amount, False)
    assert (too_much["review"], too_much["applied_at"]) == ("AMOUNT_MISMATCH", None)


# A nonce


def from_bank(fields: Mapping[str, Any]) -> Delivery:
    body = json.dumps({"type": "payment.received", **fields}).encode()
    return Delivery(JSON | {"x-signature": mac(SECRET, body).hex()}, body, RECEIVED_AT)


def from_club(fields: Mapping[str, Any]) -> Delivery:
    data = {**fields, "payment_id": fields["payment"]}
    body = json.dumps({"type": "payment.succeeded", "data": data}).encode()
    return standard_signed(body, f"msg-{fields['payment']}", SECRET, datetime.now(UTC))


@pytest.mark.parametrize(
    ("source", "send"), [("bank", from_bank), ("club", from_club)], ids=["generic", "standard"]
)
def test_a_nonce_counts_for_one_event(shop: Shop, source: str, send: Any) -> None:
    """SEC-3 PRV-6: what uses it for something else is a replay, though it is signed."""
    first, other = (shop.order(kind="booking", currency="EUR") for _ in range(2))
    nonce = shop.name("nonce")

    def paid(order: str, nonce: str) -> dict[str, str]:
        money = {"amount": "990.00", "currency": "EUR"}
        return {"payment": f"p-{order}", "order": order, "nonce": nonce, **money}

    reply = post(shop, source, send(paid(first, nonce)))
    assert reply.json["status"] == "success"
    again = post(shop, source, send(paid(first, nonce)))
    assert (again.http, again.json) == (200, reply.json | {"status": "duplicate"})
    for _ in range(2):
        replayed = post(shop, source, send(paid(other, nonce)))
        assert is_problem(replayed, 401)
        assert replayed.json["code"] == "REPLAYED_NONCE"
    assert (shop.status(first), shop.status(other)) == ("PAID", "PENDING")
    assert items(shop.service, "/payments", order=other) == []
    fresh = post(shop, source, send(paid(other, shop.name("nonce"))))
    assert (fresh.json["status"], shop.status(other)) == ("success", "PAID")
