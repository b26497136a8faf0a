"""The plans of the queries that must stay cheap however large the tables grow (DAT-2)."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio
from asyncpg.connection import LoggedQuery

from paidonce.domain.events import EventStatus, PaymentId, SourceId, SubscriptionId, UserId
from paidonce.domain.money import Money
from paidonce.domain.payments import Facts, Payment
from paidonce.domain.subscriptions import Subscription, SubscriptionStatus
from paidonce.store import (
    asking,
    due,
    listings,
    months,
    nonces,
    notices,
    replays,
    reprocessing,
    retention,
    settlement,
)
from paidonce.store.db import Database
from paidonce.store.listings import FIRST_ID, LAST_ID, first_id_at
from paidonce.store.queries import Connection, Query
from paidonce.store.replays import EventFilter
from paidonce.store.schema import ensure_partitions

ROWS: Final = 20_000
UNUSUAL: Final = 20
"""How many events wait, and how many payments are not applied: the oldest ones."""
NOW: Final = datetime.now(UTC)

LARGE: Final = (
    "webhook_events",
    "event_keys",
    "payments",
    "payment_ids",
    "refunds",
    "subscriptions",
    "users",
    "orders",
    "wallets",
    "reservations",
    "ledger_entries",
    "wallet_payments",
    "gateway_callbacks",
    "payment_views",
    "due",
    "nonces",
    "audit_log",
    "outbox",
    "notices",
    "notice_messages",
)

FILL: Final = """
CREATE TEMP TABLE counted AS
SELECT n, md5(n::text)::uuid AS id,
       decode(md5(n::text), 'hex') AS digest
  FROM generate_series(1, {rows}) AS n;

INSERT INTO sources (name, provider) VALUES ('shop', 'tilda');

INSERT INTO users (id, email, email_key)
SELECT id, n || '@example.com', n || '@example.com' FROM counted;

INSERT INTO subscriptions (id, user_id, product, status, current_period_end, version)
SELECT id, id, 'default', 'ACTIVE', now(), 1 FROM counted;

INSERT INTO wallets (id, owner, currency) SELECT id, 'w-' || n, 'RUB' FROM counted;

INSERT INTO orders (id, reference, kind, status, amount_minor, currency, email_key, wallet_id,
                    request_hash, version)
SELECT id, 'o-' || n, 'wallet', 'PENDING', 100, 'RUB', n || '@example.org', id, '', 1 FROM counted;

INSERT INTO payments (id, source_id, order_reference, user_id, email_key, currency,
                      captured_minor, refund_total_minor, refunded_minor, applied_at, version)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, CASE WHEN n % 2 = 0 THEN 'o-' || n END,
       CASE WHEN n > {unusual} THEN id END, n || '@example.com', 'RUB', 100, 0, 0,
       CASE WHEN n > {unusual} THEN now() END, 1
  FROM counted;

INSERT INTO payment_ids (source_id, kind, external_id, payment_id)
SELECT 1, 'payment', 'p-' || n, lpad(to_hex(n), 32, '0')::uuid FROM counted;

INSERT INTO refunds (source_id, refund_id, payment_id, amount_minor)
SELECT 1, 'r-' || n, lpad(to_hex(n), 32, '0')::uuid, 0 FROM counted;

INSERT INTO event_keys (source_id, digest, event_id, fingerprint, fingerprint_version)
SELECT 1, digest, id, digest, 1 FROM counted;

INSERT INTO webhook_events (
    id, source_id, status, external_payment_id, signature_valid, signature_method, is_test,
    attempts, received_at, processed_at, request_id, headers, raw_body)
SELECT event_id, 1, CASE WHEN n > {unusual} THEN 'PROCESSED' ELSE 'VALIDATED' END, 'p-' || n,
       true, 'none', false, 0, now(), CASE WHEN n > {unusual} THEN now() END, 'r', '{{}}', ''
  FROM numbered;

INSERT INTO audit_log (at, action, success)
SELECT now() - interval '1 year' + n * interval '1 minute', 'a', true FROM counted;

