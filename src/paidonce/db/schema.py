"""The schema of a database: its migrations and its monthly partitions."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.db.pool import Database, away
from paidonce.db.queries import SCHEMA, Connection, in_schema, load_queries
from paidonce.db.search import first_id_at
from paidonce.errors import DatabaseUnavailableError, UnsupportedDatabaseError

QUERIES: Final = load_queries(__file__)
MONTHS_AHEAD: Final = 3
YEARS: Final = range(2020, 2100)
"""Partitions are created for these years only, whatever the database's clock says."""
VERSIONS: Final = Path(__file__).parent / "migrations" / "versions"
_CREATED: Final = re.compile(rf"^CREATE (?:TABLE|TYPE|FUNCTION|SEQUENCE) {SCHEMA}\.(\w+)", re.M)


async def migrate(database: Database, *, beside_others: bool = False) -> str | None:
    """Bring the schema up to date. Several processes may call it at once.

    Returns the new revision, or None if there was nothing to do. Raises UnsupportedDatabaseError
    if the schema is newer than this program, or our tables are in another one, unless this is
    to be another installation `beside_others`.
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
            if current is None:
                if not beside_others and (others := await other_schemas(connection)):
                    raise UnsupportedDatabaseError(misplaced(database.schema, others))
                await create_schema(connection)
            elif current not in known:
                raise UnsupportedDatabaseError(
                    f"the schema is at revision {current}, which this program does not know: "
                    f"it was migrated by a newer Paidonce; update this one"
                )
            from paidonce.db.migrations import upgrade  # Alembic takes half a second to import

            await upgrade(database.url, database.schema)
            return newest
        finally:
            await QUERIES["unlock_migrations"].row(connection)


async def other_schemas(connection: Connection) -> list[str]:
    """The other schemas of the database that have our tables."""
    rows = await QUERIES["other_schemas"].rows(connection, name=connection.schema)
    return [row["name"] for row in rows]


def misplaced(schema: str, others: Sequence[str]) -> str:
    """What to do when our tables are in other schemas only."""
    found = ", ".join(others)
    return (
        f"database.schema = {schema!r}: our tables are in schema {found}, and not in this one; "
        f"set database.schema = {others[0]!r}, or stop every process of this installation and "
        f"move them with `paidonce migrate --from {others[0]}`, or let this be another "
        f"installation, with tables of its own, with `paidonce migrate --another`"
    )


async def create_schema(connection: Connection) -> None:
    """Create the schema, unless there is one. Not IF NOT EXISTS: that needs the right, too."""
    if not await QUERIES["has_schema"].value(connection, name=connection.schema):
        await connection.execute(f'CREATE SCHEMA "{connection.schema}"')


async def move_tables(database: Database, source: str) -> int:
    """Move all that is ours from another schema, in one transaction; returns how many objects.

    Raises UnsupportedDatabaseError if there is nothing, or the schema has tables of ours already.
    """
    old, new = (in_schema(f"{SCHEMA}.", one) for one in (source, database.schema))
    async with database.transaction() as connection:
        is_there = await current_revision(connection) is not None
        if is_there or source not in await other_schemas(connection):
            raise UnsupportedDatabaseError(
                f"--from {source}: "
                + (f"schema {database.schema} has tables of ours" if is_there else "it has none")
            )
        await create_schema(connection)
        names = _names_of_ours()
        moves = await QUERIES["moves"].rows(
            connection, source=source, target=database.schema, names=names
        )
        for row in moves:
            await connection.execute(row["statement"])
        for row in await QUERIES["functions"].rows(connection, schema=database.schema, names=names):
            await connection.execute(row["definition"].replace(old, new))  # their bodies
    return len(moves)


def _names_of_ours() -> list[str]:
    """The names of our tables, types, functions and sequences, except partitions."""
    scripts = (path.read_text(encoding="utf-8") for path in VERSIONS.glob("*.sql"))
    return ["alembic_version", *(name for text in scripts for name in _CREATED.findall(text))]


async def current_revision(connection: Connection) -> str | None:
    """The revision of the schema; None if there is none yet."""
    if not await QUERIES["has_revisions"].value(connection):
        return None
    revision: str | None = await QUERIES["current_revision"].value(connection)
    return revision


def known_revisions() -> list[str]:
    """The revisions that this program knows, the newest first, from their file names."""
    return sorted((path.stem[:4] for path in VERSIONS.glob("[0-9]*.py")), reverse=True)


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
            sql = (
                f"CREATE TABLE IF NOT EXISTS paidonce.{partition_name(month)} "
                "(LIKE paidonce.webhook_events "
                "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)"
            )
            await connection.execute(in_schema(sql, connection.schema))
            await attach_partition(connection, month)
    return [partition_name(month) for month in missing]


async def attach_partition(connection: Connection, month: datetime) -> None:
    """Make the table of a month a partition again, or for the first time."""
    first, end = id_range(month)
    sql = (
        "ALTER TABLE paidonce.webhook_events "
        f"ATTACH PARTITION paidonce.{partition_name(month)} "
        f"FOR VALUES FROM ('{first}') TO ('{end}')"
    )
    await connection.execute(in_schema(sql, connection.schema))


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
