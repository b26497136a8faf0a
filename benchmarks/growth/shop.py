"""A server of its own with a history of so many events, and the engine that works on it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Paidonce
from benchmarks.databases import Databases, connected, open_databases
from benchmarks.growth.fill import churn, count_applied, fill, users_of
from paidonce.configured import load_rules
from paidonce.engine.items import Source
from paidonce.engine.transactions import Settler
from paidonce.engine.worker import Worker
from paidonce.opening import opened_database
from paidonce.settings import load_settings
from paidonce.store.db import Database

NAME = "bench_growth"
BATCH = 64


@dataclass(frozen=True, slots=True)
class Shop:
    """What the steps need. The engine's parts live as long as the shop, as they do in a service."""

    rows: int
    databases: Databases
    database: Database
    source: Source
    settler: Settler
    worker: Worker

    @property
    def users(self) -> int:
        """How many users there are."""
        return users_of(self.rows)

    async def fill(self, advance: Callable[[int], None]) -> None:
        """Make the history; every shop starts with its pages written out."""
        async with connected(self.database.url) as connection:
            await fill(connection, self.source.id, self.rows, advance)
        await self.databases.checkpoint()

    async def count_applied(self) -> int:
        """How many payments were applied in the shop's life."""
        async with connected(self.database.url) as connection:
            return await count_applied(connection)

    @asynccontextmanager
    async def old_snapshot(self) -> AsyncIterator[None]:
        """Somebody looks at the database as it is now until the end of the block.

        While he does, as many rows as the shop has events come and go in the queue. None of them
        can be cleared away.
        """
        url = self.database.url
        async with (
            connected(url) as idle,
            idle.transaction(isolation="repeatable_read"),
            connected(url) as busy,
        ):
            await idle.execute("SELECT 1")
            await churn(busy, self.rows)
            await busy.execute("VACUUM (ANALYZE) due")
            await self.databases.checkpoint()
            yield


@asynccontextmanager
async def open_shop(rows: int, work_dir: Path) -> AsyncIterator[Shop]:
    """Start a fresh server with the product's own settings; it is removed at the end."""
    async with open_databases(None) as databases:
        config = Paidonce().write_config(await databases.create(NAME), work_dir, port=1)
        settings = load_settings(config)
        async with opened_database(settings) as database:
            rules, sources = await load_rules(settings, database)
            settler, worker = Settler(database, rules), Worker(database, rules, max_batch=BATCH)
            try:
                yield Shop(rows, databases, database, sources["bench"], settler, worker)
            finally:
                await settler.close()
                await worker.close()