INSERT INTO outbox (aggregate_type, aggregate_id, type, version, payload, occurred_at,
                    published_at)
SELECT 'payment', id, 't', 1, '{{}}', now() - interval '1 year' + n * interval '1 minute',
       now() - interval '1 year' + n * interval '1 minute'
  FROM counted;

INSERT INTO due (run_at, event_id, waits_on)
SELECT now() - interval '1 hour' + n * interval '1 second', event_id,
       CASE WHEN n % 100 = 0 THEN digest END
  FROM numbered;

INSERT INTO due (run_at, event_id, lane, source_id)
SELECT now() - interval '1 day' + n * interval '1 second', event_id, 1, 1 + n % 2
  FROM numbered
 WHERE n <= {rows} / 2;

INSERT INTO nonces (source_id, digest, fingerprint, fingerprint_version)
SELECT 1, digest, digest, 1 FROM counted;

INSERT INTO notice_messages (id, channel, at, content, status, run_at, ended_at)
SELECT id, 'ops', now(), '{{}}', 'SENT', now(), now() FROM counted;

INSERT INTO notices (channel, at, kind, source, message_id)
SELECT 'ops', now(), 'conflict', 'shop', CASE WHEN n > {unusual} THEN id END FROM counted;
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled(module_database: Database) -> Database:
    """Twenty thousand of everything, over five months, with statistics."""
    async with module_database.transaction() as connection:
        await ensure_partitions(connection, NOW)
        months = [_first_of_month(ahead) for ahead in range(-1, 4)]
        script = FILL.format(rows=ROWS, unusual=UNUSUAL)
        before, _, after = script.partition("INSERT INTO sources")
        await connection.execute(before)
        # Event ids in the order of arrival, evenly over the months; the first ones wait.
        await connection.execute(
            "CREATE TEMP TABLE numbered AS SELECT counted.*, (lpad(to_hex((start_ms +"
            " (n % 4000))::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid"
            " AS event_id FROM counted JOIN unnest($1::bigint[]) WITH ORDINALITY AS m (start_ms, k)"
            " ON k = 1 + (n - 1) * 5 / $2::int",
            [int(month.timestamp() * 1000) for month in months],
            ROWS,
        )
        await connection.execute("INSERT INTO sources" + after)
    async with module_database.connection() as connection:
        await connection.execute("ANALYZE")
    return module_database


def _first_of_month(ahead: int) -> datetime:
    month = NOW.year * 12 + NOW.month - 1 + ahead
    return datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture(loop_scope="session")
async def pinned(filled: Database) -> AsyncIterator[Connection]:
    """A flusher's connection, in a transaction that is undone."""
    connection = await filled.dedicated()
    async with _undone(connection):
        yield connection
    await connection.close()


@pytest_asyncio.fixture(loop_scope="session")
async def pooled(filled: Database) -> AsyncIterator[Connection]:
    """A connection as workers and operators have it, in a transaction that is undone."""
    async with filled.connection() as connection, _undone(connection):
        yield connection


@pytest_asyncio.fixture(loop_scope="session", params=["pinned", "pooled"])
async def connection(request: pytest.FixtureRequest, filled: Database) -> AsyncIterator[Connection]:
    """Either of the two: what a query costs must not depend on who asks."""
    if request.param == "pooled":
        async with filled.connection() as pooled, _undone(pooled):
            yield pooled
        return
    pinned = await filled.dedicated()
    async with _undone(pinned):
        yield pinned
    await pinned.close()


class _undone:  # noqa: N801
    """A transaction that is never committed."""

    def __init__(self, connection: Connection) -> None:
        self._transaction = connection.transaction()

    async def __aenter__(self) -> None:
        await self._transaction.start()

    async def __aexit__(self, *_: object) -> None:
        await self._transaction.rollback()


Node = Mapping[str, Any]


async def explained(
    connection: Connection, query: Query, *, warm: int = 0, **values: Any
) -> list[Node]:
    """The nodes of the plan that the query has, after it was run `warm` times."""
    given = [values[name] for name in query.parameters]
    return await explained_sql(connection, query.sql, given, warm=warm)


