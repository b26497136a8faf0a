"""PostgreSQL for the tests: one server for each test process, databases copied from a template."""

import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from paidonce.db import queries
from paidonce.db.embedded.server import EmbeddedPostgres
from paidonce.db.pool import Database, open_database
from paidonce.db.schema import migrate
from tests.support.memory_folder import make_memory_folder

SCHEMA: Final = os.environ.get("PAIDONCE_DATABASE__SCHEMA") or queries.SCHEMA
"""The schema of our tables, in which the tests' own SQL finds them, too: `$user` is paidonce."""
SERVER_VARIABLE: Final = "TEST_POSTGRES"
TEMPLATE_VARIABLE: Final = "TEST_TEMPLATE"
"""The URL of a running server and its template database, for tests that are run by a test."""
TEMPLATE: Final = os.environ.get(TEMPLATE_VARIABLE) or f"template_{os.getpid()}"


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    """A folder that the unprivileged user of an embedded PostgreSQL can reach."""
    folder = make_memory_folder("tests")
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(data_dir: Path) -> AsyncIterator[str]:
    """The URL of a running PostgreSQL: an embedded one, or the one that was handed over."""
    if given := os.environ.get(SERVER_VARIABLE):
        yield given
        return
    embedded = EmbeddedPostgres(data_dir / "shared")
    url = await embedded.start()
    await _forgo_the_disk(url)
    yield url
    await embedded.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(server: str) -> AsyncIterator[str]:
    """The URL of a running PostgreSQL that has a migrated template database."""
    is_given = TEMPLATE_VARIABLE in os.environ
    if not is_given:
        await _create(server, TEMPLATE)
        template = await open_database(_url_of(server, TEMPLATE), SCHEMA)
        await migrate(template)
        await template.close()
    yield server
    if not is_given:
        await _drop(server, TEMPLATE)
    if server in _administrators:
        await _administrators.pop(server).close()


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres: str) -> AsyncIterator[str]:
    """The URL of a fresh, migrated database."""
    async with fresh_database(postgres) as url:
        yield url


@asynccontextmanager
async def fresh_database(postgres: str) -> AsyncIterator[str]:
    """A copy of the template, dropped at the end."""
    name = f"test_{uuid4().hex[:12]}"
    await _create(postgres, name, TEMPLATE)
    try:
        yield _url_of(postgres, name)
    finally:
        await _drop(postgres, name)


@pytest_asyncio.fixture(loop_scope="session")
async def database(database_url: str) -> AsyncIterator[Database]:
    """A fresh, migrated database, opened."""
    opened = await open_database(database_url, SCHEMA)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_database(postgres: str) -> AsyncIterator[str]:
    """The URL of a fresh, migrated database for one module."""
    async with fresh_database(postgres) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def module_database(shared_database: str) -> AsyncIterator[Database]:
    """A migrated database for all tests of a module, which leave it as they found it."""
    opened = await open_database(shared_database, SCHEMA)
    yield opened
    await opened.close()


async def _forgo_the_disk(url: str) -> None:
    """Tests end processes and never the machine: what the kernel has is safe enough."""
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER SYSTEM SET fsync = off")
    await connection.execute("ALTER SYSTEM SET full_page_writes = off")
    await connection.execute("ALTER SYSTEM SET max_wal_size = '256MB'")  # it may be in memory
    await connection.execute("SELECT pg_reload_conf()")
    if SCHEMA != queries.SCHEMA:
        await connection.execute(f'ALTER ROLE paidonce SET search_path = "{SCHEMA}", public')
    await connection.close()


_administrators: Final[dict[str, "asyncpg.Connection[asyncpg.Record]"]] = {}
"""One connection to each server, which creates and drops the databases of all tests."""


async def _create(url: str, name: str, template: str = "template1") -> None:
    """Create a database. To copy files takes half of the CPU of copying through the WAL."""
    await _administer(url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")


async def _drop(url: str, name: str) -> None:
    await _administer(url, f"DROP DATABASE {name} WITH (FORCE)")


async def _administer(url: str, statement: str) -> None:
    if url not in _administrators:
        _administrators[url] = await asyncpg.connect(url)
    await _administrators[url].execute(statement)


def _url_of(url: str, name: str) -> str:
    """The same server, another database."""
    return url.replace("/paidonce?", f"/{name}?")


def as_role(url: str, name: str, password: str = "") -> str:
    """The same database, for another role."""
    return re.sub("://[^@]*@", f"://{name}:{password}@" if password else f"://{name}@", url)


def in_database(url: str, name: str) -> str:
    """The same server and role, another database."""
    return re.sub(r"/\w+\?", f"/{name}?", url)
