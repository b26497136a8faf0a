"""What has grown old goes, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio
import structlog

from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.schema import ensure_partitions
from paidonce.db.search import first_id_at
from paidonce.maintenance import janitor as janitor_module
from paidonce.maintenance import partitions, retention
from paidonce.maintenance.janitor import Janitor, Task, usual_tasks
from paidonce.maintenance.partitions import OldPartitions
from paidonce.maintenance.retention import Sweep, sweeps
from paidonce.processing.items import ResultKind
from paidonce.processing.transactions import Processor
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import RetentionSettings
from tests.support.batches import somebody_waits, stage

NOW: Final = datetime(2026, 5, 20, 12, tzinfo=UTC)
DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class House:
    """A database with the months from January 2025 to August 2026."""

    database: Database

    async def run(self, sql: str, *values: object) -> None:
        async with self.database.connection() as connection:
            await connection.execute(sql, *values)

    async def rows(self, sql: str, *values: object) -> list[Any]:
        async with self.database.connection() as connection:
            return [row[0] for row in await connection.fetch(sql, *values)]

    async def months(self) -> list[str]:
        """The months that have their partition."""
        names = await self.rows(
            "SELECT relname::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
            " WHERE inhparent = 'webhook_events'::regclass AND NOT inhdetachpending ORDER BY 1"
        )
        return [name.removeprefix("webhook_events_") for name in names]

    async def tables(self) -> list[str]:
        """The months that are tables of their own."""
        names = await self.rows(
            "SELECT relname::text FROM pg_class WHERE relname ~ '^webhook_events_[0-9_]+$'"
            " AND relkind = 'r' AND NOT relispartition ORDER BY 1"
        )
        return [name.removeprefix("webhook_events_") for name in names]

    async def pending(self) -> int:
        """How many months were begun to be detached."""
        (number,) = await self.rows("SELECT count(*) FROM pg_inherits WHERE inhdetachpending")
        return int(number)

    async def event(self, at: datetime, status: str = "PROCESSED", *, forged: bool = False) -> UUID:
        event_id = UUID(int=first_id_at(at).int | uuid4().int >> 64)
        async with self.database.connection() as connection:
            await insert_event(connection, event_id, status, is_valid=not forged)
        return event_id

    async def once(self, task: Task, now: datetime = NOW) -> bool:
        async with self.database.connection() as connection:
            return await task.run_once(connection, now)


async def insert_event(
    connection: Connection, event_id: UUID, status: str, *, is_valid: bool = True
) -> None:
    await connection.execute(
        "INSERT INTO webhook_events (id, source_id, status, error_code, signature_valid,"
        " signature_method, is_test, attempts, received_at, processed_at, request_id, headers,"
        " raw_body) VALUES ($1, 1, $2, $3, $4, 'none', false, 0, now(), $5, 'r', '{}', '')",
        event_id,
        status,
        "INTERNAL" if status.startswith(("FAILED", "DEAD")) else None,
        is_valid,
        NOW if status in ("PROCESSED", "IGNORED", "FAILED_FINAL", "DEAD_LETTER") else None,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def house(database: Database) -> House:
    async with database.connection() as connection:
        for month in (2, 7, 12):
            await ensure_partitions(connection, datetime(2025, month, 15, tzinfo=UTC))
        await ensure_partitions(connection, datetime(2026, 4, 15, tzinfo=UTC))
        await ensure_partitions(connection, NOW)
    return House(database)


def drops(days: int = 400) -> OldPartitions:
    return OldPartitions(days, is_dropped=True)


# Months


async def test_a_month_goes_when_all_of_it_is_old_enough(house: House) -> None:
    """INB-4 DAT-3: 400 days before 20 May 2026 it is 15 April 2025, so that March goes as well."""
    await house.event(datetime(2025, 1, 1, tzinfo=UTC))
    before = await house.months()
    assert not await house.once(drops())
    assert await house.months() == before[3:]
    assert before[:3] == ["2025_01", "2025_02", "2025_03"]
    assert await house.tables() == []
    assert await house.pending() == 0
    assert not await house.once(drops()), "nothing is left to do"


@pytest.mark.parametrize(
    ("now", "first_kept"),
    [("2026-04-04T23:59:59", "2025_02"), ("2026-04-05T00:00:00", "2025_03")],
)
async def test_to_the_second(house: House, now: str, first_kept: str) -> None:
    """INB-4: 400 days after the first of March 2025 it is 5 April 2026."""
    await house.once(drops(), datetime.fromisoformat(f"{now}+00:00"))
    assert (await house.months())[0] == first_kept


async def test_for_ever_is_for_ever(house: House) -> None:
    """DAT-3"""
    before = await house.months()
    await house.once(drops(0), NOW + 3650 * DAY)
    assert await house.months() == before


async def test_the_shortest_age_leaves_the_last_month_alone(house: House) -> None:
    """INB-4: or it would be made and dropped again and again."""
    for day in range(1, 32):
        now = datetime(2026, 3, day, 23, 59, 59, tzinfo=UTC)
        await house.once(drops(31), now)
        assert "2026_02" in await house.months()
    assert "2026_01" not in await house.months()


@pytest.mark.parametrize("status", ["VALIDATED", "FAILED_RETRYABLE", "DEAD_LETTER"])
async def test_a_month_in_which_something_waits_stays(house: House, status: str) -> None:
    """INB-4: and is named in the log; the others go."""
    event_id = await house.event(datetime(2025, 2, 28, 23, 59, tzinfo=UTC), status)
    with structlog.testing.capture_logs() as lines:
        await house.once(drops())
    assert (await house.months())[:2] == ["2025_02", "2025_04"]
    (kept,) = [line for line in lines if line["event"] == "partitions_kept"]
    assert kept["names"] == ["webhook_events_2025_02"]
    await house.run(
        "UPDATE webhook_events SET status = 'PROCESSED', error_code = NULL, processed_at = now()"
        " WHERE id = $1",
        event_id,
    )
    await house.once(drops())
    assert (await house.months())[0] == "2025_04"


async def test_a_month_of_which_something_is_due_stays(house: House) -> None:
    """INB-4: whatever its status says."""
    event_id = await house.event(datetime(2025, 1, 5, tzinfo=UTC))
    await house.run("INSERT INTO event_queue (run_at, event_id) VALUES (now(), $1)", event_id)
    await house.once(drops())
    assert (await house.months())[:2] == ["2025_01", "2025_04"]


async def test_a_detached_month_is_a_table_with_all_of_its_rows(house: House) -> None:
    """INB-4: to be archived by whoever wants it; nobody drops it later."""
    event_id = await house.event(datetime(2025, 1, 5, tzinfo=UTC))
    await house.once(OldPartitions(400, is_dropped=False))
    assert await house.tables() == ["2025_01", "2025_02", "2025_03"]
    assert await house.rows("SELECT id FROM webhook_events_2025_01") == [event_id]
    assert await house.rows("SELECT id FROM webhook_events WHERE id = $1", event_id) == []
    await house.once(drops())
    assert await house.tables() == ["2025_01", "2025_02", "2025_03"]


async def test_a_month_that_was_detached_to_be_dropped_is_dropped_the_next_time(
    house: House,
) -> None:
    """INB-4: whoever detached it was killed before he dropped it."""
    async with house.database.connection() as connection:
        await partitions.detach(
            connection, datetime(2025, 1, 1, tzinfo=UTC), mark=partitions.DROP_MARK
        )
    assert await house.tables() == ["2025_01"]
    await house.once(drops(0))
    assert await house.tables() == []


async def test_a_month_whose_event_waits_again_by_then_is_put_back(house: House) -> None:
    """INB-4: it was replayed while its month was being detached."""
    event_id = await house.event(datetime(2025, 1, 5, tzinfo=UTC), "FAILED_FINAL")
    before = await house.months()
    async with house.database.connection() as connection:
        await partitions.detach(
            connection, datetime(2025, 1, 1, tzinfo=UTC), mark=partitions.DROP_MARK
        )
    await house.run(
        "UPDATE webhook_events_2025_01 SET status = 'VALIDATED', error_code = NULL,"
        " processed_at = NULL WHERE id = $1",
        event_id,
    )
    await house.once(drops(0))
    assert await house.months() == before
    assert await house.rows("SELECT id FROM webhook_events WHERE id = $1", event_id) == [event_id]
    await house.once(drops())
    assert (await house.months())[:2] == ["2025_01", "2025_04"]


async def test_only_so_many_months_are_taken_out_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-3"""
    monkeypatch.setattr(partitions, "MAX_MONTHS", 2)
    assert await house.once(drops())
    assert (await house.months())[0] == "2025_03"
    assert not await house.once(drops())
    assert (await house.months())[0] == "2025_04"


