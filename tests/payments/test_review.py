"""Money received and not applied: the list, its ages, and what an operator does with it."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import is_problem, items, period_end

CONFIG: Final = shops.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def waiting(shop: Shop, **query: Any) -> set[str]:
    found = items(shop.service, "/payments", applied="false", limit=500, **query)
    return {one["external_payment_id"] for one in found}


def test_what_waits_is_listed_with_its_reason_and_age(shop: Shop, shared: Shared) -> None:
    """PAY-8 OBS-2: as a list, and as numbers."""
    payment = shop.name("p")
    shop.paid(payment, shop.name("never-created"))
    shared.rows(
        "UPDATE payments SET created_at = now() - interval '3 hours' WHERE id = $1",
        shop.payment(payment)["id"],
    )
    (found,) = [
        one
        for one in items(shop.service, "/payments", review="ORDER_MISSING", applied="false")
        if one["external_payment_id"] == payment
    ]
    assert (found["review"], found["captured"], found["currency"]) == (
        "ORDER_MISSING",
        "990.00",
        "RUB",
    )
    assert 3 * 3600 <= found["unapplied_s"] < 4 * 3600
    labels = {"currency": "RUB", "reason": "ORDER_MISSING"}
    count = shop.service.metric("payments_unapplied", **labels)
    money = shop.service.metric("payments_unapplied_amount", **labels)
    assert count >= 1
    assert money == count * 990
    assert shop.service.metric("payments_unapplied_oldest_seconds") >= 3 * 3600
    shop.refunded(payment)
    assert payment not in waiting(shop)
    assert shop.service.metric("payments_unapplied", **labels) == count - 1


def test_an_operator_accepts_another_sum(shop: Shop, shared: Shared) -> None:
    """PAY-8 SEC-6: with a reason, which is audited."""
    reference, payment = shop.order(kind="booking"), shop.name("p")
    shop.paid(payment, reference, amount="980.00")
    assert payment in waiting(shop, review="AMOUNT_MISMATCH")
    assert is_problem(shop.act(payment, "accept", {}), 400)
    assert is_problem(shop.act(payment, "accept", {"reason": ""}), 400)
    accepted = shop.act(payment, "accept", {"reason": "a coupon"})
    assert (accepted.http, accepted.json["review"]) == (200, None)
    assert (shop.status(reference), shop.booking(reference)["status"]) == ("PAID", "CONFIRMED")
    assert payment not in waiting(shop)
    (audited,) = shared.rows(
        "SELECT actor, reason FROM audit_log WHERE action = 'payment_accepted'"
    )
    assert audited["reason"] == "a coupon"
    assert audited["actor"]


def test_an_operator_accepts_another_sum_of_a_subscription(shop: Shop) -> None:
    """PAY-8 FUL-1"""
    email, payment = f"{shop.name('user')}@example.com", shop.name("p")
    user = shop.service.user(email)
    shop.paid(payment, email=email, amount="900.00")
    assert payment in waiting(shop, review="AMOUNT_MISMATCH")
    assert shop.act(payment, "accept", {"reason": "an old price"}).http == 200
    assert period_end(shop.service, user["id"]) > datetime.now(UTC) + timedelta(days=29)


def test_what_is_wanted_back_is_never_applied(shop: Shop) -> None:
    """PAY-8"""
    reference, payment = shop.name("order"), shop.name("p")
    shop.paid(payment, reference)
    marked = shop.act(payment, "mark-for-refund", {"reason": "sold out"})
    assert (marked.http, marked.json["review"]) == (200, "REFUND_WANTED")
    shop.order(reference)
    assert (shop.status(reference), shop.payment(payment)["applied_at"]) == ("PENDING", None)
    shop.paid(payment, reference)
    assert (shop.status(reference), shop.payment(payment)["review"]) == ("PENDING", "REFUND_WANTED")
    assert payment in waiting(shop, review="REFUND_WANTED")
    shop.refunded(payment)
    assert shop.payment(payment)["status"] == "REFUNDED"
    assert payment not in waiting(shop)


def test_what_was_applied_is_refunded_and_not_marked(shop: Shop) -> None:
    """PAY-8"""
    reference, payment = shop.order(), shop.name("p")
    shop.paid(payment, reference)
    assert is_problem(shop.act(payment, "mark-for-refund", {"reason": "why not"}), 409)
    assert shop.status(reference) == "PAID"
    assert is_problem(shop.act(payment, "link", {"order": shop.order()}), 409)


def test_a_payment_is_linked_to_an_order(shop: Shop) -> None:
    """PAY-5 PAY-8: and its events are finished."""
    reference, payment = shop.order(kind="booking"), shop.name("p")
    reply = shop.paid(payment)
    assert payment in waiting(shop, review="UNLINKED_PAYMENT")
    assert is_problem(shop.act(payment, "link", {"order": "nobody-knows-it"}), 404)
    linked = shop.act(payment, "link", {"order": reference})
    assert (linked.http, linked.json["order"], linked.json["review"]) == (200, reference, None)
    assert shop.booking(reference)["status"] == "CONFIRMED"
    found = shop.service.api("GET", f"/events/{reply.json['event_id']}").json
    assert found["status"] == "PROCESSED"


def test_a_payment_under_a_wrong_reference_is_linked_to_the_right_one(shop: Shop) -> None:
    """PAY-8: reassigned, from an order that it does not fit or that is paid already."""
    taken, right, payment = shop.order(), shop.order(), shop.name("p")
    shop.paid(shop.name("p"), taken)
    shop.paid(payment, taken)
    assert payment in waiting(shop, review="DUPLICATE_PAYMENT")
    linked = shop.act(payment, "link", {"order": right})
    assert (linked.http, linked.json["review"]) == (200, None)
    assert (shop.status(taken), shop.status(right)) == ("PAID", "PAID")
    assert [one["id"] for one in shop.found(right)["payments"]] == [linked.json["id"]]
    shop.refunded(payment, order=taken)
    assert (shop.status(taken), shop.status(right)) == ("PAID", "REFUNDED")


def test_a_refund_whose_payment_does_not_come_is_listed_after_a_day(
    shop: Shop, shared: Shared
) -> None:
    """PAY-6 OBS-2"""
    payment = shop.name("p")
    missing = shop.service.metric("payments_review", reason="PAYMENT_MISSING")
    shop.refunded(payment, order=shop.order())
    assert shop.payment(payment)["review"] is None
    shared.rows(
        "UPDATE payments SET created_at = now() - interval '25 hours' WHERE id = $1",
        shop.payment(payment)["id"],
    )
    assert shop.payment(payment)["review"] == "PAYMENT_MISSING"
    listed = items(shop.service, "/payments", review="PAYMENT_MISSING")
    assert payment in {one["external_payment_id"] for one in listed}
    assert shop.service.metric("payments_review", reason="PAYMENT_MISSING") == missing + 1
    assert (
        shop.service.metric("payments_review_oldest_seconds", reason="PAYMENT_MISSING") > 24 * 3600
    )
    shop.paid(payment)
    assert shop.payment(payment)["review"] is None
    assert shop.service.metric("payments_review", reason="PAYMENT_MISSING") == missing


def test_an_acceptance_shows_who_accepted_what_for_which_order(shop: Shop) -> None:
    """PAY-11: a repeat is 200; it is of no use for another order."""
    reference, payment = shop.order(), shop.name("p")
    shop.paid(payment, reference, amount="1.00")
    accepted = shop.act(payment, "accept", {"reason": "a coupon"}).json["accepted"]
    assert accepted.pop("by")
    assert datetime.fromisoformat(accepted.pop("at")) <= datetime.now(UTC) + timedelta(minutes=1)
    assert accepted == {"reason": "a coupon", "amount": "1.00", "for": f"order:{reference}"}
    repeated = shop.act(payment, "accept", {"reason": "another reason"})
    assert (repeated.http, repeated.json["accepted"]["reason"]) == (200, "a coupon")
    trail = [(one["action"], one["reason"]) for one in repeated.json["trail"]]
    assert trail == [("payment_accepted", "a coupon")], "who accepted it, once"
    refund = {"refund_id": shop.name("refund"), "amount": "1.00", "reason": "returned"}
    assert shop.act(payment, "refunds", refund).json["status"] == "REFUNDED"
    assert shop.act(payment, "accept", {"reason": "a coupon"}).http == 200


def test_what_cannot_be_accepted_is_refused_with_what_fits(shop: Shop) -> None:
    """PAY-11"""
    payment = shop.name("p")
    shop.paid(payment, shop.name("never-created"), amount="1.00")
    refused = shop.act(payment, "accept", {"reason": "why not"})
    assert is_problem(refused, 409)
    assert refused.json["code"] == "NOT_ACCEPTABLE"
    assert "create the order" in refused.json["detail"]
    assert shop.payment(payment)["accepted"] is None
    dear = shop.order(amount="1000.00")
    shop.act(payment, "link", {"order": dear})
    assert (shop.status(dear), shop.payment(payment)["review"]) == ("PENDING", "AMOUNT_MISMATCH")


def test_money_of_a_payment_that_was_applied_before_can_only_be_refunded(shop: Shop) -> None:
    """PAY-11 PAY-7: the error names no verb that would be refused, too."""
    reference, first, second = shop.order(), shop.name("p"), shop.name("p")
    shop.paid(first, reference)
    shop.refunded(first)
    shop.paid(second, reference)
    shop.paid(first, reference, amount="1000.00")
    assert shop.payment(first)["review"] == "DUPLICATE_PAYMENT"
    for verb, said in (("link", {"order": shop.order()}), ("mark-for-refund", {"reason": "why"})):
        assert is_problem(shop.act(first, verb, said), 409)
    refused = shop.act(first, "accept", {"reason": "why"}).json
    assert (refused["code"], "refund it" in refused["detail"]) == ("NOT_ACCEPTABLE", True)


def test_a_mark_for_refund_is_removed(shop: Shop) -> None:
    """PAY-8 PAY-11"""
    reference, payment = shop.name("order"), shop.name("p")
    shop.paid(payment, reference)
    shop.act(payment, "mark-for-refund", {"reason": "sold out"})
    shop.order(reference)
    assert is_problem(shop.act(payment, "unmark-for-refund", {}), 400)
    unmarked = shop.act(payment, "unmark-for-refund", {"reason": "found one"})
    assert (unmarked.http, unmarked.json["review"], shop.status(reference)) == (200, None, "PAID")
    assert shop.act(payment, "unmark-for-refund", {"reason": "found one"}).http == 200


def test_an_excess_is_listed_until_it_is_accepted_or_refunded(shop: Shop) -> None:
    """PAY-7 PAY-10 PAY-11: on a wallet, which gets it."""
    wallet = shop.service.api(
        "POST", "/wallets", {"owner": shop.name("owner"), "currency": "RUB"}
    ).json
    for step, balance in (("accept", "1500.00"), ("refund", "990.00")):
        reference = shop.order(kind="wallet", wallet_id=wallet["id"])
        payment = shop.name("p")
        before = shop.service.api("GET", f"/wallets/{wallet['id']}").json["balance"]
        shop.paid(payment, reference)
        shop.paid(payment, reference, amount="1500.00")
        found = shop.payment(payment)
        assert (found["review"], found["excess"], found["captured"]) == (
            "EXCESS",
            "510.00",
            "1500.00",
        )
        listed = items(shop.service, "/payments", review="EXCESS")
        assert payment in {one["external_payment_id"] for one in listed}
        if step == "accept":
            assert shop.act(payment, "accept", {"reason": "a tip"}).http == 200
        else:
            shop.refunded(payment, "510.00")
        found = shop.payment(payment)
        assert (found["review"], found["excess"]) == (None, "0.00")
        after = shop.service.api("GET", f"/wallets/{wallet['id']}").json["balance"]
        assert float(after) - float(before) == float(balance)


def test_a_dispute_is_listed_and_counted_until_it_is_won(shop: Shop, shared: Shared) -> None:
    """PAY-12 OBS-2"""
    payment = shop.name("p")
    shop.paid(payment, shop.order())
    payment_id = shop.payment(payment)["id"]
    before = shop.service.metric("payments_disputed")
    shared.rows("UPDATE payments SET disputed_at = now() WHERE id = $1", payment_id)
    listed = items(shop.service, "/payments", disputed="true")
    assert payment in {one["external_payment_id"] for one in listed}
    others = items(shop.service, "/payments", disputed="false", limit=500)
    assert payment not in {one["external_payment_id"] for one in others}
    assert shop.payment(payment)["disputed_at"] is not None
    assert shop.service.metric("payments_disputed") == before + 1
    shared.rows("UPDATE payments SET dispute_won_at = now() WHERE id = $1", payment_id)
    assert shop.payment(payment)["disputed_at"] is None
    assert shop.service.metric("payments_disputed") == before
    assert items(shop.service, "/payments", disputed="true") == []
