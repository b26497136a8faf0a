"""What relay and consumers ask costs the same, however much was published before (DAT-2)."""

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio

from paidonce.bus import dead_letters, groups, outbox
from paidonce.bus.model import BusDeadLetterFilter
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, Query
from paidonce.db.search import MAX_COUNTED, read_in_order
from paidonce.maintenance import retention
from tests.processing.test_query_plans import (
    NOW,
    Node,
    _undone,
    assert_few_rows_are_touched,
    explained,
)

HISTORY: Final = 20_000
WAITING: Final = 30
FILL: Final = f"""
INSERT INTO outbox (aggregate_type, aggregate_name, type, version, payload, occurred_at,
                    published_at, pos)
SELECT CASE WHEN n % 2 = 0 THEN 'thing' ELSE 'other' END, n::text, 't', 1, '{{}}', now(), now(), n
  FROM generate_series(1, {HISTORY}) AS n;
SELECT setval('outbox_positions', {HISTORY});
INSERT INTO outbox (aggregate_type, aggregate_name, type, version, payload, occurred_at)
SELECT 'thing', n::text, 't', 1, '{{}}', now() FROM generate_series(1, {WAITING}) AS n;
INSERT INTO bus_cursors (consumer, aggregate_type, pos) VALUES
    ('c', 'thing', {HISTORY} - 2 * {WAITING}),
    ('d', 'other', {HISTORY});
INSERT INTO processed_events (consumer, event_id, processed_at)
SELECT 'c', md5(n::text)::uuid, now() - n * interval '1 minute'
  FROM generate_series(1, {HISTORY}) AS n;
INSERT INTO bus_dead_letters (consumer, event_id, topic, key, type, version, time, body, error,
                              attempts, retried_at, consumed_at)
SELECT 'c', md5(n::text)::uuid, 't', 'k', 't', 1, now(), '', 'e', 1, now(), now()
  FROM generate_series(1, {HISTORY}) AS n;
"""
LARGE: Final = ("processed_events", "bus_dead_letters")


@pytest_asyncio.fixture(params=["pinned", "pooled"], loop_scope="session")
async def connection(
    database: Database, request: pytest.FixtureRequest
) -> AsyncIterator[Connection]:
    """Either of the two that ask, with statistics or without."""
    async with database.connection() as filling:
        await filling.execute(FILL)
        if request.param == "pooled":
            await filling.execute("ANALYZE")
    if request.param == "pooled":
        async with database.connection() as pooled, _undone(pooled):
            yield pooled
        return
    pinned = await database.dedicated()
    async with _undone(pinned):
        yield pinned
    await pinned.close()


def assert_few(nodes: list[Node], limit: int) -> None:
    assert_few_rows_are_touched(nodes, limit)
    for node in nodes:
        if node.get("Relation Name") in LARGE and "Scan" in node["Node Type"]:
            touched = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            assert touched * node["Actual Loops"] <= limit, node


ANY_LETTER: Final[dict[str, Any]] = {**BusDeadLetterFilter().model_dump(), "limit": 50}
MOST: Final[dict[str, Any]] = {"most": MAX_COUNTED}


@pytest.mark.parametrize(
    ("query", "values", "touched"),
    [
        (outbox.QUERIES["unpublished"], {"limit": 1_000}, WAITING),
        (outbox.QUERIES["unpublished_positions"], {"limit": 1_000}, WAITING),
        (outbox.QUERIES["backlog"], MOST, WAITING),
        (outbox.QUERIES["mark_published"], {"seq": [HISTORY + 1, HISTORY + 2]}, 2),
        (
            outbox.QUERIES["published_after"],
            {"types": ["thing", "other"], "pos": [HISTORY - 2 * WAITING] * 2, "limit": 10},
            2 * 10,
        ),
        (outbox.QUERIES["published_after"], {"types": ["thing"], "pos": [HISTORY], "limit": 10}, 0),
        (groups.QUERIES["list_groups"], MOST, WAITING),
        (groups.QUERIES["has_unread"], {"consumer": "c", "types": ["thing", "other"]}, 1),
        (groups.QUERIES["lock_cursors"], {"consumer": "c", "types": ["thing"]}, 0),
        (dead_letters.QUERIES["next_retry"], {"consumer": "c"}, 0),
        (dead_letters.QUERIES["count_dead_letters"], MOST, 0),
        (dead_letters.LIST_OPEN, {**ANY_LETTER, "cursor": None}, 0),
        (dead_letters.LIST_OPEN, {**ANY_LETTER, "consumer": "c", "cursor": HISTORY}, 0),
        (dead_letters.LOCK, {**ANY_LETTER, "after": 0}, 0),
    ],
    ids=[
        "unpublished",
        "places",
        "backlog",
        "marking",
        "after",
        "nothing new",
        "lag",
        "looking",
        "locking",
        "retried",
        "dead letters",
        "list of all",
        "list of a group",
        "all that match",
    ],
)
async def test_queries_do_not_read_old_messages(
    connection: Connection, query: Query, values: dict[str, Any], touched: int
) -> None:
    """DAT-2 BUS-1"""
    if query in (outbox.QUERIES["backlog"], groups.QUERIES["list_groups"]):
        async with read_in_order(connection):
            nodes = await explained(connection, query, **values)
    else:
        nodes = await explained(connection, query, warm=1, **values)
    assert_few(nodes, touched)


async def test_deleting_consumed_ids_reads_one_page(connection: Connection) -> None:
    """DAT-2 QRY-1"""
    values: dict[str, Any] = {"after": 0, "before": NOW, "limit": 100}
    nodes = await explained(connection, retention.STATEMENTS["processed_events"], **values)
    assert_few(nodes, 100)
