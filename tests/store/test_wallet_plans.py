"""The plans of what wallets are read and written by, however many there are (DAT-2)."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from paidonce.store import ledger, reservations
from paidonce.store.db import Database
from paidonce.store.planning import read_in_order
from paidonce.store.queries import Connection
from tests.store.test_hot_queries import (
    Node,
    assert_few_rows_are_touched,
    assert_no_table_is_read_through,
    connection,
    explained,
    pinned,
    pooled,
)

__all__ = ["connection", "pinned", "pooled"]

ROWS: Final = 20_000
BATCH: Final = 64
NOW: Final = datetime.now(UTC)
FILL: Final = """
CREATE TEMP TABLE counted AS
SELECT n, md5(n::text)::uuid AS id FROM generate_series(1, {rows}) AS n;

INSERT INTO wallets (id, owner, currency, balance_minor, reserved_minor)
SELECT id, 'w-' || n, 'RUB', 100, CASE WHEN n % 2 = 0 THEN 5 ELSE 0 END FROM counted;

INSERT INTO reservations (payment_id, wallet_id, request_hash, amount_minor, committed_minor,
                          status, expires_at, created_at, ended_at)
SELECT 'p-' || n, id, '', 5, CASE WHEN n % 2 = 0 THEN 0 ELSE 5 END,
       CASE WHEN n % 2 = 0 THEN 'RESERVED' ELSE 'COMMITTED' END,
       now() + n * interval '1 second' - interval '5 minutes', now(),
       CASE WHEN n % 2 = 0 THEN NULL ELSE now() END
  FROM counted;

INSERT INTO ledger_entries (movement_id, account, currency, amount_minor, at)
SELECT id, account, 'RUB', minor, now() + n * interval '1 second'
  FROM counted,
       LATERAL (VALUES ('wallet:' || id, 100), ('gateway:1', -100)) AS e (account, minor)
 ORDER BY n;

INSERT INTO wallets (id, owner, currency) VALUES ('{busy}', 'x', 'RUB');

INSERT INTO ledger_entries (movement_id, account, currency, amount_minor, at)
SELECT id, account, 'RUB', minor, now() + n * interval '1 second'
  FROM counted,
       LATERAL (VALUES ('wallet:{busy}', 100), ('gateway:1', -100)) AS e (account, minor)
 ORDER BY n;
