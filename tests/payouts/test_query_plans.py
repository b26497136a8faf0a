"""The plans of what payments out of a wallet are read and written by (DAT-2)."""

from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from paidonce.db.pool import Database
from paidonce.db.queries import Connection, Query
from paidonce.db.search import LAST_ID
from paidonce.payouts import store
from paidonce.payouts.store import payments_query
from tests.processing.test_query_plans import (
    assert_few_rows_are_touched,
    assert_no_table_is_read_through,
    explained,
    pooled,
)

__all__ = ["pooled"]

ROWS: Final = 20_000
FEW: Final = 64
NAMES: Final = [f"p-{number}" for number in range(5_000, 5_000 + FEW)]
TRANSACTIONS: Final = [f"t-{number}" for number in range(5_000, 5_000 + FEW)]
IDS: Final = [UUID(int=number) for number in range(5_000, 5_000 + FEW)]
FILL: Final = """
CREATE TEMP TABLE counted AS
SELECT n, lpad(to_hex(n), 32, '0')::uuid AS id FROM generate_series(1, {rows}) AS n;

INSERT INTO sources (name, provider) VALUES ('bank', 'standard');

INSERT INTO wallets (id, owner, currency) SELECT id, 'w-' || n, 'RUB' FROM counted;

INSERT INTO wallet_payments (payment_id, wallet_id, source_id, amount_minor, currency,
                             request_hash, status, transaction_id, review, next_attempt_at,
                             created_at, updated_at)
SELECT 'p-' || n, id, 1, 5, 'RUB', '', 'PROCESSING', 't-' || n,
       CASE WHEN n % 1000 = 0 THEN 'GATEWAY_SILENT' END, now() + n * interval '1 minute', now(),
       now()
  FROM counted;

INSERT INTO gateway_callbacks (
    id, source_id, transaction_id, gateway_status, event_id, next_attempt_at, received_at)
SELECT id, 1, 't-' || n, 'succeeded', id, now() + n * interval '1 minute', now() FROM counted;

INSERT INTO payment_views (payment_id, status, amount_minor, currency, version, updated_at)
SELECT 'p-' || n, 'PROCESSING', 5, 'RUB', 2, now() FROM counted;

INSERT INTO outbox (aggregate_type, aggregate_name, type, version, payload, occurred_at)
SELECT 'wallet-payment', 'p-' || n, 'PaymentProcessing', v, '{{}}', now()
  FROM counted, generate_series(1, 2) AS v;

INSERT INTO outbox (aggregate_type, aggregate_name, type, version, payload, occurred_at)
SELECT 'payment', id, 't', 1, '{{}}', now() FROM counted;
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled(module_database: Database) -> Database:
    """Twenty thousand payments under way, none of which is to be asked about yet."""
    async with module_database.transaction() as connection:
        await connection.execute(FILL.format(rows=ROWS))
    async with module_database.connection() as connection:
        await connection.execute("ANALYZE")
    return module_database


QUERIES: Final = store.QUERIES
MANY_TRANSACTIONS: Final = {"source_id": [1] * FEW, "transaction_id": TRANSACTIONS}
POSTPONED: Final = {"id": IDS, "max_attempts": 16, "delays_s": [1.0]}
COSTS: Final[dict[str, tuple[Query, dict[str, Any], int]]] = {
    "claim": (QUERIES["claim"], {"limit": 16, "lease_s": 30.0}, 0),
    "lock": (payments_query("payment_id", "lock"), {"payment_id": NAMES}, FEW),
    "lock by transaction": (payments_query("transaction", "lock"), MANY_TRANSACTIONS, FEW),
    "find": (payments_query("payment_id"), {"payment_id": ["p-5000"]}, 1),
    "search": (payments_query("page"), {"after": "p-5000", "limit": FEW}, FEW),
    "search reviews": (payments_query("page", "any_review"), {"after": "", "limit": FEW}, FEW),
    "due_callbacks": (QUERIES["due_callbacks"], {"limit": 100}, 0),
    "pending_transactions": (QUERIES["pending_transactions"], {"id": IDS}, FEW),
    "lock_callbacks": (QUERIES["lock_callbacks"], MANY_TRANSACTIONS, FEW),
    "finish_callbacks": (QUERIES["finish_callbacks"], {"id": IDS, "payment_id": NAMES}, FEW),
    "postpone_callbacks": (QUERIES["postpone_callbacks"], POSTPONED, FEW),
    "dead_callbacks": (QUERIES["dead_callbacks"], {"last_id": LAST_ID, "limit": FEW}, FEW),
    "messages_in_outbox": (
        QUERIES["messages_in_outbox"],
        {"after": "", "limit": FEW},
        2 * FEW + 1,
    ),
}


@pytest.mark.parametrize("name", COSTS)
async def test_a_query_reads_only_the_rows_it_returns(pooled: Connection, name: str) -> None:
    """DAT-2 SVC-1 QRY-1: not what is under way, and not what ever was."""
    query, values, limit = COSTS[name]
    nodes = await explained(pooled, query, warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, limit)
