"""Money of deliveries that came too late: on record, not applied, and applied on a better word."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pytest
import pytest_asyncio

from paidonce.core.accept import AcceptRequest
from paidonce.core.events import DEFERRED, EventType, OrderId, PaymentEvent, PaymentId
from paidonce.core.money import Money
from paidonce.core.notifications import NotificationKind
from paidonce.core.orders import Kind, Order
from paidonce.errors import DatabaseUnavailableError, TimestampExpiredError
from paidonce.hooks.registry import Handlers, HookEvent, HookType
from paidonce.inbox import group as groups
from paidonce.inbox.group import Group
from paidonce.inbox.intake import Intake
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, Item, Link, QueueName, Rejected, Request, ResultKind
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery
from paidonce.queue.worker import Worker
from paidonce.replay.reprocess import Reprocessor
from tests.processing.test_process import held
from tests.support.batches import Plain, Stage

ACCEPT: Final = Link(accept=AcceptRequest("ann", "agreed"))
EXPIRED: Final = "TIMESTAMP_EXPIRED"
EVERYTHING: Final = dict.fromkeys(NotificationKind, ("ops",))


@dataclass(frozen=True)
class Hasty(Plain):
    """A gateway whose deliveries are all too late."""

    is_signed: ClassVar = True

    def verify(self, delivery: Delivery) -> None:
        raise TimestampExpiredError("it was signed long ago")


@pytest_asyncio.fixture(loop_scope="session")
async def shop(shop: Stage) -> Stage:
    """A shop that has a channel for everything, and whose source signs a time."""
    source = replace(shop.source, provider=Hasty())
    rules = replace(shop.rules, sources={source.id: source}, routes=EVERYTHING)
    return replace(shop, rules=rules, source=source)


def late(item: Incoming) -> Rejected:
    """The same delivery, as one that came too late."""
    assert isinstance(item.event, PaymentEvent)
    return Rejected(
        event_id=item.event_id,
        source=item.source,
        request=item.request,
        delivery=item.delivery,
        refusal=TimestampExpiredError("it was signed long ago"),
        signature_valid=True,
        identity=item.identity,
        event=item.event,
    )


async def applied(shop: Stage) -> int:
    row = await shop.one("SELECT count(*) AS n FROM outbox WHERE type = 'payment.applied'")
    return int(row["n"])


async def assert_listed(shop: Stage, name: str) -> None:
    """The money is there, and nobody has got anything for it."""
    payment = await shop.payment(name)
    assert (payment["applied_at"], payment["review"], payment["is_expired"]) == (
        None,
        EXPIRED,
        True,
    )
    assert (payment["captured_minor"], payment["status"]) == (99_000, "SUCCEEDED")
    assert await applied(shop) == await shop.number("subscriptions") == 0


async def assert_applied(shop: Stage, name: str) -> None:
    payment = await shop.payment(name)
    assert payment["applied_at"] is not None
    assert (payment["review"], payment["is_expired"]) == (None, False)
    assert await applied(shop) == 1


async def test_an_expired_capture_is_recorded_and_not_applied(
    shop: Stage, processor: Processor
) -> None:
    """PRV-8: its evidence names the payment and claims no key."""
    await shop.user("p@example.com")
    item = shop.paid("p", key="k")
    (result,) = (await processor.process([late(item)])).results
    assert (result.kind, result.event_id) == (ResultKind.FAILED_FINAL, item.event_id)
    await assert_listed(shop, "p")
    row = await shop.event_row(item)
    assert (row["status"], row["error_code"], row["key"]) == ("FAILED_FINAL", EXPIRED, None)
    assert (row["type"], row["external_payment_id"]) == ("paid", "p")
    assert await shop.number("event_keys") == await shop.number("event_queue") == 0
    counts = await shop.one("SELECT received, failed, succeeded FROM event_count_deltas")
    assert tuple(counts.values()) == (1, 1, 0)


async def test_no_user_order_or_link_applies_an_expired_capture(
    shop: Stage, processor: Processor
) -> None:
    """PRV-8 PAY-5: whoever has captured a delivery waits in vain."""
    linker = Linker(shop.database, shop.rules)
    await processor.process([late(shop.paid("p"))])
    user, _ = await linker.create_user("p@example.com", "somebody")
    await assert_listed(shop, "p")
    payment_id = PaymentId((await shop.payment("p"))["id"])
    await linker.link(payment_id, Link(user_id=user.id), "somebody", "payment_linked")
    await assert_listed(shop, "p")
    await processor.process([late(shop.paid("q", email=None, order="o"))])
    order = Order(OrderId(payment_id), "o", Kind.ORDER, Money(99_000, "RUB"))
    await linker.create_order(order, b"same", "somebody")
    await assert_listed(shop, "q")
    assert (await shop.one("SELECT status FROM orders"))["status"] == "PENDING"


@pytest.mark.parametrize("key", ["the same", "another"])
@pytest.mark.parametrize("is_one_batch", [True, False], ids=["together", "apart"])
async def test_a_delivery_in_time_applies_it_whichever_is_first(
    shop: Stage, processor: Processor, key: str, is_one_batch: bool
) -> None:
    """PRV-8 PAY-3: the event itself, signed anew, or another one of the payment."""
    await shop.user("p@example.com")
    first, in_time, again = (
        late(shop.paid("p", key="the same")),
        shop.paid("p", key=key),
        late(shop.paid("p", key="the same")),
    )
    items: list[Item] = [first, in_time, again]
    for batch in [items] if is_one_batch else [[one] for one in items]:
        await processor.process(batch)
    await assert_applied(shop, "p")
    assert (await shop.event_row(in_time))["status"] == "PROCESSED"
    before = await shop.payment("p")
    late_again = shop.paid("p", key="a third", email="other@example.com")
    await processor.process([late(late_again)])
    assert await shop.payment("p") == before
    row = await shop.event_row(late_again)
    assert (row["error_code"], row["external_payment_id"]) == (EXPIRED, None), "mere evidence"


async def test_reprocessing_an_expired_delivery_applies_it_once(
    shop: Stage, processor: Processor
) -> None:
    """PRV-8 OPS-4: its evidence stays what it was."""
    await shop.user("p@example.com")
    item = shop.paid("p")
    await processor.process([late(item)])
    reprocessor = Reprocessor(shop.database, shop.rules)
    done = await reprocessor.reprocess(item.event_id, "somebody")
    assert done.applied
    await assert_applied(shop, "p")
    assert (await shop.event_row(item))["error_code"] == EXPIRED
    assert not (await reprocessor.reprocess(item.event_id, "somebody")).applied
    await assert_applied(shop, "p")


async def test_accepting_an_expired_capture_applies_it(shop: Stage, processor: Processor) -> None:
    """PRV-8 PAY-8"""
    await shop.user("p@example.com")
    await processor.process([late(shop.paid("p"))])
    payment_id = PaymentId((await shop.payment("p"))["id"])
    linker = Linker(shop.database, shop.rules)
    await linker.link(payment_id, ACCEPT, "somebody", "payment_accepted")
    await assert_applied(shop, "p")


async def test_an_expired_redelivery_of_a_queued_event_changes_nothing(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """PRV-8 REC-4: a replay of what is stored already records nothing and tells nobody."""
    await shop.user("p@example.com")
    in_time = replace(shop.paid("p", key="k"), forced_outcome=DEFERRED)
    await processor.process([in_time])
    await processor.process([late(shop.paid("p", key="k"))])
    assert await shop.number("payments") == 0
    assert await worker.run_once() == 1
    await assert_applied(shop, "p")


async def test_an_expired_capture_is_notified_once_with_details(shop: Stage) -> None:
    """OBS-5 PRV-8: not of the payment and its event each, nor of every sibling."""
    processor = Processor(shop.database, shop.rules)
    item = shop.paid("p")
    await processor.process([late(item), late(shop.paid("p", key="sibling"))])
    await processor.process([late(shop.paid("p", key="another"))])
    await processor.close()
    notice = await shop.one("SELECT kind, event_id, payment_id, details FROM notifications")
    payment = await shop.payment("p")
    told = (notice["kind"], notice["event_id"], notice["payment_id"])
    assert told == ("expired", item.event_id, payment["id"])
    for word in (EXPIRED, "990.00", "signed long ago", "p***@example.com"):
        assert word in notice["details"]


async def test_an_unstorable_expired_delivery_is_still_evidence(
    shop: Stage, processor: Processor
) -> None:
    """PRV-8 SEC-5: and nobody else suffers for it."""
    bad, good = shop.paid("a\x00b"), shop.paid("p")
    results = (await processor.process([late(bad), late(good)])).results
    assert [one.event_id for one in results] == [bad.event_id, good.event_id]
    row = await shop.event_row(bad)
    assert (row["error_code"], row["external_payment_id"]) == (EXPIRED, None)
    await assert_listed(shop, "p")


async def test_an_expired_delivery_of_a_locked_payment_is_retried(
    shop: Stage, processor: Processor
) -> None:
    """PRV-8 REC-3: nothing is written until then."""
    await shop.user("p@example.com")
    await processor.process([shop.event(EventType.PENDING, "p", email="p@example.com")])
    item = shop.paid("p")
    async with held(shop, "SELECT 1 FROM payments FOR UPDATE"):
        for _ in range(2):  # without locks it has to give up; with locks it sees who holds it
            (result,) = (await processor.process([late(item)])).results
            assert result.kind is ResultKind.LOCKED
        assert await shop.rows("SELECT 1 FROM webhook_events WHERE id = $1", item.event_id) == []
    await processor.process([late(item)])
    await assert_listed(shop, "p")


async def test_handlers_are_called_when_it_is_applied(shop: Stage, processor: Processor) -> None:
    """PRV-8 FUL-5: and where they are called."""
    calls: list[str] = []

    async def handle(hook_event: HookEvent) -> None:
        calls.append(hook_event.name)

    await shop.user("p@example.com")
    source = replace(shop.source, has_handlers=True)
    handlers = Handlers({HookType.SUCCEEDED: (handle,)})
    rules = replace(shop.rules, sources={source.id: source}, handlers=handlers)
    item = replace(shop.paid("p"), source=source)
    await processor.process([late(item)])
    await Linker(shop.database, rules).create_user("p@example.com", "somebody")
    await assert_listed(shop, "p")
    assert calls == []
    await Reprocessor(shop.database, rules).reprocess(item.event_id, "somebody")
    worker = Worker(shop.database, rules, queue_name=QueueName.HOOKS)
    assert await worker.run_once() == 1
    await worker.close()
    assert calls == ["payment.succeeded"]
    await assert_applied(shop, "p")


async def test_expired_and_timely_deliveries_at_once_apply_it_once(shop: Stage) -> None:
    """PRV-8 PAY-3: on connections of their own."""
    await shop.user("p@example.com")

    async def process(item: Incoming | Rejected) -> None:
        processor = Processor(shop.database, shop.rules)
        async with asyncio.timeout(120):
            while (await processor.process([item])).results[0].kind is ResultKind.LOCKED:
                pass
        await processor.close()

    items = [shop.paid("p", key=f"k{number}") for number in range(10)]
    await asyncio.gather(
        *(process(late(item) if number % 2 else item) for number, item in enumerate(items))
    )
    await assert_applied(shop, "p")


@dataclass(frozen=True)
class Door:
    """The engine's door to a gateway whose deliveries are all too late."""

    intake: Intake
    shop: Stage

    async def deliver(self, item: Incoming) -> None:
        request = Request("request", "192.0.2.1", time.monotonic())
        await self.intake.receive(self.shop.source, {}, item.delivery.body, request)


