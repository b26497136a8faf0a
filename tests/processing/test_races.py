"""Two transactions at once: whoever is second starts again on what the first one left."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from paidonce.core.events import EventId, EventType, ExternalId, PaymentId
from paidonce.core.problems import blocked_on_email
from paidonce.db.queries import Connection
from paidonce.linking import store as linking_store
from paidonce.linking.linker import Linker
from paidonce.processing import store as processing_store
from paidonce.processing.items import Incoming, Result, ResultKind
from paidonce.processing.process import process
from paidonce.processing.rows import StoredKey
from paidonce.processing.store import Changes
from paidonce.processing.transactions import Processor
from tests.support.batches import DAYS, Stage, somebody_waits

INTERLEAVINGS = 40


async def settled_after(
    shop: Stage, processor: Processor, first: Incoming, second: Incoming
) -> tuple[ResultKind, ResultKind]:
    """`first` is settled and not committed yet when `second` meets what it wrote."""
    async with shop.database.connection() as holder, shop.database.connection() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        (one,) = (await process(holder, [first], shop.rules)).results
        task = asyncio.create_task(processor.process([second]))
        await _until_it_waits(task, watcher)
        await transaction.commit()
        (other,) = (await task).results
    return one.kind, other.kind


async def _until_it_waits(task: asyncio.Task[Any], watcher: Connection) -> None:
    """Return when the task waits for a lock, or has come to its end without one."""
    waits = asyncio.create_task(somebody_waits(watcher))
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)


async def test_the_second_event_of_a_key_is_a_duplicate(shop: Stage, processor: Processor) -> None:
    """INB-1 PAY-3: the database decides, not a look before the insert."""
    await shop.user("p@example.com")
    found = await settled_after(shop, processor, shop.paid("p"), shop.paid("p"))
    assert found == (ResultKind.PROCESSED, ResultKind.DUPLICATE)
    assert await shop.number("webhook_events") == await shop.number("outbox") == 1


async def test_the_second_event_of_a_key_may_be_a_conflict(
    shop: Stage, processor: Processor
) -> None:
    """INB-2"""
    first = shop.paid("p", key="evt")
    second = shop.paid("p", key="evt", amount_minor=1)
    found = await settled_after(shop, processor, first, second)
    assert found == (ResultKind.UNLINKED, ResultKind.CONFLICT)


async def test_the_second_event_of_a_key_is_found_even_for_another_payment(
    shop: Stage, processor: Processor
) -> None:
    """INB-1 INB-2: the two have nothing in common but the key."""
    for name in ("p", "q"):
        await shop.user(f"{name}@example.com")
    first, second = shop.paid("p", key="evt"), shop.paid("q", key="evt")
    found = await settled_after(shop, processor, first, second)
    assert found == (ResultKind.PROCESSED, ResultKind.CONFLICT)
    assert await shop.number("payments") == await shop.number("outbox") == 1


async def test_a_new_payment_is_created_once(shop: Stage, processor: Processor) -> None:
    """PAY-1 PAY-3: sibling events of a payment that neither knew."""
    await shop.user("p@example.com")
    first, second = shop.paid("p", key="evt-1"), shop.paid("p", key="evt-2")
    found = await settled_after(shop, processor, first, second)
    assert found == (ResultKind.PROCESSED, ResultKind.PROCESSED)
    assert await shop.number("payments") == await shop.number("outbox") == 1
    assert await shop.number("webhook_events") == 2


async def test_a_new_payment_without_a_user_is_created_once(
    shop: Stage, processor: Processor
) -> None:
    """PAY-1: the siblings have nothing in common but the payment's id."""
    first, second = shop.paid("p", key="evt-1"), shop.paid("p", key="evt-2")
    found = await settled_after(shop, processor, first, second)
    assert found == (ResultKind.UNLINKED, ResultKind.UNLINKED)
    assert await shop.number("payments") == await shop.number("payment_ids") == 1
    assert await shop.number("webhook_events") == 2


