"""Subscriptions are canceled and resumed by operators, over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.service import Reply
from tests.support.shop import Shop
from tests.support.tools import is_problem, items

CONFIG: Final = shops.CONFIG
WHY: Final = "the customer moved away"


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def subscribe(shop: Shop) -> tuple[str, Any]:
    """The address of a new user who has paid for a month, and the subscription."""
    email = f"{shop.name('user')}@example.com"
    shop.service.user(email)
    shop.paid(shop.name("p"), email=email)
    return email, found(shop, email)


def found(shop: Shop, email: str) -> Any:
    (subscription,) = items(shop.service, "/subscriptions", email=email)
    return subscription


def act(shop: Shop, subscription: Any, verb: str, said: Any = None) -> Reply:
    return shop.service.api("POST", f"/subscriptions/{subscription['id']}/{verb}", said)


def cancel(shop: Shop, subscription: Any, at: str) -> Reply:
    return act(shop, subscription, "cancel", {"at": at, "reason": WHY})


def end_of(subscription: Any) -> datetime:
    return datetime.fromisoformat(subscription["current_period_end"])


def test_a_subscription_that_is_canceled_now_ends_now(shop: Shop) -> None:
    """FUL-9: what was paid stays recorded, and a repeat changes nothing."""
    email, before = subscribe(shop)
    canceled = cancel(shop, before, "now")
    assert (canceled.http, canceled.json["status"]) == (200, "CANCELED")
    assert end_of(canceled.json) <= datetime.now(UTC)
    (period,) = canceled.json["periods"]
    assert period["end"] == before["current_period_end"]
    again = cancel(shop, before, "now")
    assert (again.http, again.json["current_period_end"]) == (
        200,
        canceled.json["current_period_end"],
    )
    audited = items(shop.service, "/audit", user=before["user_id"], action="subscription_canceled")
    assert [one["reason"] for one in audited] == [WHY]
    assert is_problem(cancel(shop, before, "period_end"), 409)
    assert found(shop, email)["status"] == "CANCELED"


def test_a_subscription_that_is_canceled_at_its_end_lasts_until_then(
    shop: Shop, shared: Shared
) -> None:
    """FUL-9"""
    email, before = subscribe(shop)
    canceled = cancel(shop, before, "period_end").json
    assert (canceled["status"], canceled["current_period_end"]) == (
        "ACTIVE",
        before["current_period_end"],
    )
    assert canceled["canceled_at"] is not None
    shared.rows(
        "UPDATE subscriptions SET current_period_end = now() - interval '1 second' WHERE id = $1",
        before["id"],
    )
    assert found(shop, email)["status"] == "CANCELED"
    assert cancel(shop, before, "now").http == 200


@pytest.mark.parametrize("at", ["now", "period_end"])
@pytest.mark.parametrize("by_order", [False, True])
def test_money_for_a_canceled_subscription_is_listed_and_applied_when_it_is_resumed(
    shop: Shop, at: str, by_order: bool
) -> None:
    """FUL-9 PAY-8"""
    email, before = subscribe(shop)
    cancel(shop, before, at)
    payment, reference = shop.name("p"), None
    if by_order:
        reference = shop.order(kind="subscription", email=email, plan_id="monthly")
    shop.paid(payment, reference, email=email)
    listed = items(shop.service, "/payments", review="SUBSCRIPTION_CANCELED", applied="false")
    assert payment in {one["external_payment_id"] for one in listed}
    assert is_problem(shop.act(payment, "accept", {"reason": WHY}), 409)
    resumed = act(shop, before, "resume", {"reason": "they came back"})
    assert (resumed.http, resumed.json["status"]) == (200, "ACTIVE")
    assert end_of(resumed.json) == end_of(before) + timedelta(days=30)
    assert (shop.payment(payment)["review"], resumed.json["canceled_at"]) == (None, None)
    if reference is not None:
        assert shop.status(reference) == "PAID"


def test_resuming_undoes_a_cancellation(shop: Shop) -> None:
    """FUL-9: the period ends when it would have; a repeat, without a reason, changes nothing."""
    email, before = subscribe(shop)
    cancel(shop, before, "now")
    for _ in range(2):
        resumed = act(shop, before, "resume")
        assert resumed.http == 200
        assert resumed.json["current_period_end"] == before["current_period_end"]
    assert found(shop, email)["status"] == "ACTIVE"


def test_a_refund_keeps_a_canceled_subscription_canceled(shop: Shop) -> None:
    """FUL-9 FUL-7"""
    email = f"{shop.name('user')}@example.com"
    shop.service.user(email)
    first, second = shop.name("p"), shop.name("p")
    shop.paid(first, email=email)
    shop.paid(second, email=email)
    before = found(shop, email)
    cancel(shop, before, "period_end")
    shop.refunded(first, at=datetime.now(UTC).isoformat())
    after = found(shop, email)
    assert after["canceled_at"] is not None
    assert end_of(after) < end_of(before)
    third = shop.name("p")
    shop.paid(third, email=email)
    assert shop.payment(third)["review"] == "SUBSCRIPTION_CANCELED"


def test_a_bad_request_is_refused(shop: Shop) -> None:
    """FUL-9"""
    _, before = subscribe(shop)
    assert is_problem(act(shop, before, "cancel", {"at": "tomorrow", "reason": WHY}), 400)
    assert is_problem(act(shop, before, "cancel", {"at": "now"}), 400)
    nobody = {"id": "00000000-0000-7000-8000-000000000000"}
    assert is_problem(cancel(shop, nobody, "now"), 404)
    assert is_problem(act(shop, nobody, "resume"), 404)
