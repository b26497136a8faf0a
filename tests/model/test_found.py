"""What the model test has found, each as small as possible."""

import asyncio
from typing import Any, Final

from uuid_utils.compat import uuid7

from paidonce.core.events import EventType, OrderId
from paidonce.core.money import Money
from paidonce.core.orders import Kind
from paidonce.core.orders import Order as StoredOrder
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming
from paidonce.processing.transactions import Processor
from tests.support.batches import Stage

SOON_S: Final = 3.0


def refunded(shop: Stage, amount_minor: int, refund_id: str | None = None) -> Incoming:
    said: dict[str, Any] = {} if refund_id is None else {"refund_id": refund_id}
    key = f"{amount_minor}:{refund_id}"
    return shop.event(
        EventType.REFUNDED, "p", amount_minor=amount_minor, currency="RUB", key=key, **said
    )


async def test_a_payment_and_its_refund_in_one_batch_are_processed(
    shop: Stage, processor: Processor
) -> None:
    """REL-3 FUL-7 REC-3: of a subscription that the batch itself begins."""
    await shop.user("p@example.com")
    async with asyncio.timeout(SOON_S):
        await processor.process([shop.paid("p"), refunded(shop, 99_000)])
    payment = await shop.payment("p")
    assert (payment["status"], payment["review"]) == ("REFUNDED", None)


async def test_a_lost_dispute_counts_once_whatever_follows(
    shop: Stage, processor: Processor
) -> None:
    """REL-3 PAY-2 PAY-12: also if a part was refunded, and later events say nothing new."""
    await processor.process([shop.paid("p")])
    await processor.process([refunded(shop, 49_500, "dispute:d")])
    await processor.process([refunded(shop, 24_751)])
    await processor.process([refunded(shop, 24_750)])
    payment = await shop.payment("p")
    assert (payment["refunded_minor"], payment["status"]) == (74_251, "PARTIALLY_REFUNDED")


async def test_an_event_ends_its_wait_when_another_one_names_the_order(
    shop: Stage, processor: Processor
) -> None:
    """REL-3 RET-1: also if the order is paid by another payment at that moment."""
    order = StoredOrder(OrderId(uuid7()), "o", Kind.ORDER, Money(99_000, "RUB"))
    await Linker(shop.database, shop.rules).create_order(order, b"same", "somebody")
    await processor.process([shop.paid("first", order="o", email=None)])
    nameless = shop.paid("p", email=None, key="nameless")
    await processor.process([nameless])
    assert (await shop.event_row(nameless))["error_code"] == "UNLINKED_PAYMENT"
    await processor.process([shop.paid("p", order="o", email=None, key="named")])
    assert (await shop.payment("p"))["review"] == "DUPLICATE_PAYMENT"
    due = "SELECT event_id FROM event_queue WHERE run_at <= now()"
    assert nameless.event_id in [one["event_id"] for one in await shop.rows(due)]
