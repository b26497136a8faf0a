"""Databases that outlive a test, where making one for each would cost more than it proves."""

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio
import structlog

from paidonce.engine.transactions import Settler
from paidonce.engine.worker import Worker
from paidonce.store.db import Database, open_database
from tests.conftest import TEMPLATE
from tests.store.batches import Stage, stage


@pytest.fixture(autouse=True, scope="session")
def _logging() -> None:
    """Plain tracebacks: those that structlog draws by itself take seconds each."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[plain])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def module_database(postgres: str) -> AsyncIterator[Database]:
    """A migrated database for all tests of a module, which leave it as they found it."""
    name = f"module_{uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    opened = await open_database(postgres.replace("/paidonce?", f"/{name}?"))
    yield opened
    await opened.close()
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


@pytest_asyncio.fixture(loop_scope="session")
async def shop(database: Database) -> Stage:
    """A fresh database with a source, a plan and this month's partitions."""
    return await stage(database)


@pytest_asyncio.fixture(loop_scope="session")
async def settler(shop: Stage) -> AsyncIterator[Settler]:
    """A flusher's own."""
    made = Settler(shop.database, shop.rules)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def worker(shop: Stage) -> AsyncIterator[Worker]:
    """A worker of the shop's."""
    working = Worker(shop.database, shop.rules)
    yield working
    await working.close()
