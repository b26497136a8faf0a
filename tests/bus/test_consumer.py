"""Messages are taken once each, in order, and one that cannot be taken stops nobody."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

import asyncpg
import orjson
import pytest
from structlog.testing import capture_logs

from paidonce import telemetry
from paidonce.bus.blame import MAX_RERUNS, Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.messages import Message
from paidonce.bus.postgres import PostgresBus, PostgresReader
from paidonce.domain.notices import NoticeKind
from paidonce.engine.composing import composed, text_of
from paidonce.errors import BusAwayError, MessageRefusedError
from paidonce.store import cursors, notices, outbox
from paidonce.store.db import Database
from paidonce.store.queries import Connection
from tests.bus.traffic import (
    ABOUT,
    GROUP,
    check,
    follow,
    followed,
    follower,
    prepare,
    relay_all,
    rows,
    take_all,
    told,
)

POISON: Final = "poison"
LONG_S: Final = 3_600.0


class Picky:
    """Takes everything but what is called poison, for as long as it is not cured."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_cured = False
        self.asked = 0

    async def take(self, connection: Connection, messages: Sequence[Message]) -> None:
        self.asked += 1
        await follow(connection, messages)
        if not self.is_cured and any(one.key == POISON for one in messages):
            raise self.error


async def drained(consumer: Consumer) -> None:
    """Call it until it has nothing to take, as its loop does, without the pauses."""
    idle = 0
    for _ in range(200):
        idle = 0 if await consumer.run_once() else idle + 1
        if idle > 20:
            return
    raise AssertionError("there is no end of it")


async def test_what_was_told_is_published_and_taken_in_order(database: Database) -> None:
    """BUS-1"""
    facts = [*await told(database, "a", "b", "a"), *await told(database, "b", "a")]
    consumer = follower(database)
    assert await take_all(consumer) == 0  # nothing is taken before it is published
    assert await relay_all(database) == 5
    assert await take_all(consumer) == 5
    assert await followed(database) == [(one.key, one.version) for one in facts]
    assert await take_all(consumer) == 0
    await consumer.close()


async def test_the_body_has_the_version_and_the_time(database: Database) -> None:
    """BUS-1: a reader of the body alone can tell which of two is newer."""
    (fact,) = await told(database, "a")
    await relay_all(database)
    seen: list[Message] = []

    async def look(_: Connection, messages: Sequence[Message]) -> None:
        seen.extend(messages)

    consumer = follower(database, take=look)
    await take_all(consumer)
    await consumer.close()
    (message,) = seen
    assert (message.id, message.topic, message.time) == (fact.id, "paidonce.thing", fact.at)
    assert message.published_at is not None
    assert b'"version": 1' in message.body
    assert datetime.fromisoformat(orjson.loads(message.body)["occurred_at"]) == fact.at


async def test_groups_are_apart_and_get_only_what_they_want(database: Database) -> None:
    """BUS-1"""
    await told(database, "a")
    await told(database, "b", about="other")
    await relay_all(database)
    both: list[str] = []

    async def look(_: Connection, messages: Sequence[Message]) -> None:
        both.extend(one.key for one in messages)

    wide = follower(database, name="wide", about=[ABOUT, "other"], take=look)
    narrow = follower(database)
    assert (await take_all(narrow), await take_all(wide)) == (1, 2)
    assert await followed(database) == [("a", 1)]
    assert both == ["a", "b"]
    await narrow.close()
    await wide.close()


async def test_a_message_that_comes_again_is_not_taken_again(database: Database) -> None:
    """BUS-1: whoever publishes twice is told apart by the id, also within one batch."""
    (fact,) = await told(database, "a")
    async with database.transaction() as connection:
        await outbox.add(connection, [fact, fact])
    await relay_all(database)
    consumer = follower(database)
    assert await take_all(consumer) == 3
    async with database.transaction() as connection:
        await outbox.add(connection, [fact])
    await relay_all(database)
    assert await take_all(consumer) == 1
    assert await followed(database) == [("a", 1)]
    await consumer.close()


async def test_one_process_of_a_group_reads_at_a_time(database: Database) -> None:
    """BUS-1: the other gets nothing, and waits for nobody."""
    await told(database, "a", "b")
    await relay_all(database)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hold(connection: Connection, messages: Sequence[Message]) -> None:
        begun.set()
        await go_on.wait()
        await follow(connection, messages)

    first, second = follower(database, take=hold), follower(database)
    holding = asyncio.create_task(first.run_once())
    await begun.wait()
    assert await second.run_once() == 0
    go_on.set()
    assert await holding == 2
    assert await second.run_once() == 0
    await check(database)
    await first.close()
    await second.close()


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