async def test_a_new_subscription_is_created_once_and_extended_twice(
    shop: Stage, processor: Processor
) -> None:
    """FUL-1 PAY-3: two payments of a user who had none."""
    await shop.user("p@example.com")
    second = shop.paid("p-2", email="p@example.com")
    found = await settled_after(shop, processor, shop.paid("p"), second)
    assert found == (ResultKind.PROCESSED, ResultKind.PROCESSED)
    row = await shop.one("SELECT current_period_end, version FROM subscriptions")
    starts = await shop.one("SELECT min(period_start) AS first FROM payments")
    assert row["current_period_end"] == starts["first"] + 2 * DAYS
    assert row["version"] == 2


async def test_batches_with_the_same_rows_in_other_orders_both_succeed(
    shop: Stage,
) -> None:
    """REC-3 PAY-3: deadlocks and lost races are run again."""
    names = [f"p-{number}" for number in range(12)]
    for name in names:
        await shop.user(f"{name}@example.com")
    processors = [Processor(shop.database, shop.rules) for _ in range(4)]
    batches = []
    for number in range(len(processors)):
        order = names if number % 2 else names[::-1]
        batches.append([shop.paid(name, key=f"evt-{name}-{number}") for name in order])
    done = await asyncio.gather(
        *(one.process(batch) for one, batch in zip(processors, batches, strict=True))
    )
    left = [result.item for processed in done for result in processed.results if _is_locked(result)]
    while left:
        again = await processors[0].process(left)
        left = [result.item for result in again.results if _is_locked(result)]
    await asyncio.gather(*(one.close() for one in processors))
    assert await shop.number("payments") == await shop.number("outbox") == len(names)
    assert await shop.number("webhook_events") == len(names) * len(processors)
    versions = await shop.rows("SELECT version FROM subscriptions")
    assert [row["version"] for row in versions] == [1] * len(names)


def _is_locked(result: Result) -> bool:
    return result.kind is ResultKind.LOCKED


def keys_of(shop: Stage, *names: str) -> Changes:
    """New keys, which sort by their names."""
    digests = [name.encode() * 16 for name in names]
    new = StoredKey(EventId(uuid7()), b"f" * 16, 1)
    return Changes(keys=[((shop.source.id, digest), new) for digest in digests])


def ids_of(shop: Stage, *names: str) -> Changes:
    """New ids of a payment, which sort by their names."""
    payment_id = PaymentId(uuid7())
    return Changes(
        payment_ids=[(shop.source.id, ExternalId("k", name), payment_id) for name in names]
    )


@pytest.mark.parametrize("named", [keys_of, ids_of], ids=["keys", "ids"])
async def test_batches_write_in_one_order_and_cannot_deadlock(
    shop: Stage, named: Callable[..., Changes]
) -> None:
    """REC-3: each has written its first name when both meet the middle one."""
    now = datetime.now(UTC)
    async with AsyncExitStack() as stack:
        holder, one, other, watcher = [
            await stack.enter_async_context(shop.database.connection()) for _ in range(4)
        ]
        transaction = holder.transaction()
        await transaction.start()
        await processing_store.write(holder, named(shop, "m"), now)
        forth = asyncio.create_task(processing_store.write(one, named(shop, "a", "m", "z"), now))
        await somebody_waits(watcher)
        back = asyncio.create_task(processing_store.write(other, named(shop, "z", "m", "a"), now))
        await somebody_waits(watcher, sessions=2)
        await transaction.rollback()
        done = await asyncio.gather(forth, back, return_exceptions=True)
    assert done[0] is None
    assert isinstance(done[1], asyncpg.SerializationError), "it met what the first one wrote"


async def test_a_payment_finds_a_user_that_is_being_created(
    shop: Stage, processor: Processor
) -> None:
    """PAY-5: the user is added and not committed yet when the payment looks for it."""
    item, other = shop.paid("p"), shop.paid("other")
    await shop.user("other@example.com")
    async with shop.database.transaction() as holder:
        await processing_store.lock_name(holder, blocked_on_email("p@example.com"))
        await linking_store.create_user(holder, uuid7(), "p@example.com")
        results = (await processor.process([item, other])).results
        assert [result.kind for result in results] == [ResultKind.LOCKED, ResultKind.PROCESSED]
    (result,) = (await processor.process([item])).results
    assert result.kind is ResultKind.PROCESSED
    assert (await shop.payment("p"))["applied_at"] is not None


