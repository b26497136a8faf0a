"""Leader election: one leader at a time, whatever becomes of the process that leads."""

import asyncio

import asyncpg
import pytest

from paidonce.db.pool import Database
from paidonce.runtime import leader as leader_module
from paidonce.runtime.leader import Leader, Leadership, LeadershipLostError
from paidonce.runtime.service import Service

DEADLINE_S = 60.0
SHORT_S = 1.0

END_LEADER = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND classid = 716120345 AND database =
    (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def lead_soon(leader: Leader, role: str = "role") -> Leadership:
    """Lead as soon as nobody else does."""
    async with asyncio.timeout(DEADLINE_S):
        while not (found := await leader.acquire([role])):
            await asyncio.sleep(0.05)
    return found[role]


async def end_leader(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(END_LEADER)


async def test_one_leads_and_another_when_it_stops(database: Database) -> None:
    first, second = Leader(database), Leader(database)
    async with first.lead("role") as leadership:
        assert leadership is not None
        assert leadership.is_held
        async with second.lead("role") as other:
            assert other is None
        async with second.lead("another role") as other:
            assert other is not None
        async with first.lead("role") as again:
            assert again is None, "also within one process"
    assert not leadership.is_held
    async with second.lead("role") as other:
        assert other is not None


async def test_a_leader_that_sends_heartbeats_keeps_its_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However idle its work is. The silence is far longer than a heartbeat on a busy machine."""
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", 0.02)
    leader = Leader(database)
    async with leader.lead("role") as leadership:
        assert leadership is not None
        session = leader._session
        assert session is not None
        first_s = session.beaten_s
        async with asyncio.timeout(DEADLINE_S):
            while session.beaten_s == first_s:
                await asyncio.sleep(0.02)
        assert leadership.is_held


async def test_a_leader_that_sends_no_heartbeat_loses_its_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process sends none. PostgreSQL ends its session, and another process leads."""
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", DEADLINE_S)
    frozen = (await Leader(database, silence_s=SHORT_S).acquire(["role"]))["role"]
    follower = Leader(database)
    leadership = await lead_soon(follower)
    assert leadership.is_held
    assert not frozen.is_held
    with pytest.raises(LeadershipLostError):
        await frozen.session()
    await follower.release([leadership])


async def test_the_work_of_a_leader_is_cancelled_when_it_loses_its_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", 0.02)
    begun = asyncio.Event()

    async def work() -> None:
        async with Leader(database).lead("role"):
            begun.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await begun.wait()
    await end_leader(database)
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(working, DEADLINE_S)


async def test_who_lost_the_lock_gets_no_fenced_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it does not know yet that it lost it."""
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", DEADLINE_S)
    old = (await Leader(database).acquire(["role"]))["role"]
    monkeypatch.setattr(type(old), "is_held", True)
    await end_leader(database)
    new = Leader(database)
    leadership = await lead_soon(new)
    with pytest.raises(LeadershipLostError):
        await old.session()
    with pytest.raises(LeadershipLostError):
        async with old.connection():
            pass
    with pytest.raises(LeadershipLostError):
        async with database.transaction() as connection:
            await old.fence(connection)
    await new.release([leadership])


async def test_a_new_leader_ends_the_connections_of_the_old_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old leader has begun to write is not committed after the new one began."""
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", DEADLINE_S)
    async with database.connection() as connection:
        await connection.execute("CREATE TABLE written (by text)")
    old = (await Leader(database).acquire(["role"]))["role"]
    session = await old.session()
    shared = await database.dedicated()
    await session.execute("BEGIN; INSERT INTO written VALUES ('old')")
    transaction = shared.transaction()
    await transaction.start()
    await old.fence(shared)
    await shared.execute("INSERT INTO written VALUES ('old')")
    await end_leader(database)
    new = Leader(database)
    leadership = await lead_soon(new)
    async with leadership.connection() as connection:
        await connection.execute("INSERT INTO written VALUES ('new')")
    for connection in (session, shared):
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.execute("COMMIT")
        connection.terminate()
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT by FROM written")
    assert [row["by"] for row in rows] == ["new"]
    await new.release([leadership])


async def test_a_follower_leads_when_the_leader_is_gone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "POLL_S", 0.02)
    led: list[int] = []
    services = [Service("first"), Service("second")]

    def follow(number: int) -> asyncio.Task[None]:
        async def work(leadership: Leadership) -> None:
            led.append(number)
            while not services[number].is_finishing:
                await services[number].pause(DEADLINE_S)

        leader = Leader(database)
        return asyncio.create_task(leader.follow("role", services[number], work))

    following = [follow(number) for number in range(2)]
    async with asyncio.timeout(DEADLINE_S):
        while not led:
            await asyncio.sleep(0.01)
        services[led[0]].finish()
        while len(led) < 2:
            await asyncio.sleep(0.01)
    assert sorted(led) == [0, 1]
    services[led[1]].finish()
    await asyncio.wait(following)


async def test_a_leader_that_was_slow_is_given_more_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the leadership must not change hands for ever."""
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", 0.02)
    leader = Leader(database, silence_s=DEADLINE_S / 4)
    leadership = await lead_soon(leader)
    await end_leader(database)
    async with asyncio.timeout(DEADLINE_S):
        while leadership.is_held:
            await asyncio.sleep(0.02)
    again = await lead_soon(leader)
    assert leader._session is not None
    assert leader._session.silence_s == DEADLINE_S / 2
    await leader.release([again])


async def test_a_leader_that_holds_nothing_keeps_no_session(database: Database) -> None:
    leader = Leader(database)
    async with leader.lead("role"):
        assert leader._session is not None
    assert leader._session is None
