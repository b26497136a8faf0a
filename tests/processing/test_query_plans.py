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

from paidonce.core.events import EventStatus, PaymentId, SourceId, SubscriptionId, UserId
from paidonce.core.facts import Facts
from paidonce.core.money import Money
from paidonce.core.payments import Payment
from paidonce.core.subscriptions import Subscription, SubscriptionStatus
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, Query, in_schema
from paidonce.db.schema import ensure_partitions
from paidonce.db.search import FIRST_ID, LAST_ID, first_id_at
from paidonce.events.model import EventFilter
from paidonce.linking import store as linking_store
from paidonce.lookup import worker as lookup_worker
from paidonce.maintenance import partitions, retention
from paidonce.notifications import model as notifications_model
from paidonce.notifications import store as notifications_store
from paidonce.processing import handler_failures, nonces
from paidonce.processing import store as processing_store
from paidonce.processing.items import QueueName
from paidonce.processing.waiting import Lane
from paidonce.providers.contract import FINGERPRINT_VERSION
from paidonce.queue import store as queue_store
from paidonce.replay import store as replay_store
from paidonce.users import merge, person

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
    "user_emails",
    "orders",
    "wallets",
    "reservations",
    "ledger_entries",
    "wallet_payments",
    "gateway_callbacks",
    "payment_views",
    "event_queue",
    "nonces",
    "audit_log",
    "outbox",
    "notifications",
    "notification_messages",
)