@pytest_asyncio.fixture(loop_scope="session")
async def holder(house: House) -> AsyncIterator[Connection]:
    """A session of somebody else's, in a transaction that holds an event of another month."""
    connection = await asyncpg.connect(house.database.url, connection_class=Connection)
    transaction = connection.transaction()
    await transaction.start()
    await insert_event(connection, first_id_at(NOW), "PROCESSED")
    yield connection
    if connection.is_in_transaction():
        await transaction.rollback()
    await connection.close()


async def test_nobody_who_writes_waits_for_a_month_to_be_detached(
    house: House, holder: Connection
) -> None:
    """INB-4: while it waits itself for a transaction that takes long."""
    detaching = asyncio.create_task(house.once(drops()))
    async with house.database.connection() as writer:
        await somebody_waits(writer)
        await writer.execute("SET lock_timeout = '50ms'")
        for at in (NOW, NOW - 30 * DAY, datetime(2025, 4, 1, tzinfo=UTC)):
            await insert_event(writer, UUID(int=first_id_at(at).int + 7), "PROCESSED")
        assert await writer.fetchval("SELECT count(*) FROM webhook_events") == 3
        assert not detaching.done()
    await holder.execute("COMMIT")
    await detaching
    assert (await house.months())[0] == "2025_04"
    assert await house.tables() == []