async def explained_sql(
    connection: Connection, sql: str, given: Sequence[object], *, warm: int = 0, run: bool = True
) -> list[Node]:
    """The plan of a prepared statement, as PostgreSQL keeps it for the session."""
    statement = await connection.prepare(sql)
    types = [_type(one.name) for one in statement.get_parameters()]
    literals = ", ".join(_literal(one, kind) for one, kind in zip(given, types, strict=True))
    name = f"explained_{uuid4().hex}"
    of_types, with_values = (f"({', '.join(types)})", f"({literals})") if types else ("", "")
    await connection.execute(f"PREPARE {name} {of_types} AS {sql}")
    call = f"EXECUTE {name} {with_values}"
    for _ in range(warm):
        await connection.execute(call)
    text = await connection.fetchval(
        f"EXPLAIN ({'ANALYZE, ' if run else ''}BUFFERS, FORMAT JSON) {call}"
    )
    return list(_nodes(json.loads(text)[0]["Plan"]))


def _type(name: str) -> str:
    return {"int2": "smallint", "int8": "bigint"}.get(name, name)


def _literal(value: object, kind: str) -> str:
    if value is None:
        return f"NULL::{kind}" if kind else "NULL"
    if not kind.endswith("[]") and isinstance(value, tuple):
        return f"ROW({', '.join(_literal(one, '') for one in value)})::{kind}"
    if isinstance(value, list | tuple | set):
        element = kind.removesuffix("[]")
        return f"ARRAY[{', '.join(_literal(one, element) for one in value)}]::{element}[]"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    quoted = "'" + text.replace("'", "''") + "'"
    return f"{quoted}::{kind}" if kind else quoted


def _nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _table(node: Node) -> str | None:
    name = node.get("Relation Name")
    return next((large for large in LARGE if name and name.startswith(large)), name)


def assert_no_table_is_read_through(nodes: list[Node]) -> None:
    """Every large table is read by an index, and by a condition on it."""
    read = [node for node in nodes if _table(node) in LARGE and "Scan" in node["Node Type"]]
    for node in read:
        where = f"{node['Node Type']} on {node['Relation Name']}"
        assert node["Node Type"] != "Seq Scan", where
        if node["Node Type"] in ("Index Scan", "Index Only Scan"):
            assert "Index Cond" in node, f"{where}: all of {node['Index Name']}"


def assert_few_rows_are_touched(nodes: list[Node], limit: int) -> None:
    """What was read and thrown away counts too."""
    for node in nodes:
        if _table(node) not in LARGE or "Scan" not in node["Node Type"]:
            continue
        loops = node["Actual Loops"]
        touched = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * loops
        assert touched <= limit, f"{touched} rows of {node['Relation Name']} were read"


def partitions_read(nodes: list[Node]) -> set[str]:
    return {
        node["Relation Name"]
        for node in nodes
        if str(node.get("Relation Name")).startswith("webhook_events_")
        and "Scan" in node["Node Type"]
        and node.get("Actual Loops", 1) > 0
    }


def partitions_planned(nodes: list[Node]) -> set[str]:
    """Those that the plan still has when it starts, read or not; the others cost nothing at all."""
    names = {str(node.get("Relation Name")) for node in nodes}
    return {name for name in names if name.startswith("webhook_events_")}


async def event_ids(connection: Connection, order: str, limit: int) -> list[UUID]:
    rows = await connection.fetch(
        f"SELECT id FROM webhook_events ORDER BY id {order} LIMIT {limit}"
    )
    return [row["id"] for row in rows]


NUMBERS = range(5_000, 5_064)
OF_LANE_0: Final[dict[str, Any]] = {"lane": due.Lane.SETTLE, "not_before": due.LONG_AGO}


