"""Two transactions at once on one order: no money is lost, and none is applied twice."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import pytest

from paidonce.core.events import EventType
from paidonce.core.problems import blocked_on_order
from paidonce.db.pool import Trouble, trouble
from paidonce.db.queries import Connection, in_schema
from paidonce.errors import NotFoundError
from paidonce.linking import store as linking_store
from paidonce.linking.linker import Linker
from paidonce.processing import store as processing_store
from paidonce.processing.items import Incoming, ResultKind
from paidonce.processing.process import process, process_without_locks
from paidonce.processing.store import Changes, LoadKeys
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from tests.support.batches import Stage, somebody_waits
from tests.support.postgres import SCHEMA
from tests.support.till import PRICE, Till

INTERLEAVINGS: Final = 30
BATCH: Final = 7


@pytest.fixture
def till(shop: Stage) -> Till:
    return Till(shop, Linker(shop.database, shop.rules))


Act = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Race:
    """What was there, and two things that happen at once."""

    begin: Callable[[Till, str], Awaitable[object]]
    one: Callable[[Till, str], Awaitable[object]]
    other: Callable[[Till, str], Awaitable[object]]


async def _order(till: Till, name: str) -> None:
    await till.order(name)


async def _paid_order(till: Till, name: str) -> None:
    await till.order(name)
    await till.processed(till.paid(f"{name}-a", name))


async def _only_wallet(till: Till, name: str) -> None:
    await till.wallet(name)


async def _twice_paid_order(till: Till, name: str) -> None:
    await _paid_order(till, name)
    await till.processed(till.paid(f"{name}-b", name))


async def _create(till: Till, name: str) -> None:
    row = await till.stage.one("SELECT id FROM wallets WHERE owner = $1", name)
    await till.linker.create_order(till.new_order(name, row["id"]), b"same", "somebody")


def _pay(letter: str) -> Callable[[Till, str], Awaitable[object]]:
    return lambda till, name: till.processed(till.paid(f"{name}-{letter}", name))


def _refund(letter: str) -> Callable[[Till, str], Awaitable[object]]:
    return lambda till, name: till.processed(till.refunded(f"{name}-{letter}"))


RACES: Final = {
    "two payments": Race(_order, _pay("a"), _pay("b")),
    "a refund and another payment": Race(_paid_order, _refund("a"), _pay("b")),
    "two refunds": Race(_twice_paid_order, _refund("a"), _refund("b")),
    "a payment and its refund": Race(_order, _pay("a"), _refund("a")),
    "an order and its payment": Race(_only_wallet, _create, _pay("a")),
    "closing and paying": Race(_order, Till.closed, _pay("a")),
    "closing and refunding": Race(_paid_order, Till.closed, _refund("a")),
}


@pytest.mark.parametrize("race", RACES.values(), ids=RACES.keys())
async def test_no_interleaving_loses_or_repeats_an_effect(till: Till, race: Race) -> None:
    """PAY-3 PAY-5 PAY-7 FUL-3 FUL-4"""
    names = [f"order-{number}" for number in range(INTERLEAVINGS)]
    for name in names:
        await race.begin(till, name)

    async def meet(number: int) -> None:
        both = [race.one(till, names[number]), race.other(till, names[number])]
        await asyncio.gather(*(both if number % 2 else both[::-1]))

    for first in range(0, INTERLEAVINGS, 3):
        await asyncio.gather(*(meet(number) for number in range(first, first + 3)))
    for name in names:
        await till.check(name)


class Interrupted:
    """A connection on which something happens between the look at the rows and what follows it."""

    def __init__(self, connection: Connection, happens: Act) -> None:
        self._connection = connection
        self._happens: Act | None = happens

    async def fetchrow(self, *arguments: Any) -> Any:
        row = await self._connection.fetchrow(*arguments)
        happens, self._happens = self._happens, None
        if happens is not None:
            await happens()
        return row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


EVENTS: Final = {
    "another payment after a refund": (_refund("a"), "b"),
    "a refund after another payment": (_pay("b"), "back"),
    "a payment after another": (_pay("b"), "c"),
    "a payment after closing": (Till.closed, "b"),
}


@pytest.mark.parametrize("is_locked", [False, True], ids=["without locks", "under locks"])
@pytest.mark.parametrize(("first", "second"), EVENTS.values(), ids=EVENTS.keys())
async def test_a_batch_loaded_before_a_concurrent_write_is_run_again(
    till: Till,
    first: Callable[[Till, str], Awaitable[object]],
    second: str,
    is_locked: bool,
) -> None:
    """PAY-7 FUL-3: the order is touched by whatever happens to a payment of it."""
    begin = _order if first is Till.closed else _paid_order
    await begin(till, "order")
    item = till.refunded("order-a") if second == "back" else till.paid(f"order-{second}", "order")
    if is_locked:
        await _settled_under_locks(till, item, lambda: first(till, "order"))
    else:
        async with till.stage.database.connection() as connection:
            slow = cast("Connection", Interrupted(connection, lambda: first(till, "order")))
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await process_without_locks(slow, [item], till.stage.rules)
            assert trouble(caught.value) is Trouble.RERUN
        await till.processed(item)
    await till.check("order")


class HeldUp:
    """A connection whose first look stops after it has begun, and before it locks an order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_first = True

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        if self._is_first:
            self._is_first = False
            lock = "pg_advisory_xact_lock_shared(4711)::text IS NOT NULL"
            begin = in_schema("    SELECT o.* FROM paidonce.orders AS o WHERE ", SCHEMA)
            assert sql.count(f"{begin}o.id IN") == 1
            sql = sql.replace(f"{begin}o.id IN", f"{begin}{lock} AND o.id IN")
        return await self._connection.fetchrow(sql, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def _settled_under_locks(till: Till, item: Incoming, happens: Act) -> None:
    """Settle an item whose look at the rows began before something happened, and locked after."""
    database = till.stage.database
    async with database.connection() as holder, database.connection() as watcher:
        await holder.execute("SELECT pg_advisory_lock(4711)")
        task = asyncio.create_task(_settle_held_up(till, item))
        await somebody_waits(watcher)
        await happens()
        await holder.execute("SELECT pg_advisory_unlock(4711)")
        (result,) = (await task).results
    if result.kind is ResultKind.LOCKED:
        await till.processed(item)


async def _settle_held_up(till: Till, item: Incoming) -> Any:
    async with till.stage.database.transaction() as connection:
        return await process(cast("Connection", HeldUp(connection)), [item], till.stage.rules)


async def test_a_new_order_finds_a_payment_that_is_being_processed(till: Till) -> None:
    """PAY-5: the payment found no order and is not committed yet when the order is created."""
    wallet_id = await till.wallet("order")
    database = till.stage.database
    async with database.connection() as holder, database.connection() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        (result,) = (await process(holder, [till.paid("p", "order")], till.stage.rules)).results
        assert result.kind is ResultKind.UNLINKED
        created = till.linker.create_order(till.new_order("order", wallet_id), b"same", "somebody")
        task = asyncio.ensure_future(created)
        await somebody_waits(watcher)
        await transaction.commit()
        assert await task
    assert (await till.check("order"))["status"] == "PAID"


async def test_a_payment_finds_an_order_that_is_being_created(till: Till) -> None:
    """PAY-5: the order is added and not committed yet when the payment looks for it."""
    wallet_id = await till.wallet("order")
    processor = Processor(till.stage.database, till.stage.rules)
    item = till.paid("p", "order")
    async with till.stage.database.transaction() as holder:
        await processing_store.lock_name(holder, blocked_on_order("order"))
        await linking_store.create_order(holder, till.new_order("order", wallet_id), b"same")
        (result,) = (await processor.process([item])).results
        assert result.kind is ResultKind.LOCKED
    await processor.close()
    await till.processed(item)
    assert (await till.check("order"))["status"] == "PAID"


async def test_closing_an_order_waits_for_its_payment(till: Till) -> None:
    """FUL-3: it is paid then, and cannot be closed."""
    await till.order("order")
    database = till.stage.database
    async with database.connection() as holder, database.connection() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        await process(holder, [till.paid("p", "order")], till.stage.rules)
        task = asyncio.create_task(till.closed("order"))
        await somebody_waits(watcher)
        await transaction.commit()
        assert not await task
    assert (await till.check("order"))["status"] == "PAID"


@pytest.mark.parametrize("table", ["orders", "wallets"])
async def test_a_locked_row_blocks_only_its_own_events(till: Till, table: str) -> None:
    """REC-3 PAY-3: nobody is waited for, and nothing of what is busy is written."""
    await till.order("busy")
    await till.order("free")
    held = {
        "orders": "SELECT 1 FROM orders WHERE reference = 'busy' FOR UPDATE",
        "wallets": "SELECT 1 FROM wallets WHERE owner = 'busy' FOR UPDATE",
    }[table]
    items = [till.paid("p", "busy"), till.paid("q", "free")]
    async with till.stage.database.transaction() as holder:
        assert await holder.fetch(held)
        async with till.stage.database.transaction() as connection:
            processed = await process(connection, items, till.stage.rules)
    assert [one.kind for one in processed.results] == [ResultKind.LOCKED, ResultKind.PROCESSED]
    await till.processed(items[0])
    for reference in ("busy", "free"):
        assert (await till.check(reference))["status"] == "PAID"


@pytest.mark.parametrize("table", ["orders", "wallets"])
async def test_a_row_that_changed_since_it_was_read_is_not_overwritten(
    till: Till, table: str
) -> None:
    """PAY-3: the version guards, even where no lock did."""
    await till.order("order")
    async with till.stage.database.connection() as connection:
        loaded = await processing_store.load_without_locks(
            connection, LoadKeys(references={"order"}), till.stage.rules
        )
        stale = {
            "orders": Changes(orders=list(loaded.state.orders.values())),
            "wallets": Changes(
                wallets=[replace(one, balance_minor=7) for one in loaded.state.wallets.values()]
            ),
        }[table]
        await till.processed(till.paid("p", "order"))
        with pytest.raises(Exception) as caught:  # noqa: PT011
            async with connection.transaction():
                await processing_store.write(connection, stale, loaded.now)
    assert trouble(caught.value) is Trouble.RERUN
    assert (await till.check("order"))["status"] == "PAID"


async def test_siblings_of_one_payment_in_one_batch_pay_an_order_once(till: Till) -> None:
    """PAY-3: other events, one payment, one credit; all of them are processed."""
    await till.order("order")
    items = [till.paid("p", "order", key=f"evt-{number}") for number in range(5)]
    async with till.stage.database.transaction() as connection:
        processed = await process(connection, items, till.stage.rules)
    assert [one.kind for one in processed.results] == [ResultKind.PROCESSED] * 5
    assert (await till.check("order"))["status"] == "PAID"


async def test_rival_payments_in_one_batch_end_as_in_many_batches(till: Till) -> None:
    """PAY-7 FUL-4: a batch sees what its own events did."""
    await till.order("order")
    await till.processed(
        till.paid("p", "order"),
        till.paid("q", "order"),
        till.refunded("p"),
        till.refunded("q", 40_000),
    )
    order, payment = await till.check("order"), await till.stage.payment("q")
    assert (order["status"], order["applied_payment_id"]) == ("PAID", payment["id"])


async def test_payments_that_share_an_id_are_merged(till: Till) -> None:
    """PAY-1 PAY-6: with its refunds, its ids, and its events."""
    await till.order("order")
    back = till.stage.event(
        EventType.REFUNDED, "charge", amount_minor=30_000, currency="RUB", refund_id="r-1"
    )
    await till.processed(till.paid("intent", "order"))
    await till.processed(back)
    assert await till.stage.number("payments") == 2
    await till.processed(till.stage.event(EventType.PENDING, "intent", "charge"))
    assert await till.stage.number("payments") == 1
    payment = await till.stage.payment("charge")
    assert payment["status"] == "PARTIALLY_REFUNDED"
    assert payment["id"] == (await till.stage.payment("intent"))["id"]
    assert (payment["reversed_minor"], payment["review"]) == (30_000, None)
    await till.check("order")


async def test_two_applied_payments_with_a_shared_id_need_review(till: Till) -> None:
    """PAY-1: LINK_CONFLICT; nothing moves."""
    for name in ("one", "other"):
        await till.order(name)
        await till.processed(till.paid(name, name))
    await till.processed(till.stage.event(EventType.PENDING, "one", "other"))
    reviews = [row["review"] for row in await till.stage.rows("SELECT review FROM payments")]
    assert "LINK_CONFLICT" in reviews
    statuses = await till.stage.rows("SELECT status FROM orders")
    assert [row["status"] for row in statuses] == ["PAID", "PAID"]
    balances = await till.stage.rows("SELECT balance_minor FROM wallets")
    assert [row["balance_minor"] for row in balances] == [PRICE, PRICE]


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_events_on_a_few_orders_ends_in_the_right_state(
    till: Till, worker: Worker, seed: int
) -> None:
    """PAY-2 PAY-3 PAY-5 PAY-7 FUL-3 FUL-4: batches, creations and closings, all at once."""
    chance = random.Random(seed)
    names = [f"order-{number}" for number in range(8)]
    for name in names:
        await till.wallet(name)
    acts: list[Act] = [partial(_create, till, name) for name in names]
    acts += [partial(_closed_if_there, till, name) for name in names[:3]]
    events = [one for name in names for one in _lives_of_three(till, name)]
    events += chance.sample(events, len(events) // 2)
    chance.shuffle(events)
    starts = range(0, len(events), BATCH)
    acts += [partial(till.processed, *events[first : first + BATCH]) for first in starts]
    chance.shuffle(acts)
    for first in range(0, len(acts), 6):
        await asyncio.gather(*(act() for act in acts[first : first + 6]))
    while await worker.run_once():
        pass
    for name in names:
        await till.check(name)
    assert await till.stage.rows("SELECT 1 FROM event_queue") == []


def _lives_of_three(till: Till, name: str) -> list[Incoming]:
    """Of one payment everything goes back, of another a part, and the third one stays."""
    a, b, c = (f"{name}-{letter}" for letter in "abc")
    return [
        till.paid(a, name),
        till.refunded(a),
        till.paid(b, name),
        till.refunded(b, 40_000),
        till.paid(c, name),
        till.stage.event(EventType.FAILED, c, order=name),
    ]


async def _closed_if_there(till: Till, name: str) -> None:
    with suppress(NotFoundError):
        await till.closed(name)
