"""The queue before the database: it has an end, and nobody is answered before the commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from paidonce.engine.group import Group
from paidonce.engine.items import Result
from paidonce.errors import IntakeFullError
from tests.store.batches import Stage, somebody_waits


@asynccontextmanager
async def running(shop: Stage, max_waiting: int = 100) -> AsyncIterator[Group]:
    """A group that settles what it is given."""
    group = Group(shop.database, shop.rules, max_waiting)
    group.start()
    yield group
    await group.stop()


@asynccontextmanager
async def held_up(shop: Stage) -> AsyncIterator[None]:
    """No event can be stored meanwhile."""
    async with shop.database.transaction() as connection:
        await connection.execute("LOCK TABLE event_keys IN EXCLUSIVE MODE")
        yield


async def test_nobody_is_answered_while_the_transaction_is_open(shop: Stage) -> None:
    """REC-2"""
    await shop.user("p@example.com")
    async with running(shop) as group, shop.database.connection() as watcher:
        async with held_up(shop):
            answer = asyncio.create_task(group.submit(shop.paid("p")))
            await somebody_waits(watcher)
            assert not answer.done()
        assert (await answer).result is Result.PROCESSED


@pytest.mark.parametrize("known", [True, False], ids=["at once", "under locks"])
async def test_what_was_answered_can_be_seen_by_everybody(shop: Stage, known: bool) -> None:
    """REC-2: also where a batch takes several statements, because nobody knows the user."""
    if known:
        await shop.user("p@example.com")
    item = shop.paid("p")
    async with running(shop) as group, shop.database.connection() as connection:
        await group.submit(item)
        query = "SELECT count(*) FROM webhook_events WHERE id = $1"
        assert await connection.fetchval(query, item.event_id) == 1


async def test_a_full_queue_refuses_what_comes_and_keeps_what_it_has(shop: Stage) -> None:
    """SEC-8: memory does not grow with what is sent."""
    group = Group(shop.database, shop.rules, max_waiting=3)  # nobody empties it yet
    items = [shop.paid(f"p-{number}") for number in range(3)]
    answers = [asyncio.create_task(group.submit(item)) for item in items]
    await asyncio.sleep(0)
    with pytest.raises(IntakeFullError):
        await asyncio.wait_for(group.submit(shop.paid("more")), 1)
    group.start()
    verdicts = await asyncio.gather(*answers)
    assert [verdict.result for verdict in verdicts] == [Result.UNLINKED] * 3
    assert (await group.submit(shop.paid("more"))).result is Result.UNLINKED
    await group.stop()


async def test_what_is_in_hand_counts_as_waiting(shop: Stage) -> None:
    """SEC-8"""
    async with running(shop, max_waiting=1) as group, shop.database.connection() as watcher:
        async with held_up(shop):
            answer = asyncio.create_task(group.submit(shop.paid("p")))
            await somebody_waits(watcher)
            with pytest.raises(IntakeFullError):
                await asyncio.wait_for(group.submit(shop.paid("more")), 1)
        assert (await answer).result is Result.UNLINKED
