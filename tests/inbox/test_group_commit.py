"""The queue before the database: it has an end, and nobody is answered before the commit."""

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from paidonce.errors import QueueFullError
from paidonce.inbox.group import Group
from paidonce.processing.items import Incoming, Result, ResultKind
from tests.support.batches import Stage


@asynccontextmanager
async def running(shop: Stage, max_waiting: int = 100) -> AsyncIterator[Group]:
    """A group that settles what it is given."""
    group = Group(shop.database, shop.rules, max_waiting)
    group.start()
    yield group
    await group.stop()


GATE: Final = (
    "CREATE TABLE gate ()",
    "CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.005); END LOOP;"
    " RETURN NULL; END $$",
    "CREATE TRIGGER gate BEFORE INSERT ON event_keys EXECUTE FUNCTION wait_at_the_gate()",
)
"""While it is closed no event is stored; unlike for a lock, nobody is impatient."""


@asynccontextmanager
async def held_up(shop: Stage, item: Incoming) -> AsyncIterator[tuple[Group, Task[Result]]]:
    """A group that has room for one delivery, whose transaction is open until the end."""
    async with running(shop, max_waiting=1) as group, shop.database.connection() as connection:
        for statement in GATE:
            await connection.execute(statement)
        answer = asyncio.create_task(group.submit(item))
        while not await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event = 'PgSleep' AND datname = current_database()"
        ):
            assert not answer.done(), "it was answered before it came to the gate"
        try:
            yield group, answer
        finally:
            await connection.execute("INSERT INTO gate DEFAULT VALUES")
            await asyncio.gather(answer, return_exceptions=True)


async def test_nobody_is_answered_while_the_transaction_is_open(shop: Stage) -> None:
    """REC-2"""
    await shop.user("p@example.com")
    async with held_up(shop, shop.paid("p")) as (_, answer):
        assert not answer.done()
    assert (await answer).kind is ResultKind.PROCESSED


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
    with pytest.raises(QueueFullError):
        await asyncio.wait_for(group.submit(shop.paid("more")), 120)
    group.start()
    results = await asyncio.gather(*answers)
    assert [result.kind for result in results] == [ResultKind.UNLINKED] * 3
    assert (await group.submit(shop.paid("more"))).kind is ResultKind.UNLINKED
    await group.stop()


async def test_what_is_in_hand_counts_as_waiting(shop: Stage) -> None:
    """SEC-8"""
    async with held_up(shop, shop.paid("p")) as (group, _):
        with pytest.raises(QueueFullError):
            await asyncio.wait_for(group.submit(shop.paid("more")), 120)
