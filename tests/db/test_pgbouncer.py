"""PgBouncer before the database: with sessions everything works, without them a start refuses."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from paidonce.db import pool as pool_module
from paidonce.db.pool import Database, open_database
from paidonce.db.queries import Connection
from paidonce.db.schema import migrate
from paidonce.errors import UnsupportedDatabaseError
from paidonce.runtime.leader import Leader
from paidonce.runtime.wakeup import Wakeup, WakeupReceiver, notify_workers
from tests.support.pgbouncer import needs_pgbouncer, pooled_database, running_pgbouncer
from tests.support.postgres import SCHEMA
from tests.support.service import BASIC, paid, spawned, started_service
from tests.support.tools import paidonce, rows, until

pytestmark = needs_pgbouncer

DROPPED: Final = ",".join(pool_module._SESSION)
"""What a client sends when it connects, and PgBouncer otherwise refuses or is told to drop."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(postgres: str) -> AsyncIterator[str]:
    async with pooled_database(postgres) as made:
        yield made


@pytest.fixture(params=["refused", "dropped"])
def sessions(request: pytest.FixtureRequest, url: str) -> Iterator[str]:
    """Through PgBouncer in session mode."""
    ignored = {"ignore_startup_parameters": DROPPED} if request.param == "dropped" else {}
    with running_pgbouncer(url, "session", **ignored) as pooled:
        yield pooled


async def _settings(database: Database) -> list[dict[str, str]]:
    """The settings of a connection of the pool that was used before, and of one's own."""
    names = [*pool_module._SESSION, "enable_seqscan", "idle_session_timeout"]
    async with database.connection() as connection:
        await connection.execute("SET lock_timeout = '77s'")
    async with database.connection() as connection:
        found = [await _shown(connection, names)]
    own = await database.dedicated(3.0)
    found.append(await _shown(own, names))
    own.terminate()
    return found


async def _shown(connection: Connection, names: list[str]) -> dict[str, str]:
    return {name: await connection.fetchval(f"SHOW {name}") for name in names}


async def test_the_settings_of_sessions_are_the_same_as_without_it(url: str, sessions: str) -> None:
    """DAT-1 DAT-2: plans are pinned, commits are durable, waiting is limited."""
    direct, pooled = await open_database(url, SCHEMA), await open_database(sessions, SCHEMA)
    try:
        assert (direct.is_direct, pooled.is_direct) == (True, False)
        expected = await _settings(direct)
        assert await _settings(pooled) == expected
        assert expected[0]["plan_cache_mode"] == "force_custom_plan"
        assert expected[1]["plan_cache_mode"] == "force_generic_plan"
        assert expected[1]["idle_session_timeout"] == "3s"
    finally:
        await direct.close()
        await pooled.close()


async def test_leaders_and_wake_ups_work_in_session_mode(url: str, sessions: str) -> None:
    """DAT-1: two processes, one of which is connected directly."""
    direct, pooled = await open_database(url, SCHEMA), await open_database(sessions, SCHEMA)
    leaders = [Leader(pooled), Leader(direct)]
    wakeup = Wakeup()
    listener = wakeup.listener()
    receiver = WakeupReceiver(pooled, wakeup)
    running = asyncio.create_task(receiver.run())
    try:
        held = [await leader.acquire(["relay"]) for leader in leaders]
        assert [list(roles) for roles in held] == [["relay"], []]
        async with held[0]["relay"].connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
        await leaders[0].release(list(held[0].values()))
        held[1] = await leaders[1].acquire(["relay"])
        assert list(held[1]) == ["relay"]
        await leaders[1].release(list(held[1].values()))
        async with asyncio.timeout(30):
            await listener.wait()  # it listens
            async with direct.connection() as connection:
                await notify_workers(connection)
            await listener.wait()
    finally:
        receiver.finish()
        await asyncio.wait([running])
        await direct.close()
        await pooled.close()


async def test_a_service_works_behind_pgbouncer_in_session_mode(url: str, tmp_path: Path) -> None:
    """DAT-1 REC-4: it migrates, receives, is asked, and stops; nothing stays locked."""
    with running_pgbouncer(url, "session", default_pool_size="40") as pooled:
        service = started_service(tmp_path, pooled, BASIC)
        service.user("buyer@example.com")
        assert service.deliver(paid("p-1")).json["status"] == "success"
        assert service.deliver(paid("p-1")).json["status"] == "duplicate"
        doctor = paidonce(tmp_path, "doctor", "--json")
        assert '"problem"' not in doctor.stdout, doctor.stdout
        assert service.end() == 0
        held = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert until(lambda: not rows(url, held))


@pytest.mark.parametrize("pool_mode", ["transaction", "statement"])
async def test_a_start_is_refused_where_sessions_are_not_kept(
    url: str, tmp_path: Path, pool_mode: str
) -> None:
    """DAT-1 USE-3: with the remedy, also if the settings of a session are dropped."""
    for number, ignored in enumerate(({}, {"ignore_startup_parameters": DROPPED})):
        with running_pgbouncer(url, pool_mode, **ignored) as pooled:
            for _ in range(3):
                with pytest.raises(UnsupportedDatabaseError, match="pool_mode = session"):
                    await open_database(pooled, SCHEMA)
            if number == 0:
                process = spawned(tmp_path, pooled, BASIC, None, ["serve", "--port", "0"])
                assert process.wait(60) == 1
                said = (tmp_path / "stderr").read_text(encoding="utf-8")
                assert "set pool_mode = session" in said
                assert "Traceback" not in said
                doctor = paidonce(tmp_path, "doctor")
                assert doctor.returncode == 1
                assert "pool_mode = session" in " ".join(doctor.stdout.split())


async def test_what_others_set_in_a_shared_session_is_left_alone(url: str) -> None:
    """DAT-1: a refused start must not change the sessions that other programs get."""
    with running_pgbouncer(url, "transaction", default_pool_size="2") as pooled:
        for _ in range(2):
            with pytest.raises(UnsupportedDatabaseError):
                await open_database(pooled, SCHEMA)
        other = await asyncpg.connect(pooled, statement_cache_size=0)
        async with other.transaction():
            assert await other.fetchval("SELECT current_setting('lock_timeout')") == "0"
        await other.close()


async def test_a_service_under_load_does_not_hide_that_sessions_are_shared(url: str) -> None:
    """DAT-1: other clients take and return sessions while a start looks at its own."""
    direct = await open_database(url, SCHEMA)
    await migrate(direct)
    await direct.close()
    with running_pgbouncer(url, "transaction", server_round_robin="1") as pooled:
        clients = [await asyncpg.connect(pooled, statement_cache_size=0) for _ in range(6)]

        async def busy(client: "asyncpg.Connection[asyncpg.Record]") -> None:
            while True:
                async with client.transaction():
                    await client.execute("SELECT 1")

        tasks = [asyncio.create_task(busy(client)) for client in clients]
        try:
            for _ in range(5):
                with pytest.raises(UnsupportedDatabaseError):
                    await open_database(pooled, SCHEMA)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for client in clients:
                client.terminate()
