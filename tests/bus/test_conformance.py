"""What every bus does alike, from the outbox to the consumers: PostgreSQL and Kafka."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from paidonce.bus import groups
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus, Reader
from paidonce.bus.model import Message, NewMessage
from paidonce.bus.postgres import PostgresBus
from paidonce.bus.relay import ROLE, Relay
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import InvalidMessageError
from paidonce.runtime.leader import Leader
from tests.bus.conftest import GROUP, OTHER_GROUP
from tests.bus.reading import next_batch, until, versions_by_key
from tests.bus.traffic import AT_ONCE, check, follow, followed, rows, write_changes

THINGS: Final = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Line:
    """A bus with both of its ends, and what is sent over it."""

    bus: Bus
    database: Database
    about: str

    async def put(self, *keys: str) -> list[NewMessage]:
        """Write changes, and publish their messages."""
        facts = await write_changes(self.database, *keys, about=self.about)
        relay = Relay(self.bus, Leader(self.database))
        async with Leader(self.database).lead(ROLE) as leadership:
            assert leadership is not None
            async with leadership.connection() as connection:
                await until(lambda: _is_drained(relay, connection))
        return facts

    async def reader(self, group: str = GROUP) -> Reader:
        async with self.database.connection() as connection:
            await groups.register(connection, group, [self.about])
        return self.bus.reader(group, [self.about])

    async def consume(self, reader: Reader, number: int, limit: int = 100) -> list[Message]:
        """Take so many for good."""
        found: list[Message] = []

        async def is_enough() -> bool:
            async with self.database.transaction() as connection:
                batch = await next_batch(reader, connection, limit)
                await reader.advance(connection)
            await reader.acknowledge()
            found.extend(batch)
            return len(found) >= number

        await until(is_enough)
        return found

    async def look(self, reader: Reader, limit: int = 100) -> list[Message]:
        """Fetch some, and do not take them."""
        found: list[Message] = []

        async def is_there() -> bool:
            connection = await self.database.dedicated()
            begun = connection.transaction()
            await begun.start()
            found.extend(await next_batch(reader, connection, limit))
            await begun.rollback()
            connection.terminate()
            await reader.rewind()
            return bool(found)

        await until(is_there)
        return found

    def consumer(self, **given: Any) -> Consumer:
        usual: dict[str, Any] = {"name": GROUP, "consume": follow_all, "retries": AT_ONCE}
        return Consumer(self.bus, self.database, aggregate_types=[self.about], **(usual | given))


@pytest.fixture(params=["postgres", "kafka"])
def line(request: pytest.FixtureRequest, database: Database) -> Line:
    if request.param == "postgres":
        return Line(PostgresBus(), database, "thing")
    return Line(request.getfixturevalue("bus"), database, request.getfixturevalue("about"))


async def test_each_key_keeps_its_order_and_nothing_is_missing(line: Line) -> None:
    """BUS-1"""
    facts = [fact for _ in range(5) for fact in await line.put(*THINGS)]
    reader = await line.reader()
    got = await line.consume(reader, len(facts), limit=7)
    assert versions_by_key(got) == {key: [1, 2, 3, 4, 5] for key in THINGS}
    expected = {(one.id, one.key, one.type, one.version, one.occurred_at) for one in facts}
    assert {(one.id, one.key, one.type, one.version, one.time) for one in got} == expected
    await reader.close()


async def test_unconsumed_messages_are_redelivered_in_order(line: Line) -> None:
    """BUS-1"""
    await line.put(*THINGS)
    await line.put(*THINGS)
    reader = await line.reader()
    seen = [one for limit in (1, 3, 100) for one in await line.look(reader, limit)]
    got = await line.consume(reader, 8)
    assert {one.id for one in seen} <= {one.id for one in got}
    assert versions_by_key(got) == {key: [1, 2] for key in THINGS}
    await reader.close()


async def test_the_next_reader_continues_after_consumed_messages(line: Line) -> None:
    """BUS-1"""
    await line.put(*THINGS)
    first = await line.reader()
    await line.consume(first, 4)
    later = await line.put(*THINGS)
    await line.look(first)
    await first.close()
    second = await line.reader()
    assert {one.id for one in await line.consume(second, 4)} == {one.id for one in later}
    await second.close()


async def test_each_group_receives_all_messages(line: Line) -> None:
    """BUS-1: one that comes late, too."""
    await line.put(*THINGS)
    for group in (GROUP, OTHER_GROUP):
        reader = await line.reader(group)
        assert len(await line.consume(reader, 4)) == 4
        await reader.close()


async def test_a_group_consumes_each_message_once_while_members_come_and_go(
    line: Line,
) -> None:
    """BUS-1"""
    consumers = [line.consumer(max_batch=5) for _ in range(3)]
    running = [asyncio.create_task(one.run()) for one in consumers]
    for number in range(1, 5):
        await line.put(*THINGS, *THINGS)
        await until_followed(line, number * 8)
        if number < 3:
            consumers[number].finish()
            running[number].cancel()
    consumers[0].finish()
    await asyncio.wait(running)
    await check(line.database, [GROUP])


async def test_a_failing_message_becomes_a_dead_letter_and_the_others_are_consumed(
    line: Line,
) -> None:
    """BUS-1"""

    async def consume(connection: Connection, messages: Sequence[Message]) -> None:
        await follow(connection, messages, GROUP)
        if any(one.key == "b" for one in messages):
            raise InvalidMessageError("nobody wants it")

    await line.put(*THINGS)
    consumer = line.consumer(consume=consume)

    async def is_buried() -> bool:
        await consumer.run_once()
        return len(await rows(line.database, "SELECT 1 FROM bus_dead_letters")) == 1

    await until(is_buried)
    await until_followed(line, 3, consumer)
    await consumer.close()
    assert sorted(await followed(line.database, GROUP)) == [("a", 1), ("c", 1), ("d", 1)]


async def follow_all(connection: Connection, messages: Sequence[Message]) -> None:
    await follow(connection, messages, GROUP)


async def until_followed(line: Line, number: int, consumer: Consumer | None = None) -> None:
    async def is_followed() -> bool:
        if consumer is not None:
            await consumer.run_once()
        return len(await followed(line.database, GROUP)) >= number

    await until(is_followed)


async def _is_drained(relay: Relay, connection: Connection) -> bool:
    return await relay.run_once(connection) == 0
