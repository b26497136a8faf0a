"""Things that change, tell of it, and are followed: what a bus is tried with."""

import asyncio
import random
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from paidonce.bus import outbox
from paidonce.bus.bisect import Retries
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus
from paidonce.bus.model import Message, NewMessage
from paidonce.bus.postgres import PostgresBus, PostgresReader
from paidonce.bus.relay import ROLE, Relay
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.runtime.leader import Leader

ABOUT: Final = "thing"
GROUP: Final = "followers"
AT_ONCE: Final = Retries(attempts=3, initial_s=0.0, max_s=0.0)

TABLES: Final = """
CREATE TABLE IF NOT EXISTS things (key text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS followed (
    number bigint GENERATED ALWAYS AS IDENTITY, consumer text, event_id uuid, key text,
    version bigint);
"""


async def prepare(database: Database, keys: Collection[str] = ()) -> None:
    """Make the things."""
    async with database.connection() as connection:
        await connection.execute(TABLES)
        await connection.executemany(
            "INSERT INTO things (key) VALUES ($1) ON CONFLICT DO NOTHING", [(one,) for one in keys]
        )


async def change(
    connection: Connection, key: str, *, about: str = ABOUT, type_: str = "Changed"
) -> NewMessage:
    """Change a thing and tell of it, while its row is locked."""
    version = await connection.fetchval(
        "UPDATE things SET version = version + 1 WHERE key = $1 RETURNING version", key
    )
    fact = NewMessage(about, key, type_, version, {"key": key}, datetime.now(UTC))
    await outbox.add(connection, [fact])
    return fact


async def change_often(
    database: Database, keys: Sequence[str], times: int, *, seed: int, hold_s: float = 0.01
) -> None:
    """Change things in many transactions, some of which commit late."""
    dice = random.Random(seed)
    for _ in range(times):
        async with database.transaction() as connection:
            await change(connection, dice.choice(keys))
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * hold_s)


async def write_changes(database: Database, *keys: str, **said: Any) -> list[NewMessage]:
    """A change of each of the things, in one transaction."""
    await prepare(database, keys)
    async with database.transaction() as connection:
        return [await change(connection, key, **said) for key in keys]


async def follow(connection: Connection, messages: Sequence[Message], name: str = GROUP) -> None:
    """Take messages: write down that they came, in their order."""
    await connection.executemany(
        "INSERT INTO followed (consumer, event_id, key, version) VALUES ($1, $2, $3, $4)",
        [(name, one.id, one.key, one.version) for one in messages],
    )


class OtherBus(Bus):
    """Another bus than PostgreSQL for the relay; read all the same."""

    is_outbox = False

    async def publish(self, messages: Sequence[Message]) -> None:
        """It is safe there."""

    def reader(self, group: str, aggregate_types: Collection[str]) -> PostgresReader:
        return PostgresReader(group, aggregate_types)


def follower(database: Database, **given: Any) -> Consumer:
    """A consumer that writes down what comes."""
    usual: dict[str, Any] = {
        "name": GROUP,
        "aggregate_types": [ABOUT],
        "consume": follow,
        "retries": AT_ONCE,
    }
    return Consumer(PostgresBus(), database, **(usual | given))


async def relay_all(database: Database, max_batch: int = 1_000) -> int:
    """Publish all that there is, as the relay that leads does."""
    relay, published = Relay(PostgresBus(), Leader(database), max_batch=max_batch), 0
    async with Leader(database).lead(ROLE) as leadership:
        assert leadership is not None
        async with leadership.connection() as connection:
            while number := await relay.run_once(connection):
                published += number
    return published


async def consume_all(consumer: Consumer) -> int:
    """Let it take all that there is."""
    taken = 0
    while number := await consumer.run_once():
        taken += number
    return taken


async def rows(database: Database, sql: str, *values: object) -> list[dict[str, Any]]:
    async with database.connection() as connection:
        return [dict(row) for row in await connection.fetch(sql, *values)]


async def followed(database: Database, name: str = GROUP) -> list[tuple[str, int]]:
    """The consumed messages, in order."""
    found = await rows(
        database, "SELECT key, version FROM followed WHERE consumer = $1 ORDER BY number", name
    )
    return [(row["key"], row["version"]) for row in found]


async def check(database: Database, names: Collection[str] = (GROUP,)) -> None:
    """Nothing is lost or consumed twice, and each key is in order."""
    final = await rows(database, "SELECT key, version FROM things")
    for name in names:
        by_key: dict[str, list[int]] = {row["key"]: [] for row in final}
        for key, version in await followed(database, name):
            by_key[key].append(version)
        wanted = {row["key"]: list(range(1, row["version"] + 1)) for row in final}
        assert by_key == wanted, name
