"""Consumers consume each message once, in order; a failing message does not stop the group."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from paidonce.bus import groups, outbox
from paidonce.bus.bisect import Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Lag
from paidonce.bus.model import Message
from paidonce.bus.postgres import PostgresBus, PostgresReader
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import BusUnavailableError, InvalidMessageError
from paidonce.telemetry import metrics
from tests.bus.poison import POISON, PoisonConsumer, drained
from tests.bus.traffic import (
    ABOUT,
    GROUP,
    check,
    consume_all,
    follow,
    followed,
    follower,
    prepare,
    relay_all,
    rows,
    write_changes,
)


async def test_messages_are_published_and_consumed_in_order(database: Database) -> None:
    """BUS-1"""
    facts = [
        *await write_changes(database, "a", "b", "a"),
        *await write_changes(database, "b", "a"),
    ]
    consumer = follower(database)
    assert await consume_all(consumer) == 0  # nothing is consumed before it is published
    assert await relay_all(database) == 5
    assert await consume_all(consumer) == 5
    assert await followed(database) == [(one.key, one.version) for one in facts]
    assert await consume_all(consumer) == 0
    await consumer.close()


async def test_the_body_has_the_version_and_the_time(database: Database) -> None:
    """BUS-1: a reader of the body alone can tell which of two is newer."""
    (fact,) = await write_changes(database, "a")
    await relay_all(database)
    seen: list[Message] = []

    async def look(_: Connection, messages: Sequence[Message]) -> None:
        seen.extend(messages)

    consumer = follower(database, consume=look)
    await consume_all(consumer)
    await consumer.close()
    (message,) = seen
    assert (message.id, message.topic, message.time) == (
        fact.id,
        "paidonce.thing",
        fact.occurred_at,
    )
    assert message.published_at is not None
    assert b'"version": 1' in message.body
    assert datetime.fromisoformat(orjson.loads(message.body)["occurred_at"]) == fact.occurred_at


async def test_groups_are_independent_and_receive_only_their_topics(database: Database) -> None:
    """BUS-1"""
    await write_changes(database, "a")
    await write_changes(database, "b", about="other")
    await relay_all(database)
    both: list[str] = []

    async def look(_: Connection, messages: Sequence[Message]) -> None:
        both.extend(one.key for one in messages)

    wide = follower(database, name="wide", aggregate_types=[ABOUT, "other"], consume=look)
    narrow = follower(database)
    assert (await consume_all(narrow), await consume_all(wide)) == (1, 2)
    assert await followed(database) == [("a", 1)]
    assert both == ["a", "b"]
    await narrow.close()
    await wide.close()


async def test_a_redelivered_message_is_not_consumed_again(database: Database) -> None:
    """BUS-1: duplicates are recognised by the id, also within one batch."""
    (fact,) = await write_changes(database, "a")
    async with database.transaction() as connection:
        await outbox.add(connection, [fact, fact])
    await relay_all(database)
    consumer = follower(database)
    assert await consume_all(consumer) == 3
    async with database.transaction() as connection:
        await outbox.add(connection, [fact])
    await relay_all(database)
    assert await consume_all(consumer) == 1
    assert await followed(database) == [("a", 1)]
    await consumer.close()


async def test_one_process_of_a_group_reads_at_a_time(database: Database) -> None:
    """BUS-1: the other gets nothing, and does not wait."""
    await write_changes(database, "a", "b")
    await relay_all(database)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hold(connection: Connection, messages: Sequence[Message]) -> None:
        begun.set()
        await go_on.wait()
        await follow(connection, messages)

    first, second = follower(database, consume=hold), follower(database)
    holding = asyncio.create_task(first.run_once())
    await begun.wait()
    assert await second.run_once() == 0
    go_on.set()
    assert await holding == 2
    assert await second.run_once() == 0
    await check(database)
    await first.close()
    await second.close()


async def test_a_lost_connection_does_not_count_against_a_message(database: Database) -> None:
    """BUS-1: the message had no chance to be consumed."""
    await write_changes(database, "a")
    await relay_all(database)
    tries = 0

    async def cut_off(connection: Connection, messages: Sequence[Message]) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        await follow(connection, messages)

    consumer = follower(database, consume=cut_off, retries=Retries(attempts=1))
    for _ in range(2):
        with pytest.raises(Exception, match=r"terminat|closed|connection"):
            await consumer.run_once()
    assert await consumer.run_once() == 1
    assert await rows(database, "SELECT * FROM bus_dead_letters") == []
    await check(database)
    await consumer.close()


async def test_a_lost_race_is_rerun_and_not_counted_as_a_failure(database: Database) -> None:
    """BUS-1: a row that somebody else holds for a moment is no fault of the message."""
    await write_changes(database, "a")
    await relay_all(database)
    await rows(database, "CREATE TABLE held (id int PRIMARY KEY)")
    await rows(database, "INSERT INTO held VALUES (1)")

    async def need(connection: Connection, messages: Sequence[Message]) -> None:
        await connection.execute("SELECT 1 FROM held FOR UPDATE")
        await follow(connection, messages)

    consumer = follower(database, consume=need, retries=Retries(attempts=1))
    async with database.transaction() as connection:
        await connection.execute("SELECT 1 FROM held FOR UPDATE")
        assert await consumer.run_once() == 0
        assert await consumer.run_once() == 0
    assert await consumer.run_once() == 1
    assert await rows(database, "SELECT * FROM bus_dead_letters") == []
    await consumer.close()


async def test_a_stopped_consumer_finishes_its_batch(database: Database) -> None:
    """BUS-1 REL-2"""
    await write_changes(database, "a", "b")
    await relay_all(database)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(connection: Connection, messages: Sequence[Message]) -> None:
        begun.set()
        await go_on.wait()
        await follow(connection, messages)

    consumer = follower(database, consume=slowly)
    running = asyncio.create_task(consumer.run())
    await begun.wait()
    consumer.finish()
    go_on.set()
    await asyncio.wait_for(running, 120)
    await check(database)


async def test_the_lag_of_each_group_is_counted(database: Database) -> None:
    """OBS-2 BUS-1"""
    await prepare(database)
    async with database.connection() as connection:
        assert await outbox.backlog(connection) == (0, 0.0)
        await write_changes(database, "a", "b", "a")
        number, oldest_s = await outbox.backlog(connection)
        assert number == 3
        assert oldest_s > 0
        consumer = follower(database, max_batch=2)
        assert await consumer.run_once() == 0
        await relay_all(database)
        assert (await outbox.backlog(connection))[0] == 0

        async def lags() -> list[tuple[str, int]]:
            return [(one.consumer, one.lag) for one in await groups.list_groups(connection)]

        assert await lags() == [(GROUP, 3)]
        await consumer.run_once()
        assert await lags() == [(GROUP, 1)]
        await groups.register(connection, "elsewhere", ["thing"])
        await groups.heartbeat(connection, "elsewhere", ["thing"], {"thing": 7})
        assert await lags() == [("elsewhere", 7), (GROUP, 1)]
    await consumer.close()


async def test_consumed_messages_and_dead_letters_are_counted(database: Database) -> None:
    """OBS-2"""

    def counts() -> list[int]:
        counters: list[Any] = [
            metrics.BUS_CONSUMED,
            metrics.BUS_DUPLICATES,
            metrics.BUS_DEAD_LETTERED,
        ]
        return [metrics.total(one) for one in counters]

    before = counts()
    facts = await write_changes(database, "a", POISON)
    async with database.transaction() as connection:
        await outbox.add(connection, facts[:1])
    await relay_all(database)
    consumer = follower(database, consume=PoisonConsumer(InvalidMessageError("no")).consume)
    await drained(consumer)
    assert [now - was for now, was in zip(counts(), before, strict=True)] == [1, 1, 1]
    await consumer.close()


async def test_an_idle_group_writes_nothing(database: Database) -> None:
    """BUS-1: it looks several times a second, for years."""
    consumer = follower(database)
    await consumer.run_once()
    (before,) = await rows(database, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS x")
    for _ in range(10):
        assert await consumer.run_once() == 0
    (after,) = await rows(database, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS x")
    assert int(after["x"]) - int(before["x"]) < 10
    await consumer.close()


async def test_a_consumer_logs_why_the_bus_is_unavailable(database: Database) -> None:
    """OBS-1: the words name the remedy."""

    class Closed(PostgresReader):
        async def wait(self, connection: Connection, limit: int) -> bool:
            raise BusUnavailableError("make topic x")

    class ClosedBus(PostgresBus):
        def reader(self, group: str, aggregate_types: Collection[str]) -> Closed:
            return Closed(group, aggregate_types)

    consumer = Consumer(ClosedBus(), database, name=GROUP, aggregate_types=[ABOUT], consume=follow)
    with capture_logs() as logged:
        running = asyncio.create_task(consumer.run())
        async with asyncio.timeout(120):
            while not logged:
                await asyncio.sleep(0.01)
        consumer.finish()
        await running
    assert (logged[0]["event"], logged[0]["error"]) == ("service_interrupted", "make topic x")


async def test_lost_messages_are_notified(
    database: Database,
) -> None:
    """OBS-5 BUS-1: nothing else would show it."""

    class Forgetful(PostgresReader):
        async def lag(self) -> Lag:
            return Lag({ABOUT: 0}, lost=3)

    class ForgetfulBus(PostgresBus):
        def reader(self, group: str, aggregate_types: Collection[str]) -> Forgetful:
            return Forgetful(group, aggregate_types)

    consumer = Consumer(
        ForgetfulBus(),
        database,
        name=GROUP,
        aggregate_types=[ABOUT],
        consume=follow,
        routes={NotificationKind.BUS_LOSS: ["office"]},
    )
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(120):
        while not (found := await rows(database, "SELECT kind, details FROM notifications")):
            await asyncio.sleep(0.01)
    consumer.finish()
    await running
    (notice,) = found
    assert (notice["kind"], orjson.loads(notice["details"])["messages"]) == ("bus_loss", "3")


async def test_a_group_with_unknown_lag_continues(database: Database) -> None:
    """BUS-1: some partitions are unavailable; messages of the others are consumed."""

    class Silent(PostgresReader):
        async def lag(self) -> Lag:
            raise BusUnavailableError("no leader")

    class SilentBus(PostgresBus):
        def reader(self, group: str, aggregate_types: Collection[str]) -> Silent:
            return Silent(group, aggregate_types)

    await write_changes(database, "a")
    await relay_all(database)
    async with database.connection() as connection:
        await groups.register(connection, GROUP, [ABOUT])
        await connection.execute("UPDATE bus_cursors SET seen_at = now() - interval '1 day'")
    consumer = Consumer(SilentBus(), database, name=GROUP, aggregate_types=[ABOUT], consume=follow)
    running = asyncio.create_task(consumer.run())
    async with asyncio.timeout(120):
        while not await followed(database):
            await asyncio.sleep(0.01)
    consumer.finish()
    await running
    (seen,) = await rows(
        database, "SELECT seen_at > now() - interval '1 hour' AS is_recent FROM bus_cursors"
    )
    assert seen["is_recent"]
