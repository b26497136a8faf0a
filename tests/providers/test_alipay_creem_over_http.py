"""Sources of providers `alipay` and `creem`, over a real server."""

import hashlib
import hmac
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from tests.providers.cases.alipay import ADDRESSEES, alipay_form, china_time, public_key
from tests.support.servers import Shared
from tests.support.service import BASIC, Reply, Service
from tests.support.tools import is_problem, items

SECRET: Final = "whsec_of_creem"
CONFIG: Final = (
    BASIC
    + f"""
[sources.cn]
provider = "alipay"
public_keys = ["{public_key("retired")}", "{public_key("alipay")}"]
app_id = "{ADDRESSEES["app_id"]}"
seller_id = "{ADDRESSEES["seller_id"]}"
[sources.creem]
provider = "creem"
secrets = ["{SECRET}"]
"""
)
SUCCESS: Final = (200, "text/plain", b"success")
FAIL: Final = "text/plain", b"fail"


def trade_parameters(payment: str, **more: str) -> dict[str, str]:
    usual = {
        "notify_type": "trade_status_sync",
        "notify_id": f"n-{payment}",
        "notify_time": china_time(datetime.now(UTC)),
        "gmt_payment": "2026-11-15 19:00:00",
        "charset": "gbk",
        "sign_type": "RSA2",
        "trade_no": payment,
        "out_trade_no": f"order-{payment}",
        "trade_status": "TRADE_SUCCESS",
        "total_amount": "88.88",
        "subject": "会员 & 连续包月",
    }
    return ADDRESSEES | usual | more


def notify(service: Service, parameters: dict[str, str], key: str = "alipay") -> Reply:
    body = alipay_form(parameters, key, charset=parameters["charset"])
    headers = {"content-type": "application/x-www-form-urlencoded; charset=GBK"}
    return service.request("POST", "/webhooks/cn", body, headers)


def answer(reply: Reply) -> tuple[int, str, bytes]:
    return reply.http, reply.headers["content-type"], reply.body


def trades(service: Service, payment_id: str) -> list[Any]:
    found = items(service, "/payments", source="cn")
    return [one for one in found if one["external_payment_id"] == payment_id]


def test_alipay_gets_its_own_answer_and_the_payment_is_listed(shared: Shared) -> None:
    """PRV-4 REC-5 REC-7, S3 "Alipay webhook success response": the same though signed anew."""
    service = shared.service
    for late_s in (240, 0):
        at = datetime.now(UTC) - timedelta(seconds=late_s)
        assert (
            answer(notify(service, trade_parameters("t-1", notify_time=china_time(at)))) == SUCCESS
        )
    (found,) = trades(service, "t-1")
    assert (found["status"], found["captured"], found["currency"]) == ("SUCCEEDED", "88.88", "CNY")
    assert (found["ids"], found["refunded"]) == ([{"kind": "payment", "id": "t-1"}], "0.00")
    (event,) = items(service, "/events", source="cn", payment="t-1")
    assert (event["key"], event["type"], event["order"]) == ("n-t-1", "TRADE_SUCCESS", "order-t-1")


def test_the_life_of_a_trade(shared: Shared) -> None:
    """PRV-4 PAY-2: a refund that comes alone tells of its payment; what is finished stays."""
    service = shared.service

    def status_after(payment_id: str, **more: str) -> tuple[str, str]:
        parameters = trade_parameters(payment_id, **more) | {"notify_id": uuid4().hex}
        assert answer(notify(service, parameters)) == SUCCESS
        (found,) = trades(service, payment_id)
        return found["status"], found["refunded"]

    refund = {"gmt_refund": "2026-11-15 20:00:00.000"}
    assert status_after("t-2", trade_status="WAIT_BUYER_PAY") == ("PENDING", "0")
    assert status_after("t-2") == ("SUCCEEDED", "0.00")
    assert status_after("t-2", refund_fee="8.88", **refund) == ("PARTIALLY_REFUNDED", "8.88")
    assert status_after("t-2", trade_status="TRADE_FINISHED") == ("PARTIALLY_REFUNDED", "8.88")
    closed = {"trade_status": "TRADE_CLOSED"}
    assert status_after("t-2", refund_fee="88.88", **refund, **closed) == ("REFUNDED", "88.88")
    assert status_after("t-3", refund_fee="1.00", **refund) == ("PARTIALLY_REFUNDED", "1.00")
    assert status_after("t-4", **closed) == ("CANCELED", "0")