FILL: Final = """
CREATE TEMP TABLE counted AS
SELECT n, md5(n::text)::uuid AS id,
       decode(md5(n::text), 'hex') AS digest
  FROM generate_series(1, {rows}) AS n;

INSERT INTO sources (name, provider) VALUES ('shop', 'tilda');

INSERT INTO users (id, email) SELECT id, n || '@example.com' FROM counted;

INSERT INTO user_emails (email_key, email, user_id, is_current)
SELECT n || '@example.com', n || '@example.com', id, true FROM counted;

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

INSERT INTO event_queue (run_at, event_id, blocked_on)
SELECT now() - interval '1 hour' + n * interval '1 second', event_id,
       CASE WHEN n % 100 = 0 THEN digest END
  FROM numbered;

INSERT INTO event_queue (run_at, event_id, queue_name, source_id, lane, sender, subject)
SELECT now() - interval '1 day' + n * interval '1 second', event_id, 1, 1 + n % 2,
       CASE WHEN n % 100 < 50 THEN 0 ELSE 3 END, '192.0.2.' || n % 1000, digest
  FROM numbered
 WHERE n <= {rows} / 2;

INSERT INTO nonces (source_id, digest, fingerprint, fingerprint_version)
SELECT 1, digest, digest, 1 FROM counted;

INSERT INTO notification_messages (id, channel, at, content, status, next_attempt_at, ended_at)
SELECT id, 'ops', now(), '{{}}', 'SENT', now(), now() FROM counted;

INSERT INTO notifications (channel, at, kind, source, message_id)
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
    sql = in_schema(sql, connection.schema)
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
OF_QUEUE_0: Final[dict[str, Any]] = {
    "queue_name": QueueName.PROCESS,
    "not_before": queue_store.LONG_AGO,
}


async def test_loading_finds_every_row_by_an_index(pinned: Connection) -> None:
    """DAT-2"""
    digests = await pinned.fetch("SELECT digest FROM event_keys LIMIT 64")
    nodes = await explained(
        pinned,
        processing_store.QUERIES["load"],
        key_source_id=[1] * 64,
        key_digest=[row["digest"] for row in digests],
        id_source_id=[1] * 64,
        id_kind=["payment"] * 64,
        id_value=[f"p-{number}" for number in NUMBERS],
        payment_id=[],
        reference=[f"o-{number}" for number in NUMBERS],
        max_of_order=processing_store.MAX_OF_ORDER,
        email_key=[f"{number}@example.com" for number in NUMBERS],
        user_id=[],
    )
    found = {_table(node) for node in nodes}
    rows = {"event_keys", "payment_ids", "payments", "user_emails", "subscriptions", "refunds"}
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
    changes = processing_store.Changes(payments=[payment], subscriptions=[subscription])
    sent: list[LoggedQuery] = []
    savepoint = connection.transaction()
    await savepoint.start()
    with connection.query_logger(sent.append), suppress(asyncpg.SerializationError):
        await processing_store.write(connection, changes, NOW)
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


async def test_plans_made_on_empty_tables_suit_full_ones(
    database: Database,
) -> None:
    """DAT-2: a flusher keeps them, and nobody has counted the rows yet."""
    async with database.transaction() as connection:
        await ensure_partitions(connection, NOW)
    pinned = await database.dedicated()
    wanted: dict[str, Any] = {name: [] for name in processing_store.QUERIES["load"].parameters}
    wanted["max_of_order"] = processing_store.MAX_OF_ORDER
    async with _undone(pinned):
        nodes = await explained(pinned, processing_store.QUERIES["load"], **wanted)
        nodes += await plan_of_writing(pinned, UUID(int=1), run=False)
    await pinned.close()
    assert len({_table(node) for node in nodes} & set(LARGE)) >= 6
    assert_no_table_is_read_through(nodes)


async def test_claim_plans_made_on_an_empty_queue_suit_a_full_one(
    database: Database,
) -> None:
    """DAT-2: each finds its rows by the index that is made for it."""
    async with database.transaction() as connection:
        await ensure_partitions(connection, NOW)
        await connection.execute("ANALYZE event_queue")
    pinned = await database.dedicated()
    some: dict[str, Any] = {name: UUID(int=1) for name in ("first_id", "last_id")}
    async with _undone(pinned):
        taken = await explained(pinned, queue_store.QUERIES["find_due"], limit=64, **OF_QUEUE_0)
        claimed = await explained(
            pinned, queue_store.QUERIES["claim"], event_id=[UUID(int=1)], **some
        )
        asked = await explained(
            pinned,
            lookup_worker.QUERIES["find_due"],
            source_id=[1],
            lane=list(map(int, Lane)),
            running=[],
            limit=8,
        )
        answered = await explained(
            pinned, queue_store.QUERIES["find_events"], event_id=[UUID(int=1)]
        )
    await pinned.close()
    assert _indexes(taken) == {"event_queue_ready"}
    assert _indexes(claimed) == {"event_queue_by_event", "event_queue_pkey"}
    assert _indexes(asked) == {"event_queue_lookup"}
    assert _indexes(answered) == {"event_queue_by_event"}


def _indexes(nodes: list[Node]) -> set[str]:
    """By which indexes the queue is read."""
    named = (str(node.get("Index Name", "")) for node in nodes)
    return {name for name in named if name.startswith("event_queue_")}


@pytest.mark.parametrize("limit", [1, 64])
async def test_finding_due_events_costs_what_is_found(connection: Connection, limit: int) -> None:
    """DAT-2 RET-4: not what waits, and not what is stored."""
    query = queue_store.QUERIES["find_due"]
    nodes = await explained(connection, query, warm=6, limit=limit, **OF_QUEUE_0)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, limit)


async def test_finding_due_events_visits_only_their_months(pinned: Connection) -> None:
    """DAT-2: those that waited longest are all of the first month."""
    query = queue_store.QUERIES["find_due"]
    nodes = await explained(pinned, query, limit=UNUSUAL, **OF_QUEUE_0)
    assert len(partitions_read(nodes)) == 1


@pytest.mark.parametrize("limit", [1, 8])
async def test_finding_lookups_of_a_source_costs_what_is_found(
    connection: Connection, limit: int
) -> None:
    """DAT-2 RET-1: not what waits for other gateways, or for this one."""
    query = lookup_worker.QUERIES["find_due"]
    lanes = list(map(int, Lane))
    values: dict[str, Any] = {"source_id": [2, 3], "running": [UUID(int=1)], "limit": limit}
    nodes = await explained(connection, query, warm=6, lane=lanes, **values)
    assert _indexes(nodes) == {"event_queue_lookup"}
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, len(lanes) * limit)


async def test_releasing_events_reads_only_those(pinned: Connection) -> None:
    """DAT-2 RET-1: what waits for the handler."""
    await pinned.execute(
        "INSERT INTO failing_handlers (handler) SELECT 'shop.' || n FROM generate_series(1, 50) n"
    )
    digest = await pinned.fetchval(
        "SELECT blocked_on FROM event_queue WHERE blocked_on IS NOT NULL LIMIT 1"
    )
    nodes = await explained(
        pinned,
        handler_failures.QUERIES["release"],
        handler=["shop.7"],
        digest=[digest],
        every_s=60.0,
        limit=1_000,
        per_s=50.0,
    )
    assert_few_rows_are_touched(nodes, 60)


async def test_finding_the_next_lookup_of_a_source_reads_one_row(connection: Connection) -> None:
    """DAT-2 RET-4"""
    query = lookup_worker.QUERIES["seconds_until_due"]
    lanes = list(map(int, Lane))
    nodes = await explained(connection, query, warm=6, source_id=[2, 3], lane=lanes, running=[])
    assert_few_rows_are_touched(nodes, len(lanes))


async def test_claiming_looked_up_events_costs_what_is_claimed(connection: Connection) -> None:
    """DAT-2 RET-4"""
    ids = await event_ids(connection, "ASC", 8)
    taken = await explained(connection, queue_store.QUERIES["find_events"], warm=6, event_id=ids)
    values: dict[str, Any] = {"first_id": min(ids), "last_id": max(ids)}
    query = queue_store.QUERIES["events"].without("locks")
    read = await explained(connection, query, warm=6, event_id=ids, **values)
    assert_no_table_is_read_through(taken + read)
    assert_few_rows_are_touched(taken + read, 2 * 8)
    assert len(partitions_planned(read)) == 1


async def test_nonces_are_found_by_an_index(pinned: Connection) -> None:
    """DAT-2 SEC-3"""
    rows = await pinned.fetch("SELECT digest FROM nonces LIMIT 64")
    digests = [row["digest"] for row in rows]
    query = nonces.QUERIES["recorded_nonces"]
    nodes = await explained(
        pinned, query, source_id=[1] * 64, digest=digests, fingerprint_version=FINGERPRINT_VERSION
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 64)


async def test_writing_notifications_reads_only_pending_ones(connection: Connection) -> None:
    """DAT-2 OBS-5"""
    row = ("ops", NOW, "conflict", "shop", UUID(int=1), None, "{}", None)
    columns = dict(zip(notifications_model.COLUMNS, zip(*[row] * 64, strict=True), strict=True))
    given: dict[str, Any] = {**columns, "max_pending": notifications_store.MAX_PENDING}
    nodes = await explained(connection, notifications_store.QUERIES["add"], **given)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, UNUSUAL)


@pytest.mark.parametrize("query", ["is_message_due", "begin_attempt", "count_pending"])
async def test_serving_a_channel_reads_only_pending_notifications(
    connection: Connection, query: str
) -> None:
    """DAT-2 OBS-5: every second, and at each scrape."""
    given = {"channel": "ops", "every_s": 60.0, "delays_s": [1.0], "channels": ["ops"]}
    wanted = notifications_store.QUERIES[query]
    values: dict[str, Any] = {name: given[name] for name in wanted.parameters}
    nodes = await explained(connection, wanted, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, UNUSUAL)


async def test_claiming_costs_what_is_claimed(connection: Connection) -> None:
    """DAT-2 RET-4"""
    ids = await event_ids(connection, "ASC", UNUSUAL)
    nodes = await explained(
        connection,
        queue_store.QUERIES["claim"],
        warm=6,
        event_id=ids,
        first_id=min(ids),
        last_id=max(ids),
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, UNUSUAL)
    assert len(partitions_planned(nodes)) == 1


async def test_finding_blocked_events_costs_what_is_found(
    connection: Connection,
) -> None:
    """DAT-2 PAY-5"""
    digest = await connection.fetchval(
        "SELECT blocked_on FROM event_queue WHERE blocked_on IS NOT NULL LIMIT 1"
    )
    query = queue_store.QUERIES["find_blocked"]
    nodes = await explained(connection, query, warm=6, blocked_on=[digest], limit=128)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 10)


async def test_updating_events_visits_only_their_months(connection: Connection) -> None:
    """DAT-2"""
    ids = await event_ids(connection, "DESC", 64)
    nodes = await explained(
        connection,
        processing_store.QUERIES["update_events"],
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


async def test_requeueing_redelivered_events_visits_only_their_months(pinned: Connection) -> None:
    """DAT-2 REC-7"""
    ids = await event_ids(pinned, "ASC", UNUSUAL)
    nodes = await explained(
        pinned,
        processing_store.QUERIES["requeue_redelivered"],
        event_id=ids,
        now=NOW,
        pause_s=processing_store.REDELIVERY_PAUSE_S,
        max_attempts=processing_store.MAX_HASTENED,
        first_id=min(ids),
        last_id=max(ids),
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * UNUSUAL)
    assert len(partitions_planned(nodes)) == 1


async def test_counting_duplicates_finds_their_entry_by_an_index(pinned: Connection) -> None:
    """DAT-2 REC-7 OBS-4"""
    nodes = await explained(
        pinned,
        processing_store.QUERIES["count_duplicates"],
        now=NOW,
        event_id=[uuid4()],
        number=[1],
        request_id=["r"],
    )
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 8)


async def test_requeueing_unblocked_events_reads_only_those(pinned: Connection) -> None:
    """DAT-2 PAY-5"""
    digest = await pinned.fetchval(
        "SELECT blocked_on FROM event_queue WHERE blocked_on IS NOT NULL LIMIT 1"
    )
    query = processing_store.QUERIES["requeue_unblocked"]
    nodes = await explained(pinned, query, blocked_on=[digest], now=NOW)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 10)


async def test_finding_the_next_run_reads_one_row(pooled: Connection) -> None:
    """DAT-2 RET-4"""
    nodes = await explained(pooled, queue_store.QUERIES["next_run"], **OF_QUEUE_0)
    assert_few_rows_are_touched(nodes, 1)


async def test_payments_of_a_new_user_are_found_by_an_index(pooled: Connection) -> None:
    """DAT-2 PAY-5"""
    query = linking_store.QUERIES["unapplied_payments_of_email"]
    values: dict[str, Any] = {"email_key": "7@example.com", "source_ids": [1], "limit": 128}
    nodes = await explained(pooled, query, warm=6, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 5)


OF_USER: Final[list[tuple[Query, dict[str, Any]]]] = [
    (linking_store.QUERIES["users"].without("id", "locks"), {"max_emails": 9}),
    (linking_store.QUERIES["users"].without("email"), {"max_emails": 9}),
    (merge.QUERIES["lock_orders"], {"limit": 9}),
    (merge.QUERIES["lock_payments"], {"limit": 9}),
    (merge.QUERIES["move_payments"], {}),
    (merge.QUERIES["join_subscriptions"], {}),
    (merge.QUERIES["move_audit"], {}),
    (person.QUERIES["person"], {"limit": 9}),
    (person.QUERIES["wallets"], {"limit": 9}),
    (person.QUERIES["events"], {"limit": 9, "max_body": 9}),
    (person.QUERIES["unfinished_events"], {}),
    (person.QUERIES["erase_events"], {"limit": 9}),
]


@pytest.mark.parametrize(("query", "others"), OF_USER, ids=[one.name for one, _ in OF_USER])
async def test_what_belongs_to_a_user_is_found_by_indexes(
    pooled: Connection, query: Query, others: dict[str, Any]
) -> None:
    """DAT-2 USR-2 USR-3 USR-4"""
    row = await pooled.fetchrow(
        "SELECT user_id, id FROM payments WHERE user_id IS NOT NULL LIMIT 1"
    )
    assert row is not None
    into = await pooled.fetchval("SELECT id FROM users WHERE id <> $1 LIMIT 1", row["user_id"])
    given: dict[str, Any] = {
        "id": [row["user_id"]] if query.name == "lock_payments" else row["user_id"],
        "user_id": row["user_id"],
        "gone_id": row["user_id"],
        "into_id": into,
        "email_key": "7@example.com",
        "payment_id": [row["id"]],
        "owner": ["w-7"],
    }
    assert_no_table_is_read_through(await explained(pooled, query, **given, **others))


PAGE: Final = 100
YEAR_AGO: Final = NOW - timedelta(days=365)


@pytest.mark.parametrize("after", [0, 5_000])
@pytest.mark.parametrize("before", [YEAR_AGO, NOW], ids=["nothing is old", "all is old"])
@pytest.mark.parametrize("name", ["audit_log", "outbox"])
async def test_sweeping_costs_one_page(
    pooled: Connection, name: str, before: datetime, after: int
) -> None:
    """DAT-2 DAT-3: whether anything in it is old or not."""
    values: dict[str, Any] = {"after": after, "before": before, "limit": PAGE}
    nodes = await explained(pooled, retention.STATEMENTS[name], warm=1, **values)
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
    nodes = await explained(pooled, retention.STATEMENTS["evidence"], **values)
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
    nodes = await explained(pooled, retention.STATEMENTS["event_keys"], warm=1, **values)
    (read,) = [node for node in nodes if node.get("Relation Name") == "event_keys"
               and "Scan" in node["Node Type"]]  # fmt: skip
    assert read["Node Type"] == "Tid Range Scan"
    assert_few_rows_are_touched([read], 3 * 8192 // 64)


async def test_checking_a_month_for_pending_events_reads_only_those(
    pooled: Connection,
) -> None:
    """DAT-2 INB-4"""
    for ahead in (-1, 1):
        first, end = _first_of_month(ahead), _first_of_month(ahead + 1)
        values: dict[str, Any] = {"first_id": first_id_at(first), "end_id": first_id_at(end)}
        nodes = await explained(pooled, partitions.QUERIES["has_pending_events"], **values)
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
async def test_a_page_of_a_replay_reads_a_limited_number_of_events(
    connection: Connection, chosen: EventFilter, after: UUID
) -> None:
    """DAT-2 OPS-4: whatever matches, and wherever it stands."""
    said = {name: getattr(chosen, name) for name in ("source", "status", "error_code", "order")}
    payments = None if chosen.payment is None else [chosen.payment]
    bounds = {"after": after, "before": LAST_ID, "scan": SCAN, "limit": 10}
    values: dict[str, Any] = {**said, "payments": payments, **bounds}
    nodes = await explained(connection, replay_store.page_statement(chosen), **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, SCAN)


async def test_claiming_events_to_reprocess_reads_only_those(connection: Connection) -> None:
    """DAT-2 OPS-4"""
    ids = await event_ids(connection, "DESC", 5)
    values: dict[str, Any] = {"event_id": ids, "first_id": min(ids), "last_id": max(ids)}
    nodes = await explained(connection, queue_store.QUERIES["events"], **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, len(ids))
    assert len(partitions_read(nodes)) == 1
    dequeue = queue_store.QUERIES["claim"].without("pending")
    nodes = await explained(connection, dequeue, **values)
    assert_no_table_is_read_through(nodes)
    assert_few_rows_are_touched(nodes, 2 * len(ids))