async def test_loading_finds_every_row_by_an_index(pinned: Connection) -> None:
    """DAT-2"""
    digests = await pinned.fetch("SELECT digest FROM event_keys LIMIT 64")
    nodes = await explained(
        pinned,
        settlement.QUERIES["load"],
        key_source_id=[1] * 64,
        key_digest=[row["digest"] for row in digests],
        id_source_id=[1] * 64,
        id_kind=["payment"] * 64,
        id_value=[f"p-{number}" for number in NUMBERS],
        payment_id=[],
        reference=[f"o-{number}" for number in NUMBERS],
        max_of_order=settlement.MAX_OF_ORDER,
        email_key=[f"{number}@example.com" for number in NUMBERS],
        user_id=[],
    )
    found = {_table(node) for node in nodes}
    rows = {"event_keys", "payment_ids", "payments", "users", "subscriptions", "refunds"}
    assert rows | {"orders", "wallets"} <= found
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 4 * 64)


async def plan_of_writing(
    connection: Connection, subscription_id: UUID, *, run: bool
) -> list[Node]:
    """The plan of what is sent to change a payment and a subscription."""
    facts = Facts(captured=Money(5, "RUB"))
    payment = Payment(PaymentId(UUID(int=UNUSUAL)), SourceId(1), (), facts, version=1)
    subscription = Subscription(
        id=SubscriptionId(subscription_id),
        user_id=UserId(subscription_id),
        product="default",
        status=SubscriptionStatus.INACTIVE,
        current_period_end=None,
        version=1,
    )
    changes = settlement.Changes(payments=[payment], subscriptions=[subscription])
    sent: list[LoggedQuery] = []
    savepoint = connection.transaction()
    await savepoint.start()
    with connection.query_logger(sent.append), suppress(asyncpg.SerializationError):
        await settlement.write(connection, changes, NOW)
    await savepoint.rollback()
    ours = [one for one in sent if "payments" in one.query]
    assert len(ours) == 1
    return await explained_sql(connection, ours[0].query, ours[0].args, run=run)


async def test_writing_finds_every_row_by_an_index(pinned: Connection) -> None:
    """DAT-2: the statement with every kind of row in it."""
    subscription_id = await pinned.fetchval("SELECT id FROM subscriptions LIMIT 1")
    nodes = await plan_of_writing(pinned, subscription_id, run=True)
    assert {"payments", "subscriptions"} <= {_table(node) for node in nodes}
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 5)


async def test_plans_that_are_made_on_empty_tables_are_right_for_full_ones(
    database: Database,
) -> None:
    """DAT-2: a flusher keeps them, and nobody has counted the rows yet."""
    async with database.transaction() as connection:
        await ensure_partitions(connection, NOW)
    pinned = await database.dedicated()
    wanted: dict[str, Any] = {name: [] for name in settlement.QUERIES["load"].parameters}
    wanted["max_of_order"] = settlement.MAX_OF_ORDER
    async with _undone(pinned):
        nodes = await explained(pinned, settlement.QUERIES["load"], **wanted)
        nodes += await plan_of_writing(pinned, UUID(int=1), run=False)
    await pinned.close()
    assert len({_table(node) for node in nodes} & set(LARGE)) >= 6
    assert_no_table_is_read_through(nodes)


async def test_claims_that_are_planned_on_an_empty_queue_are_right_for_a_full_one(
    database: Database,
) -> None:
    """DAT-2: each finds its rows by the index that is made for it."""
    async with database.transaction() as connection:
        await ensure_partitions(connection, NOW)
        await connection.execute("ANALYZE due")
    pinned = await database.dedicated()
    some: dict[str, Any] = {name: UUID(int=1) for name in ("first_id", "last_id")}
    async with _undone(pinned):
        taken = await explained(pinned, due.QUERIES["take_due"], limit=64, **OF_LANE_0)
        claimed = await explained(pinned, due.QUERIES["claim"], event_id=[UUID(int=1)], **some)
        asked = await explained(
            pinned, asking.QUERIES["due_of_sources"], source_id=[1], in_hand=[], limit=8
        )
        answered = await explained(pinned, due.QUERIES["take_events"], event_id=[UUID(int=1)])
    await pinned.close()
    assert _indexes(taken) == {"due_lane"}
    assert _indexes(claimed) == {"due_event", "due_pkey"}
    assert _indexes(asked) == {"due_of_source"}
    assert _indexes(answered) == {"due_event"}


