"""Whatever is cut off or killed: nothing is lost or taken twice, and each key keeps its order."""

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
from paidonce.bus.relay import LOCK, Relay
from paidonce.crashpoints import Point
from paidonce.errors import BusAwayError
from paidonce.store.db import Database
from tests.bus.traffic import (
    Elsewhere,
    change,
    change_often,
    check,
    follow,
    followed,
    follower,
    prepare,
    relay_all,
    rows,
    take_all,
)

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


async def test_a_late_commit_with_a_smaller_number_is_not_passed_over(database: Database) -> None:
    """BUS-1: what is left to publish is what has no flag, not what lies after the last number."""
    await prepare(database, KEYS)
    async with database.transaction() as late:
        await change(late, KEYS[0])
        async with database.transaction() as early:
            await change(early, KEYS[1])
        assert await relay_all(database) == 1
        consumer = follower(database)
        assert await take_all(consumer) == 1
    assert await relay_all(database) == 1
    assert await take_all(consumer) == 1
    await check(database)
    (last,) = await rows(database, "SELECT aggregate_name FROM outbox ORDER BY pos DESC LIMIT 1")
    assert last["aggregate_name"] == KEYS[0]
    await consumer.close()


async def test_relay_and_consumers_that_are_cut_off_lose_nothing(
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
        asyncio.create_task(lived(lambda: Relay(database, PostgresBus(), max_batch=20))),
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
        command = [sys.executable, "-m", "tests.bus.member", role, database_url]
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
        ("relay", Point.PUBLISHED),
        ("carry", Point.RELAY_READ),
        ("carry", Point.PUBLISHED),
        ("follow", Point.FETCHED),
        ("follow", Point.TAKEN),
        ("follow", Point.TAKEN_FOR_GOOD),
    ],
    ids=str,
)
async def test_a_process_that_dies_at_a_named_moment_loses_nothing(
    database: Database, started: Callable[..., subprocess.Popen[bytes]], role: str, point: Point
) -> None:
    """BUS-1 REL-1: what it had in hand is taken up by the next one, and by nobody twice."""
    await prepare(database, KEYS)
    started("relay" if role == "follow" else "follow")
    mortal = started(role, f"{point}:3")
    await written(database, 10)
    code = await asyncio.wait_for(asyncio.to_thread(mortal.wait), DONE_S)
    assert code == SIGKILLED
    started(role)
    await until_followed(database, WRITERS * 10)
    await check(database)


async def test_processes_that_are_killed_at_random_lose_nothing(
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
    first, second = (Relay(database, PostgresBus()) for _ in range(2))
    leading = asyncio.create_task(first.run())
    await _until_led(database)
    (holder,) = await _holders(database)
    following = asyncio.create_task(second.run())
    await written(database, 2)
    consumer = follower(database)
    async with asyncio.timeout(DONE_S):
        while len(await followed(database)) < WRITERS * 2:
            await take_all(consumer)
            await asyncio.sleep(0.02)
    assert await _holders(database) == [holder]
    leading.cancel()
    await asyncio.wait([leading])
    await written(database, 2)
    async with asyncio.timeout(DONE_S):
        while len(await followed(database)) < WRITERS * 4:
            await take_all(consumer)
            await asyncio.sleep(0.02)
    assert await _holders(database) not in ([], [holder])
    await check(database)
    second.finish()
    await following
    await consumer.close()


async def test_a_relay_whose_session_is_gone_marks_nothing_any_more(database: Database) -> None:
    """BUS-1: whoever took over may have published the same in the meantime."""
    await prepare(database, KEYS)
    await written(database, 1)

    class Slow(Elsewhere):
        async def publish(self, messages: Any) -> None:
            (holder,) = await _holders(database)
            await rows(database, "SELECT pg_terminate_backend($1)", holder)
            assert await relay_until_free(database) == len(messages)

    relay = Relay(database, Slow())
    await relay.follow()
    found = await rows(database, "SELECT count(*), max(pos) FROM outbox WHERE pos IS NOT NULL")
    assert [tuple(one.values()) for one in found] == [(WRITERS, WRITERS)]


async def relay_until_free(database: Database) -> int:
    """Lead as soon as the one that led is gone."""
    async with asyncio.timeout(DONE_S):
        while await _holders(database):
            await asyncio.sleep(0.02)
    return await relay_all(database)


async def test_positions_are_given_in_the_order_of_publishing(database: Database) -> None:
    """BUS-1: one key's changes have growing positions, whatever the size of a batch."""
    await prepare(database, KEYS)
    await written(database, 5)
    await relay_all(database, max_batch=7)
    found = await rows(database, "SELECT seq FROM outbox ORDER BY pos")
    assert [one["seq"] for one in found] == sorted(one["seq"] for one in found)


async def test_what_cannot_be_followed_now_is_followed_later(database: Database) -> None:
    """BUS-1: a group that comes late begins with the first message that is kept."""
    await prepare(database, KEYS)
    await written(database, 2)
    await relay_all(database)
    early = follower(database)
    await take_all(early)

    async def take(connection: Any, messages: Any) -> None:
        await follow(connection, messages, "late")

    late = follower(database, name="late", take=take)
    await take_all(late)
    await check(database, ["followers", "late"])
    await early.close()
    await late.close()


async def _holders(database: Database) -> list[int]:
    """The sessions that hold the relay's lock."""
    found = await rows(
        database,
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database()) AND objid = "
        "(hashtext($1)::bigint & 4294967295)::oid",
        LOCK,
    )
    return [row["pid"] for row in found]


