"""The plans of what wallets are read and written by, however many there are (DAT-2)."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.search import read_in_order
from paidonce.wallet import store
from tests.processing.test_query_plans import (
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
LOCKED: Final = UUID(int=1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled(module_database: Database) -> Database:
    """Twenty thousand wallets, with a reservation and a movement each, and one with as many."""
    async with module_database.transaction() as connection:
        await connection.execute(FILL.format(rows=ROWS, busy=LOCKED))
    async with module_database.connection() as connection:
        await connection.execute("ANALYZE")
    return module_database


async def wallet_ids(connection: Connection, limit: int) -> list[UUID]:
    rows = await connection.fetch(f"SELECT id FROM wallets ORDER BY owner LIMIT {limit}")
    return [row["id"] for row in rows]


NAMES: Final = [f"p-{number}" for number in range(5_000, 5_000 + BATCH)]


@pytest.mark.parametrize("name", ["lock_wallets", "load"])
async def test_a_batch_is_loaded_by_indexes(connection: Connection, name: str) -> None:
    """DAT-2 WAL-2"""
    query = store.QUERIES[name]
    values: dict[str, Any] = {
        "wallet_id": await wallet_ids(connection, BATCH),
        "payment_id": NAMES,
    }
    nodes = await explained(connection, query, warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * BATCH)


async def test_reservations_are_found_by_their_payment(connection: Connection) -> None:
    """DAT-2 WAL-1"""
    for names in (NAMES, ["p-7"]):
        values: dict[str, Any] = {"wallet_id": [], "payment_id": names}
        nodes = await explained(connection, store.QUERIES["load"], warm=6, **values)
        assert_no_table_is_read_through(nodes)
        assert_few_rows_are_touched(nodes, len(names))


async def plan_of_writing(connection: Connection, wallet_id: UUID) -> list[Node]:
    """The statement with every kind of row in it."""
    rows: dict[str, Any] = {
        "wallets": [(wallet_id, 100, 0, 1)],
        "new": [("new", wallet_id, b"", 5, 0, "RESERVED", None, NOW, None)],
        "changed": [("p-2", "RESERVED", "RELEASED", 0, None, NOW)],
        "entries": [
            (wallet_id, "p-2", "a", "RUB", 1, NOW),
            (wallet_id, "p-2", "b", "RUB", -1, NOW),
        ],
        "actor": ["a"],
        "action": ["b"],
        "details": ["{}"],
        "expected": 6,
    }
    return await explained(connection, store.QUERIES["write"], **rows)


async def test_writing_finds_every_row_by_an_index(pinned: Connection) -> None:
    """DAT-2 WAL-2"""
    (wallet_id,) = await wallet_ids(pinned, 1)
    nodes = await plan_of_writing(pinned, wallet_id)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 1)


@pytest.mark.parametrize("limit", [1, 128])
async def test_expired_reservations_are_found_by_an_index(
    connection: Connection, limit: int
) -> None:
    """DAT-2 WAL-2: not what is reserved, and not what ever was."""
    nodes = await explained(connection, store.QUERIES["expired_reservations"], warm=6, limit=limit)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, limit)


@pytest.mark.parametrize("before", [store.LAST_ENTRY, ROWS], ids=["newest", "from the middle"])
async def test_a_page_of_entries_reads_only_its_rows(pooled: Connection, before: int) -> None:
    """DAT-2 WAL-2: also of an account that has an entry in every movement."""
    values: dict[str, Any] = {"accounts": ["gateway:1", "wallet:1"], "before": before, "limit": 20}
    async with read_in_order(pooled):
        nodes = await explained(pooled, store.QUERIES["entries"], warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 20)


async def test_a_past_balance_reads_only_the_wallets_entries(pooled: Connection) -> None:
    """DAT-2 WAL-2"""
    (wallet_id,) = await wallet_ids(pooled, 1)
    nodes = await explained(pooled, store.QUERIES["wallet_at"], warm=6, id=wallet_id, at=NOW)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 1)


async def test_a_past_balance_reads_only_entries_before_that_time(pooled: Connection) -> None:
    """DAT-2 WAL-2: and is read from an index, in the order of time."""
    first = await pooled.fetchval("SELECT min(at) FROM ledger_entries")
    at = first + timedelta(seconds=19)
    nodes = await explained(pooled, store.QUERIES["wallet_at"], warm=6, id=LOCKED, at=at)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 20)


async def test_a_page_of_verify_reads_only_its_rows(pooled: Connection) -> None:
    """DAT-2 WAL-2"""
    nodes = await explained(pooled, store.QUERIES["wallet_sums"], after=LOCKED, limit=BATCH)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, BATCH)
    for after in (0, ROWS):
        values: dict[str, Any] = {"after": after, "limit": BATCH, "distance": 100}
        nodes = await explained(pooled, store.QUERIES["unbalanced_movements"], **values)
        assert_no_table_is_read_through(nodes)
        assert_few_rows_are_touched(nodes, BATCH + 1 + 2 * 100)


async def test_plans_of_empty_tables_use_indexes(
    database: Database,
) -> None:
    """DAT-2: a flusher keeps them, and nobody has counted the rows yet."""
    flusher = await database.dedicated()
    nodes = []
    for name in ("load", "lock_wallets"):
        values: dict[str, Any] = {"wallet_id": [UUID(int=1)], "payment_id": ["p"]}
        nodes += await explained(flusher, store.QUERIES[name], **values)
    await flusher.close()
    assert_no_table_is_read_through(nodes)
