"""The time of the service, its ids, and what becomes of schedules when the clock jumps."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from paidonce.clock import CLOCK, Clock
from paidonce.db.pool import Database
from paidonce.guard.bans import BanPolicy, Suspicion
from paidonce.guard.security_log import SecurityLog
from paidonce.guard.senders import SenderRecords
from paidonce.ids import new_id
from paidonce.maintenance import clock_jumps, janitor
from paidonce.maintenance.clock_jumps import SCHEDULES, ClockJumps
from paidonce.maintenance.janitor import AfterClockJumps
from paidonce.maintenance.retention import Sweep
from paidonce.reconciliation import store as reconciliations
from paidonce.runtime.clock_watch import ClockWatch
from tests.support.false_clock import DAY_S, false_clock

S: Final = 1_000_000_000
YEAR_S: Final = 365 * DAY_S
IDS: Final = 20_000
MAKE_IDS: Final = """
import pathlib, sys
from paidonce.ids import new_id
file = pathlib.Path(sys.argv[1])
for offset in sys.argv[2:]:
    file.write_text(offset + "\\n")
    print(new_id())
"""


def time_of(one: UUID) -> float:
    return (one.int >> 80) / 1000


def clock_at(database_s: float, wall_s: float = 0.0) -> Clock:
    """A clock that has learned once, at the monotonic time 0."""
    clock = Clock()
    clock.learn(int(database_s * S), int(wall_s * S), 0)
    return clock


def test_ids_are_uuids_of_version_7_in_order() -> None:
    """INB-4: of RFC 9562, with the time."""
    before_s = time.time() - 0.001
    made = [new_id() for _ in range(IDS)]
    assert made == sorted(set(made))
    for one in (made[0], made[-1]):
        assert (one.version, one.variant) == (7, "specified in RFC 4122")
        assert UUID(str(one)) == one
        assert before_s <= time_of(one) <= time.time()


def test_ids_follow_the_clock_also_when_it_is_set_back(tmp_path: Path) -> None:
    """INB-4 OPS-2: at once; their order is not worth a false time."""
    offsets = (0, 400 * DAY_S, 0, -40 * DAY_S, 3 * YEAR_S, 0)
    words = [f"{one:+d}" for one in offsets]
    command = [sys.executable, "-c", MAKE_IDS, str(tmp_path / "clock"), *words]
    with false_clock(tmp_path) as clock:
        environment = {**os.environ, **clock.environment}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
    now_s = time.time()
    for offset_s, text in zip(offsets, done.stdout.decode().split(), strict=True):
        assert abs(time_of(UUID(text)) - now_s - offset_s) < 60


def test_a_small_difference_of_the_clocks_is_left_alone_and_a_large_one_corrected() -> None:
    """INB-4: the database's clock decides."""
    for skew_s, corrected_s in ((4.0, 0.0), (-4.0, 0.0), (6.0, 6.0), (-3600.0, -3600.0)):
        clock = clock_at(1_000.0 + skew_s, 1_000.0)
        assert clock.offset_s == corrected_s
        right_s = time.time() + corrected_s
        assert abs(clock.now().timestamp() - right_s) < 60
        assert abs(clock.now_s() - right_s) < 60


def test_a_clock_that_was_set_is_not_believed_before_it_is_compared() -> None:
    """PRV-8: a wrong time would refuse deliveries as expired."""
    clock, wall_ns, monotonic_ns = Clock(), time.time_ns(), time.monotonic_ns()
    clock.learn(wall_ns, wall_ns, monotonic_ns)
    assert clock.is_certain
    for set_s in (-3600, 3600):
        clock.learn(wall_ns, wall_ns + set_s * S, monotonic_ns)
        assert not clock.is_certain


async def test_the_watch_finds_the_clocks_equal(database: Database) -> None:
    """OPS-3: and is well then."""
    watch = ClockWatch(database)
    await watch.compare()
    assert CLOCK.is_certain
    assert CLOCK.offset_s == 0.0
    assert not watch.is_degraded


def jumped(by_s: float) -> Clock:
    """A clock whose database has jumped; nothing else has."""
    clock = clock_at(1e9, 1e9)
    clock.learn(int((1e9 + by_s) * S), int((1e9 + by_s) * S), 0)
    return clock


