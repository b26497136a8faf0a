"""Orders that expire, and orders for which nothing is to be paid, over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import at_once, is_problem, items, period_end

CONFIG: Final = (
    shops.CONFIG
    + """
[plans.trial]
price = "0"
currency = "RUB"
days = 7
"""
)
EXPIRES_AT: Final = "2026-11-15T10:00:00Z"
BEFORE: Final = "2026-11-15T09:59:59Z"
AFTER: Final = "2026-11-15T10:00:01Z"


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


@pytest.mark.parametrize("order_first", [True, False])
def test_what_is_paid_after_an_order_has_expired_is_kept_and_listed(
    shop: Shop, order_first: bool
) -> None:
    """FUL-10: in both orders of arrival."""
    reference, payment = shop.name("order"), shop.name("p")
    if order_first:
        shop.order(reference, kind="booking", expires_at=EXPIRES_AT)
    shop.paid(payment, reference, at=AFTER)
    if not order_first:
        shop.order(reference, kind="booking", expires_at=EXPIRES_AT)
    found = shop.payment(payment)
    assert (found["applied_at"], found["review"]) == (None, "ORDER_EXPIRED")
    assert (shop.status(reference), shop.booking(reference)["status"]) == ("PENDING", "PENDING")
    assert is_problem(shop.act(payment, "accept", {"reason": "why not"}), 409)
    shop.refunded(payment)
    assert (shop.payment(payment)["review"], shop.status(reference)) == (None, "PENDING")


def test_what_was_paid_in_time_counts_however_late_it_is_reported(shop: Shop) -> None:
    """FUL-10: the time of the payment counts, and the earliest report of it.

    One that came too late is listed as such, whether the order is paid at that moment or not.
    """
    reference, payment = shop.order(expires_at=EXPIRES_AT), shop.name("p")
    assert shop.found(reference)["expires_at"] == EXPIRES_AT
    shop.paid(payment, reference, at=AFTER)
    shop.paid(payment, reference, at=BEFORE)
    assert (shop.status(reference), shop.payment(payment)["review"]) == ("PAID", None)
    late = shop.name("p")
    shop.paid(late, reference, at=AFTER)
    assert shop.payment(late)["review"] == "ORDER_EXPIRED"
    shop.refunded(payment)
    assert shop.status(reference) == "REFUNDED", "a payment that came too late does not take over"


def test_the_expiry_is_a_part_of_the_order(shop: Shop) -> None:
    """FUL-10 FUL-3: a repeat is 200, another time a conflict."""
    reference = shop.order(expires_at=EXPIRES_AT)
    assert shop.try_order(reference, expires_at=EXPIRES_AT).http == 200
    assert is_problem(shop.try_order(reference, expires_at=AFTER), 409)
    assert is_problem(shop.try_order(shop.name("order"), expires_at="soon"), 400)


@pytest.mark.parametrize("kind", ["order", "booking", "wallet"])
def test_an_order_of_nothing_is_paid_when_it_is_created(shop: Shop, kind: str) -> None:
    """FUL-11"""
    more: dict[str, Any] = {"wallet_id": shop.wallet()} if kind == "wallet" else {}
    reference = shop.order(amount="0", kind=kind, **more)
    order = shop.found(reference)
    assert (order["status"], order["payments"]) == ("PAID", [])
    assert order["paid_at"] == order["fulfilled_at"]
    assert shop.try_order(reference, amount="0.00", kind=kind, **more).http == 200
    if kind == "booking":
        assert shop.booking(reference)["status"] == "CONFIRMED"
    if kind == "wallet":
        assert shop.balance(more["wallet_id"]) == ("0.00", "0.00")
    assert is_problem(shop.service.api("POST", f"/orders/{reference}/cancel"), 409)


def test_money_for_a_free_order_is_listed(shop: Shop) -> None:
    """FUL-11 PAY-7: also the smallest sum, and a failed payment changes nothing."""
    reference, payment, failed = shop.order(amount="0"), shop.name("p"), shop.name("p")
    shop.paid(payment, reference, amount="0.01")
    shop.hears("payment.failed", failed, order=reference)
    found = shop.payment(payment)
    assert (found["applied_at"], found["review"]) == (None, "DUPLICATE_PAYMENT")
    shop.refunded(payment, "0.01")
    assert shop.status(reference) == "PAID"


def test_an_event_of_nothing_applies_nothing(shop: Shop) -> None:
    """FUL-11: neither to an order nor to a free plan."""
    reference, payment = shop.order(kind="booking"), shop.name("p")
    shop.paid(payment, reference, amount="0")
    assert (shop.status(reference), shop.payment(payment)["applied_at"]) == ("PENDING", None)
    email = f"{shop.name('user')}@example.com"
    user, free = shop.service.user(email), shop.name("p")
    shop.paid(free, email=email, plan_id="trial", amount="0")
    found = shop.payment(free)
    assert (found["applied_at"], found["review"]) == (None, None)
    assert items(shop.service, "/subscriptions", user_id=user["id"]) == []


def test_money_for_a_free_plan_is_applied_when_it_is_accepted(shop: Shop) -> None:
    """FUL-11 PAY-11: an acceptance is never without an effect."""
    email, payment = f"{shop.name('user')}@example.com", shop.name("p")
    user = shop.service.user(email)
    shop.paid(payment, email=email, plan_id="trial", amount="5.00")
    assert shop.payment(payment)["review"] == "AMOUNT_MISMATCH"
    accepted = shop.act(payment, "accept", {"reason": "a tip"})
    assert (accepted.http, accepted.json["review"]) == (200, None)
    assert accepted.json["applied_at"] is not None
    assert period_end(shop.service, user["id"]) > datetime.now(UTC)


def test_a_gateway_may_report_that_nothing_was_paid_for_a_free_order(shop: Shop) -> None:
    """FUL-11: that is no second payment, and nobody has to look at it."""
    reference, early = shop.name("order"), shop.name("p")
    shop.paid(early, reference, amount="0")
    shop.order(reference, amount="0")
    late = shop.name("p")
    assert shop.paid(late, reference, amount="0").json["status"] == "success"
    found = [shop.payment(one) for one in (early, late)]
    assert {(one["applied_at"], one["review"]) for one in found} == {(None, None)}
    assert shop.status(reference) == "PAID"


def test_a_free_subscription_is_given_once(shop: Shop) -> None:
    """FUL-11 FUL-1: however often it is asked for at the same time."""
    email = f"{shop.name('user')}@example.com"
    said: dict[str, Any] = {
        "amount": "0",
        "kind": "subscription",
        "plan_id": "trial",
        "email": email,
    }
    assert is_problem(shop.try_order(shop.name("order"), **said), 404), "create the user first"
    user, reference = shop.service.user(email), shop.name("order")
    replies = at_once(*[lambda: shop.try_order(reference, **said)] * 5)
    assert sorted(reply.http for reply in replies) == [200, 200, 200, 200, 201]
    assert replies[0].json["warnings"] == []
    end = period_end(shop.service, user["id"])
    assert timedelta(days=6) < end - datetime.now(UTC) < timedelta(days=8)


def test_a_refund_leaves_the_time_that_was_free(shop: Shop) -> None:
    """FUL-11 FUL-7: a free period takes part in the schedule."""
    email, payment = f"{shop.name('user')}@example.com", shop.name("p")
    user = shop.service.user(email)
    shop.order(amount="0", kind="subscription", plan_id="trial", email=email)
    free_until = period_end(shop.service, user["id"])
    shop.paid(payment, email=email)
    assert period_end(shop.service, user["id"]) == free_until + timedelta(days=30)
    shop.refunded(payment, at=datetime.now(UTC).isoformat())
    assert period_end(shop.service, user["id"]) == free_until


def test_a_canceled_subscription_takes_no_free_order(shop: Shop) -> None:
    """FUL-11 FUL-9: nothing is created."""
    email = f"{shop.name('user')}@example.com"
    shop.service.user(email)
    said: dict[str, Any] = {
        "amount": "0",
        "kind": "subscription",
        "plan_id": "trial",
        "email": email,
    }
    shop.order(**said)
    (subscription,) = items(shop.service, "/subscriptions", email=email)
    why = {"at": "now", "reason": "a test"}
    shop.service.api("POST", f"/subscriptions/{subscription['id']}/cancel", why)
    reference = shop.name("order")
    assert is_problem(shop.try_order(reference, **said), 409)
    assert is_problem(shop.service.api("GET", f"/orders/{reference}"), 404)
