"""A database server with a history of events, and the code that works on it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Paidonce
from benchmarks.databases import Databases, connected, open_databases
from benchmarks.growth.fill import churn, count_applied, fill, users_of
from paidonce.bootstrap.database import open_migrated_database
from paidonce.bootstrap.rules import load_rules
from paidonce.db.pool import Database
from paidonce.processing.items import Source
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from paidonce.settings.reading import load_settings

NAME = "bench_growth"
BATCH = 64


@dataclass(frozen=True, slots=True)
class Shop:
    """What the steps need. Its parts live as long as the shop, as in a service."""

    rows: int
    databases: Databases
    database: Database
    source: Source
    processor: Processor
    worker: Worker

    @property
    def users(self) -> int:
        """How many users there are."""
        return users_of(self.rows)

    async def fill(self, advance: Callable[[int], None]) -> None:
        """Create the history, and run a checkpoint."""
        async with connected(self.database.url) as connection:
            await fill(connection, self.source.id, self.rows, advance)
        await self.databases.checkpoint()

    async def count_applied(self) -> int:
        """How many payments are applied in this shop."""
        async with connected(self.database.url) as connection:
            return await count_applied(connection)

    @asynccontextmanager
    async def old_snapshot(self) -> AsyncIterator[None]:
        """Hold a snapshot of the database until the end of the block.

        Meanwhile as many queue rows as the shop has events are inserted and deleted. None of them
        can be vacuumed.
        """
        url = self.database.url
        async with (
            connected(url) as idle,
            idle.transaction(isolation="repeatable_read"),
            connected(url) as busy,
        ):
            await idle.execute("SELECT 1")
            await churn(busy, self.rows)
            await busy.execute("VACUUM (ANALYZE) event_queue")
            await self.databases.checkpoint()
            yield


@asynccontextmanager
async def open_shop(rows: int, work_dir: Path) -> AsyncIterator[Shop]:
    """Start a new server with the settings of the embedded one; remove it at the end."""
    async with open_databases(None) as databases:
        config = Paidonce().write_config(await databases.create(NAME), work_dir, port=1)
        settings = load_settings(config)
        async with open_migrated_database(settings) as database:
            rules, sources = await load_rules(settings, database)
            processor, worker = Processor(database, rules), Worker(database, rules, max_batch=BATCH)
            try:
                yield Shop(rows, databases, database, sources["bench"], processor, worker)
            finally:
                await processor.close()
                await worker.close()