def test_a_delivery_that_is_not_from_alipay_is_rejected(shared: Shared) -> None:
    """PRV-4 REC-5, S3 "General webhook failure response": and nothing of it counts."""
    service = shared.service
    late = china_time(datetime.now(UTC) - timedelta(minutes=10))
    for parameters, key, status in (
        (trade_parameters("t-5"), "of-somebody-else", 401),
        (trade_parameters("t-5", seller_id="2088000000000009"), "alipay", 401),
        (trade_parameters("t-late", notify_time=late), "alipay", 401),
        (trade_parameters("t-5", total_amount="88,88"), "alipay", 400),
    ):
        assert answer(notify(service, parameters, key)) == (status, *FAIL)
    (unreadable,) = trades(service, "t-5")
    assert (unreadable["applied_at"], unreadable["review"]) == (None, "MALFORMED")
    (trade,) = trades(service, "t-late")
    assert (trade["applied_at"], trade["review"]) == (None, "TIMESTAMP_EXPIRED")
    assert answer(notify(service, trade_parameters("t-5"))) == SUCCESS
    other = service.request("POST", "/webhooks/cn", b"{}", {"content-type": "application/json"})
    assert answer(other) == (415, *FAIL)


def creem_event(kind: str, thing: dict[str, Any], event_id: str | None = None) -> dict[str, Any]:
    return {
        "id": event_id or f"evt_{uuid4().hex}",
        "eventType": kind,
        "created_at": int(time.time() * 1000),
        "object": thing | {"mode": "test"},
    }


def send_creem(service: Service, event: dict[str, Any], secret: str = SECRET) -> Reply:
    body = json.dumps(event).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"content-type": "application/json", "creem-signature": signature}
    return service.request("POST", "/webhooks/creem", body, headers)


TRANSACTION: Final = {
    "id": "tran_1",
    "amount": 1_000,
    "amount_paid": 1_210,
    "tax_amount": 210,
    "refunded_amount": 1_210,
    "currency": "EUR",
    "subscription": "sub_1",
    "created_at": 1_794_740_000_000,
}
ORDER: Final = {
    "id": "ord_1",
    "amount": 1_000,
    "currency": "EUR",
    "status": "paid",
    "created_at": "2026-11-15T10:53:00Z",
}
CHECKOUT: Final = {"id": "ch_1", "request_id": "creem-1", "metadata": {}}
SUBSCRIPTION: Final = {
    "id": "sub_1",
    "product": {"id": "prod_1", "price": 1_000, "currency": "EUR"},
    "customer": {"id": "cust_1", "email": "creem@example.com"},
    "last_transaction_id": "tran_1",
    "last_transaction_date": "2026-11-15T10:53:20Z",
    "created_at": "2026-11-15T10:53:18Z",
}


def test_the_events_of_one_purchase_at_creem_are_one_payment(shared: Shared) -> None:
    """PRV-5 PAY-1 REC-7, S3 "Creem webhook success response": again and again."""
    service = shared.service
    sold = CHECKOUT | {"order": ORDER, "subscription": {"id": "sub_1"}}
    refunded = {
        "id": "ref_1",
        "status": "succeeded",
        "refund_amount": 1_210,
        "refund_currency": "EUR",
        "transaction": TRANSACTION,
        "checkout": CHECKOUT,
        "order": ORDER,
    }
    for event, order, status in (
        (creem_event("checkout.completed", sold), "creem-1", "SUCCEEDED"),
        (creem_event("subscription.active", SUBSCRIPTION), None, "SUCCEEDED"),
        (creem_event("subscription.paid", SUBSCRIPTION), None, "SUCCEEDED"),
        (creem_event("refund.created", refunded), "creem-1", "REFUNDED"),
    ):
        for _ in range(2):
            reply = send_creem(service, event)
            assert (reply.http, reply.headers["content-type"]) == (200, "application/json")
            assert reply.json == {"status": "success", "orderId": order}
        (found,) = items(service, "/payments", source="creem")
        assert (found["status"], found["captured"], found["currency"]) == (status, "10.00", "EUR")
    assert {(one["kind"], one["id"]) for one in found["ids"]} == {
        ("payment", "tran_1"),
        ("order", "ord_1"),
        ("checkout", "ch_1"),
        ("first_of_subscription", "sub_1"),
    }
    assert found["refunded"] == "10.00"
    assert len(items(service, "/events", source="creem")) == 4


def test_a_delivery_that_is_not_from_creem_is_rejected(shared: Shared) -> None:
    """PRV-5 REC-5"""
    service = shared.service
    event = creem_event("checkout.completed", CHECKOUT | {"order": ORDER | {"id": "ord_2"}})
    reply = send_creem(service, event, "another")
    assert is_problem(reply, 401)
    assert reply.json["code"] == "INVALID_SIGNATURE"
    stale = send_creem(service, event | {"created_at": int(time.time() * 1000) - 400_000})
    assert is_problem(stale, 401)
    assert stale.json["code"] == "TIMESTAMP_EXPIRED"
    assert is_problem(send_creem(service, event | {"eventType": None}), 400)
