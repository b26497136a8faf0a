"""Orders over HTTP: what comes first, what fits, what counts, and what goes back."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.support import shop as shops
from tests.support.servers import Shared
from tests.support.shop import Shop
from tests.support.tools import event, is_problem, items, period_end, until

CONFIG: Final = shops.CONFIG


@pytest.fixture
def shop(shared: Shared) -> Shop:
    return Shop(shared.service)


def outcome_of(shop: Shop, reply: Any) -> tuple[str, str | None]:
    assert reply.http == 200, reply.body
    found = event(shop.service, reply.json["event_id"])
    return found["status"], found["error_code"]


@pytest.mark.parametrize("kind", ["order", "booking", "subscription", "wallet"])
@pytest.mark.parametrize("is_order_first", [True, False], ids=["order first", "payment first"])
def test_an_order_and_its_payment_find_each_other(
    shop: Shop, kind: str, is_order_first: bool
) -> None:
    """PAY-5 FUL-1 FUL-2 FUL-3: at once, whichever comes first."""
    reference, payment = shop.name("order"), shop.name("p")
    email, wallet = f"{reference}@example.com", shop.wallet()
    user = shop.service.user(email)
    needs = {"subscription": {"user_id": user["id"]}, "wallet": {"wallet_id": wallet}}
    order = {"kind": kind, **needs.get(kind, {})}
    if is_order_first:
        shop.order(reference, **order)
        assert shop.paid(payment, reference).json["status"] == "success"
    else:
        reply = shop.paid(payment, reference)
        assert reply.json["status"] == "accepted"
        assert outcome_of(shop, reply) == ("FAILED_RETRYABLE", "ORDER_MISSING")
        assert shop.payment(payment)["review"] == "ORDER_MISSING"
        shop.order(reference, **order)
    found, paid = shop.found(reference), shop.payment(payment)
    assert (found["status"], paid["review"]) == ("PAID", None)
    assert paid["applied_at"] is not None
    assert found["paid_at"] == paid["paid_at"]
    assert [one["id"] for one in found["payments"]] == [paid["id"]]
    assert found["transaction_id"] == paid["transaction_id"]
    if kind == "booking":
        assert shop.booking(reference)["status"] == "CONFIRMED"
    if kind == "wallet":
        assert shop.balance(wallet) == ("990.00", "0.00")
    if kind == "subscription":
        assert period_end(shop.service, user["id"]) > datetime.now(UTC) + timedelta(days=29)
    assert until(lambda: _all_finished(shop, reference))


def _all_finished(shop: Shop, reference: str) -> bool:
    found = items(shop.service, "/events", order=reference)
    return all(one["status"] == "PROCESSED" for one in found)


def test_a_reference_that_names_no_order_never_falls_back_to_the_address(shop: Shop) -> None:
    """PAY-5"""
    reference, payment = shop.name("order"), shop.name("p")
    email = f"{reference}@example.com"
    user = shop.service.user(email)
    shop.paid(payment, reference, email=email)
    assert (shop.payment(payment)["applied_at"], shop.payment(payment)["review"]) == (
        None,
        "ORDER_MISSING",
    )
    found = items(shop.service, "/subscriptions", user_id=user["id"])
    assert all(one["status"] == "INACTIVE" for one in found)
    shop.order(reference)
    assert shop.status(reference) == "PAID"
    assert all(
        one["status"] == "INACTIVE"
        for one in items(shop.service, "/subscriptions", user_id=user["id"])
    )


def test_an_order_of_somebody_who_is_no_user_yet_is_paid_when_he_is_one(shop: Shop) -> None:
    """PAY-5 FUL-1"""
    reference, payment = shop.name("order"), shop.name("p")
    email = f"{reference}@Example.com"
    shop.order(reference, kind="subscription", email=email)
    reply = shop.paid(payment, reference)
    assert outcome_of(shop, reply) == ("FAILED_RETRYABLE", "USER_MISSING")
    assert (shop.status(reference), shop.payment(payment)["review"]) == ("PENDING", "USER_MISSING")
    user = shop.service.user(email.lower())
    assert shop.status(reference) == "PAID"
    assert shop.payment(payment)["user_id"] == user["id"]
    assert period_end(shop.service, user["id"]) > datetime.now(UTC) + timedelta(days=29)
    assert until(lambda: _all_finished(shop, reference))


@pytest.mark.parametrize(
    ("order", "said", "code"),
    [
        ({}, {"amount": "989.98"}, "AMOUNT_MISMATCH"),
        ({}, {"amount": "990.02"}, "AMOUNT_MISMATCH"),
        ({}, {"currency": "USD"}, "CURRENCY_MISMATCH"),
        ({"amount": "1000", "currency": "JPY"}, {"amount": "1001", "currency": "JPY"},
         "AMOUNT_MISMATCH"),
        ({}, {"amount": "989.99"}, None),
        ({}, {"amount": "990.01"}, None),
        ({"amount": "5.000", "currency": "KWD"}, {"amount": "5.010", "currency": "KWD"}, None),
    ],
)  # fmt: skip
def test_only_the_sum_of_the_order_pays_it(
    shop: Shop, order: dict[str, Any], said: dict[str, Any], code: str | None
) -> None:
    """PAY-4: to within 0.01 unit, and nothing for currencies without decimals."""
    reference, payment = shop.order(**order), shop.name("p")
    reply = shop.paid(payment, reference, **said)
    expected = ("PROCESSED", None) if code is None else ("FAILED_FINAL", code)
    assert outcome_of(shop, reply) == expected
    assert shop.status(reference) == ("PAID" if code is None else "PENDING")
    assert shop.payment(payment)["review"] == code
    assert (shop.payment(payment)["applied_at"] is None) == (code is not None)


def test_an_order_may_say_which_sources_pay_it(shop: Shop) -> None:
    """PAY-4"""
    reference = shop.order(sources=["till"])
    wrong, right = shop.name("p"), shop.name("p")
    status, code = outcome_of(shop, shop.paid(wrong, reference))
    assert status == "FAILED_FINAL"
    assert code is not None
    payment = shop.payment(wrong)
    assert (payment["applied_at"], shop.status(reference)) == (None, "PENDING")
    assert payment["review"] is not None
    assert shop.paid(right, reference, source="till").json["status"] == "success"
    assert shop.status(reference) == "PAID"
    assert is_problem(shop.try_order(shop.name("order"), sources=["nowhere"]), 400)


def test_money_for_a_closed_order_is_kept_for_refund(shop: Shop) -> None:
    """FUL-3 PAY-8"""
    reference, payment = shop.order(kind="booking"), shop.name("p")
    closed = shop.service.api("POST", f"/orders/{reference}/cancel")
    assert (closed.http, closed.json["status"]) == (200, "CANCELED")
    assert shop.booking(reference)["status"] == "CANCELED"
    assert shop.service.api("POST", f"/orders/{reference}/cancel").http == 200
    assert outcome_of(shop, shop.paid(payment, reference)) == ("FAILED_FINAL", "ORDER_CLOSED")
    assert (shop.status(reference), shop.payment(payment)["review"]) == ("CANCELED", "ORDER_CLOSED")
    assert shop.payment(payment)["applied_at"] is None
    assert shop.booking(reference)["status"] == "CANCELED"
    shop.refunded(payment, order=reference)
    assert shop.payment(payment)["review"] is None
    assert shop.status(reference) == "CANCELED"


def test_an_order_that_is_paid_cannot_be_closed(shop: Shop) -> None:
    """FUL-3"""
    reference = shop.order()
    shop.paid(shop.name("p"), reference)
    assert is_problem(shop.service.api("POST", f"/orders/{reference}/cancel"), 409)
    assert shop.status(reference) == "PAID"
    assert is_problem(shop.service.api("POST", "/orders/nobody-knows-it/cancel"), 404)


def test_a_second_payment_is_kept_and_takes_over_when_the_first_is_refunded(shop: Shop) -> None:
    """PAY-7 FUL-4"""
    wallet = shop.wallet()
    reference = shop.order(kind="wallet", wallet_id=wallet)
    first, second = shop.name("p"), shop.name("p")
    shop.paid(first, reference)
    assert outcome_of(shop, shop.paid(second, reference))[1] == "DUPLICATE_PAYMENT"
    assert shop.payment(second)["review"] == "DUPLICATE_PAYMENT"
    listed = items(shop.service, "/payments", review="DUPLICATE_PAYMENT", applied="false")
    assert shop.payment(second)["id"] in {one["id"] for one in listed}
    assert shop.balance(wallet) == ("990.00", "0.00")
    shop.refunded(first)
    assert shop.status(reference) == "PAID"
    assert shop.payment(second)["applied_at"] is not None
    assert shop.payment(second)["review"] is None
    assert shop.balance(wallet) == ("990.00", "0.00")
    shop.refunded(second)
    assert (shop.status(reference), shop.balance(wallet)) == ("REFUNDED", ("0.00", "0.00"))


def test_a_second_payment_of_a_subscription_gives_no_second_period(shop: Shop) -> None:
    """PAY-7 FUL-1"""
    user = shop.service.user(f"{shop.name('user')}@example.com")
    reference = shop.order(kind="subscription", user_id=user["id"])
    first, second = shop.name("p"), shop.name("p")
    shop.paid(first, reference)
    end = period_end(shop.service, user["id"])
    shop.paid(second, reference)
    shop.refunded(first)
    assert period_end(shop.service, user["id"]) == end
    assert shop.status(reference) == "PAID"
    shop.refunded(second)
    assert period_end(shop.service, user["id"]) <= datetime.now(UTC)
    assert shop.status(reference) == "REFUNDED"


def test_a_refund_before_its_payment_leaves_nothing_applied(shop: Shop) -> None:
    """PAY-6 PAY-2"""
    reference, payment = shop.order(kind="booking"), shop.name("p")
    assert outcome_of(shop, shop.refunded(payment, order=reference)) == ("PROCESSED", None)
    assert (shop.payment(payment)["status"], shop.status(reference)) == ("PENDING", "PENDING")
    assert shop.paid(payment, reference).http == 200
    found = shop.payment(payment)
    assert (found["status"], found["applied_at"], found["review"]) == ("REFUNDED", None, None)
    assert (shop.status(reference), shop.booking(reference)["status"]) == ("REFUNDED", "CANCELED")


def test_a_wallet_follows_each_refund_once(shop: Shop) -> None:
    """FUL-4: by a watermark; a smaller total that comes late takes nothing back."""
    wallet = shop.wallet()
    reference, payment = shop.order(kind="wallet", wallet_id=wallet), shop.name("p")
    shop.paid(payment, reference)
    for total, left in (("300", "690"), ("300", "690"), ("500", "490"), ("400", "490")):
        shop.refunded(payment, f"{total}.00")
        assert shop.balance(wallet) == (f"{left}.00", "0.00")
        assert shop.status(reference) == "PAID"
    assert shop.payment(payment)["reversed"] == "500.00"
    shop.refunded(payment)
    assert shop.balance(wallet) == ("0.00", "0.00")


def test_what_a_wallet_cannot_cover_is_owed(shop: Shop, shared: Shared) -> None:
    """FUL-4: it never goes negative, and the ledger explains it."""
    wallet = shop.wallet()
    reference, payment = shop.order(kind="wallet", wallet_id=wallet), shop.name("p")
    shop.paid(payment, reference)
    shared.rows(_SPEND, wallet, 90_000)
    shop.refunded(payment)
    assert shop.balance(wallet) == ("0.00", "900.00")
    shop.paid(shop.name("p"), shop.order(kind="wallet", wallet_id=wallet))
    assert shop.balance(wallet) == ("90.00", "0.00")
    sums = shared.rows(
        "SELECT account, sum(amount_minor)::bigint AS minor FROM ledger_entries"
        " WHERE account LIKE '%' || $1 OR account = 'spent' GROUP BY account",
        wallet,
    )
    found = {row["account"].partition(":")[0]: row["minor"] for row in sums}
    assert (found["wallet"], found["receivable"]) == (9_000, 0)


_SPEND: Final = """
WITH spent AS (
    UPDATE wallets SET balance_minor = balance_minor - $2::bigint, version = version + 1
     WHERE id = $1::uuid RETURNING id
)
INSERT INTO ledger_entries (movement_id, account, currency, amount_minor, at)
SELECT '00000000-0000-7000-8000-000000000001', account, 'RUB', minor, now()
  FROM spent, LATERAL (VALUES ('wallet:' || spent.id, -$2::bigint), ('spent', $2::bigint))
       AS entry (account, minor)
