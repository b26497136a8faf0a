"""The PostgreSQL server of a run, and its databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import asyncpg
from sqlalchemy import make_url

from benchmarks.cpu import parent_of
from benchmarks.wal import full_page_bytes
from paidonce.db.embedded.server import EmbeddedPostgres
from paidonce.db.queries import Connection

# Not /tmp, which may lie in memory, where fsync costs nothing.
DATA_ROOT = Path("/var/tmp")
STATEMENT_TIMEOUT_S = 600.0
WHERE_IT_RUNS = ("SELECT setting FROM pg_config WHERE name = 'BINDIR'", "SHOW data_directory")
SETTINGS = ("server_version", "synchronous_commit", "fsync", "shared_buffers", "max_wal_size")


class Databases:
    """Creates, copies and drops databases, and reads the server's counters."""

    def __init__(self, url: str, admin: Connection) -> None:
        self._url = make_url(url)
        self._admin = admin

    def url_of(self, name: str) -> str:
        """Where a database of this server is."""
        return self._url.set(database=name).render_as_string(hide_password=False)

    async def create(self, name: str, *, template: str = "template1") -> str:
        """Create a database, replacing one of this name, and return its URL."""
        await self.drop(name)
        await self._admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url_of(name)

    async def drop(self, name: str) -> None:
        """Drop a database and end its connections."""
        await self._admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    async def checkpoint(self) -> None:
        """Run a checkpoint, so that every measurement starts in the same state."""
        await self._admin.execute("CHECKPOINT")

    async def wal_bytes(self) -> int:
        """How much WAL the server has written so far."""
        position = await self._admin.fetchval("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        return int(position)

    async def full_page_bytes(self, begin: int, end: int) -> int:
        """How much of the WAL between two readings of `wal_bytes` are images of whole pages."""
        programs, cluster = [Path(await self._admin.fetchval(query)) for query in WHERE_IT_RUNS]
        return await asyncio.to_thread(full_page_bytes, programs, cluster, begin, end)

    async def settings(self) -> dict[str, str]:
        """The server's version and the settings on which durability and speed depend."""
        return {name: await self._admin.fetchval(f"SHOW {name}") for name in SETTINGS}

    async def server_pid(self) -> int:
        """The parent of all the server's processes; 0 if it runs elsewhere."""
        return parent_of(await self._admin.fetchval("SELECT pg_backend_pid()"))


@asynccontextmanager
async def open_databases(url: str | None) -> AsyncIterator[Databases]:
    """Databases on the server at url, or on one started for this run and removed after it."""
    if url is not None:
        async with _administered(url) as databases:
            yield databases
        return
    data_dir = Path(mkdtemp(prefix="paidonce-bench-", dir=DATA_ROOT))
    data_dir.chmod(0o755)
    postgres = EmbeddedPostgres(data_dir)
    try:
        async with _administered(await postgres.start()) as databases:
            yield databases
    finally:
        await postgres.stop()
        rmtree(data_dir)


@asynccontextmanager
async def _administered(url: str) -> AsyncIterator[Databases]:
    async with connected(url) as admin:
        yield Databases(url, admin)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection for the length of the block."""
    connection = await asyncpg.connect(
        url, command_timeout=STATEMENT_TIMEOUT_S, connection_class=Connection
    )
    try:
        yield connection
    finally:
        await connection.close()


async def execute_in(url: str, *statements: str) -> None:
    """Run statements in a database, each in its own transaction."""
    async with connected(url) as connection:
        for statement in statements:
            await connection.execute(statement)


async def count_in(url: str, query: str) -> int:
    """The one number that a query returns."""
    async with connected(url) as connection:
        return int(await connection.fetchval(query))