@pytest_asyncio.fixture(loop_scope="session")
async def door(shop: Stage) -> AsyncIterator[Door]:
    group = Group(shop.database, shop.rules, max_waiting=100)
    group.start()
    sources = {shop.source.name: shop.source}
    yield Door(Intake(group, shop.database, sources, is_queued=False), shop)
    await group.stop()


async def test_only_an_expired_paid_event_records_money(door: Door) -> None:
    """PRV-8: what went back, failed or is pending is for what comes in time."""
    shop = door.shop
    some: dict[str, Any] = {"amount_minor": 99_000, "currency": "RUB"}
    for event_type in (EventType.REFUNDED, EventType.FAILED, EventType.PENDING, EventType.CANCELED):
        with pytest.raises(TimestampExpiredError):
            await door.deliver(shop.event(event_type, "p", **some))
    assert await shop.number("payments") == 0
    with pytest.raises(TimestampExpiredError):
        await door.deliver(shop.paid("p"))
    await assert_listed(shop, "p")
    assert await shop.number("webhook_events") == 5


async def test_an_unrecordable_capture_is_retried_and_not_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRV-8 REC-5: it has to come again, and is known then."""
    monkeypatch.setattr(groups, "MAX_LOCKED_S", 0.1)
    shop = door.shop
    processor = Processor(shop.database, shop.rules)
    await processor.process([shop.event(EventType.PENDING, "p", email="p@example.com")])
    await processor.close()
    async with held(shop, "SELECT 1 FROM payments FOR UPDATE"):
        with pytest.raises(DatabaseUnavailableError):
            await door.deliver(shop.paid("p"))
    with pytest.raises(TimestampExpiredError):
        await door.deliver(shop.paid("p"))
    await assert_listed(shop, "p")
