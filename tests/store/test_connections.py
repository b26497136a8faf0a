"""What holds for every connection, whatever the server's own settings say."""

from urllib.parse import urlsplit

import asyncpg

from paidonce.store.db import open_database


async def test_a_commit_waits_for_the_disk_whatever_the_database_says(database_url: str) -> None:
    """REC-2: what was acknowledged outlives a power cut."""
    name = urlsplit(database_url).path.removeprefix("/")
    admin = await asyncpg.connect(database_url)
    await admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await admin.close()
    database = await open_database(database_url)
    dedicated = await database.dedicated()
    async with database.connection() as pooled:
        for connection in (pooled, dedicated):
            assert await connection.fetchval("SHOW synchronous_commit") == "on"
    await dedicated.close()
    await database.close()