async def test_a_detach_that_was_given_up_is_finished_by_the_next_run(
    house: House, holder: Connection
) -> None:
    """INB-4: it waits no longer than any session of ours, and leaves the month half detached."""
    with structlog.testing.capture_logs() as lines:
        assert not await house.once(drops())
    assert "partitions_in_use" in {line["event"] for line in lines}
    assert await house.pending() == 1
    await holder.execute("COMMIT")
    await house.once(drops())
    assert await house.pending() == 0
    assert (await house.months())[0] == "2025_04"
    assert await house.tables() == []


async def test_a_detach_whose_session_was_ended_is_finished_by_the_next_run(
    house: House, holder: Connection
) -> None:
    """INB-4: though nothing is old any more by then."""
    detaching = asyncio.create_task(house.once(drops()))
    async with house.database.connection() as other:
        await somebody_waits(other)
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE 'ALTER TABLE%' AND datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
    (ended,) = await asyncio.gather(detaching, return_exceptions=True)
    assert isinstance(ended, Exception)
    assert await house.pending() == 1
    await holder.execute("COMMIT")
    await house.once(drops(0))
    assert await house.pending() == 0
    assert await house.tables() == []
    assert (await house.months())[0] == "2025_02"


async def test_a_month_that_could_not_be_detached_may_be_kept_by_an_operator(house: House) -> None:
    """INB-4: whoever detaches it by hand to keep it does not lose it."""
    in_use = await asyncpg.connect(house.database.url)
    async with in_use.transaction():
        await in_use.execute("LOCK TABLE ONLY webhook_events IN SHARE UPDATE EXCLUSIVE MODE")
        await house.once(drops())
    await in_use.close()
    assert (await house.months())[0] == "2025_01"
    assert await house.pending() == 0
    await house.run("ALTER TABLE webhook_events DETACH PARTITION webhook_events_2025_01")
    await house.once(drops(0))
    assert await house.tables() == ["2025_01"]


async def test_the_mark_of_a_killed_janitor_is_taken_back(house: House) -> None:
    """INB-4: it had marked the month, and not begun to detach it."""
    await house.run(f"COMMENT ON TABLE webhook_events_2025_01 IS '{partitions.DROP_MARK}'")
    await house.once(drops(0))
    await house.run("ALTER TABLE webhook_events DETACH PARTITION webhook_events_2025_01")
    await house.once(drops(0))
    assert await house.tables() == ["2025_01"]