class Meanwhile:
    """A connection on which something happens before its first `fetch`, which takes the lock."""

    def __init__(self, connection: Connection, happens: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._happens = happens

    async def fetch(self, *arguments: Any) -> Any:
        await self._happens()
        return await self._connection.fetch(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_a_payment_finds_a_user_created_before_it_had_the_lock(shop: Stage) -> None:
    """PAY-5: and after it had looked."""
    async with shop.database.transaction() as connection:
        meanwhile = Meanwhile(connection, lambda: shop.user("p@example.com"))
        processed = await process(cast("Connection", meanwhile), [shop.paid("p")], shop.rules)
    assert [result.kind for result in processed.results] == [ResultKind.PROCESSED]


async def test_a_new_user_finds_a_payment_that_is_being_processed(shop: Stage) -> None:
    """PAY-5: the payment found no user and is not committed yet when the user is created."""
    await _created_while_settling(shop, shop.paid("p"))
    assert (await shop.payment("p"))["applied_at"] is not None
    assert (await shop.one("SELECT status FROM webhook_events"))["status"] == "PROCESSED"


async def test_a_new_user_finds_a_payment_whose_address_came_earlier(
    shop: Stage, processor: Processor
) -> None:
    """PAY-5: no gap either when the paid event itself carries no address."""
    await processor.process([shop.event(EventType.PROCESSING, "p", email="p@example.com")])
    await _created_while_settling(shop, shop.paid("p", email=None))
    assert (await shop.payment("p"))["applied_at"] is not None


async def _created_while_settling(shop: Stage, item: Incoming) -> None:
    """The event is settled and not committed yet when somebody creates its user."""
    linker = Linker(shop.database, shop.rules)
    async with shop.database.connection() as holder, shop.database.connection() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        (result,) = (await process(holder, [item], shop.rules)).results
        assert result.kind is ResultKind.UNLINKED
        task = asyncio.create_task(linker.create_user("P@example.com", "somebody"))
        await _until_it_waits(task, watcher)
        await transaction.commit()
        await task


async def test_concurrent_users_and_payments_always_find_each_other(shop: Stage) -> None:
    """PAY-5: whatever the interleaving."""
    linker = Linker(shop.database, shop.rules)
    processors = [Processor(shop.database, shop.rules) for _ in range(2)]

    async def meet(number: int) -> None:
        email = f"p-{number}@example.com"
        pay = _settle_at_last(processors[number % 2], shop.paid(f"p-{number}"))
        both = [pay, linker.create_user(email, "somebody")]
        await asyncio.gather(*(both if number % 3 else both[::-1]))

    for first in range(0, INTERLEAVINGS, 2):
        await asyncio.gather(meet(first), meet(first + 1))
    await asyncio.gather(*(one.close() for one in processors))
    missed = await shop.rows("SELECT email, review FROM payments WHERE applied_at IS NULL")
    assert missed == []
    assert await shop.number("outbox") == INTERLEAVINGS


async def _settle_at_last(processor: Processor, item: Incoming) -> None:
    """Come again for as long as somebody holds what the event needs, as the group does."""
    for _ in range(500):
        (result,) = (await processor.process([item])).results
        if result.kind is not ResultKind.LOCKED:
            return
    raise AssertionError("it is busy for ever")


@pytest.mark.parametrize("dead", [False, True], ids=["waiting", "dead letter"])
async def test_a_new_user_finds_earlier_payments(
    shop: Stage, processor: Processor, dead: bool
) -> None:
    """PAY-5: works from payments, so it outlives dead letters."""
    item = shop.paid("p")
    await processor.process([item])
    if dead:
        async with shop.database.transaction() as connection:
            await connection.execute("DELETE FROM event_queue")
            await connection.execute(
                "UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now()"
            )
    before = datetime.now(UTC) - timedelta(minutes=1)
    await Linker(shop.database, shop.rules).create_user(" P@Example.com ", "somebody")
    payment = await shop.payment("p")
    assert payment["applied_at"] > before
    assert await shop.number("outbox") == 1
