"""Databases that outlive a test, where making one for each would cost more than it proves."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import structlog

from paidonce.db.pool import Database
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from tests.support.batches import Stage, stage


@pytest.fixture(autouse=True, scope="session")
def _logging() -> None:
    """Plain tracebacks: those that structlog draws by itself take seconds each."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[plain])


@pytest_asyncio.fixture(loop_scope="session")
async def shop(database: Database) -> Stage:
    """A fresh database with a source, a plan and this month's partitions."""
    return await stage(database)


@pytest_asyncio.fixture(loop_scope="session")
async def processor(shop: Stage) -> AsyncIterator[Processor]:
    """A flusher's own."""
    made = Processor(shop.database, shop.rules)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def worker(shop: Stage) -> AsyncIterator[Worker]:
    """A worker of the shop's."""
    working = Worker(shop.database, shop.rules)
    yield working
    await working.close()