"""


def test_a_reference_after_application_by_address_is_a_conflict(shop: Shop) -> None:
    """PAY-5: nothing moves."""
    email, payment = f"{shop.name('user')}@example.com", shop.name("p")
    user, reference = shop.service.user(email), shop.order()
    assert shop.paid(payment, email=email).json["status"] == "success"
    end = period_end(shop.service, user["id"])
    reply = shop.paid(payment, reference, email=email)
    assert outcome_of(shop, reply) == ("FAILED_FINAL", "LINK_CONFLICT")
    found = shop.payment(payment)
    assert (found["review"], found["user_id"]) == ("LINK_CONFLICT", user["id"])
    assert found["applied_at"] is not None
    assert shop.status(reference) == "PENDING"
    assert period_end(shop.service, user["id"]) == end


def test_a_reference_that_comes_before_application_is_the_one_that_counts(shop: Shop) -> None:
    """PAY-5: a later event brings the missing reference."""
    reference, payment = shop.order(), shop.name("p")
    assert outcome_of(shop, shop.paid(payment))[1] == "UNLINKED_PAYMENT"
    assert shop.hears("payment.pending", payment, order=reference).http == 200
    assert shop.status(reference) == "PAID"
    assert shop.payment(payment)["review"] is None


def test_the_same_order_again_is_the_same_and_another_is_refused(shop: Shop) -> None:
    """FUL-3: idempotent by reference."""
    reference = shop.name("order")
    first = shop.try_order(reference, kind="booking")
    again = shop.try_order(reference, kind="booking", amount="990")
    assert (first.http, again.http) == (201, 200)
    assert first.json["id"] == again.json["id"]
    for other in (
        {"kind": "order"},
        {"kind": "booking", "amount": "990.01"},
        {"kind": "booking", "currency": "USD"},
        {"kind": "booking", "email": "somebody@example.com"},
        {"kind": "booking", "sources": ["till"]},
    ):
        reply = shop.try_order(reference, **other)
        assert is_problem(reply, 409), other
    shop.paid(shop.name("p"), reference)
    repeated = shop.try_order(reference, kind="booking")
    assert (repeated.http, repeated.json["status"]) == (200, "PAID")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, None),
        ({"plan_id": "yearly", "amount": "9900"}, None),
        ({"plan_id": "yearly"}, "PLAN_PRICE_DIFFERS"),
        ({"amount": "989.99"}, "PLAN_PRICE_DIFFERS"),
        ({"currency": "EUR"}, "PLAN_CURRENCY_DIFFERS"),
    ],
)
def test_a_subscription_order_that_disagrees_with_its_plan_says_so(
    shop: Shop, said: dict[str, str], code: str | None
) -> None:
    """FUL-3: in its answer, again when it is repeated, and whenever it is read."""
    reference, email = shop.name("order"), f"{shop.name('user')}@example.com"
    asked = {"kind": "subscription", "email": email, **said}
    made, repeated = (shop.try_order(reference, **asked) for _ in range(2))
    assert (made.http, repeated.http) == (201, 200)
    for warnings in (
        made.json["warnings"],
        repeated.json["warnings"],
        shop.found(reference)["warnings"],
    ):
        assert [one["code"] for one in warnings] == ([code] if code else [])
        assert all(one["message"] for one in warnings)
    assert shop.try_order(shop.name("order"), **said | {"plan_id": None}).json["warnings"] == []


def test_orders_that_make_no_sense_are_refused(shop: Shop) -> None:
    """FUL-1 FUL-3 REC-5"""
    unknown = "00000000-0000-7000-8000-000000000000"
    for said in (
        {"amount": "-1"},
        {"amount": "1.001"},
        {"currency": "XXX"},
        {"kind": "gift"},
        {"kind": "subscription"},
        {"kind": "subscription", "email": "a@example.com", "plan_id": "golden"},
        {"kind": "wallet"},
        {"colour": "red"},
    ):
        assert is_problem(shop.try_order(shop.name("order"), **said), 400), said
    for said in ({"user_id": unknown}, {"kind": "wallet", "wallet_id": unknown}):
        assert is_problem(shop.try_order(shop.name("order"), **said), 404), said
    assert is_problem(shop.service.api("GET", "/orders/nobody-knows-it"), 404)
    assert is_problem(shop.service.api("GET", f"/bookings/{shop.order()}"), 404)
