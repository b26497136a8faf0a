"""The schema of a database: its migrations and its monthly partitions."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.db.pool import Database, away
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import first_id_at
from paidonce.errors import DatabaseUnavailableError, UnsupportedDatabaseError

QUERIES: Final = load_queries(__file__)
MONTHS_AHEAD: Final = 3
YEARS: Final = range(2020, 2100)
"""Partitions are created for these years only, whatever the database's clock says."""


async def migrate(database: Database) -> str | None:
    """Bring the schema up to date. Several processes may call it at once.

    Returns the new revision, or None if there was nothing to do. Raises UnsupportedDatabaseError
    if the schema is newer than this program.
    """
    known = known_revisions()
    newest = known[0]
    async with database.connection() as connection:
        if await current_revision(connection) == newest:
            return None
        await QUERIES["wait_without_limit"].run(connection)
        await QUERIES["lock_migrations"].row(connection)
        try:
            current = await current_revision(connection)
            if current == newest:
                return None
            if current not in (None, *known):
                raise UnsupportedDatabaseError(
                    f"the schema is at revision {current}, which this program does not know: "
                    f"it was migrated by a newer Paidonce; update this one"
                )
            from paidonce.db.migrations import upgrade  # Alembic takes half a second to import

            await upgrade(database.url)
            return newest
        finally:
            await QUERIES["unlock_migrations"].row(connection)


async def current_revision(connection: Connection) -> str | None:
    """The revision of the schema; None if there is none yet."""
    if not await QUERIES["has_revisions"].value(connection):
        return None
    revision: str | None = await QUERIES["current_revision"].value(connection)
    return revision


def known_revisions() -> list[str]:
    """The revisions that this program knows, the newest first, from their file names."""
    versions = Path(__file__).parent / "migrations" / "versions"
    return sorted((path.stem[:4] for path in versions.glob("[0-9]*.py")), reverse=True)


async def add_missing_partitions(database: Database) -> list[str]:
    """Create the partitions around the present month; returns the names of new ones.

    For an event whose month has none, because the clock was set. Raises DatabaseUnavailableError.
    """
    try:
        async with database.transaction_apart() as connection:
            return await ensure_partitions(connection, await database_time(connection))
    except asyncpg.PostgresError as error:
        raise away(error) from error


async def database_time(connection: Connection) -> datetime:
    """The time of the database, as far as Python knows years."""
    now: datetime = await connection.fetchval(
        "SELECT least(clock_timestamp(), timestamptz '9999-01-01 00:00:00Z')"
    )
    return now


async def ensure_partitions(connection: Connection, now: datetime) -> list[str]:
    """Create the missing partitions of last month, this one and MONTHS_AHEAD; returns their names.

    Each is created as a table and then attached, which blocks writers of events only briefly.
    Raises DatabaseUnavailableError if this is none of YEARS.
    """
    if now.year not in YEARS:
        raise DatabaseUnavailableError(f"the database's clock says that it is {now:%Y-%m-%d}")
    async with connection.transaction():
        await QUERIES["lock_partitions"].row(connection)
        existing = {row["relname"] for row in await QUERIES["partition_names"].rows(connection)}
        missing = [month for month in _months(now) if partition_name(month) not in existing]
        for month in missing:
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {partition_name(month)} (LIKE webhook_events "
                f"INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)"
            )
            await attach_partition(connection, month)
    return [partition_name(month) for month in missing]


async def attach_partition(connection: Connection, month: datetime) -> None:
    """Make the table of a month a partition again, or for the first time."""
    first, end = id_range(month)
    await connection.execute(
        f"ALTER TABLE webhook_events ATTACH PARTITION {partition_name(month)} "
        f"FOR VALUES FROM ('{first}') TO ('{end}')"
    )


def _months(now: datetime) -> Iterator[datetime]:
    month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    month = (month - timedelta(days=1)).replace(day=1)
    for _ in range(MONTHS_AHEAD + 2):
        yield month
        month = next_month(month)


def next_month(month: datetime) -> datetime:
    """The beginning of the month after this one."""
    return month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)


def partition_name(month: datetime) -> str:
    """The name of the partition of a month."""
    return f"webhook_events_{month:%Y_%m}"


def id_range(month: datetime) -> tuple[UUID, UUID]:
    """The first id of a month, and the first of the next one."""
    return first_id_at(month), first_id_at(next_month(month))
