"""S2's test plan, each item of it: a booking is confirmed once, whatever its webhooks do."""

from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.service import paid
from tests.support.shop import Shop
from tests.support.tools import at_once, event, items, until

CONFIG: Final = shops.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def confirmations(shared: Shared, reference: str) -> int:
    """How often the outside was told that a payment for the order was applied."""
    (row,) = shared.rows(
        "SELECT count(*) AS number FROM outbox AS m"
        " JOIN payments AS p ON p.id = m.aggregate_id"
        " WHERE m.type = 'payment.applied' AND p.order_reference = $1",
        reference,
    )
    return int(row["number"])


def outcome(shop: Shop, reply: Any) -> tuple[str, str | None]:
    found = event(shop.service, reply.json["event_id"])
    return found["status"], found["error_code"]


def test_the_key_of_an_event_that_has_an_id_is_its_id(shop: Shop) -> None:
    """INB-1 S2: Unit: eventKey where the gateway gives an event id."""
    reply = shop.paid(shop.name("p"), shop.order(), event_id="msg_the-gateway-s-own")
    assert event(shop.service, reply.json["event_id"])["key"] == "msg_the-gateway-s-own"


def test_the_key_of_an_event_without_an_id_is_made_of_what_it_says(shop: Shop) -> None:
    """INB-1 S2: Unit: eventKey where there is none: a redelivery's is the same."""
    said = paid(shop.name("p"), event_id=None)
    replies = [shop.service.deliver(said) for _ in range(2)]
    assert replies[1].json == {**replies[0].json, "status": "duplicate"}
    other = shop.service.deliver(paid(shop.name("p"), event_id=None))
    keys = {event(shop.service, one.json["event_id"])["key"] for one in (replies[0], other)}
    assert len(keys) == 2
    assert all(keys)


@pytest.mark.parametrize(
    ("kinds", "payment", "booking"),
    [
        (("succeeded",), "SUCCEEDED", "CONFIRMED"),
        (("failed",), "FAILED", "PENDING"),
        (("canceled",), "CANCELED", "PENDING"),
        (("failed", "succeeded"), "SUCCEEDED", "CONFIRMED"),
        (("canceled", "succeeded"), "SUCCEEDED", "CONFIRMED"),
        (("succeeded", "failed"), "SUCCEEDED", "CONFIRMED"),
        (("succeeded", "canceled"), "SUCCEEDED", "CONFIRMED"),
        (("succeeded", "refunded"), "REFUNDED", "CANCELED"),
        (("failed", "canceled"), "CANCELED", "PENDING"),
    ],
    ids="-".join,
)
def test_the_rules_of_transition(
    shop: Shop, kinds: tuple[str, ...], payment: str, booking: str
) -> None:
    """PAY-2 FUL-2 S2: Unit: paid, cancelled and failed; a cancellation counts when confirmed."""
    reference, name = shop.order(kind="booking"), shop.name("p")
    for kind in kinds:
        shop.hears(f"payment.{kind}", name, order=reference)
    assert shop.payment(name)["status"] == payment
    assert shop.booking(reference)["status"] == booking


def test_one_event_sent_twice_changes_things_once(shop: Shop, shared: Shared) -> None:
    """INB-1 REC-7 S2: Integration: the same eventKey twice."""
    reference, name = shop.order(kind="booking"), shop.name("p")
    key = shop.name("msg")
    first = shop.paid(name, reference, event_id=key)
    before = (shop.payment(name), shop.found(reference))
    second = shop.paid(name, reference, event_id=key)
    assert (first.json["status"], second.json["status"]) == ("success", "duplicate")
    assert first.http == second.http == 200
    assert (shop.payment(name), shop.found(reference)) == before
    assert confirmations(shared, reference) == 1


def test_two_events_that_say_paid_confirm_once(shop: Shop, shared: Shared) -> None:
    """PAY-3 FUL-2 S2: Integration: paid twice, Payment and Reservation confirmed once."""
    reference, name = shop.order(kind="booking"), shop.name("p")
    shop.paid(name, reference)
    confirmed = shop.booking(reference)
    assert confirmed["status"] == "CONFIRMED"
    assert confirmed["paid_at"] is not None
    reply = shop.paid(name, reference)
    assert outcome(shop, reply)[0] in ("PROCESSED", "IGNORED")
    assert shop.booking(reference) == confirmed
    assert confirmations(shared, reference) == 1


def test_failed_and_then_paid_is_paid(shop: Shop) -> None:
    """PAY-2 S2: Integration: failed, then paid."""
    reference, name = shop.order(kind="booking"), shop.name("p")
    shop.hears("payment.failed", name, order=reference)
    assert (shop.payment(name)["status"], shop.status(reference)) == ("FAILED", "PENDING")
    assert shop.paid(name, reference).json["status"] == "success"
    assert (shop.payment(name)["status"], shop.status(reference)) == ("SUCCEEDED", "PAID")


def test_paid_and_then_failed_stays_paid(shop: Shop) -> None:
    """PAY-2 S2: Integration: paid, then failed, which is ignored."""
    reference, name = shop.order(kind="booking"), shop.name("p")
    shop.paid(name, reference)
    reply = shop.hears("payment.failed", name, order=reference)
    assert reply.json["status"] == "ignored"
    assert outcome(shop, reply) == ("IGNORED", "OUT_OF_ORDER")
    assert (shop.payment(name)["status"], shop.status(reference)) == ("SUCCEEDED", "PAID")
    assert shop.booking(reference)["status"] == "CONFIRMED"


@pytest.mark.parametrize("same", ["event", "payment", "order"])
def test_ten_that_say_paid_at_once_confirm_once(shop: Shop, shared: Shared, same: str) -> None:
    """PAY-3 PAY-7 S2: Load: ten for one merchant_uid: one confirmation, nine deduped or ignored.

    They are ten deliveries of one event, ten events of one payment, or ten payments. Ten real
    payments are nine too many: these are kept and listed.
    """
    reference, name, key = shop.order(kind="booking"), shop.name("p"), shop.name("msg")

    def pay(number: int) -> Any:
        payment = f"{name}-{number}" if same == "order" else name
        return shop.paid(payment, reference, event_id=key if same == "event" else None)

    replies = at_once(*[lambda number=number: pay(number) for number in range(10)])
    assert {reply.http for reply in replies} == {200}
    assert until(lambda: all(one["processed_at"] for one in _events(shop, reference)))
    assert shop.booking(reference)["status"] == "CONFIRMED"
    assert confirmations(shared, reference) == 1
    found = _events(shop, reference)
    reviews = [one["review"] for one in items(shop.service, "/payments", order=reference)]
    words = sorted(reply.json["status"] for reply in replies)
    if same == "event":
        assert words == ["duplicate"] * 9 + ["success"]
        assert len(found) == 1
    else:
        assert len(found) == 10
    assert sorted(map(str, reviews)) == ["DUPLICATE_PAYMENT"] * (len(reviews) - 1) + ["None"]
    assert len(reviews) == (10 if same == "order" else 1)


def _events(shop: Shop, reference: str) -> list[Any]:
    return items(shop.service, "/events", order=reference)
