"""Messages are taken once each, in order, and one that cannot be taken stops nobody."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from paidonce import telemetry
from paidonce.bus.blame import Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Behind
from paidonce.bus.messages import Message
from paidonce.bus.postgres import PostgresBus, PostgresReader
from paidonce.domain.notices import NoticeKind
from paidonce.errors import BusAwayError, MessageRefusedError
from paidonce.store import cursors, outbox
from paidonce.store.db import Database
from paidonce.store.queries import Connection
from tests.bus.poison import POISON, Picky, drained
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


async def test_people_are_told_of_messages_that_were_gone_before_they_were_taken(
    database: Database,
) -> None:
    """OBS-5 BUS-1: nobody else would ever find out."""

    class Forgetful(PostgresReader):
        async def behind(self, connection: Connection) -> Behind:
            return Behind({ABOUT: 0}, lost=3)

    class ForgetfulBus(PostgresBus):
        def reader(self, group: str, about: Collection[str]) -> Forgetful:
            return Forgetful(group, about)

    consumer = Consumer(
        ForgetfulBus(),
        database,
        name=GROUP,
        about=[ABOUT],
        take=follow,
        told_to={NoticeKind.BUS_LOSS: ["office"]},
    )
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(20):
        while not (found := await rows(database, "SELECT kind, details FROM notices")):
            await asyncio.sleep(0.01)
    consumer.finish()
    await running
    (notice,) = found
    assert (notice["kind"], orjson.loads(notice["details"])["messages"]) == ("bus_loss", "3")


async def test_a_group_that_cannot_count_how_far_it_is_behind_goes_on(database: Database) -> None:
    """BUS-1: a part of the bus is silent; what the others give is taken, and the group is seen."""

    class Silent(PostgresReader):
        async def behind(self, connection: Connection) -> Behind:
            raise BusAwayError("no leader")

    class SilentBus(PostgresBus):
        def reader(self, group: str, about: Collection[str]) -> Silent:
            return Silent(group, about)

    await told(database, "a")
    await relay_all(database)
    async with database.connection() as connection:
        await cursors.appear(connection, GROUP, [ABOUT])
        await connection.execute("UPDATE bus_cursors SET seen_at = now() - interval '1 day'")
    consumer = Consumer(SilentBus(), database, name=GROUP, about=[ABOUT], take=follow)
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(20):
        while not await followed(database):
            await asyncio.sleep(0.01)
    consumer.finish()
    await running
    (seen,) = await rows(
        database, "SELECT seen_at > now() - interval '1 hour' AS is_recent FROM bus_cursors"
    )
    assert seen["is_recent"]