"""
BUSY: Final = UUID(int=1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled(module_database: Database) -> Database:
    """Twenty thousand wallets, with a reservation and a movement each, and one with as many."""
    async with module_database.transaction() as connection:
        await connection.execute(FILL.format(rows=ROWS, busy=BUSY))
    async with module_database.connection() as connection:
        await connection.execute("ANALYZE")
    return module_database


async def wallet_ids(connection: Connection, limit: int) -> list[UUID]:
    rows = await connection.fetch(f"SELECT id FROM wallets ORDER BY owner LIMIT {limit}")
    return [row["id"] for row in rows]


NAMES: Final = [f"p-{number}" for number in range(5_000, 5_000 + BATCH)]


@pytest.mark.parametrize("name", ["lock_wallets", "look"])
async def test_what_a_batch_speaks_of_is_found_by_indexes(
    connection: Connection, name: str
) -> None:
    """DAT-2 WAL-2"""
    query = reservations.QUERIES[name]
    values: dict[str, Any] = {
        "wallet_id": await wallet_ids(connection, BATCH),
        "payment_id": NAMES,
    }
    nodes = await explained(connection, query, warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * BATCH)


async def test_reservations_are_found_by_their_payment(connection: Connection) -> None:
    """DAT-2 WAL-1"""
    nodes = await explained(
        connection, reservations.QUERIES["reservations"], warm=6, payment_id=NAMES
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, BATCH)
    nodes = await explained(
        connection, reservations.QUERIES["reservation"], warm=6, payment_id="p-7"
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 1)


async def plan_of_writing(connection: Connection, wallet_id: UUID) -> list[Node]:
    """The statement with every kind of row in it."""
    rows: dict[str, Any] = {
        "wallets": [(wallet_id, 100, 0, 1)],
        "made": [("new", wallet_id, b"", 5, 0, "RESERVED", None, NOW, None)],
        "ended": [("p-2", "RESERVED", "RELEASED", 0, None, NOW)],
        "entries": [
            (wallet_id, "p-2", "a", "RUB", 1, NOW),
            (wallet_id, "p-2", "b", "RUB", -1, NOW),
        ],
        "actor": ["a"],
        "action": ["b"],
        "details": ["{}"],
        "expected": 6,
    }
    return await explained(connection, reservations.QUERIES["write"], **rows)


async def test_writing_finds_every_row_by_an_index(pinned: Connection) -> None:
    """DAT-2 WAL-2"""
    (wallet_id,) = await wallet_ids(pinned, 1)
    nodes = await plan_of_writing(pinned, wallet_id)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 1)


@pytest.mark.parametrize("limit", [1, 128])
async def test_what_is_over_costs_what_is_found(connection: Connection, limit: int) -> None:
    """DAT-2 WAL-2: not what is reserved, and not what ever was."""
    nodes = await explained(connection, reservations.QUERIES["expiring"], warm=6, limit=limit)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, limit)


@pytest.mark.parametrize("before", [ledger.LAST_ENTRY, ROWS], ids=["newest", "from the middle"])
async def test_a_page_of_entries_costs_what_it_shows(pooled: Connection, before: int) -> None:
    """DAT-2 WAL-2: also of an account that has an entry in every movement."""
    values: dict[str, Any] = {"accounts": ["gateway:1", "wallet:1"], "before": before, "limit": 20}
    async with read_in_order(pooled):
        nodes = await explained(pooled, ledger.QUERIES["entries"], warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 20)


async def test_the_past_of_a_wallet_costs_its_own_entries(pooled: Connection) -> None:
    """DAT-2 WAL-2"""
    (wallet_id,) = await wallet_ids(pooled, 1)
    nodes = await explained(pooled, ledger.QUERIES["wallet_at"], warm=6, id=wallet_id, at=NOW)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 1)


async def test_the_past_of_a_busy_wallet_costs_what_was_before_it(pooled: Connection) -> None:
    """DAT-2 WAL-2: and is read from an index, in the order of time."""
    first = await pooled.fetchval("SELECT min(at) FROM ledger_entries")
    at = first + timedelta(seconds=19)
    nodes = await explained(pooled, ledger.QUERIES["wallet_at"], warm=6, id=BUSY, at=at)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 20)


async def test_a_page_of_verifying_costs_what_is_in_it(pooled: Connection) -> None:
    """DAT-2 WAL-2"""
    nodes = await explained(pooled, ledger.QUERIES["wallets_explained"], after=BUSY, limit=BATCH)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, BATCH)
    for after in (0, ROWS):
        nodes = await explained(pooled, ledger.QUERIES["unbalanced"], after=after, limit=BATCH)
        assert_no_table_is_read_through(nodes)
        assert_few_rows_are_touched(nodes, BATCH)
    values: dict[str, Any] = {"movement_id": UUID(int=1), "currency": "RUB"}
    nodes = await explained(
        pooled, ledger.QUERIES["movement"], first_id=1_000, last_id=1_099, **values
    )
    assert_few_rows_are_touched(nodes, 100)


async def test_plans_that_are_made_on_empty_tables_are_right_for_full_ones(
    database: Database,
) -> None:
    """DAT-2: a flusher keeps them, and nobody has counted the rows yet."""
    flusher = await database.dedicated()
    nodes = []
    for name in ("look", "lock_wallets"):
        values: dict[str, Any] = {"wallet_id": [UUID(int=1)], "payment_id": ["p"]}
        nodes += await explained(flusher, reservations.QUERIES[name], **values)
    await flusher.close()
    assert_no_table_is_read_through(nodes)
