"""Two transactions at once: whoever is second starts again on what the first one left."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from paidonce.domain.applying import waits_for_email
from paidonce.domain.events import EventId, ExternalId, PaymentId, Says
from paidonce.engine.items import Incoming, Result
from paidonce.engine.linking import Linker
from paidonce.engine.settle import settle
from paidonce.engine.transactions import Settler
from paidonce.store import people, settlement
from paidonce.store.queries import Connection
from paidonce.store.rows import KnownKey
from paidonce.store.settlement import Changes
from tests.store.batches import DAYS, Stage, somebody_waits

INTERLEAVINGS = 40


async def settled_after(
    shop: Stage, settler: Settler, first: Incoming, second: Incoming
) -> tuple[Result, Result]:
    """`first` is settled and not committed yet when `second` meets what it wrote."""
    async with shop.database.connection() as holder, shop.database.connection() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        (one,) = (await settle(holder, [first], shop.rules)).verdicts
        task = asyncio.create_task(settler.settle([second]))
        await _until_it_waits(task, watcher)
        await transaction.commit()
        (other,) = (await task).verdicts
    return one.result, other.result


async def _until_it_waits(task: asyncio.Task[Any], watcher: Connection) -> None:
    """Return when the task waits for a lock, or has come to its end without one."""
    waits = asyncio.create_task(somebody_waits(watcher))
    await asyncio.wait({task, waits}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)


async def test_the_second_of_one_key_is_a_duplicate(shop: Stage, settler: Settler) -> None:
    """INB-1 PAY-3: the database decides, not a look before the insert."""
    await shop.user("p@example.com")
    found = await settled_after(shop, settler, shop.paid("p"), shop.paid("p"))
    assert found == (Result.PROCESSED, Result.DUPLICATE)
    assert await shop.number("webhook_events") == await shop.number("outbox") == 1


async def test_the_second_of_one_key_may_be_a_conflict(shop: Stage, settler: Settler) -> None:
    """INB-2"""
    first = shop.paid("p", key="evt")
    second = shop.paid("p", key="evt", amount_minor=1)
    found = await settled_after(shop, settler, first, second)
    assert found == (Result.UNLINKED, Result.CONFLICT)


async def test_the_second_of_one_key_is_seen_though_it_names_another_payment(
    shop: Stage, settler: Settler
) -> None:
    """INB-1 INB-2: the two have nothing in common but the key."""
    for name in ("p", "q"):
        await shop.user(f"{name}@example.com")
    first, second = shop.paid("p", key="evt"), shop.paid("q", key="evt")
    found = await settled_after(shop, settler, first, second)
    assert found == (Result.PROCESSED, Result.CONFLICT)
    assert await shop.number("payments") == await shop.number("outbox") == 1


async def test_a_new_payment_is_made_once(shop: Stage, settler: Settler) -> None:
    """PAY-1 PAY-3: sibling events of a payment that neither knew."""
    await shop.user("p@example.com")
    first, second = shop.paid("p", key="evt-1"), shop.paid("p", key="evt-2")
    found = await settled_after(shop, settler, first, second)
    assert found == (Result.PROCESSED, Result.PROCESSED)
    assert await shop.number("payments") == await shop.number("outbox") == 1
    assert await shop.number("webhook_events") == 2


async def test_a_new_payment_that_nobody_owns_is_made_once(shop: Stage, settler: Settler) -> None:
    """PAY-1: the siblings have nothing in common but the payment's id."""
    first, second = shop.paid("p", key="evt-1"), shop.paid("p", key="evt-2")
    found = await settled_after(shop, settler, first, second)
    assert found == (Result.UNLINKED, Result.UNLINKED)
    assert await shop.number("payments") == await shop.number("payment_ids") == 1
    assert await shop.number("webhook_events") == 2


