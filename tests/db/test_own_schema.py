"""Our tables in a schema of their own: beside an application's, and beside another Paidonce."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from paidonce.db.pool import Database, open_database
from paidonce.db.schema import current_revision, migrate, move_tables
from paidonce.errors import UnsupportedDatabaseError
from paidonce.runtime.leader import Leader
from paidonce.runtime.wakeup import channel
from tests.support.postgres import as_role, in_database
from tests.support.service import BASIC, paid, spawned, started_service
from tests.support.tools import paidonce, rows, until

APPLICATION: Final = (
    "CREATE TABLE users (name text)",
    "CREATE TABLE orders (number text PRIMARY KEY, search_path text)",
    "CREATE TABLE payments (id integer)",
    "CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)",
    "INSERT INTO alembic_version VALUES ('8f3a91c2d4e5')",
    "CREATE TYPE written_event AS ENUM ('not', 'ours')",
)
HANDLERS: Final = """
import paidonce

@paidonce.on("payment.succeeded")
async def note(event: paidonce.HookEvent) -> None:
    await event.connection.execute(
        "INSERT INTO orders SELECT $1, current_setting('search_path')",
        event.payment.ids[0].value,
    )
    if event.payment.ids[0].value.startswith("never"):
        raise paidonce.Reject("NOT_SOLD_HERE", "we do not sell that")
"""
PASSWORD: Final = "of-the-merchant"


@dataclass
class Merchant:
    """A database of the application, whose role has no schema of its name."""

    url: str
    role: str

    async def open(self, schema: str) -> Database:
        return await open_database(self.url, schema)


@pytest_asyncio.fixture(loop_scope="session")
async def merchant(postgres: str) -> AsyncIterator[Merchant]:
    name = f"merchant_{uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres)
    await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    await admin.execute(f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0")
    yield Merchant(as_role(in_database(postgres, name), name, PASSWORD), name)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.execute(f"DROP ROLE {name}")
    await admin.close()


async def test_an_application_has_tables_of_the_same_names(
    merchant: Merchant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-1 FUL-5: a handler writes to its own in the transaction of the payment."""
    monkeypatch.delenv("PAIDONCE_DATABASE__SCHEMA", raising=False)
    connection = await asyncpg.connect(merchant.url)
    for statement in APPLICATION:
        await connection.execute(statement)
    (tmp_path / "own_orders.py").write_text(HANDLERS, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    config = 'handlers = ["own_orders"]\n' + BASIC
    service = started_service(tmp_path, merchant.url, config, {"PYTHONPATH": path})
    try:
        service.user("buyer@example.com")
        for payment in ("p-1", "p-2", "never"):
            assert service.deliver(paid(payment)).http == 200
        done = "SELECT order_reference, applied_at IS NOT NULL AS applied FROM paidonce.payments"
        waiting = "SELECT 1 FROM paidonce.event_queue"
        assert until(lambda: not rows(merchant.url, waiting) and len(rows(merchant.url, done)) == 3)
    finally:
        service.end()
    applied = {str(row["applied"]) for row in rows(merchant.url, done)}
    assert applied == {"True", "False"}
    written = {(row["number"], row["search_path"]) for row in rows(merchant.url, "TABLE orders")}
    assert written == {("p-1", '"$user", public'), ("p-2", '"$user", public')}
    assert rows(merchant.url, "TABLE users") == rows(merchant.url, "TABLE payments") == []
    assert rows(merchant.url, "TABLE alembic_version") == [{"version_num": "8f3a91c2d4e5"}]
    assert len(rows(merchant.url, "TABLE paidonce.users")) == 1
    await connection.close()


async def test_two_installations_share_a_database(merchant: Merchant) -> None:
    """DAT-1: with tables, leaders and wake-ups of their own, if the second one is wanted."""
    one, two = await merchant.open("one"), await merchant.open("order")
    try:
        await migrate(one)
        with pytest.raises(UnsupportedDatabaseError, match=r"schema one.*--from one.*--another"):
            await migrate(two)
        await migrate(two, beside_others=True)
        leaders = [Leader(one), Leader(two)]
        held = [await leader.acquire(["relay"]) for leader in leaders]
        assert [list(roles) for roles in held] == [["relay"], ["relay"]]
        for leader, roles in zip(leaders, held, strict=True):
            await leader.release(list(roles.values()))
        assert channel(one.schema) != channel(two.schema)
    finally:
        await one.close()
        await two.close()


async def test_tables_in_another_schema_stop_the_start_until_they_are_moved(
    merchant: Merchant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-1 USE-3"""
    monkeypatch.delenv("PAIDONCE_DATABASE__SCHEMA", raising=False)
    (tmp_path / "before").mkdir()
    service = started_service(
        tmp_path / "before", merchant.url, BASIC, {"PAIDONCE_DATABASE__SCHEMA": "public"}
    )
    service.user("buyer@example.com")
    assert service.deliver(paid("p-1")).http == 200
    service.end()
    refused = spawned(tmp_path, merchant.url, BASIC, None, ["serve", "--port", "0"])
    assert refused.wait(60) == 1
    said = (tmp_path / "stderr").read_text(encoding="utf-8")
    for word in ("database.schema = 'public'", "paidonce migrate --from public", "--another"):
        assert word in said
    doctor = paidonce(tmp_path, "doctor")
    assert "--from public" in doctor.stdout.replace("\n", " "), doctor.stdout
    moved = paidonce(tmp_path, "migrate", "--from", "public")
    assert moved.returncode == 0, moved.stderr
    assert rows(merchant.url, "SELECT relname FROM pg_class WHERE relnamespace = 2200") == []
    again = started_service(tmp_path, merchant.url, BASIC)
    assert again.deliver(paid("p-1")).json["status"] == "duplicate"
    assert again.deliver(paid("p-2")).http == 200
    again.end()
    assert len(rows(merchant.url, "TABLE paidonce.payments")) == 2


async def test_functions_know_where_their_tables_have_been_moved(merchant: Merchant) -> None:
    """DAT-1: back and forth, through a schema whose name is a word of SQL."""
    places = ["paidonce", "order", "public", "paidonce"]
    for before, now in zip([None, *places], places, strict=False):
        database = await merchant.open(now)
        try:
            if before is not None:
                await move_tables(database, before)
            assert (await migrate(database) is None) == (before is not None)
            async with database.connection() as connection:
                assert await current_revision(connection)
                table = f'"{now}".running_hooks'
                with pytest.raises(asyncpg.InvalidTransactionTerminationError):
                    await connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
                async with connection.transaction():
                    await connection.execute(f"INSERT INTO {table} DEFAULT VALUES")
                    await connection.execute(f"DELETE FROM {table}")
        finally:
            await database.close()


async def test_nothing_is_moved_onto_tables_of_ours_or_from_nowhere(merchant: Merchant) -> None:
    """DAT-1"""
    one, two, three = [await merchant.open(name) for name in ("one", "two", "three")]
    try:
        await migrate(one)
        await migrate(two, beside_others=True)
        with pytest.raises(UnsupportedDatabaseError, match="two has tables of ours"):
            await move_tables(two, "one")
        with pytest.raises(UnsupportedDatabaseError, match="it has none"):
            await move_tables(three, "public")
    finally:
        for database in (one, two, three):
            await database.close()