async def test_events_are_settled_while_months_leave(house: House) -> None:
    """INB-4 DAT-2: with plans that were made while those months were there."""
    shop = await stage(house.database)
    processor = Processor(house.database, shop.rules)
    is_over, settled_one = asyncio.Event(), asyncio.Event()

    async def process() -> list[ResultKind]:
        found: list[ResultKind] = []
        while not is_over.is_set():
            again = shop.paid("again")
            processed = await processor.process([shop.paid(f"p-{len(found)}"), again])
            found += [result.kind for result in processed.results]
            settled_one.set()
        return found

    processing = asyncio.create_task(process())
    try:
        for last in range(4, 13):
            settled_one.clear()
            await house.once(drops(), datetime(2026, last, 20, tzinfo=UTC))
            async with asyncio.timeout(30):
                await settled_one.wait()
    finally:
        is_over.set()
        found = await processing
        await processor.close()
    assert (await house.months())[0] == "2025_11"
    assert set(found) == {ResultKind.UNLINKED, ResultKind.DUPLICATE}


# Rows

LIMIT_30: Final = NOW - 30 * DAY
SECOND: Final = timedelta(seconds=1)


def sweep_of(name: str, **days: int) -> Sweep:
    (found,) = [one for one in sweeps(RetentionSettings(**days)) if one.name == name]
    return found


async def test_evidence_of_forged_deliveries_goes_by_its_own_age(house: House) -> None:
    """DAT-3: what was verified is no evidence, however it ended."""
    old = [await house.event(LIMIT_30 - age, "FAILED_FINAL", forged=True) for age in (SECOND, DAY)]
    kept = {
        await house.event(LIMIT_30, "FAILED_FINAL", forged=True),
        await house.event(LIMIT_30 - DAY, "FAILED_FINAL"),
        await house.event(LIMIT_30 - DAY, "IGNORED"),
        await house.event(LIMIT_30 - DAY),
    }
    with structlog.testing.capture_logs() as lines:
        await house.once(sweep_of("evidence"))
    assert set(await house.rows("SELECT id FROM webhook_events")) == kept
    assert len(old) == 2
    assert [line["deleted"] for line in lines if line["event"] == "old_rows_deleted"] == [2]