async def test_a_new_subscription_is_made_once_and_extended_twice(
    shop: Stage, settler: Settler
) -> None:
    """FUL-1 PAY-3: two payments of a user who had none."""
    await shop.user("p@example.com")
    second = shop.paid("p-2", email="p@example.com")
    found = await settled_after(shop, settler, shop.paid("p"), second)
    assert found == (Result.PROCESSED, Result.PROCESSED)
    row = await shop.one("SELECT current_period_end, version FROM subscriptions")
    starts = await shop.one("SELECT min(period_start) AS first FROM payments")
    assert row["current_period_end"] == starts["first"] + 2 * DAYS
    assert row["version"] == 2


async def test_batches_that_name_the_same_things_in_other_orders_both_settle(
    shop: Stage,
) -> None:
    """REC-3 PAY-3: deadlocks and lost races are run again."""
    names = [f"p-{number}" for number in range(12)]
    for name in names:
        await shop.user(f"{name}@example.com")
    settlers = [Settler(shop.database, shop.rules) for _ in range(4)]
    batches = []
    for number in range(len(settlers)):
        order = names if number % 2 else names[::-1]
        batches.append([shop.paid(name, key=f"evt-{name}-{number}") for name in order])
    done = await asyncio.gather(
        *(one.settle(batch) for one, batch in zip(settlers, batches, strict=True))
    )
    left = [verdict.item for settled in done for verdict in settled.verdicts if _is_busy(verdict)]
    while left:
        again = await settlers[0].settle(left)
        left = [verdict.item for verdict in again.verdicts if _is_busy(verdict)]
    await asyncio.gather(*(one.close() for one in settlers))
    assert await shop.number("payments") == await shop.number("outbox") == len(names)
    assert await shop.number("webhook_events") == len(names) * len(settlers)
    versions = await shop.rows("SELECT version FROM subscriptions")
    assert [row["version"] for row in versions] == [1] * len(names)


def _is_busy(verdict: object) -> bool:
    return getattr(verdict, "result", None) is Result.BUSY


def keys_of(shop: Stage, *names: str) -> Changes:
    """New keys, which sort by their names."""
    digests = [name.encode() * 16 for name in names]
    new = KnownKey(EventId(uuid7()), b"f" * 16, 1)
    return Changes(keys=[((shop.source.id, digest), new) for digest in digests])


def ids_of(shop: Stage, *names: str) -> Changes:
    """New ids of a payment, which sort by their names."""
    payment_id = PaymentId(uuid7())
    return Changes(ids=[(shop.source.id, ExternalId("k", name), payment_id) for name in names])


