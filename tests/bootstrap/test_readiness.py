"""`/readyz` says whether deliveries can be committed, and why not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from paidonce.bootstrap.readiness import KEPT_S, Readiness
from paidonce.db.pool import Database
from paidonce.db.schema import partition_name
from tests.faults.clusters import own_cluster
from tests.support.servers import Shared, StartService
from tests.support.service import Service, paid, started_service
from tests.support.tools import is_problem, rows, until

DEADLINE_S = 60.0


def readiness(service: Service) -> str:
    """The code of the answer; empty if it is ready."""
    reply = service.request("GET", "/readyz")
    if reply.http == 200:
        assert reply.json["status"] == "ready"
        return ""
    assert is_problem(reply, 503)
    assert int(reply.headers["retry-after"]) > 0
    assert isinstance(reply.json["degraded"], list)
    return str(reply.json["code"])


def becomes(service: Service, code: str) -> bool:
    return until(lambda: readiness(service) == code, DEADLINE_S)


@asynccontextmanager
async def locked(database_url: str, table: str, mode: str) -> AsyncIterator[None]:
    """Another session locks the table."""
    other = await asyncpg.connect(database_url)
    try:
        async with other.transaction():
            await other.execute(f"LOCK TABLE {table} IN {mode} MODE")
            yield
    finally:
        await other.close()


@pytest.mark.parametrize(
    ("table", "mode"),
    [
        ("event_keys", "SHARE"),
        ("payments", "ACCESS EXCLUSIVE"),
        (partition_name(datetime.now(UTC)), "SHARE ROW EXCLUSIVE"),
    ],
)
async def test_a_locked_table_makes_it_unready_until_it_is_free(
    shared: Shared, table: str, mode: str
) -> None:
    """OPS-3"""
    assert becomes(shared.service, "")
    async with locked(shared.database_url, table, mode):
        assert becomes(shared.service, "TABLE_LOCKED")
        health = shared.service.request("GET", "/webhooks/health")
        assert (health.http, health.json["status"]) == (503, "unavailable")
    assert becomes(shared.service, "")


async def test_a_database_that_can_only_be_read_makes_it_unready(tmp_path: Path) -> None:
    """OPS-3 REC-5: deliveries are answered 503, and stored when they are sent again."""
    async with own_cluster() as cluster:
        service = await asyncio.to_thread(started_service, tmp_path, cluster.url)
        try:
            service.user("buyer@example.com")
            assert becomes(service, "")
            rows(cluster.url, "ALTER SYSTEM SET default_transaction_read_only = on")
            rows(cluster.url, "SELECT pg_reload_conf()")
            assert becomes(service, "DATABASE_READ_ONLY")
            assert is_problem(service.deliver(paid("read-only")), 503)
            rows(cluster.url, "ALTER SYSTEM RESET default_transaction_read_only")
            rows(cluster.url, "SELECT pg_reload_conf()")
            assert until(lambda: service.deliver(paid("read-only")).http == 200, DEADLINE_S)
            assert becomes(service, "")
        finally:
            service.end()


def test_a_month_without_partition_gets_one_before_it_is_needed(shared: Shared) -> None:
    """OPS-3 INB-4: readiness creates it, as a delivery would."""
    service, month = shared.service, partition_name(datetime.now(UTC))
    assert becomes(service, "")
    shared.rows(f"ALTER TABLE webhook_events DETACH PARTITION {month}")
    shared.rows(f"ALTER TABLE {month} RENAME TO detached")
    assert service.deliver(paid("no-month", email="nobody@example.com")).http == 200
    assert shared.rows("SELECT count(*) AS n FROM webhook_events") == [{"n": 1}]
    assert becomes(service, "")


def test_a_month_whose_partition_cannot_be_created_makes_it_unready(shared: Shared) -> None:
    """OPS-3: a table of that name that is no partition is left alone."""
    service, month = shared.service, partition_name(datetime.now(UTC))
    shared.rows(f"ALTER TABLE webhook_events DETACH PARTITION {month}")
    shared.rows(f"ALTER TABLE {month} ADD COLUMN foreign_to_us text")
    try:
        assert becomes(service, "NO_PARTITION")
        assert is_problem(service.deliver(paid("no-month-2")), 503)
    finally:
        shared.rows(f"DROP TABLE {month}")
    assert becomes(service, "")
    assert service.deliver(paid("no-month-2", email="nobody@example.com")).http == 200


def test_a_bootstrap_key_that_was_deleted_is_valid_again(shared: Shared) -> None:
    """OPS-3 SEC-6: a process is ready only while the key that it was given is valid."""
    service = shared.service
    shared.rows("DELETE FROM api_keys")
    keys = "SELECT name FROM api_keys"
    assert until(lambda: readiness(service) == "" and shared.rows(keys), DEADLINE_S)
    assert service.api("GET", "/events").http == 200


def test_every_process_knows_the_bootstrap_key_before_it_serves(
    start_service: StartService,
) -> None:
    """OPS-3 SEC-6: whichever process answers first."""
    service = start_service(arguments=["--processes", "3"])
    assert {service.api("GET", "/events").http for _ in range(30)} == {200}


async def test_however_many_ask_at_once_the_database_is_asked_once(database: Database) -> None:
    """OPS-3 SEC-8: the endpoint needs no key."""
    readiness = Readiness(database)
    commits = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    async with database.connection() as connection:
        assert await readiness.reason() is None
        before = await connection.fetchval(commits)
        await asyncio.sleep(KEPT_S)
        assert set(await asyncio.gather(*(readiness.reason() for _ in range(500)))) == {None}
        assert await connection.fetchval(commits) - before < 100  # others write, too
    await readiness.close()