def _indexes(nodes: list[Node]) -> set[str]:
    """By which indexes the queue is read."""
    named = (str(node.get("Index Name", "")) for node in nodes)
    return {name for name in named if name.startswith("due_")}


@pytest.mark.parametrize("limit", [1, 64])
async def test_taking_what_is_due_costs_what_is_taken(connection: Connection, limit: int) -> None:
    """DAT-2 RET-4: not what waits, and not what is stored."""
    query = due.QUERIES["take_due"]
    nodes = await explained(connection, query, warm=6, limit=limit, **OF_LANE_0)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, limit)


async def test_taking_visits_only_the_months_of_what_it_takes(pinned: Connection) -> None:
    """DAT-2: those that waited longest are all of the first month."""
    query = due.QUERIES["take_due"]
    nodes = await explained(pinned, query, limit=UNUSUAL, **OF_LANE_0)
    assert len(partitions_read(nodes)) == 1


@pytest.mark.parametrize("limit", [1, 8])
async def test_what_is_due_of_a_source_costs_what_is_found(
    connection: Connection, limit: int
) -> None:
    """DAT-2 RET-1: not what waits for other gateways, or for this one."""
    query = asking.QUERIES["due_of_sources"]
    values: dict[str, Any] = {"source_id": [2, 3], "in_hand": [UUID(int=1)], "limit": limit}
    nodes = await explained(connection, query, warm=6, **values)
    assert _indexes(nodes) == {"due_of_source"}
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, limit)


async def test_looking_for_what_is_next_of_a_source_reads_one_row(connection: Connection) -> None:
    """DAT-2 RET-4"""
    query = asking.QUERIES["next_of_sources"]
    nodes = await explained(connection, query, warm=6, source_id=[2, 3], in_hand=[])
    assert_few_rows_are_touched(nodes, 1)


async def test_claiming_what_was_asked_costs_what_is_claimed(connection: Connection) -> None:
    """DAT-2 RET-4"""
    ids = await event_ids(connection, "ASC", 8)
    taken = await explained(connection, due.QUERIES["take_events"], warm=6, event_id=ids)
    values: dict[str, Any] = {"first_id": min(ids), "last_id": max(ids)}
    read = await explained(connection, asking.QUERIES["read"], warm=6, event_id=ids, **values)
    assert_no_table_is_read_through(taken + read)
    assert_few_rows_are_touched(taken + read, 2 * 8)
    assert len(partitions_planned(read)) == 1


async def test_nonces_are_found_by_an_index(pinned: Connection) -> None:
    """DAT-2 SEC-3"""
    rows = await pinned.fetch("SELECT digest FROM nonces LIMIT 64")
    digests = [row["digest"] for row in rows]
    query = nonces.QUERIES["recorded"]
    nodes = await explained(pinned, query, source_id=[1] * 64, digest=digests)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 64)


async def test_writing_notices_reads_only_what_is_untold(connection: Connection) -> None:
    """DAT-2 OBS-5"""
    row = ("ops", NOW, "conflict", "shop", UUID(int=1), None, "{}", None)
    columns = dict(zip(notices.COLUMNS, zip(*[row] * 64, strict=True), strict=True))
    given: dict[str, Any] = {**columns, "max_untold": notices.MAX_UNTOLD}
    nodes = await explained(connection, notices.QUERIES["add"], **given)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, UNUSUAL)


@pytest.mark.parametrize("query", ["is_time", "begin_attempt", "untold"])
async def test_seeing_to_a_channel_reads_only_what_is_untold(
    connection: Connection, query: str
) -> None:
    """DAT-2 OBS-5: every second, and at each scrape."""
    given = {"channel": "ops", "every_s": 60.0, "delays_s": [1.0], "channels": ["ops"]}
    wanted = notices.QUERIES[query]
    values: dict[str, Any] = {name: given[name] for name in wanted.parameters}
    nodes = await explained(connection, wanted, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, UNUSUAL)