async def _until_led(database: Database) -> None:
    async with asyncio.timeout(DONE_S):
        while not await _holders(database):
            await asyncio.sleep(0.02)


async def test_a_relay_that_is_frozen_is_followed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUS-1: nobody hears of its end, so the database ends the session that says nothing."""
    monkeypatch.setattr(relay_module, "MAX_SILENCE_S", 1.0)
    await prepare(database, KEYS)
    await written(database, 1)
    frozen = asyncio.Event()

    class Frozen(Elsewhere):
        async def publish(self, messages: Any) -> None:
            frozen.set()
            await asyncio.Event().wait()

    leading = asyncio.create_task(Relay(database, Frozen()).run())
    await frozen.wait()
    follower_ = Relay(database, Elsewhere())
    following = asyncio.create_task(follower_.run())
    async with asyncio.timeout(DONE_S):
        while await rows(database, "SELECT 1 FROM outbox WHERE published_at IS NULL"):
            await asyncio.sleep(0.05)
    leading.cancel()
    follower_.finish()
    await asyncio.wait([leading, following])


async def test_who_follows_keeps_its_session(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUS-1: each look by a new one would cost the database a process."""
    monkeypatch.setattr(relay_module, "FOLLOWER_POLL_S", 0.01)
    relays = [Relay(database, PostgresBus()) for _ in range(2)]
    running = [asyncio.create_task(one.run()) for one in relays]
    await _until_led(database)
    sessions = "SELECT pid FROM pg_stat_activity WHERE query ~ '^SELECT pg_try_advisory_lock'"
    seen = set[int]()
    for _ in range(30):
        seen |= {row["pid"] for row in await rows(database, sessions)}
        await asyncio.sleep(0.02)
    assert 1 <= len(seen) <= 2, "the one that leads has asked once, too"
    for one in relays:
        one.finish()
    await asyncio.wait(running)


async def test_a_bus_that_is_slow_gets_smaller_batches(database: Database) -> None:
    """BUS-1: what it cannot take in its time would be sent again for ever."""
    await prepare(database, KEYS)
    await written(database, 5)
    sizes: list[int] = []

    class Slow(Elsewhere):
        async def publish(self, messages: Any) -> None:
            sizes.append(len(messages))
            if len(messages) > 4:
                raise BusAwayError("not in its time")

    relay = Relay(database, Slow(), max_batch=16)
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(DONE_S):
        while await rows(database, "SELECT 1 FROM outbox WHERE published_at IS NULL"):
            await asyncio.sleep(0.02)
    relay.finish()
    await running
    assert sizes[:3] == [16, 8, 4]
