"""The trail of payments that become one, on PostgreSQL."""

from uuid import UUID

import pytest

from paidonce.audit import store
from paidonce.audit.model import TrailItem
from paidonce.core.events import EventType, PaymentId
from paidonce.linking.linker import Linker
from paidonce.processing.items import Link
from tests.support.batches import Stage
from tests.support.till import Till


@pytest.fixture
def till(shop: Stage) -> Till:
    return Till(shop, Linker(shop.database, shop.rules))


async def trail(till: Till, payment_id: UUID) -> list[TrailItem]:
    async with till.stage.database.snapshot() as connection:
        return await store.trail(connection, payment=payment_id)


async def test_the_trail_moves_to_the_remaining_payment_and_ends_with_the_merge(till: Till) -> None:
    """OPS-8 PAY-1: the entry is about the remaining payment and its order."""
    shop = till.stage
    await till.order("o")
    await till.processed(shop.event(EventType.PENDING, "intent"))
    await till.processed(till.paid("charge", "o"))
    gone = (await shop.payment("intent"))["id"]
    mark = Link(is_for_refund=True)
    await till.linker.link(PaymentId(gone), mark, "ann", "marked_for_refund", "a reason")
    kept = (await shop.payment("charge"))["id"]

    await till.processed(shop.event(EventType.PENDING, "intent", "charge"))
    (remaining,) = await shop.rows("SELECT id FROM payments")
    assert remaining["id"] in (gone, kept)
    found = await trail(till, remaining["id"])
    assert [(one.actor, one.action, one.reason) for one in found] == [
        ("ann", "marked_for_refund", "a reason"),
        ("paidonce", "payment_merged", None),
    ]
    (merged,) = {gone, kept} - {remaining["id"]}
    assert found[-1].details == {"merged_payment_id": str(merged)}
    (entry,) = await shop.rows("SELECT * FROM audit_log WHERE action = 'payment_merged'")
    assert entry["order_reference"] == "o"
    assert await trail(till, merged) == []


async def test_a_long_trail_shows_its_newest_entries(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-8: it is bounded."""
    monkeypatch.setattr(store, "MAX_TRAIL", 3)
    for number in range(5):
        async with till.stage.database.transaction() as connection:
            await store.record_action(
                connection, "ann", f"step_{number}", payment_id=UUID(int=5), order="o"
            )
    found = await trail(till, UUID(int=5))
    assert [one.action for one in found] == ["step_2", "step_3", "step_4"]
