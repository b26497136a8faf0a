"""Verified deliveries that report money and cannot be read in one detail, over HTTP."""

from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.service import Service
from tests.support.shop import Shop
from tests.support.tools import event, is_problem, items

CONFIG: Final = shops.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def said(shop: Shop, **changed: Any) -> dict[str, Any]:
    """A payment of the JSON contract, for a new user."""
    email = f"{shop.name('user')}@example.com"
    shop.service.user(email)
    usual = {
        "external_payment_id": shop.name("p"),
        "event_id": shop.name("evt"),
        "status": "paid",
        "amount": "990.00",
        "currency": "RUB",
        "email": email,
        "paid_at": "2026-11-15T10:00:00Z",
    }
    return usual | changed


def listed(service: Service, payment: str, source: str = "payments") -> list[Any]:
    """The payment, if it is among the money that is not applied."""
    found = items(service, "/payments", applied="false", source=source, limit=500)
    return [one for one in found if one["external_payment_id"] == payment]


@pytest.mark.parametrize(
    "time",
    [
        1_763_200_000,
        "2026-11-15T23:59:60Z",
        "yesterday",
        "2026-02-30T00:00:00Z",
        ["x"],
        "0001-01-01T00:00:00Z",
        "0001-01-01T05:00:00+05:00",
        "9999-12-31T23:59:59.999999Z",
    ],
)
def test_a_time_that_cannot_be_read_is_dropped_and_the_rest_counts(shop: Shop, time: Any) -> None:
    """REC-6 REC-8: with a note in the trail of the event."""
    reply = shop.service.deliver(said(shop, paid_at=time))
    assert (reply.http, reply.json["status"]) == (200, "success")
    found = event(shop.service, reply.json["event_id"])
    (note,) = [one for one in found["trail"] if one["action"] == "fields_dropped"]
    assert note["details"]["fields"] == ["paid_at"]


def test_later_events_count_after_a_time_that_stands_for_no_time(shop: Shop) -> None:
    """REC-8: such as the zero time of the language that the sender is written in."""
    first = said(shop, paid_at="0001-01-01T00:00:00Z")
    shop.service.deliver(first)
    reply = shop.service.deliver(first | {"event_id": shop.name("evt")})
    assert reply.json["status"] == "success"


@pytest.mark.parametrize("email", [7, ["a@example.com"], "x" * 300, "no address"])
def test_an_address_that_cannot_be_read_is_dropped_and_the_rest_counts(
    shop: Shop, email: Any
) -> None:
    """REC-6 REC-8: the payment is kept, unlinked."""
    body = said(shop, email=email)
    reply = shop.service.deliver(body)
    assert (reply.http, reply.json["status"]) == (200, "accepted")
    found = event(shop.service, reply.json["event_id"])
    assert found["error_code"] == "UNLINKED_PAYMENT"
    assert "fields_dropped" in [one["action"] for one in found["trail"]]
    (payment,) = listed(shop.service, body["external_payment_id"])
    assert (payment["captured"], payment["review"]) == ("990.00", "UNLINKED_PAYMENT")


@pytest.mark.parametrize(
    "detail",
    [
        {"amount": "990.001"},
        {"amount": None},
        {"currency": "RUR"},
        {"plan_id": ["monthly"]},
        {"name": "a\x00b"},
        {"name": "an emoji that was cut: \ud83d"},
    ],
)
def test_money_that_cannot_be_read_is_listed_until_it_is_reported_again(
    shop: Shop, detail: dict[str, Any]
) -> None:
    """REC-8 PAY-8: answered 400, and a corrected delivery under the same id counts."""
    body = said(shop, **detail)
    payment_id = body["external_payment_id"]
    before = shop.service.metric("payments_unapplied", currency="", reason="MALFORMED")
    assert is_problem(shop.service.deliver(body), 400)
    (payment,) = listed(shop.service, payment_id)
    assert (payment["review"], payment["captured"], payment["applied_at"]) == (
        "MALFORMED",
        "0",
        None,
    )
    assert payment["unapplied_s"] is not None
    after = shop.service.metric("payments_unapplied", currency="", reason="MALFORMED")
    assert after == before + 1
    (evidence,) = items(shop.service, "/events", payment=payment_id)
    assert (evidence["status"], evidence["error_code"]) == ("FAILED_FINAL", "MALFORMED")
    refused = shop.service.api("POST", f"/payments/{payment['id']}/accept", {"reason": "why not"})
    assert is_problem(refused, 409)
    corrected = body | {"amount": "990.00", "currency": "RUB", "plan_id": "monthly", "name": "a"}
    reply = shop.service.deliver(corrected)
    assert (reply.http, reply.json["status"]) == (200, "success")
    assert listed(shop.service, payment_id) == []
    found = shop.service.api("GET", f"/payments/{payment['id']}").json
    assert (found["review"], found["captured"], bool(found["applied_at"])) == (None, "990.00", True)


def test_an_order_that_cannot_be_read_never_falls_back_to_the_address(shop: Shop) -> None:
    """REC-8 PAY-5"""
    email = f"{shop.name('user')}@example.com"
    user, payment = shop.service.user(email), shop.name("p")
    reply = shop.hears("payment.succeeded", payment, order=["o-1"], email=email)
    assert is_problem(reply, 400)
    (found,) = listed(shop.service, payment, "shop")
    assert (found["review"], found["user_id"], found["applied_at"]) == ("MALFORMED", None, None)
    assert items(shop.service, "/subscriptions", user_id=user["id"]) == []


def test_what_is_known_already_is_not_listed_for_a_delivery_that_cannot_be_read(shop: Shop) -> None:
    """REC-8: in this order, too."""
    body = said(shop)
    assert shop.service.deliver(body).json["status"] == "success"
    bad = body | {"event_id": shop.name("evt"), "amount": "many"}
    assert is_problem(shop.service.deliver(bad), 400)
    assert listed(shop.service, body["external_payment_id"]) == []


def test_only_a_verified_delivery_that_says_paid_is_listed(shop: Shop) -> None:
    """REC-8 SEC-5: no forgery, no failed payment, and nothing without an id."""
    for body, secret in (
        (said(shop, amount="many"), "not-the-secret"),
        (said(shop, amount="many", status="failed"), "first-secret"),
        (said(shop, amount="many", external_payment_id=["x"]), "first-secret"),
    ):
        shop.service.deliver(body, secret=secret)
        assert listed(shop.service, str(body["external_payment_id"])) == []
