"""A search touches a bounded number of pages, whatever the filters and however much there is."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, combinations
from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from benchmarks.search.fill import fill
from paidonce.audit import store as audit_store
from paidonce.core.events import EventStatus
from paidonce.core.facts import PaymentStatus
from paidonce.db import search
from paidonce.db.pool import Database, open_database
from paidonce.db.queries import Connection, Query
from paidonce.db.search import (
    BUDGET,
    FIRST_ID,
    LAST_ID,
    MAX_COUNTED,
    Search,
    first_id_at,
    read_in_order,
)
from paidonce.events import store as events_store
from paidonce.events.model import EventQuery
from paidonce.orders import store as orders_store
from paidonce.payments import store as payments_store
from paidonce.statistics import counting
from tests.processing.test_query_plans import explained_sql
from tests.support.postgres import SCHEMA, fresh_database

ROWS: Final = 8_000
LOOKED_AT: Final = 300
"""How many rows a page may look at here, so that few rows stand for many."""
LIMIT: Final = 20
MAX_BUFFERS: Final = 3 * LOOKED_AT
SOAK_ROWS: Final = 1_000_000
NOW: Final = datetime.now(UTC)

Filters = Mapping[str, Any]


@dataclass(frozen=True)
class Histories:
    """The same history twice, once with twice as many rows."""

    single: Database
    double: Database


@asynccontextmanager
async def filled(postgres: str, rows: int) -> AsyncIterator[Database]:
    async with fresh_database(postgres) as url:
        database = await open_database(url, SCHEMA)
        async with database.connection() as connection:
            await fill(connection, rows, lambda _: None)
        yield database
        await database.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def histories(postgres: str) -> AsyncIterator[Histories]:
    async with filled(postgres, ROWS) as single, filled(postgres, 2 * ROWS) as double:
        yield Histories(single, double)


async def cost(connection: Connection, query: Query, **values: Any) -> tuple[int, int]:
    """What a query that is read in order costs."""
    async with read_in_order(connection):
        return await cost_as_planned(connection, query, **values)


async def cost_as_planned(connection: Connection, query: Query, **values: Any) -> tuple[int, int]:
    """The pages that a query touches, and how many rows of large tables, kept or thrown away."""
    nodes = await explained_sql(connection, query.sql, [values[one] for one in query.parameters])
    read = [one for one in nodes if "Scan" in one["Node Type"] and _is_large(one)]
    assert "Seq Scan" not in {one["Node Type"] for one in read}
    rows = sum(
        round((one["Actual Rows"] + one.get("Rows Removed by Filter", 0)) * one["Actual Loops"])
        for one in read
    )
    return nodes[0]["Shared Hit Blocks"] + nodes[0]["Shared Read Blocks"], rows


def _is_large(node: Mapping[str, Any]) -> bool:
    name = str(node.get("Relation Name", ""))
    large = ("webhook_events", "payments", "payment_ids", "orders", "audit_log")
    return name.startswith(large)


EVENT_FILTERS: Final[Sequence[Filters]] = [
    {"payment": "p-hot"},
    {"payment": "p-7000"},
    {"payments": ["p-hot", "p-7001", "p-nobody"]},
    {"order": "o-hot"},
    {"order": "o-nobody"},
    {"error_code": "INVALID_SIGNATURE"},
    {"error_code": "HANDLER_FAILED"},
    {"unusual_status": EventStatus.FAILED_FINAL},
    {"unusual_status": EventStatus.IGNORED},
    {"unusual_status": EventStatus.DEAD_LETTER},
    {"status": EventStatus.PROCESSED},
    {"is_test": True},
    {"test": False},
    {"source": "common"},
    {"source": "rare"},
    {"source": "silent"},
    {"source": "nobody"},
    {"last_id": first_id_at(NOW - timedelta(days=60))},
    {"first_id": first_id_at(NOW - timedelta(days=90)),
     "last_id": first_id_at(NOW - timedelta(days=60))},
]  # fmt: skip
PAYMENT_FILTERS: Final[Sequence[Filters]] = [
    {"external_payment_id": "p-7000"},
    {"external_payment_id": "p-nobody"},
    {"order": "o-hot"},
    {"email": "hot@example.com"},
    {"email": "nobody@example.com"},
    {"review": "USER_MISSING", "is_to_be_seen": True},
    {"owed": True},
    {"applied": True},
    {"disputed": True},
    {"undisputed": True},
    {"status": PaymentStatus.SUCCEEDED},
    {"unusual_status": PaymentStatus.FAILED},
    {"unusual_status": PaymentStatus.REFUNDED},
    {"source": "rare"},
    {"last_id": first_id_at(NOW - timedelta(days=60))},
]
ORDER_FILTERS: Final[Sequence[Filters]] = [
    {"user_id": UUID(int=7)},
    {"email": "hot@example.com"},
    {"status": "PENDING"},
    {"status": "REFUNDED"},
    {"kind": "booking"},
    {"last_id": first_id_at(NOW - timedelta(days=60))},
]


AUDIT_FILTERS: Final[Sequence[Filters]] = [
    {"event": UUID(int=7)},
    {"payment": UUID(int=7)},
    {"order": "o-hot"},
    {"order": "o-nobody"},
    {"user": UUID(int=7)},
    {"operator": "common"},
    {"operator": "rare"},
    {"actor": "paidonce"},
    {"unusual_action": "payment_linked"},
    {"unusual_action": "payment_accepted"},
    {"action": "event_deduped"},
    {"last_at": NOW - timedelta(days=60)},
    {"first_at": NOW - timedelta(days=90), "last_at": NOW - timedelta(days=60)},
]


def bounds_of(search: Search, limit: int, budget: int) -> dict[str, Any]:
    """The parameters of a page that is bounded by nothing but its limit."""
    common = {"limit": limit + 1, "budget": budget, "max_ids": 100, "max_kinds": 1_000}
    if search is not audit_store.AUDIT:
        return common | {"first_id": FIRST_ID, "last_id": LAST_ID}
    first, last = audit_store.FIRST, audit_store.LAST
    ids = {"first_id": first.id, "last_id": last.id}
    return common | ids | {"first_at": first.at, "last_at": last.at}


def _alone_and_in_pairs(filters: Sequence[Filters]) -> list[Filters]:
    pairs = ({**a, **b} for a, b in combinations(filters, 2) if a.keys().isdisjoint(b))
    return [{}, *chain(filters, pairs)]


SEARCHES: Final[Sequence[tuple[Search, Sequence[Filters]]]] = [
    (events_store.EVENTS, _alone_and_in_pairs(EVENT_FILTERS)),
    (payments_store.PAYMENTS, _alone_and_in_pairs(PAYMENT_FILTERS)),
    (orders_store.ORDERS, _alone_and_in_pairs(ORDER_FILTERS)),
    (audit_store.AUDIT, _alone_and_in_pairs(AUDIT_FILTERS)),
]


@pytest.mark.parametrize(
    ("search", "all_filters"), SEARCHES, ids=["events", "payments", "orders", "audit"]
)
async def test_the_cost_of_a_search_does_not_depend_on_the_table_size(
    histories: Histories, search: Search, all_filters: Sequence[Filters]
) -> None:
    """OPS-2 OPS-8 DAT-2: with every filter alone and in pairs, what is looked for there or not."""
    bounds = bounds_of(search, LIMIT, LOOKED_AT)
    costly = []
    for filters in all_filters:
        query = search.statement(frozenset(filters) - frozenset(bounds))
        for database in (histories.single, histories.double):
            async with database.connection() as connection:
                buffers, rows = await cost(connection, query, **{**bounds, **filters})
            # A payment that gateways know by several ids is looked for under each.
            names = 1 + len(filters.get("payments", []))
            if buffers > MAX_BUFFERS * names or rows > 1.2 * LOOKED_AT * names:
                costly.append((filters, buffers, rows))
    assert costly == []


async def test_a_search_does_not_depend_on_statistics(histories: Histories) -> None:
    """OPS-2 DAT-2: those of a table that was empty when somebody looked."""
    bounds = {"first_id": FIRST_ID, "last_id": LAST_ID, "limit": LIMIT + 1, "budget": LOOKED_AT}
    async with histories.double.connection() as connection:
        undone = connection.transaction()
        await undone.start()
        await connection.execute(
            "UPDATE pg_class SET reltuples = 1, relpages = 1 WHERE relname LIKE 'webhook_events%'"
        )
        await connection.execute(
            "DELETE FROM pg_statistic WHERE starelid::regclass::text LIKE 'webhook_events%'"
        )
        for filters in EVENT_FILTERS:
            query = events_store.EVENTS.statement(frozenset(filters) - frozenset(bounds))
            _, rows = await cost(connection, query, **{**bounds, **filters})
            assert rows <= 1.2 * LOOKED_AT * (1 + len(filters.get("payments", []))), filters
        await undone.rollback()


COUNTS: Final = payments_store.QUERIES | events_store.QUERIES
MEASURED: Final[dict[str, Any]] = {"first_id": FIRST_ID, "last_id": LAST_ID, "max_counted": 50,
                                   "max_reasons": 100}  # fmt: skip


@pytest.mark.parametrize("name", ["backlog", "unapplied_money", "to_review", "open_disputes"])
async def test_the_cost_of_a_scrape_does_not_depend_on_the_backlog(
    histories: Histories, name: str
) -> None:
    """OBS-2 DAT-2: so many of each kind are counted, and no more."""
    for database in (histories.single, histories.double):
        async with database.connection() as connection:
            buffers, rows = await cost(connection, COUNTS[name], **MEASURED)
        assert buffers < MAX_BUFFERS
        assert rows <= 4 * 50


async def test_statistics_read_counts_and_no_events(histories: Histories) -> None:
    """OPS-1 DAT-2: a year of them, with deltas that were not folded yet."""
    today = datetime.now(UTC).date()
    for database in (histories.single, histories.double):
        async with database.connection() as connection:
            buffers, rows = await cost_as_planned(
                connection,
                counting.QUERIES["report"],
                first_day=today - timedelta(days=365),
                last_day=today,
                source=None,
            )
        assert rows == 0, "of events, payments or orders"
        assert buffers < MAX_BUFFERS


async def _all_pages(database: Database, **filters: Any) -> list[UUID]:
    found: list[UUID] = []
    query = EventQuery(limit=LIMIT, **filters)
    async with database.connection() as connection:
        for _ in range(10_000):
            page = await events_store.search(connection, query)
            found += [row["id"] for row in page.items]
            assert len(page.items) <= LIMIT
            if page.next_cursor is None:
                return found
            query = query.model_copy(update={"cursor": UUID(page.next_cursor)})
    raise AssertionError("the pages have no end")


CONDITIONS: Final[Sequence[tuple[Filters, str]]] = [
    ({}, "true"),
    ({"source": "rare"}, "source_id = (SELECT id FROM sources WHERE name = 'rare')"),
    ({"source": "nobody"}, "false"),
    ({"status": EventStatus.FAILED_FINAL, "test": True}, "status = 'FAILED_FINAL' AND is_test"),
    ({"status": EventStatus.DEAD_LETTER}, "status = 'DEAD_LETTER'"),
    ({"status": EventStatus.PROCESSED, "test": False}, "status = 'PROCESSED' AND NOT is_test"),
    ({"payment": "p-hot", "order": "o-hot"}, "false"),
    ({"payment": "p-hot", "status": EventStatus.IGNORED},
     "external_payment_id = 'p-hot' AND status = 'IGNORED'"),
    ({"error_code": "INVALID_SIGNATURE", "source": "rare"},
     "error_code = 'INVALID_SIGNATURE' AND source_id = (SELECT id FROM sources"
     " WHERE name = 'rare')"),
]  # fmt: skip


@pytest.mark.parametrize(("filters", "condition"), CONDITIONS, ids=str)
async def test_pages_contain_every_match_once(
    histories: Histories, monkeypatch: pytest.MonkeyPatch, filters: Filters, condition: str
) -> None:
    """OPS-2: the newest first, also where pages are short or empty."""
    monkeypatch.setattr(search, "BUDGET", 97)
    async with histories.single.connection() as connection:
        rows = await connection.fetch(
            f"SELECT id FROM webhook_events WHERE {condition} ORDER BY id DESC"
        )
    assert await _all_pages(histories.single, **filters) == [row["id"] for row in rows]


async def test_events_are_found_by_our_payment_id(histories: Histories) -> None:
    """OPS-2: which stands for all that gateways call it."""
    async with histories.single.connection() as connection:
        payment = await connection.fetchval(
            "SELECT payment_id FROM payment_ids WHERE external_id = 'p-7000'"
        )
        event = await connection.fetchval(
            "SELECT id FROM webhook_events WHERE external_payment_id = 'p-7000'"
        )
    assert await _all_pages(histories.single, payment=str(payment)) == [event]
    assert await _all_pages(histories.single, payment="p-7000") == [event]


async def test_a_million_events_are_searched_within_the_budget(
    request: pytest.FixtureRequest, postgres: str
) -> None:
    """OPS-1 OPS-2 DAT-2: at its own budget, with every filter alone and in pairs."""
    if not request.config.getoption("--soak"):
        pytest.skip("make soak runs it")
    costly = []
    async with filled(postgres, SOAK_ROWS) as database, database.connection() as connection:
        for search, all_filters in SEARCHES:
            bounds = bounds_of(search, 50, BUDGET)
            for filters in all_filters:
                query = search.statement(frozenset(filters) - frozenset(bounds))
                buffers, rows = await cost(connection, query, **{**bounds, **filters})
                names = 1 + len(filters.get("payments", []))
                if buffers > 3 * BUDGET * names or rows > 1.2 * BUDGET * names:
                    costly.append((filters, buffers, rows))
        for name in ("backlog", "unapplied_money", "to_review"):
            measured = MEASURED | {"max_counted": MAX_COUNTED}
            buffers, rows = await cost(connection, COUNTS[name], **measured)
            assert buffers < 3 * MAX_COUNTED, name
    assert costly == []
