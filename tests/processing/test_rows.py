"""Rows, composite types and queries list the same columns in the same order."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
import pytest
from uuid_utils.compat import uuid7

from paidonce.core.events import (
    PROCESSED,
    Code,
    ExternalId,
    OrderId,
    PaymentId,
    SubscriptionId,
    UserId,
)
from paidonce.core.facts import Facts
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order, OrderStatus
from paidonce.core.payments import Acceptance, Payment
from paidonce.core.subscriptions import Subscription, SubscriptionStatus
from paidonce.db.queries import WrittenRow
from paidonce.linking import store as linking_store
from paidonce.processing import store
from paidonce.processing.rows import event_row, order_row, payment_row, subscription_row
from paidonce.processing.store import Changes, LoadKeys
from tests.support.batches import Stage

NOW: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
EXTERNAL_ID: Final = ExternalId("payment", "p")
FLAGS: Final = ("is_linked", "is_contested", "is_for_refund", "is_test")


def hours(number: int) -> datetime:
    return NOW + timedelta(hours=number)


def unapplied(shop: Stage) -> Payment:
    """A payment in which each column that may be set has a value of its own."""
    return Payment(
        id=PaymentId(uuid7()),
        source_id=shop.source.id,
        ids=(EXTERNAL_ID,),
        facts=Facts(
            captured=Money(1000, "RUB"),
            refund_total_minor=31,
            paid_at=hours(1),
            failed_at=hours(2),
            voided_at=hours(3),
            canceled_at=hours(4),
            refunded_at=hours(5),
            processing_at=hours(6),
            disputed_at=hours(7),
            dispute_won_at=hours(8),
            dispute_answer_by=hours(13),
            refund_times={
                "=31": hours(5),
                "#r": hours(6),
                "EUR#7#e": hours(7),
                "~EUR#e": hours(7),
            },
            other_captures=frozenset({Money(700, "RUB"), Money(800, "EUR")}),
        ),
        order="reference",
        email="P@example.com",
        user_id=UserId(uuid7()),
        plan_id="plan",
        review=Code.LINK_CONFLICT,
        acceptance=Acceptance("ann", hours(12), "agreed", Money(1000, "RUB"), "order:o", True),
    )


def applied(shop: Stage) -> Payment:
    return replace(
        unapplied(shop),
        applied_at=hours(9),
        applied_minor=900,
        reversed_minor=20,
        subscription_id=SubscriptionId(uuid7()),
        period_start=hours(10),
        period_end=hours(11),
        granted_at=hours(14),
    )


async def by_attribute(shop: Stage, type_name: str, row: WrittenRow) -> dict[str, Any]:
    """The values of a row by the names of its composite type."""
    found = await shop.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass ORDER BY attnum", type_name
    )
    return dict(zip((one["attname"] for one in found), row, strict=True))


async def write_and_load(shop: Stage, payment: Payment) -> Payment:
    """Write the payment and check its columns by name; returns it as it is loaded."""
    new_ids = [(payment.source_id, EXTERNAL_ID, payment.id)] if payment.is_new else []
    changes = Changes(payments=[payment], payment_ids=new_ids)
    async with shop.database.transaction() as connection:
        await store.write(connection, changes, NOW)
    expected = await by_attribute(shop, "written_payment", payment_row(payment, 0))
    expected["version"] = expected.pop("next_version")
    stored = await shop.one("SELECT * FROM payments WHERE id = $1", payment.id)
    for name in ("acceptance", "refund_times"):  # jsonb formats them anew
        assert orjson.loads(expected.pop(name)) == orjson.loads(stored[name])
    assert {name: stored[name] for name in expected} == expected
    keys = LoadKeys(ids={(payment.source_id, EXTERNAL_ID)})
    async with shop.database.connection() as connection:
        loaded = await store.load_without_locks(connection, keys, shop.rules)
    payment_found = loaded.state.payments[payment.id]
    assert payment_found == replace(payment, version=payment.version + 1)
    return payment_found


@pytest.mark.parametrize("make", [unapplied, applied])
async def test_every_column_of_a_payment_is_written_and_loaded_by_its_name(
    shop: Stage, make: Any
) -> None:
    """PAY-2 DAT-1: inserted, and then updated with other values."""
    payment = await write_and_load(shop, make(shop))
    other = replace(
        make(shop), id=payment.id, version=payment.version, applied_at=payment.applied_at
    )
    facts = replace(
        other.facts,
        captured=Money(2000, "EUR"),
        refund_total_minor=77,
        paid_at=hours(21),
        failed_at=hours(22),
        voided_at=hours(23),
        canceled_at=hours(24),
        refunded_at=hours(25),
        processing_at=hours(26),
        disputed_at=hours(27),
        dispute_won_at=hours(28),
        dispute_answer_by=hours(29),
    )
    other = replace(other, facts=facts, order="other", email="q@example.com", plan_id="other")
    await write_and_load(shop, replace(other, review=Code.AMOUNT_MISMATCH))


@pytest.mark.parametrize("flag", [*FLAGS, "is_expired"])
async def test_every_flag_of_a_payment_is_written_and_loaded_by_its_name(
    shop: Stage, flag: str
) -> None:
    """PAY-2 DAT-1: inserted as true, updated to false, and to true again."""
    clear = unapplied(shop)
    raised_flag: dict[str, Any] = {flag: True}
    raised = (
        replace(clear, **raised_flag)
        if flag in FLAGS
        else replace(clear, facts=replace(clear.facts, **raised_flag))
    )
    written = await write_and_load(shop, raised)
    written = await write_and_load(shop, replace(clear, version=written.version))
    await write_and_load(shop, replace(raised, version=written.version))


async def test_every_column_of_a_subscription_is_written_by_its_name(shop: Stage) -> None:
    """FUL-1 DAT-1"""
    user_id = await shop.user("p@example.com")
    subscription = Subscription(
        SubscriptionId(uuid7()), user_id, "product", SubscriptionStatus.ACTIVE, hours(1)
    )
    async with shop.database.transaction() as connection:
        await store.write(connection, Changes(subscriptions=[subscription]), NOW)
    row = subscription_row(subscription)
    expected = await by_attribute(shop, "written_subscription", row)
    stored = await shop.one("SELECT * FROM subscriptions")
    assert {name: stored[name] for name in expected} == expected


async def test_every_column_of_an_order_is_written_and_loaded_by_its_name(shop: Stage) -> None:
    """FUL-2 DAT-1"""
    made = Order(
        id=OrderId(uuid7()),
        reference="reference",
        kind=Kind.BOOKING,
        amount=Money(1000, "RUB"),
        user_id=await shop.user("p@example.com"),
        email="P@example.com",
        plan_id="plan",
        sources=(shop.source.id,),
    )
    async with shop.database.transaction() as connection:
        await linking_store.create_order(connection, made, b"same")
    paid = replace(
        made,
        status=OrderStatus.PAID,
        applied_payment_id=PaymentId(uuid7()),
        paid_at=hours(1),
        fulfilled_at=hours(4),
    )
    refunded = replace(
        paid,
        status=OrderStatus.REFUNDED,
        applied_payment_id=None,
        canceled_at=hours(2),
        refunded_at=hours(3),
        reversed_at=hours(5),
        version=2,
    )
    for order in (paid, refunded):
        async with shop.database.transaction() as connection:
            await store.write(connection, Changes(orders=[order]), NOW)
        expected = await by_attribute(shop, "written_order", order_row(order))
        stored = await shop.one("SELECT * FROM orders")
        assert {name: stored[name] for name in expected} == {
            **expected,
            "version": order.version + 1,
        }
        keys = LoadKeys(references={made.reference})
        async with shop.database.connection() as connection:
            loaded = await store.load_without_locks(connection, keys, shop.rules)
        assert loaded.state.orders == {made.reference: replace(order, version=order.version + 1)}


async def test_every_column_of_an_event_is_written_by_its_name(shop: Stage) -> None:
    """REC-1 DAT-1"""
    item = shop.paid("p", remote_address="10.0.0.1")  # no headers: jsonb formats them anew
    row = event_row(item, PROCESSED, 3, NOW)
    async with shop.database.transaction() as connection:
        await store.write(connection, Changes(events=[row]), NOW)
    expected = await by_attribute(shop, "written_event", row)
    stored = await shop.event_row(item)
    assert {name: stored[name] for name in expected} == expected
