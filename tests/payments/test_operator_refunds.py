"""Refunds that were made elsewhere, recorded by an operator over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.service import Reply
from tests.support.shop import Shop
from tests.support.tools import is_problem

CONFIG: Final = shops.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def refund(shop: Shop, payment: str, refund_id: str, amount: str, **said: Any) -> Reply:
    usual = {"refund_id": refund_id, "amount": amount, "reason": "the customer called"}
    return shop.act(payment, "refunds", {**usual, **said})


def paid_top_up(shop: Shop) -> tuple[str, str]:
    """A payment of 990.00 that is in a wallet."""
    wallet, payment = shop.wallet(), shop.name("p")
    shop.paid(payment, shop.order(kind="wallet", wallet_id=wallet))
    assert shop.balance(wallet) == ("990.00", "0.00")
    return wallet, payment


def test_a_recorded_refund_takes_back_what_it_pays_for_once(shop: Shop, shared: Shared) -> None:
    """PAY-13: the repeat is 200 and changes nothing; the action is audited once."""
    wallet, payment = paid_top_up(shop)
    refund_id = shop.name("refund")
    first = refund(shop, payment, refund_id, "300.00")
    assert (first.http, first.json["refunded"], first.json["status"]) == (
        201,
        "300.00",
        "PARTIALLY_REFUNDED",
    )
    assert refund(shop, payment, refund_id, "300.00").http == 200
    assert shop.balance(wallet) == ("690.00", "0.00")
    audited = shared.rows(
        "SELECT actor FROM audit_log WHERE action = 'refund_recorded' AND payment_id = $1",
        first.json["id"],
    )
    assert len(audited) == 1
    assert refund(shop, payment, shop.name("refund"), "690.00").json["status"] == "REFUNDED"
    assert shop.balance(wallet) == ("0.00", "0.00")


def test_a_refund_that_the_gateway_reports_too_counts_once(shop: Shop) -> None:
    """PAY-13: before and after the gateway; what was paid in cash is added."""
    wallet, payment = paid_top_up(shop)
    refund(shop, payment, shop.name("refund"), "300.00")
    shop.refunded(payment, "300.00")
    assert shop.balance(wallet) == ("690.00", "0.00")
    shop.refunded(payment, "400.00")
    refund(shop, payment, shop.name("refund"), "100.00")
    assert shop.balance(wallet) == ("590.00", "0.00")
    added = refund(shop, payment, shop.name("cash"), "90.00", outside_gateway=True)
    assert (added.json["refunded"], shop.balance(wallet)) == ("490.00", ("500.00", "0.00"))
    shop.refunded(payment, "410.00")
    assert shop.payment(payment)["refunded"] == "500.00"


def test_an_order_is_refunded_although_its_gateway_reports_no_refunds(shop: Shop) -> None:
    """PAY-13 FUL-2: as of S0's own gateway. The time of the refund is the operator's."""
    reference, payment = shop.order(kind="booking"), shop.name("p")
    shop.paid(payment, reference)
    at = (datetime.now(UTC) - timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    refund(shop, payment, shop.name("refund"), "990.00", occurred_at=at)
    assert (shop.status(reference), shop.booking(reference)["status"]) == ("REFUNDED", "CANCELED")
    assert shop.payment(payment)["refunded_at"] == at


def test_other_content_under_the_same_refund_id_is_a_conflict(shop: Shop) -> None:
    """PAY-13: another amount, another payment, or another kind of refund."""
    _, payment = paid_top_up(shop)
    _, other = paid_top_up(shop)
    refund_id = shop.name("refund")
    assert refund(shop, payment, refund_id, "300.00").http == 201
    for reply in (
        refund(shop, payment, refund_id, "301.00"),
        refund(shop, payment, refund_id, "300.00", outside_gateway=True),
        refund(shop, other, refund_id, "300.00"),
    ):
        assert is_problem(reply, 409)
        assert reply.json["code"] == "IDEMPOTENCY_CONFLICT"
    assert shop.payment(other)["refunded"] == "0.00"


def test_no_more_is_refunded_than_the_payment_has_left(shop: Shop) -> None:
    """PAY-13: 422, and nothing changes; a bad amount is 400."""
    wallet, payment = paid_top_up(shop)
    refund(shop, payment, shop.name("refund"), "300.00")
    for said in ({}, {"outside_gateway": True}):
        reply = refund(shop, payment, shop.name("refund"), "690.01", **said)
        assert is_problem(reply, 422)
        assert reply.json["code"] == "REFUND_EXCESS"
        assert "690.00 RUB" in reply.json["detail"]
    for amount in ("0", "-1", "1.001", "many"):
        assert is_problem(refund(shop, payment, shop.name("refund"), amount), 400)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    later = refund(shop, payment, shop.name("refund"), "1.00", occurred_at=tomorrow)
    assert is_problem(later, 400), "what is recorded was made already"
    assert shop.balance(wallet) == ("690.00", "0.00")
    failed = shop.name("p")
    shop.hears("payment.failed", failed)
    assert is_problem(refund(shop, failed, shop.name("refund"), "1.00"), 422)


def test_a_refund_of_a_payment_that_waits_ends_the_wait(shop: Shop) -> None:
    """PAY-13 PAY-8"""
    payment = shop.name("p")
    shop.paid(payment, shop.name("never-created"))
    assert shop.payment(payment)["review"] == "ORDER_MISSING"
    refund(shop, payment, shop.name("refund"), "990.00")
    found = shop.payment(payment)
    assert (found["status"], found["review"]) == ("REFUNDED", None)
