"""What holds for every connection, whatever the server's own settings say."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import asyncpg

from paidonce.db.pool import Database, open_database
from tests.support.postgres import SCHEMA


async def test_a_commit_waits_for_the_disk_whatever_the_database_says(database_url: str) -> None:
    """REC-2: what was acknowledged outlives a power cut."""
    name = urlsplit(database_url).path.removeprefix("/")
    admin = await asyncpg.connect(database_url)
    await admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await admin.close()
    database = await open_database(database_url, SCHEMA)
    dedicated = await database.dedicated()
    async with database.connection() as pooled:
        for connection in (pooled, dedicated):
            assert await connection.fetchval("SHOW synchronous_commit") == "on"
    await dedicated.close()
    await database.close()


def ended(url: str, pid: int) -> bool:
    """End a session from a thread of its own, so that whoever waits here cannot notice."""

    async def end() -> bool:
        connection = await asyncpg.connect(url)
        try:
            return bool(await connection.fetchval("SELECT pg_terminate_backend($1, 5000)", pid))
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, end()).result()


async def test_a_connection_that_is_lost_when_it_is_given_back_costs_nothing(
    database: Database,
) -> None:
    """What was done with it is done, and committed: nobody may be told that it failed."""
    async with database.connection() as lost:
        pid = await lost.fetchval("SELECT pg_backend_pid()")
        assert ended(database.url, pid)
    async with database.connection() as another:
        assert await another.fetchval("SELECT pg_backend_pid()") != pid