async def test_claiming_costs_what_is_claimed(connection: Connection) -> None:
    """DAT-2 RET-4"""
    ids = await event_ids(connection, "ASC", UNUSUAL)
    nodes = await explained(
        connection,
        due.QUERIES["claim"],
        warm=6,
        event_id=ids,
        first_id=min(ids),
        last_id=max(ids),
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, UNUSUAL)
    assert len(partitions_planned(nodes)) == 1


async def test_taking_what_waits_for_something_costs_what_is_taken(
    connection: Connection,
) -> None:
    """DAT-2 PAY-5"""
    digest = await connection.fetchval(
        "SELECT waits_on FROM due WHERE waits_on IS NOT NULL LIMIT 1"
    )
    query = due.QUERIES["take_waiting"]
    nodes = await explained(connection, query, warm=6, waits_on=[digest], limit=128)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 10)


async def test_finishing_visits_only_the_months_it_must(connection: Connection) -> None:
    """DAT-2"""
    ids = await event_ids(connection, "DESC", 64)
    nodes = await explained(
        connection,
        settlement.QUERIES["finish_events"],
        warm=6,
        id=ids,
        status=["PROCESSED"] * 64,
        error_code=[None] * 64,
        error_message=[None] * 64,
        attempts=[1] * 64,
        processed_at=[NOW] * 64,
        first_id=min(ids),
        last_id=max(ids),
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 64)
    assert len(partitions_planned(nodes)) == 1


async def test_waking_visits_only_the_months_it_must(pinned: Connection) -> None:
    """DAT-2 REC-7"""
    ids = await event_ids(pinned, "ASC", UNUSUAL)
    nodes = await explained(
        pinned,
        settlement.QUERIES["wake"],
        event_id=ids,
        now=NOW,
        first_id=min(ids),
        last_id=max(ids),
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * UNUSUAL)
    assert len(partitions_planned(nodes)) == 1


async def test_waking_what_waits_for_something_reads_only_that(pinned: Connection) -> None:
    """DAT-2 PAY-5"""
    digest = await pinned.fetchval("SELECT waits_on FROM due WHERE waits_on IS NOT NULL LIMIT 1")
    query = settlement.QUERIES["wake_waiting"]
    nodes = await explained(pinned, query, waits_on=[digest], now=NOW)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 10)


async def test_looking_for_what_is_next_reads_one_row(pooled: Connection) -> None:
    """DAT-2 RET-4"""
    nodes = await explained(pooled, due.QUERIES["next_run"], **OF_LANE_0)
    assert_few_rows_are_touched(nodes, 1)


async def test_what_a_new_user_paid_for_is_found_by_an_index(pooled: Connection) -> None:
    """DAT-2 PAY-5"""
    query = listings.QUERIES["unapplied_payments_of_email"]
    values: dict[str, Any] = {"email_key": "7@example.com", "source_ids": [1], "limit": 128}
    nodes = await explained(pooled, query, warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 5)


PAGE: Final = 100
YEAR_AGO: Final = NOW - timedelta(days=365)


@pytest.mark.parametrize("after", [0, 5_000])
@pytest.mark.parametrize("before", [YEAR_AGO, NOW], ids=["nothing is old", "all is old"])
@pytest.mark.parametrize("name", ["audit", "outbox"])
async def test_sweeping_costs_one_page(
    pooled: Connection, name: str, before: datetime, after: int
) -> None:
    """DAT-2 DAT-3: whether anything in it is old or not."""
    values: dict[str, Any] = {"after": after, "before": before, "limit": PAGE}
    nodes = await explained(pooled, retention.QUERIES[name], warm=1, **values)
    assert "Seq Scan" not in {node["Node Type"] for node in nodes if _table(node) in LARGE}
    assert_few_rows_are_touched(nodes, PAGE)


