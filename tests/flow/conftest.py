"""A server that all tests of one module share, and a look into its database."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from tests.conftest import TEMPLATE
from tests.flow.tools import Row, rows
from tests.service import Service, started_service


@dataclass(frozen=True)
class Shared:
    """One server process and the database behind it."""

    service: Service
    database_url: str

    def rows(self, sql: str, *values: object) -> list[Row]:
        return rows(self.database_url, sql, *values)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_database(postgres: str) -> AsyncIterator[str]:
    """A fresh, migrated database for one module."""
    name = f"flow_{uuid4().hex[:12]}"
    connection = await asyncpg.connect(postgres)
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    yield postgres.replace("/paidonce?", f"/{name}?")
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest,
    shared_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shared]:
    """A server for one module; the module's `CONFIG`, where it has one, is its configuration."""
    config: str = getattr(request.module, "CONFIG", "")
    service = started_service(tmp_path_factory.mktemp("flow"), shared_database, config)
    yield Shared(service, shared_database)
    service.end()