@pytest.mark.parametrize("named", [keys_of, ids_of], ids=["keys", "ids"])
async def test_batches_write_in_one_order_so_that_they_cannot_deadlock(
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
        await settlement.write(holder, named(shop, "m"), now)
        forth = asyncio.create_task(settlement.write(one, named(shop, "a", "m", "z"), now))
        await somebody_waits(watcher)
        back = asyncio.create_task(settlement.write(other, named(shop, "z", "m", "a"), now))
        await somebody_waits(watcher, sessions=2)
        await transaction.rollback()
        done = await asyncio.gather(forth, back, return_exceptions=True)
    assert done[0] is None
    assert isinstance(done[1], asyncpg.SerializationError), "it met what the first one wrote"


async def test_a_payment_sees_the_user_that_is_just_being_created(
    shop: Stage, settler: Settler
) -> None:
    """PAY-5: the user is added and not committed yet when the payment looks for it."""
    item, other = shop.paid("p"), shop.paid("other")
    await shop.user("other@example.com")
    async with shop.database.transaction() as holder:
        await settlement.announce_presence(holder, waits_for_email("p@example.com"))
        await people.create_user(holder, uuid7(), "p@example.com")
        verdicts = (await settler.settle([item, other])).verdicts
        assert [verdict.result for verdict in verdicts] == [Result.BUSY, Result.PROCESSED]
    (verdict,) = (await settler.settle([item])).verdicts
    assert verdict.result is Result.PROCESSED
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


async def test_a_payment_sees_the_user_that_was_created_before_it_had_the_lock(shop: Stage) -> None:
    """PAY-5: and after it had looked."""
    async with shop.database.transaction() as connection:
        meanwhile = Meanwhile(connection, lambda: shop.user("p@example.com"))
        settled = await settle(cast("Connection", meanwhile), [shop.paid("p")], shop.rules)
    assert [verdict.result for verdict in settled.verdicts] == [Result.PROCESSED]


async def test_a_user_sees_the_payment_that_is_just_being_settled(shop: Stage) -> None:
    """PAY-5: the payment found no user and is not committed yet when the user is created."""
    await _created_while_settling(shop, shop.paid("p"))
    assert (await shop.payment("p"))["applied_at"] is not None
    assert (await shop.one("SELECT status FROM webhook_events"))["status"] == "PROCESSED"


async def test_a_user_sees_the_payment_whose_address_came_with_an_earlier_event(
    shop: Stage, settler: Settler
) -> None:
    """PAY-5: no gap either when the paid event itself carries no address."""
    await settler.settle([shop.event(Says.PROCESSING, "p", email="p@example.com")])
    await _created_while_settling(shop, shop.paid("p", email=None))
    assert (await shop.payment("p"))["applied_at"] is not None


async def _created_while_settling(shop: Stage, item: Incoming) -> None:
    """The event is settled and not committed yet when somebody creates its user."""
    linker = Linker(shop.database, shop.rules)
    async with shop.database.connection() as holder, shop.database.connection() as watcher:
        transaction = holder.transaction()
        await transaction.start()
        (verdict,) = (await settle(holder, [item], shop.rules)).verdicts
        assert verdict.result is Result.UNLINKED
        task = asyncio.create_task(linker.create_user("P@example.com", "somebody"))
        await _until_it_waits(task, watcher)
        await transaction.commit()
        await task


async def test_users_and_payments_that_come_together_never_miss_each_other(shop: Stage) -> None:
    """PAY-5: whatever the interleaving."""
    linker = Linker(shop.database, shop.rules)
    settlers = [Settler(shop.database, shop.rules) for _ in range(2)]

    async def meet(number: int) -> None:
        email = f"p-{number}@example.com"
        pay = _settle_at_last(settlers[number % 2], shop.paid(f"p-{number}"))
        both = [pay, linker.create_user(email, "somebody")]
        await asyncio.gather(*(both if number % 3 else both[::-1]))

    for first in range(0, INTERLEAVINGS, 2):
        await asyncio.gather(meet(first), meet(first + 1))
    await asyncio.gather(*(one.close() for one in settlers))
    missed = await shop.rows("SELECT email, review FROM payments WHERE applied_at IS NULL")
    assert missed == []
    assert await shop.number("outbox") == INTERLEAVINGS


async def _settle_at_last(settler: Settler, item: Incoming) -> None:
    """Come again for as long as somebody holds what the event needs, as the group does."""
    for _ in range(500):
        (verdict,) = (await settler.settle([item])).verdicts
        if verdict.result is not Result.BUSY:
            return
    raise AssertionError("it is busy for ever")


@pytest.mark.parametrize("dead", [False, True], ids=["waiting", "dead letter"])
async def test_a_user_finds_what_was_paid_before(shop: Stage, settler: Settler, dead: bool) -> None:
    """PAY-5: works from payments, so it outlives dead letters."""
    item = shop.paid("p")
    await settler.settle([item])
    if dead:
        async with shop.database.transaction() as connection:
            await connection.execute("DELETE FROM due")
            await connection.execute(
                "UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now()"
            )
    before = datetime.now(UTC) - timedelta(minutes=1)
    await Linker(shop.database, shop.rules).create_user(" P@Example.com ", "somebody")
    payment = await shop.payment("p")
    assert payment["applied_at"] > before
    assert await shop.number("outbox") == 1