async def test_evidence_is_swept_on_from_where_it_was_left(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-3: what stays does not hold up what goes."""
    monkeypatch.setattr(retention, "MAX_PAGES", 2)
    task = sweep_of("evidence")
    task.page = 2
    for hours in range(20):
        at = LIMIT_30 - 30 * DAY + timedelta(hours=hours)
        await house.event(at, "FAILED_FINAL", forged=hours >= 10)
    for _ in range(6):
        await house.once(task)
    assert await house.rows("SELECT count(*) FROM webhook_events") == [10]
    await house.event(LIMIT_30 - SECOND, "FAILED_FINAL", forged=True)
    await house.once(task)
    assert await house.rows("SELECT count(*) FROM webhook_events") == [10]


async def test_the_audit_log_goes_by_its_age(house: House) -> None:
    """DAT-3"""
    limit = NOW - 400 * DAY
    await house.run(
        "INSERT INTO audit_log (at, action, success) SELECT $1::timestamptz"
        " + n * interval '1 day', 'n' || n, true FROM generate_series(-20, 20) AS n",
        limit,
    )
    await house.once(sweep_of("audit_log"))
    left = await house.rows("SELECT action FROM audit_log ORDER BY id")
    assert left == [f"n{n}" for n in range(21)]
    await house.once(sweep_of("audit_log"), NOW + DAY)
    assert await house.rows("SELECT count(*) FROM audit_log") == [20]


async def outbox(house: House, number: int, at: datetime, published: datetime | None) -> None:
    await house.run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, version, payload, occurred_at,"
        " published_at) SELECT 'payment', gen_random_uuid(), 't', 1, '{}', $2, $3"
        " FROM generate_series(1, $1)",
        number,
        at,
        published,
    )


async def test_only_what_was_published_leaves_the_outbox(house: House) -> None:
    """DAT-3: what was not is kept however old it is, and holds up nobody."""
    long_ago = LIMIT_30 - 300 * DAY
    await outbox(house, 7, long_ago, None)
    await outbox(house, 5, long_ago, LIMIT_30 - SECOND)
    await outbox(house, 3, long_ago, LIMIT_30)
    await outbox(house, 2, NOW, None)
    task = sweep_of("outbox")
    task.page = 3
    await house.once(task)
    assert await house.rows("SELECT count(*) FROM outbox WHERE published_at IS NULL") == [9]
    assert await house.rows("SELECT count(*) FROM outbox WHERE published_at >= $1", LIMIT_30) == [3]
    assert await house.rows("SELECT count(*) FROM outbox") == [12]


async def test_what_a_group_has_not_taken_stays_while_the_group_comes(house: House) -> None:
    """DAT-3 BUS-1: one that was not seen for that long, or reads elsewhere, holds up nothing."""
    await outbox(house, 9, LIMIT_30 - 2 * DAY, LIMIT_30 - DAY)
    await house.run("UPDATE outbox SET pos = seq")

    async def left_with(**cursor: object) -> int:
        await house.run("TRUNCATE bus_cursors")
        usual = {"consumer": "c", "about": "payment", "pos": 4, "lag": None, "seen_at": LIMIT_30}
        await house.run(
            "INSERT INTO bus_cursors (consumer, aggregate_type, pos, lag, seen_at)"
            " VALUES ($1, $2, $3, $4, $5)",
            *(usual | cursor).values(),
        )
        await house.once(sweep_of("outbox"))
        (number,) = await house.rows("SELECT count(*) FROM outbox")
        return int(number)

    assert await left_with() == 5
    assert await left_with(pos=6) == 3
    assert await left_with(about="other") == 0
    await outbox(house, 2, LIMIT_30 - 2 * DAY, LIMIT_30 - DAY)
    await house.run("UPDATE outbox SET pos = seq")
    assert await left_with(lag=7, seen_at=NOW) == 0
    await outbox(house, 2, LIMIT_30 - 2 * DAY, LIMIT_30 - DAY)
    await house.run("UPDATE outbox SET pos = seq")
    assert await left_with(seen_at=LIMIT_30 - SECOND) == 0


async def test_what_was_taken_is_forgotten_later_than_topics_keep_it(house: House) -> None:
    """DAT-3 QRY-1: eight days by default, in pages."""
    limit = NOW - 8 * DAY
    await house.run(
        "INSERT INTO processed_events (consumer, event_id, processed_at)"
        " SELECT 'c', gen_random_uuid(), $1::timestamptz + n * interval '1 second'"
        " FROM generate_series(-7, 2) AS n",
        limit,
    )
    task = sweep_of("processed_events")
    task.page = 3
    await house.once(task)
    assert await house.rows("SELECT count(*) FROM processed_events") == [3]
    assert await house.rows("SELECT min(processed_at) FROM processed_events") == [limit]
    assert not [
        one for one in sweeps(RetentionSettings(processed_events_days=0)) if one.name == task.name
    ]


async def test_a_dead_letter_of_the_bus_stays_until_it_has_ended(house: House) -> None:
    """DAT-3 BUS-1: taken or discarded long ago, it goes."""
    await house.run(
        "INSERT INTO bus_dead_letters (consumer, event_id, topic, key, type, version, time, body,"
        " error, attempts, failed_at, retried_at, consumed_at)"
        " SELECT 'c', gen_random_uuid(), 't', 'k',"
        " 't', 1, at, '', 'e', 1, at, CASE WHEN n > 2 THEN at END, CASE WHEN n > 2 THEN at END"
        " FROM generate_series(1, 5) AS n, CAST($1 AS timestamptz) AS at",
        NOW - 401 * DAY,
    )
    await house.once(sweep_of("bus_dead_letters"))
    assert await house.rows("SELECT count(*) FROM bus_dead_letters") == [2]
    await house.run(
        "UPDATE bus_dead_letters SET discarded_at = $1, discarded_by = 'x', discard_reason = 'y'"
        " WHERE id = (SELECT min(id) FROM bus_dead_letters)",
        NOW - 401 * DAY,
    )
    await house.once(sweep_of("bus_dead_letters"))
    assert await house.rows("SELECT count(*) FROM bus_dead_letters") == [1]


async def keys(house: House, number: int, at: datetime) -> None:
    """As many keys of events that arrived in that millisecond."""
    prefix = first_id_at(at).hex[:12]
    await house.run(
        "INSERT INTO event_keys (source_id, digest, event_id, fingerprint, fingerprint_version)"
        " SELECT 1, d, ($1 || '7' || substr(encode(d, 'hex'), 1, 19))::uuid, d, 1"
        " FROM generate_series(1, $2) AS n, decode(md5($1 || n), 'hex') AS d",
        prefix,
        number,
    )


async def test_keys_are_kept_for_ever_unless_their_age_is_set(house: House) -> None:
    """INB-4"""
    assert "event_keys" not in {one.name for one in sweeps(RetentionSettings())}
    await keys(house, 10, NOW - 3000 * DAY)
    await Janitor(usual_tasks(RetentionSettings()), Leader(house.database)).run_once(NOW)
    assert await house.rows("SELECT count(*) FROM event_keys") == [10]


async def test_keys_go_by_the_time_in_their_events_id(house: House) -> None:
    """INB-4: except those of events that still wait."""
    await keys(house, 10, NOW - DAY - SECOND)
    await keys(house, 3, NOW - DAY)
    (waiting,) = await house.rows("SELECT event_id FROM event_keys LIMIT 1")
    await house.run("INSERT INTO event_queue (run_at, event_id) VALUES (now(), $1)", waiting)
    await house.once(sweep_of("event_keys", dedup_keys_days=1))
    left = await house.rows("SELECT event_id FROM event_keys ORDER BY event_id")
    assert len(left) == 4
    assert left[0] == waiting
    await house.run("DELETE FROM event_queue")
    await house.once(sweep_of("event_keys", dedup_keys_days=1))
    assert await house.rows("SELECT count(*) FROM event_keys") == [3]


async def test_all_blocks_of_the_keys_are_visited_in_turn(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INB-4 DAT-3: new keys take the place of old ones, so that the old may lie anywhere."""
    monkeypatch.setattr(retention, "MAX_PAGES", 2)
    await keys(house, 500, NOW)
    await keys(house, 500, NOW - 2 * DAY)
    await keys(house, 500, NOW - SECOND)
    await keys(house, 100, NOW - 3 * DAY)
    task = sweep_of("event_keys", dedup_keys_days=1)
    task.page = 1
    (blocks,) = await house.rows("SELECT pg_relation_size('event_keys') / 8192")
    assert blocks > 10
    for _ in range(blocks):
        await house.once(task)
    assert await house.rows("SELECT count(*) FROM event_keys") == [1000]


async def test_nonces_go_by_their_age(house: House) -> None:
    """DAT-3 SEC-3"""
    for number, seen_at in enumerate((NOW - 30 * DAY - SECOND, NOW - 30 * DAY, NOW)):
        await house.run(
            "INSERT INTO nonces VALUES (1, decode(md5($1), 'hex'), decode(md5($1), 'hex'), 1, $2)",
            str(number),
            seen_at,
        )
    await house.once(sweep_of("nonces"))
    assert await house.rows("SELECT seen_at FROM nonces ORDER BY 1") == [NOW - 30 * DAY, NOW]


async def test_notices_and_their_messages_go_by_their_age_told_or_not(house: House) -> None:
    """DAT-3 OBS-5"""
    for at in (LIMIT_30 - SECOND, LIMIT_30):
        message_id = UUID(int=first_id_at(at).int + 1)
        await house.run(
            "INSERT INTO notifications (channel, at, kind, message_id)"
            " SELECT 'ops', $1, 'conflict', * FROM unnest(ARRAY[NULL, $2::uuid])",
            at,
            message_id,
        )
        await house.run(
            "INSERT INTO notification_messages (id, channel, at, content, next_attempt_at)"
            " VALUES ($1, 'ops', $2, '{}', $2)",
            message_id,
            at,
        )
    await house.once(sweep_of("notifications"))
    await house.once(sweep_of("notification_messages"))
    assert await house.rows("SELECT at FROM notifications") == [LIMIT_30] * 2
    assert await house.rows("SELECT at FROM notification_messages") == [LIMIT_30]


@pytest.mark.parametrize("name", ["evidence", "audit_log", "outbox", "event_keys", "notifications"])
async def test_a_run_is_bounded_and_says_that_there_is_more(
    house: House, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-3: so many pages, each in a transaction of its own."""
    monkeypatch.setattr(retention, "MAX_PAGES", 3)
    long_ago = NOW - 401 * DAY
    task = sweep_of(name, dedup_keys_days=1)
    task.page, rows = (1, 1_000) if name == "event_keys" else (10, 100)
    if name == "evidence":
        for _ in range(rows):
            await house.event(long_ago, "FAILED_FINAL", forged=True)
    elif name == "audit_log":
        await house.run(
            "INSERT INTO audit_log (at, action, success) SELECT $1, 'a', true"
            " FROM generate_series(1, $2)", long_ago, rows,
        )  # fmt: skip
    elif name == "notifications":
        await house.run(
            "INSERT INTO notifications (channel, at, kind) SELECT 'ops', $1, 'ban'"
            " FROM generate_series(1, $2)", long_ago, rows,
        )  # fmt: skip
    elif name == "outbox":
        await outbox(house, rows, long_ago, long_ago)
    else:
        await keys(house, rows, long_ago)
    table = "webhook_events" if name == "evidence" else name
    count = f"SELECT count(*) FROM {table}"
    assert await house.once(task), "there is more"
    (left,) = await house.rows(count)
    assert 0 < left < rows
    assert left == rows - 30 or name == "event_keys"
    for _ in range(rows):
        if not await house.once(task):
            break
    assert await house.rows(count) == [0]


# The janitor


class Broken:
    """A task that fails."""

    name = "broken"
    period_s = 3600.0

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        await connection.execute("SELECT 1 / 0")
        return False


class Counting:
    """A task that says when it runs, and waits for leave to end."""

    def __init__(self, name: str = "counting", period_s: float = 3600.0) -> None:
        self.name = name
        self.period_s = period_s
        self.runs = 0
        self.begun = asyncio.Event()
        self.leave = asyncio.Event()

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        self.runs += 1
        self.begun.set()
        await self.leave.wait()
        return True


def janitor(house: House, *tasks: Task) -> Janitor:
    return Janitor(tasks, Leader(house.database))


async def test_a_task_that_fails_is_told_and_stops_no_other(house: House) -> None:
    """DAT-3"""
    other = Counting()
    other.leave.set()
    both: Sequence[Task] = (Broken(), other)
    with structlog.testing.capture_logs() as lines:
        assert await janitor(house, *both).run_once(NOW)
    assert other.runs == 1
    (line,) = [line for line in lines if line["event"] == "service_crashed"]
    assert line["task"] == "broken"
    assert "division by zero" in str(line["exc_info"])


async def test_a_task_runs_in_one_process_at_a_time(house: House) -> None:
    """DAT-3: the others go on with theirs, and take their turn later."""
    slow, same, another = Counting(), Counting(), Counting("another")
    same.leave.set()
    another.leave.set()
    running = asyncio.create_task(janitor(house, slow).run_once(NOW))
    await slow.begun.wait()
    await janitor(house, same, another).run_once(NOW)
    assert (same.runs, another.runs) == (0, 1)
    slow.leave.set()
    await running
    await janitor(house, same).run_once(NOW)
    assert same.runs == 1


async def test_what_is_done_often_does_not_wait_for_what_takes_long(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-3 OBS-2: a month that is archived for hours does not stop the statistics."""
    monkeypatch.setattr(janitor_module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(janitor_module, "PAUSE_WHILE_MORE_S", 0.0)
    slow, quick = Counting("slow"), Counting("quick", period_s=5.0)
    quick.leave.set()
    running = asyncio.create_task(janitor(house, slow, quick).run())
    async with asyncio.timeout(120):
        await slow.begun.wait()
        already = quick.runs
        while quick.runs < already + 3:
            await asyncio.sleep(0.01)
    assert slow.runs == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_task_that_failed_has_let_go_of_its_lock(house: House) -> None:
    """DAT-3"""
    await janitor(house, Broken()).run_once(NOW)
    async with asyncio.timeout(120), house.database.connection() as connection:
        locks = await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    assert locks == 0


async def test_several_janitors_at_once_leave_a_tidy_house(house: House) -> None:
    """INB-4 DAT-3"""
    await house.event(datetime(2025, 1, 5, tzinfo=UTC))
    await house.event(LIMIT_30 - DAY, "FAILED_FINAL", forged=True)
    await outbox(house, 1000, NOW - 99 * DAY, NOW - 98 * DAY)
    with structlog.testing.capture_logs() as lines:
        ours = [Janitor(usual_tasks(RetentionSettings()), Leader(house.database)) for _ in range(4)]
        await asyncio.gather(*(one.run_once(NOW) for one in ours))
    assert [line for line in lines if line["log_level"] != "info"] == []
    assert (await house.months())[0] == "2025_04"
    assert await house.tables() == []
    assert await house.rows("SELECT count(*) FROM webhook_events") == [0]
    assert await house.rows("SELECT count(*) FROM outbox") == [0]
