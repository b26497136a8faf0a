"""A failing message becomes a dead letter, the group continues, and an operator can retry it."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import asyncpg
import pytest

from paidonce.bus.bisect import MAX_RERUNS, Retries
from paidonce.bus.model import Message
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import InvalidMessageError
from paidonce.notifications import store as notifications_store
from paidonce.notifications.digest import compose, render_text
from tests.bus.poison import POISON, PoisonConsumer, drained
from tests.bus.traffic import GROUP, consume_all, followed, follower, relay_all, rows, write_changes

LONG_S: Final = 3_600.0


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(KeyError("x"), 3), (TimeoutError(), 3), (InvalidMessageError("no such wallet"), 1)],
    ids=["fails", "times-out", "refused"],
)
async def test_a_poison_message_becomes_a_dead_letter_and_the_group_continues(
    database: Database, error: Exception, attempts: int
) -> None:
    """BUS-1: after all attempts, or after one if it is refused; a notification is sent."""
    await write_changes(database, "a", "b", POISON, "c", "a")
    await relay_all(database)
    picky = PoisonConsumer(error)
    consumer = follower(
        database, consume=picky.consume, routes={NotificationKind.BUS_DEAD_LETTER: ["office"]}
    )
    await drained(consumer)
    assert await followed(database) == [("a", 1), ("b", 1), ("c", 1), ("a", 2)]
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["consumer"], letter["key"], letter["type"]) == (GROUP, POISON, "Changed")
    assert letter["attempts"] == attempts
    said = "no such wallet" if attempts == 1 else type(error).__name__
    assert letter["error"] == said
    (notice,) = await rows(database, "SELECT * FROM notifications")
    assert (notice["channel"], notice["kind"]) == ("office", "bus_dead_letter")
    assert said in notice["details"]
    await consumer.close()


async def test_the_delay_of_a_poison_message_grows(database: Database) -> None:
    """RET-1: the group stands still meanwhile, so that the order of the key is kept."""
    await write_changes(database, POISON, "a")
    await relay_all(database)
    picky = PoisonConsumer(KeyError("x"))
    consumer = follower(
        database, consume=picky.consume, retries=Retries(attempts=5, initial_s=LONG_S, max_s=LONG_S)
    )
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(120):
        while picky.calls < 2:  # both together, and the first one alone
            await asyncio.sleep(0.01)
    consumer.finish()
    await asyncio.wait_for(running, 120)
    assert picky.calls == 2
    assert await followed(database) == []


async def test_a_retried_dead_letter_is_consumed(database: Database) -> None:
    """BUS-1 OPS-5: it fails again and stays, or it is consumed once."""
    await write_changes(database, POISON, "a")
    await relay_all(database)
    picky = PoisonConsumer(InvalidMessageError("not yet"))
    consumer = follower(database, consume=picky.consume)
    await drained(consumer)
    assert not await consumer.retry_once()  # nobody has asked
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    assert await consumer.retry_once()
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["attempts"], letter["retried_at"], letter["consumed_at"]) == (2, None, None)
    picky.is_cured = True
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    assert await consumer.retry_once()
    assert not await consumer.retry_once()
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert letter["consumed_at"] is not None
    assert await followed(database) == [("a", 1), (POISON, 1)]
    await consumer.close()


async def test_a_dead_letter_is_notified_without_its_body(database: Database) -> None:
    """OBS-5 BUS-1: which group, of what, and why; and nothing of its body."""
    await write_changes(database, POISON)
    await relay_all(database)
    picky = PoisonConsumer(InvalidMessageError("no such wallet, of 990.00"))
    consumer = follower(
        database, consume=picky.consume, routes={NotificationKind.BUS_DEAD_LETTER: ["office"]}
    )
    await drained(consumer)
    await consumer.close()
    async with database.transaction() as connection:
        content = compose(await notifications_store.assign(connection, "office", uuid4()))
    words = render_text(content, 1_000)
    assert content["subject"] == "Paidonce: 1 message not consumed"
    for word in (f"consumer {GROUP}", "type Changed", f"key {POISON}", "no such wallet, of 990.00"):
        assert word in words


async def test_a_retry_that_waits_for_a_lock_does_not_delay_new_messages(
    database: Database,
) -> None:
    """BUS-1 RET-3: it is tried at each look, and the group goes on between them."""
    picky = PoisonConsumer(ValueError("not today"))

    async def take(connection: Connection, messages: Sequence[Message]) -> None:
        if any(one.key == POISON for one in messages):
            await connection.execute("SELECT 1 FROM things WHERE key = $1 FOR UPDATE", POISON)
        await picky.consume(connection, messages)

    await write_changes(database, POISON)
    await relay_all(database)
    consumer = follower(database, consume=take)
    await drained(consumer)
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    picky.is_cured = True
    async with database.transaction() as holder:
        await holder.execute("SELECT 1 FROM things WHERE key = $1 FOR UPDATE", POISON)
        running = asyncio.create_task(consumer.run())
        await write_changes(database, "a", "b")
        await relay_all(database)
        async with asyncio.timeout(120):
            while len(await followed(database)) < 2:
                await asyncio.sleep(0.02)
    async with asyncio.timeout(120):
        while (POISON, 1) not in await followed(database):
            await asyncio.sleep(0.02)
    consumer.finish()
    await running


async def test_a_dead_letter_whose_retry_fails_is_open_again(
    database: Database,
) -> None:
    """BUS-1 RET-3: what looks like a lost race, and is one each time, has an end."""
    await write_changes(database, POISON)
    await relay_all(database)
    picky = PoisonConsumer(ValueError("not today"))
    consumer = follower(database, consume=picky.consume)
    await drained(consumer)
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    picky.error = asyncpg.SerializationError("somebody was first")
    looks = 0
    while not await consumer.retry_once():
        looks += 1
    assert looks == MAX_RERUNS
    assert await consumer.retry_once() is False
    (letter,) = await rows(database, "SELECT retried_at, error FROM bus_dead_letters")
    assert (letter["retried_at"], letter["error"]) == (None, "SerializationError")
    await consumer.close()


async def test_a_dead_letter_is_closed_when_its_message_is_redelivered_and_consumed(
    database: Database,
) -> None:
    """BUS-1: it came again after the inbox had forgotten it."""
    await write_changes(database, POISON)
    await relay_all(database)
    picky = PoisonConsumer(ValueError("not today"))
    consumer = follower(database, consume=picky.consume)
    await drained(consumer)
    picky.is_cured = True
    await rows(database, "DELETE FROM processed_events")
    await rows(database, "UPDATE bus_cursors SET pos = 0")
    await consume_all(consumer)
    assert await rows(database, "SELECT 1 FROM bus_dead_letters WHERE consumed_at IS NULL") == []
    assert await followed(database) == [(POISON, 1)]
    await consumer.close()
