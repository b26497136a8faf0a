"""Migrations: forward, once, by whoever comes first."""

import asyncio
from collections.abc import AsyncIterator
from io import StringIO
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio
from alembic import command
from alembic.script import ScriptDirectory

from paidonce.db.migrations import alembic_config
from paidonce.db.pool import Database, open_database
from paidonce.db.queries import Connection, in_schema
from paidonce.db.schema import QUERIES, known_revisions, migrate
from paidonce.errors import UnsupportedDatabaseError
from tests.support.postgres import SCHEMA

LOCK_TIMEOUT_S = 2.0
"""What sessions of ours wait for a row at most (db/pool.py)."""


@pytest_asyncio.fixture(loop_scope="session")
async def empty(postgres: str) -> AsyncIterator[Database]:
    """A database without a schema."""
    name = f"empty_{uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    opened = await open_database(postgres.replace("/paidonce?", f"/{name}?"), SCHEMA)
    yield opened
    await opened.close()
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def shape(connection: Connection) -> list[tuple[Any, ...]]:
    """All columns, constraints and indexes."""
    found: list[tuple[Any, ...]] = []
    for sql in (
        "SELECT table_name, column_name, data_type, is_nullable, column_default,"
        " generation_expression, collation_name, is_identity FROM information_schema.columns"
        " WHERE table_schema = current_schema()",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = current_schema()::regnamespace",
        "SELECT indrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index AS i"
        " JOIN pg_class AS c ON c.oid = indrelid"
        " WHERE relnamespace = current_schema()::regnamespace",
        "SELECT relname::text, reloptions::text FROM pg_class"
        " WHERE relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL",
    ):
        found += [tuple(row.values()) for row in await connection.fetch(sql)]
    return sorted(found, key=repr)


async def test_the_first_call_migrates_and_the_second_has_nothing_to_do(empty: Database) -> None:
    """DAT-1"""
    head = await migrate(empty)
    assert head is not None
    async with empty.connection() as connection:
        before = await shape(connection)
        assert await connection.fetchval("SELECT version_num FROM alembic_version") == head
        assert await migrate(empty) is None
        assert await shape(connection) == before
    assert len(before) > 100


async def test_several_processes_may_migrate_at_once(empty: Database) -> None:
    """DAT-1"""
    others = [await open_database(empty.url, SCHEMA) for _ in range(3)]
    try:
        done = await asyncio.gather(*(migrate(one) for one in (empty, *others)))
    finally:
        await asyncio.gather(*(one.close() for one in others))
    assert len([revision for revision in done if revision is not None]) == 1


async def test_a_process_waits_for_a_migration_that_takes_long(empty: Database) -> None:
    """DAT-1: longer than a session of ours waits for a row."""
    async with empty.connection() as holder:
        await QUERIES["lock_migrations"].row(holder)
        waiting = asyncio.create_task(migrate(empty))
        done, _ = await asyncio.wait({waiting}, timeout=LOCK_TIMEOUT_S + 0.5)
        await QUERIES["unlock_migrations"].row(holder)
    (answer,) = await asyncio.gather(waiting, return_exceptions=True)
    assert not done, f"it gave up while another process was migrating: {answer}"
    assert isinstance(answer, str)


async def test_a_failed_migration_lets_others_try(empty: Database) -> None:
    """DAT-1: the lock is given back."""
    async with empty.connection() as connection:
        await connection.execute(f'CREATE SCHEMA "{SCHEMA}"')
        await connection.execute("CREATE TABLE payments (in_the_way integer)")
    with pytest.raises(Exception, match="payments"):
        await migrate(empty)
    async with empty.connection() as connection:
        assert await connection.fetchval("SELECT to_regclass('event_keys')") is None
        await connection.execute("DROP TABLE payments")
    assert await migrate(empty) is not None


async def test_a_schema_newer_than_the_program_is_refused(database: Database) -> None:
    """DAT-1: with the remedy, and untouched."""
    async with database.connection() as connection:
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(UnsupportedDatabaseError, match=r"9999.*newer.*update"):
            await migrate(database)
        assert await connection.fetchval("SELECT version_num FROM alembic_version") == "9999"


async def test_the_offline_sql_makes_the_same_schema(empty: Database, database: Database) -> None:
    """DAT-1: a DBA can read it and run it."""
    config = alembic_config()
    config.attributes["schema"] = SCHEMA
    config.output_buffer = StringIO()
    command.upgrade(config, "head", sql=True)
    script = config.output_buffer.getvalue()
    assert in_schema("CREATE TABLE paidonce.payments", SCHEMA) in script
    async with empty.connection() as connection:
        await connection.execute(script)
        by_hand = await shape(connection)
    async with database.connection() as connection:
        assert by_hand == await shape(connection)
    assert await migrate(empty) is None


def test_the_names_of_the_files_are_the_revisions_in_their_order() -> None:
    """DAT-1: so that a start which has nothing to migrate need not ask Alembic."""
    script = ScriptDirectory.from_config(alembic_config())
    assert known_revisions() == [one.revision for one in script.walk_revisions()]
