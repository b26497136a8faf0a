"""`/readyz` says whether deliveries can be committed, and why not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import asyncpg
import pytest

from paidonce.db.schema import partition_name
from tests.support.servers import Shared, StartService
from tests.support.service import KEY, Service, paid
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
    assert service.request("GET", "/webhooks/health").http == 503
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
    assert becomes(shared.service, "")


def test_a_database_that_can_only_be_read_makes_it_unready(
    start_service: StartService, database_url: str, postgres: str
) -> None:
    """OPS-3 REC-5: deliveries are answered 503, and stored when they are sent again."""
    service = start_service()
    service.user("buyer@example.com")
    name = database_url.split("/")[3].split("?")[0]
    _set_read_only(postgres, name, "on")
    try:
        assert until(lambda: readiness(service) == "DATABASE_READ_ONLY", DEADLINE_S)
        assert is_problem(service.deliver(paid("read-only")), 503)
    finally:
        _set_read_only(postgres, name, "off")
    assert until(lambda: service.deliver(paid("read-only")).http == 200, DEADLINE_S)
    assert becomes(service, "")


def _set_read_only(postgres: str, name: str, value: str) -> None:
    """Also for sessions that are open: they are ended, and new ones begin like this."""
    rows(postgres, f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
    rows(
        postgres,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
        name,
    )


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
    assert until(lambda: service.api("GET", "/events").http == 401 or True)
    assert until(
        lambda: readiness(service) == "" and service.api("GET", "/events").http == 200, DEADLINE_S
    )
    assert service.key == KEY


def test_every_process_knows_the_bootstrap_key_before_it_serves(
    start_service: StartService,
) -> None:
    """OPS-3 SEC-6: whichever process answers first."""
    service = start_service(arguments=["--processes", "3"])
    assert {service.api("GET", "/events").http for _ in range(30)} == {200}


def test_strangers_who_ask_often_cost_the_database_nothing(shared: Shared) -> None:
    """OPS-3 SEC-8: an answer is kept for a second."""
    service = shared.service
    assert becomes(service, "")
    count = "SELECT sum(xact_commit) AS n FROM pg_stat_database WHERE datname = current_database()"
    asked = 300
    before = shared.rows(count)[0]["n"]
    for _ in range(asked):
        assert readiness(service) == ""
    shared.rows("SELECT pg_stat_force_next_flush()")
    assert shared.rows(count)[0]["n"] - before < asked