async def test_sweeping_evidence_costs_one_page(pooled: Connection) -> None:
    """DAT-2 DAT-3: of what failed for good, however many events there are."""
    await pooled.execute(
        "UPDATE webhook_events SET status = 'FAILED_FINAL', error_code = 'INVALID_SIGNATURE',"
        " signature_valid = external_payment_id LIKE '%0' WHERE external_payment_id LIKE 'p-1__'"
        " AND status = 'PROCESSED'"
    )
    values: dict[str, Any] = {"after": FIRST_ID, "before": first_id_at(NOW), "limit": 20}
    nodes = await explained(pooled, retention.QUERIES["evidence"], **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * 20)
    (deleted,) = {node["Actual Rows"] for node in nodes if node.get("Operation") == "Delete"}
    assert 0 < deleted < 20


@pytest.mark.parametrize("before", [FIRST_ID, LAST_ID], ids=["nothing is old", "all is old"])
async def test_sweeping_keys_reads_the_blocks_it_is_told_to(
    pooled: Connection, before: UUID
) -> None:
    """DAT-2 DAT-3 INB-4: no index by age is paid for by every event."""
    values: dict[str, Any] = {"after": 2, "before": before, "limit": 3}
    nodes = await explained(pooled, retention.QUERIES["keys"], warm=1, **values)
    (read,) = [node for node in nodes if node.get("Relation Name") == "event_keys"
               and "Scan" in node["Node Type"]]  # fmt: skip
    assert read["Node Type"] == "Tid Range Scan"
    assert_few_rows_are_touched([read], 3 * 8192 // 64)


async def test_asking_whether_something_waits_in_a_month_reads_only_what_waits(
    pooled: Connection,
) -> None:
    """DAT-2 INB-4"""
    for ahead in (-1, 1):
        first, end = _first_of_month(ahead), _first_of_month(ahead + 1)
        values: dict[str, Any] = {"first_id": first_id_at(first), "end_id": first_id_at(end)}
        nodes = await explained(pooled, months.QUERIES["something_waits"], **values)
        assert_no_table_is_read_through(nodes)
        assert_few_rows_are_touched(nodes, UNUSUAL)
        assert len(partitions_planned(nodes)) == 1


SCAN: Final = 50


@pytest.mark.parametrize(
    "chosen",
    [
        EventFilter(),
        EventFilter(source="shop"),
        EventFilter(status=EventStatus.PROCESSED, error_code="INTERNAL"),
        EventFilter(source="shop", status=EventStatus.VALIDATED),
        EventFilter(status=EventStatus.DEAD_LETTER),
        EventFilter(source="shop", payment="p-5000"),
        EventFilter(source="shop", payment="p-5000", order="o-7"),
    ],
    ids=["all", "source", "none of many", "the first ones", "none", "payment", "order"],
)
@pytest.mark.parametrize("after", [FIRST_ID, first_id_at(_first_of_month(2))], ids=["start", "far"])
async def test_a_page_of_a_replay_looks_at_no_more_events_than_it_may(
    connection: Connection, chosen: EventFilter, after: UUID
) -> None:
    """DAT-2 OPS-4: whatever matches, and wherever it stands."""
    said = {name: getattr(chosen, name) for name in ("source", "status", "error_code", "order")}
    payments = None if chosen.payment is None else [chosen.payment]
    bounds = {"after": after, "before": LAST_ID, "scan": SCAN, "limit": 10}
    values: dict[str, Any] = {**said, "payments": payments, **bounds}
    nodes = await explained(connection, replays.page_statement(chosen), **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, SCAN)


async def test_taking_events_to_be_processed_again_reads_only_those(connection: Connection) -> None:
    """DAT-2 OPS-4"""
    ids = await event_ids(connection, "DESC", 5)
    values: dict[str, Any] = {"event_id": ids, "first_id": min(ids), "last_id": max(ids)}
    nodes = await explained(connection, reprocessing.QUERIES["events"], **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, len(ids))
    assert len(partitions_read(nodes)) == 1
    nodes = await explained(connection, reprocessing.QUERIES["take_due"], event_id=ids)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * len(ids))
