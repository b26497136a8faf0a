"""`paidonce orders`, and `paidonce payments show` by any id."""

import json
from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import items, paidonce

CONFIG: Final = shops.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def told(shop: Shop, *arguments: str) -> Any:
    done = paidonce(shop.service.folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(shop: Shop, *arguments: str, code: int = 1) -> str:
    done = paidonce(shop.service.folder, *arguments)
    assert done.returncode == code, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def create(shop: Shop, reference: str, *others: str) -> Any:
    price = ("--amount", "990.00", "--currency", "RUB")
    return told(shop, "orders", "create", reference, *price, *others)


def test_an_order_is_created_shown_listed_and_canceled(shop: Shop) -> None:
    """OPS-7 FUL-3: as over HTTP, by the same service."""
    reference = shop.name("order")
    user = shop.service.user(f"{reference}@example.com")
    given = ("--kind", "booking", "--user-id", user["id"], "--source", "shop", "--source", "till")
    made = create(shop, reference, *given)
    assert (made["status"], made["kind"], made["amount"]) == ("PENDING", "booking", "990.00")
    assert (made["user_id"], made["sources"]) == (user["id"], ["shop", "till"])
    assert create(shop, reference, *given)["id"] == made["id"], "a repeat"
    over_http = shop.found(reference)
    assert told(shop, "orders", "show", reference)["id"] == over_http["id"]
    (listed,) = told(shop, "orders", "list", "--user-id", user["id"], "--kind", "booking")
    assert listed["reference"] == reference
    canceled = told(shop, "orders", "cancel", reference, "--reason", "a typo")
    assert (canceled["status"], canceled["trail"][-1]["reason"]) == ("CANCELED", "a typo")
    trail = told(shop, "orders", "show", reference)["trail"]
    assert [one["action"] for one in trail] == ["order_created", "order_closed"]
    assert all(one["actor"].startswith("cli:") for one in trail)
    table = paidonce(shop.service.folder, "orders", "show", reference)
    assert "order_closed" in table.stdout


def test_what_waits_for_an_order_is_applied_when_it_is_created_there(shop: Shop) -> None:
    """OPS-7 PAY-5"""
    reference, payment = shop.name("order"), shop.name("p")
    shop.paid(payment, reference)
    made = create(shop, reference)
    assert made["status"] == "PAID"
    assert [one["external_payment_id"] for one in made["payments"]] == [payment]
    assert "is paid" in refused(shop, "orders", "cancel", reference)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (("--amount", "-1", "--currency", "RUB"), "negative"),
        (("--amount", "1.00", "--currency", "XXZ"), "amount"),
        (("--amount", "1.00", "--currency", "RUB", "--source", "nobody"), "no source 'nobody'"),
        (("--amount", "1.00", "--currency", "RUB", "--email", "nobody"), "e-mail"),
        (("--amount", "1.00", "--currency", "RUB", "--kind", "wallet"), "wallet_id or user_id"),
        (("--amount", "x" * 1_001, "--currency", "RUB"), "amount"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    shop: Shop, others: tuple[str, ...], words: str
) -> None:
    """OPS-7 USE-2: with what is wrong."""
    assert words in refused(shop, "orders", "create", shop.name("order"), *others)
    assert "there is no order" in refused(shop, "orders", "show", "nobody's")


def test_a_payment_is_shown_by_any_id(shop: Shop) -> None:
    """OPS-7: ours, the gateway's, or the reference of its order."""
    reference, payment = shop.order(), shop.name("p")
    shop.paid(payment, reference, amount="980.00")
    shop.act(payment, "accept", {"reason": "a coupon"})
    ours = shop.payment(payment)["id"]
    for name in (ours, ours.upper(), payment, reference):
        shown = told(shop, "payments", "show", name)
        assert shown["id"] == ours, name
        assert [one["action"] for one in shown["trail"]] == ["payment_accepted"]
    table = paidonce(shop.service.folder, "payments", "show", payment)
    assert "a coupon" in table.stdout
    assert payment in table.stdout
    for name in ("nobody's", "x" * 5_000):
        assert "no payment has the id" in refused(shop, "payments", "show", name)


def test_a_payment_is_found_by_every_kind_of_gateway_id(shop: Shop, shared: Shared) -> None:
    """OPS-7 OPS-2 PAY-1: whichever the gateway has printed."""
    payment = shop.name("p")
    shop.paid(payment, shop.order())
    found = shop.payment(payment)
    other = shop.name("charge")
    shared.rows(
        "INSERT INTO payment_ids (source_id, kind, external_id, payment_id)"
        " SELECT source_id, 'charge', $1, id FROM payments WHERE id = $2",
        other,
        found["id"],
    )
    for name in (payment, other):
        assert told(shop, "payments", "show", name)["id"] == found["id"]
        (listed,) = items(shop.service, "/payments", external_payment_id=name)
        assert listed["id"] == found["id"]
        (listed,) = told(shop, "payments", "list", "--external-payment-id", name)
        assert listed["id"] == found["id"]
    assert items(shop.service, "/payments", external_payment_id=payment[:-1]) == []
    assert items(shop.service, "/payments", external_payment_id=payment, order="another") == []
    assert items(shop.service, "/payments", external_payment_id=payment, source="till") == []


def test_several_payments_are_listed_to_choose_from(shop: Shop) -> None:
    """OPS-7 USE-2: an order that was paid twice, and an id that two gateways use."""
    reference, payment = shop.order(), shop.name("p")
    shop.paid(payment, reference)
    shop.paid(shop.name("p"), reference)
    shop.hears("payment.succeeded", payment, source="till")
    both = {one["id"] for one in items(shop.service, "/payments", order=reference)}
    words = refused(shop, "payments", "show", reference)
    assert "2 payments match" in words
    assert "choose one by the id" in words
    assert all(one in words for one in both)
    same = {one["id"] for one in items(shop.service, "/payments", external_payment_id=payment)}
    assert len(same) == 2
    words = refused(shop, "payments", "show", payment, "--json")
    assert all(one in words for one in same)
    assert told(shop, "payments", "show", next(iter(same)))["id"] in same