SCHEDULED: Final = {
    "event_queue": "INSERT INTO event_queue (run_at, event_id) VALUES ($1, gen_random_uuid())",
    "bans": "INSERT INTO bans (address, reason, score, times, banned_at, until, changed_at)"
    " VALUES ('192.0.2.1', 'bad_signature', 1, 1, $1::timestamptz, $1 + interval '10 minutes', $1)",
    "notification_messages": "INSERT INTO notification_messages"
    " (id, channel, at, content, next_attempt_at) VALUES (gen_random_uuid(), 'x', $1, '{}', $1)",
}
WHEN: Final = {
    "event_queue": "run_at",
    "bans": "until",
    "notification_messages": "next_attempt_at",
}


async def test_what_was_scheduled_ahead_is_due_again_when_the_clock_is_set_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RET-1 SEC-4: what is soon due, or was scheduled in the right time, stays."""
    step = timedelta(days=45)
    clock = jumped(-step.total_seconds())
    monkeypatch.setattr(clock_jumps, "CLOCK", clock)
    async with database.connection() as connection:
        now = await connection.fetchval("SELECT now()")
        for sql in SCHEDULED.values():
            await connection.execute(sql, now + step + timedelta(seconds=30))
        await connection.execute(SCHEDULED["event_queue"], now + timedelta(minutes=3))
        for _ in range(2):
            await ClockJumps().run_once(connection, now)
        for table, column in WHEN.items():
            latest = await connection.fetchval(f"SELECT max({column}) FROM {table}")
            assert latest < now + timedelta(minutes=15), table
        soon = "SELECT count(*) FROM event_queue WHERE run_at > now() + interval '1 minute'"
        assert await connection.fetchval(soon) == 1


async def test_every_schedule_can_be_corrected(database: Database) -> None:
    """RET-1: each statement fits its table."""
    async with database.connection() as connection:
        for query in SCHEDULES.values():
            hour = timedelta(hours=1)
            assert await query.rows(connection, step=hour, tolerance=hour, limit=1) == []


async def test_nothing_is_deleted_for_its_age_after_the_clock_jumped_forward(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-3 REC-2: nobody knows what is old then; a return makes it known again."""
    task = AfterClockJumps(Sweep("audit_log", 365))
    later = datetime.now(UTC) + timedelta(days=3 * 365)
    add = "INSERT INTO audit_log (at, actor, action, success, details) VALUES"
    async with database.connection() as connection:
        await connection.execute(f"{add} (now(), 'x', 'kept', true, '{{}}')")
        clock = jumped(3 * YEAR_S)
        monkeypatch.setattr(janitor, "CLOCK", clock)
        await task.run_once(connection, later)
        kept = "SELECT count(*) FROM audit_log WHERE action = 'kept'"
        assert await connection.fetchval(kept) == 1
        clock.learn(int(1e9 * S), int(1e9 * S), 0)
        assert clock.is_settled
        await task.run_once(connection, later)
        assert await connection.fetchval(kept) == 0


async def test_a_ban_lasts_as_long_as_it_should_however_the_clock_jumps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-4"""
    policy = BanPolicy(threshold=1.0, half_life_s=600.0, first_s=600.0, longest_s=2_400.0)
    senders = SenderRecords(database, policy, SecurityLog())
    senders.suspect("192.0.2.7", Suspicion.BAD_SIGNATURE)
    await senders.run_once()
    for jump_s in (3 * YEAR_S, -40 * DAY_S):
        monkeypatch.setattr(CLOCK, "offset_ns", jump_s * S)
        assert 500 < senders.bans.left_s("192.0.2.7") <= 600
    monkeypatch.undo()
    async with database.connection() as connection:
        await connection.execute(SCHEDULED["bans"], datetime.now(UTC) + timedelta(days=40))
    await senders.run_once()
    assert senders.bans.left_s("192.0.2.1") <= 2_400


async def test_a_reconciliation_from_the_future_does_not_hold_up_the_next(
    database: Database,
) -> None:
    """PAY-9"""
    hour, day = timedelta(hours=1), timedelta(days=1)
    times = {"delay": hour, "window": day, "every": hour, "retry_after": hour}
    async with database.connection() as connection:
        await connection.execute("INSERT INTO sources (name, provider) VALUES ('x', 'portone')")
        source_id = await connection.fetchval("SELECT id FROM sources")
        for _ in range(2):
            await reconciliations.QUERIES["add_scheduled"].run(
                connection, id=new_id(), source_id=source_id, **times
            )
            await connection.execute(
                "UPDATE reconciliations SET created_at = now() + interval '45 days',"
                " status = 'DONE', started_at = now(), finished_at = now()"
            )
        assert await connection.fetchval("SELECT count(*) FROM reconciliations") == 2
