"""Money of deliveries that came too late: on record, not applied, and applied on a better word."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pytest
import pytest_asyncio

from paidonce.domain.events import DEFERRED, PaymentEvent, PaymentId, Says
from paidonce.domain.money import Money
from paidonce.domain.notices import NoticeKind
from paidonce.domain.orders import Kind
from paidonce.engine import group as groups
from paidonce.engine.confirming import Approver
from paidonce.engine.group import Group
from paidonce.engine.handlers import Handlers, Happened, Occasion
from paidonce.engine.intake import Intake
from paidonce.engine.items import Incoming, Item, Link, Refused, Request, Result
from paidonce.engine.linking import Linker
from paidonce.engine.reprocessing import Reprocessor
from paidonce.engine.transactions import Settler
from paidonce.engine.worker import Worker
from paidonce.errors import DatabaseAwayError, TimestampExpiredError
from paidonce.providers.contract import Delivery
from paidonce.store.due import Lane
from paidonce.store.orders import NewOrder
from tests.store.batches import Plain, Stage
from tests.store.test_settle import held

EXPIRED: Final = "TIMESTAMP_EXPIRED"
EVERYTHING: Final = dict.fromkeys(NoticeKind, ("ops",))


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
    rules = replace(shop.rules, sources={source.id: source}, told_to=EVERYTHING)
    return replace(shop, rules=rules, source=source)


def late(item: Incoming) -> Refused:
    """The same delivery, as one that came too late."""
    assert isinstance(item.event, PaymentEvent)
    return Refused(
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
    assert (payment["applied_at"], payment["review"], payment["is_stale"]) == (None, EXPIRED, True)
    assert (payment["captured_minor"], payment["status"]) == (99_000, "SUCCEEDED")
    assert await applied(shop) == await shop.number("subscriptions") == 0


async def assert_applied(shop: Stage, name: str) -> None:
    payment = await shop.payment(name)
    assert payment["applied_at"] is not None
    assert (payment["review"], payment["is_stale"]) == (None, False)
    assert await applied(shop) == 1


async def test_late_money_is_on_record_and_not_applied(shop: Stage, settler: Settler) -> None:
    """PRV-8: its evidence names the payment and claims no key."""
    await shop.user("p@example.com")
    item = shop.paid("p", key="k")
    (verdict,) = (await settler.settle([late(item)])).verdicts
    assert (verdict.result, verdict.event_id) == (Result.FAILED_FINAL, item.event_id)
    await assert_listed(shop, "p")
    row = await shop.event_row(item)
    assert (row["status"], row["error_code"], row["key"]) == ("FAILED_FINAL", EXPIRED, None)
    assert (row["type"], row["external_payment_id"]) == ("paid", "p")
    assert await shop.number("event_keys") == await shop.number("due") == 0
    counts = await shop.one("SELECT received, failed, succeeded FROM event_count_deltas")
    assert tuple(counts.values()) == (1, 1, 0)


async def test_neither_a_user_nor_an_order_nor_a_link_applies_it(
    shop: Stage, settler: Settler
) -> None:
    """PRV-8 PAY-5: whoever has captured a delivery waits in vain."""
    linker = Linker(shop.database, shop.rules)
    await settler.settle([late(shop.paid("p"))])
    user, _ = await linker.create_user("p@example.com", "somebody")
    await assert_listed(shop, "p")
    payment_id = PaymentId((await shop.payment("p"))["id"])
    await linker.link(payment_id, Link(user_id=user.id), "somebody", "payment_linked")
    await assert_listed(shop, "p")
    await settler.settle([late(shop.paid("q", email=None, order="o"))])
    order = NewOrder(payment_id, "o", Kind.ORDER, Money(99_000, "RUB"), b"same")
    await linker.create_order(order, "somebody")
    await assert_listed(shop, "q")
    assert (await shop.one("SELECT status FROM orders"))["status"] == "PENDING"


@pytest.mark.parametrize("key", ["the same", "another"])
@pytest.mark.parametrize("is_one_batch", [True, False], ids=["together", "apart"])
async def test_what_comes_in_time_applies_it_whichever_is_first(
    shop: Stage, settler: Settler, key: str, is_one_batch: bool
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
        await settler.settle(batch)
    await assert_applied(shop, "p")
    assert (await shop.event_row(in_time))["status"] == "PROCESSED"
    before = await shop.payment("p")
    late_again = shop.paid("p", key="a third", email="other@example.com")
    await settler.settle([late(late_again)])
    assert await shop.payment("p") == before
    row = await shop.event_row(late_again)
    assert (row["error_code"], row["external_payment_id"]) == (EXPIRED, None), "mere evidence"


async def test_an_operator_who_processes_it_again_applies_it_once(
    shop: Stage, settler: Settler
) -> None:
    """PRV-8 OPS-4: its evidence stays what it was."""
    await shop.user("p@example.com")
    item = shop.paid("p")
    await settler.settle([late(item)])
    reprocessor = Reprocessor(shop.database, shop.rules)
    done = await reprocessor.reprocess(item.event_id, "somebody")
    assert done.applied
    await assert_applied(shop, "p")
    assert (await shop.event_row(item))["error_code"] == EXPIRED
    assert not (await reprocessor.reprocess(item.event_id, "somebody")).applied
    await assert_applied(shop, "p")


async def test_an_operator_who_accepts_it_applies_it(shop: Stage, settler: Settler) -> None:
    """PRV-8 PAY-8"""
    await shop.user("p@example.com")
    await settler.settle([late(shop.paid("p"))])
    payment_id = PaymentId((await shop.payment("p"))["id"])
    linker = Linker(shop.database, shop.rules)
    await linker.link(payment_id, Link(is_accepted=True), "somebody", "payment_accepted")
    await assert_applied(shop, "p")


async def test_an_event_that_came_in_time_and_waits_needs_no_second_word(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """PRV-8 REC-4: a replay of what is stored already records nothing and tells nobody."""
    await shop.user("p@example.com")
    in_time = replace(shop.paid("p", key="k"), preset=DEFERRED)
    await settler.settle([in_time])
    await settler.settle([late(shop.paid("p", key="k"))])
    assert await shop.number("payments") == 0
    assert await worker.run_once() == 1
    await assert_applied(shop, "p")


async def test_people_are_told_once_with_what_they_need(shop: Stage) -> None:
    """OBS-5 PRV-8: not of the payment and its event each, nor of every sibling."""
    settler = Settler(shop.database, shop.rules)
    item = shop.paid("p")
    await settler.settle([late(item), late(shop.paid("p", key="sibling"))])
    await settler.settle([late(shop.paid("p", key="another"))])
    await settler.close()
    notice = await shop.one("SELECT kind, event_id, payment_id, details FROM notices")
    payment = await shop.payment("p")
    told = (notice["kind"], notice["event_id"], notice["payment_id"])
    assert told == ("stale", item.event_id, payment["id"])
    for word in (EXPIRED, "990.00", "signed long ago", "p***@example.com"):
        assert word in notice["details"]


async def test_what_a_column_cannot_hold_is_evidence_all_the_same(
    shop: Stage, settler: Settler
) -> None:
    """PRV-8 SEC-5: and nobody else suffers for it."""
    bad, good = shop.paid("a\x00b"), shop.paid("p")
    verdicts = (await settler.settle([late(bad), late(good)])).verdicts
    assert [one.event_id for one in verdicts] == [bad.event_id, good.event_id]
    row = await shop.event_row(bad)
    assert (row["error_code"], row["external_payment_id"]) == (EXPIRED, None)
    await assert_listed(shop, "p")


async def test_a_payment_that_others_hold_is_waited_for(shop: Stage, settler: Settler) -> None:
    """PRV-8 REC-3: nothing is written until then."""
    await shop.user("p@example.com")
    await settler.settle([shop.event(Says.PENDING, "p", email="p@example.com")])
    item = shop.paid("p")
    async with held(shop, "SELECT 1 FROM payments FOR UPDATE"):
        for _ in range(2):  # without locks it has to give up; with locks it sees who holds it
            (verdict,) = (await settler.settle([late(item)])).verdicts
            assert verdict.result is Result.BUSY
        assert await shop.rows("SELECT 1 FROM webhook_events WHERE id = $1", item.event_id) == []
    await settler.settle([late(item)])
    await assert_listed(shop, "p")


async def test_handlers_hear_of_it_when_it_is_applied(shop: Stage, settler: Settler) -> None:
    """PRV-8 FUL-5: and where they are called."""
    calls: list[str] = []

    async def handle(happened: Happened) -> None:
        calls.append(happened.name)

    await shop.user("p@example.com")
    source = replace(shop.source, has_handlers=True)
    handlers = Handlers({Occasion.SUCCEEDED: (handle,)})
    rules = replace(shop.rules, sources={source.id: source}, handlers=handlers)
    item = replace(shop.paid("p"), source=source)
    await settler.settle([late(item)])
    await Linker(shop.database, rules).create_user("p@example.com", "somebody")
    await assert_listed(shop, "p")
    assert calls == []
    await Reprocessor(shop.database, rules).reprocess(item.event_id, "somebody")
    worker = Worker(shop.database, rules, lane=Lane.HANDLE)
    assert await worker.run_once() == 1
    await worker.close()
    assert calls == ["payment.succeeded"]
    await assert_applied(shop, "p")


async def test_late_and_in_time_at_once_apply_it_once(shop: Stage) -> None:
    """PRV-8 PAY-3: on connections of their own."""
    await shop.user("p@example.com")

    async def settle(item: Incoming | Refused) -> None:
        settler = Settler(shop.database, shop.rules)
        async with asyncio.timeout(20):
            while (await settler.settle([item])).verdicts[0].result is Result.BUSY:
                pass
        await settler.close()

    items = [shop.paid("p", key=f"k{number}") for number in range(10)]
    await asyncio.gather(
        *(settle(late(item) if number % 2 else item) for number, item in enumerate(items))
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
    yield Door(Intake(group, Approver(shop.database), sources, is_queued=False), shop)
    await group.stop()


async def test_only_what_says_that_it_was_paid_leaves_more_than_evidence(door: Door) -> None:
    """PRV-8: what went back, failed or is pending is for what comes in time."""
    shop = door.shop
    some: dict[str, Any] = {"amount_minor": 99_000, "currency": "RUB"}
    for says in (Says.REFUNDED, Says.FAILED, Says.PENDING, Says.CANCELED):
        with pytest.raises(TimestampExpiredError):
            await door.deliver(shop.event(says, "p", **some))
    assert await shop.number("payments") == 0
    with pytest.raises(TimestampExpiredError):
        await door.deliver(shop.paid("p"))
    await assert_listed(shop, "p")
    assert await shop.number("webhook_events") == 5


async def test_what_cannot_be_recorded_is_put_off_and_not_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRV-8 REC-5: it has to come again, and is known then."""
    monkeypatch.setattr(groups, "BUSY_LIMIT_S", 0.1)
    shop = door.shop
    settler = Settler(shop.database, shop.rules)
    await settler.settle([shop.event(Says.PENDING, "p", email="p@example.com")])
    await settler.close()
    async with held(shop, "SELECT 1 FROM payments FOR UPDATE"):
        with pytest.raises(DatabaseAwayError):
            await door.deliver(shop.paid("p"))
    with pytest.raises(TimestampExpiredError):
        await door.deliver(shop.paid("p"))
    await assert_listed(shop, "p")
