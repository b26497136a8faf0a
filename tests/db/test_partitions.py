"""Events by month: partitions are there before the month begins."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.schema import ensure_partitions
from paidonce.db.search import first_id_at
from paidonce.errors import DatabaseUnavailableError
from paidonce.maintenance.janitor import Janitor, usual_tasks
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import RetentionSettings

MAY = datetime(2026, 5, 20, 12, tzinfo=UTC)


@pytest_asyncio.fixture(loop_scope="session")
async def connection(module_database: Database) -> AsyncIterator[Connection]:
    """A connection in a transaction that is undone after the test."""
    async with module_database.connection() as opened:
        transaction = opened.transaction()
        await transaction.start()
        yield opened
        await transaction.rollback()


async def names(connection: Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits"
        " WHERE inhparent = 'webhook_events'::regclass ORDER BY 1"
    )
    return [row["name"] for row in rows]


def months(*wanted: str) -> list[str]:
    return [f"webhook_events_{month}" for month in wanted]


async def test_last_month_this_one_and_three_ahead_are_made(connection: Connection) -> None:
    """INB-4"""
    expected = months("2026_04", "2026_05", "2026_06", "2026_07", "2026_08")
    made = await ensure_partitions(connection, MAY)
    assert made == expected
    assert await names(connection) == expected


async def test_making_them_again_makes_nothing(connection: Connection) -> None:
    """INB-4"""
    await ensure_partitions(connection, MAY)
    assert await ensure_partitions(connection, MAY) == []
    later = await ensure_partitions(connection, MAY + timedelta(days=31))
    assert later == months("2026_09")


@pytest.mark.parametrize("year", [1970, 2019, 2100, 9999])
async def test_a_clock_that_is_far_from_any_sense_makes_no_months(
    connection: Connection, year: int
) -> None:
    """INB-4: there is an end to them, whatever the database's clock says."""
    with pytest.raises(DatabaseUnavailableError, match="the database's clock"):
        await ensure_partitions(connection, MAY.replace(year=year))
    assert await names(connection) == []


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-12-31T23:59:59", ("2026_11", "2026_12", "2027_01", "2027_02", "2027_03")),
        ("2027-01-01T00:00:00", ("2026_12", "2027_01", "2027_02", "2027_03", "2027_04")),
        ("2026-10-31T12:00:00", ("2026_09", "2026_10", "2026_11", "2026_12", "2027_01")),
        ("2028-02-29T12:00:00", ("2028_01", "2028_02", "2028_03", "2028_04", "2028_05")),
    ],
)
async def test_years_end_and_begin_without_a_gap(
    connection: Connection, now: str, expected: tuple[str, ...]
) -> None:
    """INB-4"""
    made = await ensure_partitions(connection, datetime.fromisoformat(f"{now}+00:00"))
    assert made == months(*expected)


async def test_a_month_is_a_month_of_utc(connection: Connection) -> None:
    """INB-4: 1 June in Kamchatka is still May."""
    kamchatka = datetime.fromisoformat("2026-06-01T05:00:00+12:00")
    made = await ensure_partitions(connection, kamchatka)
    assert made == months("2026_04", "2026_05", "2026_06", "2026_07", "2026_08")


async def insert(connection: Connection, event_id: UUID) -> None:
    await connection.execute(
        "INSERT INTO webhook_events (id, source_id, status, signature_valid, signature_method,"
        " is_test, attempts, received_at, request_id, headers, raw_body)"
        " VALUES ($1, 1, 'VALIDATED', true, 'none', false, 0, now(), 'r', '{}', '')",
        event_id,
    )


async def test_an_event_lands_in_the_month_of_its_id(connection: Connection) -> None:
    """INB-4: to the millisecond."""
    instant = timedelta(milliseconds=1)
    await ensure_partitions(connection, datetime(2026, 12, 15, tzinfo=UTC))
    for year, month in [(2026, 11), (2026, 12), (2027, 1), (2027, 2), (2027, 3)]:
        first = datetime(year, month, 1, tzinfo=UTC)
        last = (first + timedelta(days=32)).replace(day=1) - instant
        for at in (first, first + timedelta(days=14), last):
            for low_bits in (0, 2**80 - 1):
                event_id = UUID(int=first_id_at(at).int | low_bits)
                await insert(connection, event_id)
                where = await connection.fetchval(
                    "SELECT tableoid::regclass::text FROM webhook_events WHERE id = $1",
                    event_id,
                )
                assert where == f"webhook_events_{year}_{month:02}"


async def test_an_event_of_a_month_without_partition_is_refused(connection: Connection) -> None:
    """INB-4: there is no default partition, whose rows would block attaching others."""
    await ensure_partitions(connection, MAY)
    with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
        await insert(connection, first_id_at(MAY + timedelta(days=365)))


async def test_a_partition_has_the_parents_checks_and_indexes(connection: Connection) -> None:
    """INB-3 INB-4"""
    (name, *_) = await ensure_partitions(connection, MAY)

    async def of(sql: str, table: str) -> list[str]:
        rows = await connection.fetch(sql, table)
        return sorted(row[0].replace(table, "").partition("(")[2] for row in rows)

    for sql in (
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1::regclass",
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = $1::text::regclass",
    ):
        statement = sql.replace("$1::regclass", "$1::text::regclass")
        assert await of(statement, name) == await of(statement, "webhook_events")
    unattached = await connection.fetchval(
        "SELECT count(*) FROM pg_index LEFT JOIN pg_inherits AS h ON inhrelid = indexrelid"
        " WHERE indrelid = $1::text::regclass AND h.inhparent IS NULL",
        name,
    )
    assert unattached == 0, "each index is a part of the parent's, none was built twice"


async def test_several_processes_may_make_them_at_once(database: Database) -> None:
    """INB-4 USE-2: `serve --processes N` starts as many, and each of them calls it."""

    async def make() -> list[str]:
        async with database.connection() as connection:
            return await ensure_partitions(connection, MAY)

    made = await asyncio.gather(*(make() for _ in range(6)))
    expected = months("2026_04", "2026_05", "2026_06", "2026_07", "2026_08")
    assert {name for names in made for name in names} == set(expected)
    async with database.connection() as connection:
        assert await names(connection) == expected


async def test_the_janitor_makes_what_is_missing(database: Database) -> None:
    """INB-4"""
    janitor = Janitor(usual_tasks(RetentionSettings()), Leader(database))
    for _ in range(2):
        await janitor.run_once(MAY)
        async with database.connection() as connection:
            assert await names(connection) == months(
                "2026_04", "2026_05", "2026_06", "2026_07", "2026_08"
            )
