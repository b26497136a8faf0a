"""A message that cannot be taken is buried, and stops nobody; a person may have it taken again."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import asyncpg
import pytest

from paidonce.bus.blame import MAX_RERUNS, Retries
from paidonce.bus.messages import Message
from paidonce.domain.notices import NoticeKind
from paidonce.engine.composing import composed, text_of
from paidonce.errors import MessageRefusedError
from paidonce.store import notices
from paidonce.store.db import Database
from paidonce.store.queries import Connection
from tests.bus.poison import POISON, Picky, drained
from tests.bus.traffic import GROUP, followed, follower, relay_all, rows, take_all, told

LONG_S: Final = 3_600.0


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(KeyError("x"), 3), (TimeoutError(), 3), (MessageRefusedError("no such wallet"), 1)],
    ids=["fails", "times-out", "refused"],
)
async def test_a_poison_message_is_buried_and_stops_nobody(
    database: Database, error: Exception, attempts: int
) -> None:
    """BUS-1: tried as often as it may be, or once if it cannot be taken ever; people are told."""
    await told(database, "a", "b", POISON, "c", "a")
    await relay_all(database)
    picky = Picky(error)
    consumer = follower(database, take=picky.take, told_to={NoticeKind.BUS_DEAD_LETTER: ["office"]})
    await drained(consumer)
    assert await followed(database) == [("a", 1), ("b", 1), ("c", 1), ("a", 2)]
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["consumer"], letter["key"], letter["type"]) == (GROUP, POISON, "Changed")
    assert letter["attempts"] == attempts
    said = "no such wallet" if attempts == 1 else type(error).__name__
    assert letter["error"] == said
    (notice,) = await rows(database, "SELECT * FROM notices")
    assert (notice["channel"], notice["kind"]) == ("office", "bus_dead_letter")
    assert said in notice["details"]
    await consumer.close()


async def test_a_poison_message_waits_longer_each_time(database: Database) -> None:
    """RET-1: the group stands still meanwhile, so that the order of the key is kept."""
    await told(database, POISON, "a")
    await relay_all(database)
    picky = Picky(KeyError("x"))
    consumer = follower(
        database, take=picky.take, retries=Retries(attempts=5, initial_s=LONG_S, max_s=LONG_S)
    )
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(10):
        while picky.asked < 2:  # both together, and the first one alone
            await asyncio.sleep(0.01)
    consumer.finish()
    await asyncio.wait_for(running, 10)
    assert picky.asked == 2
    assert await followed(database) == []


async def test_an_operator_gives_a_buried_message_to_its_group_again(database: Database) -> None:
    """BUS-1 OPS-5: it fails again and stays, or it is taken, once."""
    await told(database, POISON, "a")
    await relay_all(database)
    picky = Picky(MessageRefusedError("not yet"))
    consumer = follower(database, take=picky.take)
    await drained(consumer)
    assert not await consumer.retry_once()  # nobody has asked
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    assert await consumer.retry_once()
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert (letter["attempts"], letter["retried_at"], letter["taken_at"]) == (2, None, None)
    picky.is_cured = True
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    assert await consumer.retry_once()
    assert not await consumer.retry_once()
    (letter,) = await rows(database, "SELECT * FROM bus_dead_letters")
    assert letter["taken_at"] is not None
    assert await followed(database) == [("a", 1), (POISON, 1)]
    await consumer.close()


async def test_people_are_told_in_words_of_a_message_that_was_buried(database: Database) -> None:
    """OBS-5 BUS-1: which group, of what, and why; and nothing of its body."""
    await told(database, POISON)
    await relay_all(database)
    picky = Picky(MessageRefusedError("no such wallet, of 990.00"))
    consumer = follower(database, take=picky.take, told_to={NoticeKind.BUS_DEAD_LETTER: ["office"]})
    await drained(consumer)
    await consumer.close()
    async with database.transaction() as connection:
        content = composed(await notices.take(connection, "office", uuid4()))
    words = text_of(content, 1_000)
    assert content["subject"] == "Paidonce: 1 message not taken"
    for word in (f"consumer {GROUP}", "type Changed", f"key {POISON}", "no such wallet, of 990.00"):
        assert word in words


async def test_a_letter_that_has_to_wait_for_a_row_holds_up_nobody(database: Database) -> None:
    """BUS-1 RET-3: it is tried at each look, and the group goes on between them."""
    picky = Picky(ValueError("not today"))

    async def take(connection: Connection, messages: Sequence[Message]) -> None:
        if any(one.key == POISON for one in messages):
            await connection.execute("SELECT 1 FROM things WHERE key = $1 FOR UPDATE", POISON)
        await picky.take(connection, messages)

    await told(database, POISON)
    await relay_all(database)
    consumer = follower(database, take=take)
    await drained(consumer)
    await rows(database, "UPDATE bus_dead_letters SET retried_at = now()")
    picky.is_cured = True
    async with database.transaction() as holder:
        await holder.execute("SELECT 1 FROM things WHERE key = $1 FOR UPDATE", POISON)
        running = asyncio.create_task(consumer.run())
        await told(database, "a", "b")
        await relay_all(database)
        async with asyncio.timeout(20):
            while len(await followed(database)) < 2:
                await asyncio.sleep(0.02)
    async with asyncio.timeout(20):
        while (POISON, 1) not in await followed(database):
            await asyncio.sleep(0.02)
    consumer.finish()
    await running


async def test_a_letter_that_can_never_be_taken_is_left_to_a_person_again(
    database: Database,
) -> None:
    """BUS-1 RET-3: what looks like a lost race, and is one each time, has an end."""
    await told(database, POISON)
    await relay_all(database)
    picky = Picky(ValueError("not today"))
    consumer = follower(database, take=picky.take)
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


async def test_a_letter_whose_message_is_taken_after_all_is_none_any_more(
    database: Database,
) -> None:
    """BUS-1: it came again after the inbox had forgotten it."""
    await told(database, POISON)
    await relay_all(database)
    picky = Picky(ValueError("not today"))
    consumer = follower(database, take=picky.take)
    await drained(consumer)
    picky.is_cured = True
    await rows(database, "DELETE FROM processed_events")
    await rows(database, "UPDATE bus_cursors SET pos = 0")
    await take_all(consumer)
    assert await rows(database, "SELECT 1 FROM bus_dead_letters WHERE taken_at IS NULL") == []
    assert await followed(database) == [(POISON, 1)]
    await consumer.close()