async def test_a_database_that_is_away_is_waited_for(database: Database) -> None:
    """BUS-1: nothing is counted against a message that nobody could have taken."""
    await told(database, "a")
    await relay_all(database)
    tries = 0

    async def cut_off(connection: Connection, messages: Sequence[Message]) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        await follow(connection, messages)

    consumer = follower(database, take=cut_off, retries=Retries(attempts=1))
    for _ in range(2):
        with pytest.raises(Exception, match=r"terminat|closed|connection"):
            await consumer.run_once()
    assert await consumer.run_once() == 1
    assert await rows(database, "SELECT * FROM bus_dead_letters") == []
    await check(database)
    await consumer.close()


async def test_a_lost_race_is_run_again_and_counts_for_nothing(database: Database) -> None:
    """BUS-1: a row that somebody else holds for a moment is no fault of the message."""
    await told(database, "a")
    await relay_all(database)
    await rows(database, "CREATE TABLE held (id int PRIMARY KEY)")
    await rows(database, "INSERT INTO held VALUES (1)")

    async def need(connection: Connection, messages: Sequence[Message]) -> None:
        await connection.execute("SELECT 1 FROM held FOR UPDATE")
        await follow(connection, messages)

    consumer = follower(database, take=need, retries=Retries(attempts=1))
    async with database.transaction() as connection:
        await connection.execute("SELECT 1 FROM held FOR UPDATE")
        assert await consumer.run_once() == 0
        assert await consumer.run_once() == 0
    assert await consumer.run_once() == 1
    assert await rows(database, "SELECT * FROM bus_dead_letters") == []
    await consumer.close()


async def test_a_consumer_that_is_stopped_finishes_its_batch(database: Database) -> None:
    """BUS-1 REL-2"""
    await told(database, "a", "b")
    await relay_all(database)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(connection: Connection, messages: Sequence[Message]) -> None:
        begun.set()
        await go_on.wait()
        await follow(connection, messages)

    consumer = follower(database, take=slowly)
    running = asyncio.create_task(consumer.run())
    await begun.wait()
    consumer.finish()
    go_on.set()
    await asyncio.wait_for(running, 10)
    await check(database)


async def test_standings_tell_how_far_each_group_is_behind(database: Database) -> None:
    """OBS-2 BUS-1"""
    await prepare(database)
    async with database.connection() as connection:
        assert await outbox.backlog(connection) == outbox.Backlog(0, 0.0)
        await told(database, "a", "b", "a")
        behind = await outbox.backlog(connection)
        assert behind.number == 3
        assert behind.oldest_s > 0
        consumer = follower(database, max_batch=2)
        assert await consumer.run_once() == 0
        await relay_all(database)
        assert (await outbox.backlog(connection)).number == 0

        async def lags() -> list[tuple[str, int]]:
            return [(one.consumer, one.lag) for one in await cursors.standings(connection)]

        assert await lags() == [(GROUP, 3)]
        await consumer.run_once()
        assert await lags() == [(GROUP, 1)]
        await cursors.appear(connection, "elsewhere", ["thing"])
        await cursors.be_seen(connection, "elsewhere", ["thing"], {"thing": 7})
        assert await lags() == [("elsewhere", 7), (GROUP, 1)]
    await consumer.close()


async def test_messages_taken_and_buried_are_counted(database: Database) -> None:
    """OBS-2"""

    def counts() -> list[int]:
        counters: list[Any] = [telemetry.TAKEN, telemetry.BUS_DUPLICATES, telemetry.BURIED]
        return [telemetry.total(one) for one in counters]

    before = counts()
    facts = await told(database, "a", POISON)
    async with database.transaction() as connection:
        await outbox.add(connection, facts[:1])
    await relay_all(database)
    consumer = follower(database, take=Picky(MessageRefusedError("no")).take)
    await drained(consumer)
    assert [now - was for now, was in zip(counts(), before, strict=True)] == [1, 1, 1]
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


async def test_a_group_without_work_writes_nothing(database: Database) -> None:
    """BUS-1: it looks several times a second, for years."""
    consumer = follower(database)
    await consumer.run_once()
    (before,) = await rows(database, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS x")
    for _ in range(10):
        assert await consumer.run_once() == 0
    (after,) = await rows(database, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS x")
    assert int(after["x"]) - int(before["x"]) < 10
    await consumer.close()


async def test_what_a_consumer_waits_for_is_logged(database: Database) -> None:
    """OBS-1: the words name the remedy."""

    class Closed(PostgresReader):
        async def wait(self, connection: Connection, limit: int) -> bool:
            raise BusAwayError("make topic x")

    class ClosedBus(PostgresBus):
        def reader(self, group: str, about: Collection[str]) -> Closed:
            return Closed(group, about)

    consumer = Consumer(ClosedBus(), database, name=GROUP, about=[ABOUT], take=follow)
    with capture_logs() as logged:
        running = asyncio.create_task(consumer.run())
        async with asyncio.timeout(20):
            while not logged:
                await asyncio.sleep(0.01)
        consumer.finish()
        await running
    assert logged[0]["detail"] == "make topic x"
