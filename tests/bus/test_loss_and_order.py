"""Whatever is disconnected or killed, nothing is lost or consumed twice, and keys keep order."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from paidonce.bus import relay as relay_module
from paidonce.bus.postgres import PostgresBus
from paidonce.bus.relay import ROLE, Relay
from paidonce.db.pool import Database
from paidonce.db.queries import in_schema
from paidonce.errors import BusUnavailableError
from paidonce.runtime import leader as leader_module
from paidonce.runtime.crashpoints import CrashPoint
from paidonce.runtime.leader import Leader, LeadershipLostError
from tests.bus.traffic import (
    OtherBus,
    change,
    change_often,
    check,
    consume_all,
    follow,
    followed,
    follower,
    prepare,
    relay_all,
    rows,
)
from tests.support.postgres import SCHEMA

KEYS: Final = [f"thing-{number}" for number in range(12)]
WRITERS: Final = 6
CHANGES: Final = 60
DONE_S: Final = 60.0
SIGKILLED: Final = -9


async def until_followed(database: Database, number: int) -> None:
    async with asyncio.timeout(DONE_S):
        while len(await followed(database)) < number:
            await asyncio.sleep(0.05)


async def written(database: Database, times: int = CHANGES) -> None:
    """Many writers at once, whose commits are not in the order of their numbers."""
    await asyncio.gather(
        *(change_often(database, KEYS, times, seed=seed) for seed in range(WRITERS))
    )


async def test_a_late_commit_with_a_smaller_number_is_published(database: Database) -> None:
    """BUS-1: what is left to publish is what has no flag, not what lies after the last number."""
    await prepare(database, KEYS)
    async with database.transaction() as late:
        await change(late, KEYS[0])
        async with database.transaction() as early:
            await change(early, KEYS[1])
        assert await relay_all(database) == 1
        consumer = follower(database)
        assert await consume_all(consumer) == 1
    assert await relay_all(database) == 1
    assert await consume_all(consumer) == 1
    await check(database)
    (last,) = await rows(database, "SELECT aggregate_name FROM outbox ORDER BY pos DESC LIMIT 1")
    assert last["aggregate_name"] == KEYS[0]
    await consumer.close()


async def test_relay_and_consumers_with_lost_connections_lose_nothing(
    database: Database, request: pytest.FixtureRequest
) -> None:
    """BUS-1: cancelled at any moment, while many write."""
    await prepare(database, KEYS)
    times = CHANGES * (10 if request.config.getoption("--soak") else 1)
    dice, stopped = random.Random(7), asyncio.Event()

    async def lived(make: Callable[[], Any]) -> None:
        while not stopped.is_set():
            task = asyncio.create_task(make().run())
            await asyncio.sleep(dice.uniform(0.01, 0.3))
            task.cancel()
            await asyncio.wait([task])

    lives = [
        asyncio.create_task(lived(lambda: Relay(PostgresBus(), Leader(database), max_batch=20))),
        asyncio.create_task(lived(lambda: follower(database, max_batch=20))),
        asyncio.create_task(lived(lambda: follower(database, max_batch=7))),
    ]
    await written(database, times)
    await until_followed(database, WRITERS * times)
    stopped.set()
    await asyncio.gather(*lives)
    await check(database)


@pytest.fixture
def started(database_url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that relay or follow, and ends them."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(role: str, crash_at: str | None = None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({"PAIDONCE_CRASH_AT": crash_at} if crash_at else {})}
        command = [sys.executable, "-m", "tests.bus.relay_process", role, database_url]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        return processes[-1]

    yield start
    for one in processes:
        one.kill()
        one.wait(10)


@pytest.mark.parametrize(
    ("role", "point"),
    [
        ("relay", CrashPoint.PUBLISHED),
        ("carry", CrashPoint.RELAY_READ),
        ("carry", CrashPoint.PUBLISHED),
        ("follow", CrashPoint.FETCHED),
        ("follow", CrashPoint.CONSUMED),
        ("follow", CrashPoint.CONSUMED_COMMITTED),
    ],
    ids=str,
)
async def test_a_process_that_crashes_at_a_named_point_loses_nothing(
    database: Database,
    started: Callable[..., subprocess.Popen[bytes]],
    role: str,
    point: CrashPoint,
) -> None:
    """BUS-1 REL-1: the next process continues, and nothing is consumed twice."""
    await prepare(database, KEYS)
    started("relay" if role == "follow" else "follow")
    mortal = started(role, f"{point}:3")
    await written(database, 10)
    code = await asyncio.wait_for(asyncio.to_thread(mortal.wait), DONE_S)
    assert code == SIGKILLED
    started(role)
    await until_followed(database, WRITERS * 10)
    await check(database)


async def test_processes_killed_at_random_lose_nothing(
    database: Database,
    started: Callable[..., subprocess.Popen[bytes]],
    request: pytest.FixtureRequest,
) -> None:
    """BUS-1 REL-1: two relays and two followers, one of which is killed and replaced at a time."""
    await prepare(database, KEYS)
    kills = 60 if request.config.getoption("--soak") else 4
    dice, times = random.Random(11), CHANGES * kills // 4
    roles = ["relay", "relay", "follow", "follow"]
    living = [started(role) for role in roles]
    writing = asyncio.create_task(written(database, times))
    for _ in range(kills):
        number = len(await followed(database))
        await until_followed(database, min(number + dice.randrange(1, 60), WRITERS * times))
        which = dice.randrange(len(living))
        living[which].kill()
        living[which] = started(roles[which])
    await writing
    await until_followed(database, WRITERS * times)
    await check(database)


async def test_one_of_two_relays_leads_and_the_other_takes_over(database: Database) -> None:
    """BUS-1: by a lock of the session that marks, which ends with it."""
    await prepare(database, KEYS)
    first, second = (Relay(PostgresBus(), Leader(database)) for _ in range(2))
    leading = asyncio.create_task(first.run())
    await _until_led(database)
    (holder,) = await _holders(database)
    following = asyncio.create_task(second.run())
    await written(database, 2)
    consumer = follower(database)
    async with asyncio.timeout(DONE_S):
        while len(await followed(database)) < WRITERS * 2:
            await consume_all(consumer)
            await asyncio.sleep(0.02)
    assert await _holders(database) == [holder]
    leading.cancel()
    await asyncio.wait([leading])
    await written(database, 2)
    async with asyncio.timeout(DONE_S):
        while len(await followed(database)) < WRITERS * 4:
            await consume_all(consumer)
            await asyncio.sleep(0.02)
    assert await _holders(database) not in ([], [holder])
    await check(database)
    second.finish()
    await following
    await consumer.close()


async def test_a_relay_that_lost_its_session_marks_nothing(database: Database) -> None:
    """BUS-1: the next leader may have published the same messages."""
    await prepare(database, KEYS)
    await written(database, 1)

    class Slow(OtherBus):
        async def publish(self, messages: Any) -> None:
            (holder,) = await _holders(database)
            await rows(database, "SELECT pg_terminate_backend($1)", holder)
            assert await relay_until_free(database) == len(messages)

    relay = Relay(Slow(), Leader(database))

    async def lead() -> None:
        async with Leader(database).lead(ROLE) as leadership:
            assert leadership is not None
            await relay._lead(leadership)

    with pytest.raises(LeadershipLostError):
        await lead()
    found = await rows(database, "SELECT count(*), max(pos) FROM outbox WHERE pos IS NOT NULL")
    assert [tuple(one.values()) for one in found] == [(WRITERS, WRITERS)]


async def relay_until_free(database: Database) -> int:
    """Lead as soon as the one that led is gone."""
    async with asyncio.timeout(DONE_S):
        while await _holders(database):
            await asyncio.sleep(0.02)
    return await relay_all(database)


async def test_positions_follow_the_order_of_publishing(database: Database) -> None:
    """BUS-1: one key's changes have growing positions, whatever the size of a batch."""
    await prepare(database, KEYS)
    await written(database, 5)
    await relay_all(database, max_batch=7)
    found = await rows(database, "SELECT seq FROM outbox ORDER BY pos")
    assert [one["seq"] for one in found] == sorted(one["seq"] for one in found)


