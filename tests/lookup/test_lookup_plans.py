"""What a claim of lookups costs behind very many strangers."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest_asyncio

from paidonce.core.events import DEFERRED
from paidonce.db.queries import Connection
from paidonce.lookup import worker as lookup_worker
from paidonce.processing.transactions import Processor
from paidonce.processing.waiting import Lane
from paidonce.queue import senders
from tests.processing.test_query_plans import (
    _indexes,
    assert_few_rows_are_touched,
    assert_no_table_is_read_through,
    explained,
)
from tests.support.batches import Stage

STRANGERS: Final = """
UPDATE event_queue SET queue_name = 1, run_at = now();
CREATE TEMP TABLE invented AS
SELECT n, overlay(e.id::text PLACING right(md5(n::text), 12) FROM 25)::uuid AS id
  FROM webhook_events AS e, generate_series(1, 100000) AS n;
INSERT INTO webhook_events
SELECT copied.*
  FROM (SELECT e FROM webhook_events AS e LIMIT 1) AS one (e), invented AS i,
       jsonb_populate_record(one.e, jsonb_build_object('id', i.id)) AS copied;
INSERT INTO event_queue (run_at, event_id, queue_name, source_id, lane, sender)
SELECT now() - interval '1 day' + n * interval '1 ms', id, 1, 1, 3,
       '203.0.' || n / 250 % 250 || '.' || n % 250
  FROM invented;
"""


@pytest_asyncio.fixture(loop_scope="session")
async def strangers(shop: Stage, processor: Processor) -> AsyncIterator[Connection]:
    """A connection to a database with 100,000 due lookups of 60,000 strangers."""
    await processor.process([shop.paid("p", forced_outcome=DEFERRED)])
    connection = await shop.database.dedicated()
    await connection.execute(STRANGERS)
    await connection.execute("ANALYZE")
    yield connection
    await connection.close()


async def test_a_turn_and_a_claim_cost_the_same_behind_100000_strangers(
    strangers: Connection,
) -> None:
    """DAT-2 SEC-12: for strangers, and for those before them."""
    values: dict[str, Any] = {"source_id": [1, 2], "running": []}
    for lanes, limit in (([Lane.FIRST], 1), ([Lane.STRANGER], 8), (list(Lane), 9)):
        lane = list(map(int, lanes))
        query = lookup_worker.QUERIES["find_due"]
        nodes = await explained(strangers, query, warm=6, lane=lane, limit=8, **values)
        query = lookup_worker.QUERIES["seconds_until_due"]
        nodes += await explained(strangers, query, warm=6, lane=lane, **values)
        assert _indexes(nodes) == {"event_queue_lookup"}
        assert_no_table_is_read_through(nodes)
        assert_few_rows_are_touched(nodes, limit)
    nodes = await explained(
        strangers,
        senders.QUERIES["standing"],
        warm=6,
        source_id=1,
        sender="203.0.113.1",
        payment_id="p",
        payment_subject=b"1",
        order="o",
        order_subject=b"2",
        max_of_sender=senders.MAX_OF_SENDER,
        max_of_subject=senders.MAX_OF_SUBJECT,
        proven_days=senders.PROVEN_DAYS,
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 10)