async def test_a_relay_waits_for_an_unavailable_database(database: Database) -> None:
    """BUS-1: a group that comes late begins with the first message that is kept."""
    await prepare(database, KEYS)
    await written(database, 2)
    await relay_all(database)
    early = follower(database)
    await consume_all(early)

    async def take(connection: Any, messages: Any) -> None:
        await follow(connection, messages, "late")

    late = follower(database, name="late", consume=take)
    await consume_all(late)
    await check(database, ["followers", "late"])
    await early.close()
    await late.close()


async def _holders(database: Database) -> list[int]:
    """The sessions that hold the relay's lock."""
    found = await rows(
        database,
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 716120345 "
        "AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database()) AND objid = "
        "(hashtext($1)::bigint & 4294967295)::oid",
        in_schema(f"paidonce.{ROLE}", SCHEMA),
    )
    return [row["pid"] for row in found]


async def _until_led(database: Database) -> None:
    async with asyncio.timeout(DONE_S):
        while not await _holders(database):
            await asyncio.sleep(0.02)


async def test_a_bus_that_never_answers_does_not_stop_the_relay(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUS-1: the batch is published again."""
    monkeypatch.setattr(relay_module, "PUBLISH_TIMEOUT_S", 0.1)
    await prepare(database, KEYS)
    await written(database, 1)

    class HangsOnce(OtherBus):
        has_hung = False

        async def publish(self, messages: Any) -> None:
            if not self.has_hung:
                self.has_hung = True
                await asyncio.Event().wait()
            await super().publish(messages)

    relay = Relay(HangsOnce(), Leader(database))
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(DONE_S):
        while await rows(database, "SELECT 1 FROM outbox WHERE published_at IS NULL"):
            await asyncio.sleep(0.05)
    relay.finish()
    await asyncio.wait([running])


async def test_a_follower_keeps_its_session(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUS-1: a new session for each try would cost the database a process."""
    monkeypatch.setattr(leader_module, "POLL_S", 0.01)
    relays = [Relay(PostgresBus(), Leader(database)) for _ in range(2)]
    running = [asyncio.create_task(one.run()) for one in relays]
    await _until_led(database)
    sessions = "SELECT pid FROM pg_stat_activity WHERE query ~ 'pg_try_advisory_lock.716120345'"
    seen = set[int]()
    for _ in range(30):
        seen |= {row["pid"] for row in await rows(database, sessions)}
        await asyncio.sleep(0.02)
    assert 1 <= len(seen) <= 3, "each of the two, and this query"
    for one in relays:
        one.finish()
    await asyncio.wait(running)


async def test_a_bus_that_is_slow_gets_smaller_batches(database: Database) -> None:
    """BUS-1: what it cannot take in its time would be sent again for ever."""
    await prepare(database, KEYS)
    await written(database, 5)
    sizes: list[int] = []

    class Slow(OtherBus):
        async def publish(self, messages: Any) -> None:
            sizes.append(len(messages))
            if len(messages) > 4:
                raise BusUnavailableError("not in its time")

    relay = Relay(Slow(), Leader(database), max_batch=16)
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(DONE_S):
        while await rows(database, "SELECT 1 FROM outbox WHERE published_at IS NULL"):
            await asyncio.sleep(0.02)
    relay.finish()
    await running
    assert sizes[:3] == [16, 8, 4]
