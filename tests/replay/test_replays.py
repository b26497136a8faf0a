"""All events that match are processed again, each once, despite concurrency (OPS-4)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from paidonce.bootstrap.services import Services
from paidonce.core.actors import Actor, Scope
from paidonce.core.events import EventStatus, EventType
from paidonce.db.pool import OwnConnection
from paidonce.errors import InvalidSignatureError
from paidonce.events.model import EventFilter
from paidonce.processing.items import Incoming, Rejected, Rules
from paidonce.processing.transactions import Processor
from paidonce.replay import store as replay_store
from paidonce.replay import worker as replay_worker
from paidonce.replay.model import Replay, ReplayId, ReplayRequest, ReplayState
from paidonce.replay.worker import MAX_AT_ONCE, MAX_STARTS, ReplayRun, ReplayWorker
from paidonce.runtime.leader import Leader
from paidonce.runtime.service import Service
from tests.support.batches import Plain, Stage

ACTOR: Final = Actor("tester", Scope.OPERATE)
DEAD: Final = EventFilter(status=EventStatus.DEAD_LETTER)
MAKE_DEAD_LETTERS: Final = """
UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now(), error_code = 'USER_MISSING'
 WHERE id = ANY ($1::uuid[])
"""
NAME_ORDER: Final = "UPDATE webhook_events SET order_reference = 'o-1' WHERE id = $1"


async def dead_letters(shop: Stage, processor: Processor, *payments: str) -> list[Incoming]:
    """Dead letters of payments whose users were created too late; a repeated name has two."""
    items = [shop.paid(payment, key=f"{number}") for number, payment in enumerate(payments)]
    for item in items:
        await processor.process([item])
    await execute(shop, MAKE_DEAD_LETTERS, [item.event_id for item in items])
    await execute(shop, "DELETE FROM event_queue")
    for payment in set(payments):
        await shop.user(f"{payment}@example.com")
    return items


@contextlib.asynccontextmanager
async def leading(
    shop: Stage, replay_id: ReplayId, max_chunk: int = 128
) -> AsyncIterator[ReplayRun]:
    """A replay that was begun in the process that leads, for single steps."""
    run = ReplayRun(shop.database, shop.rules, replay_id, max_chunk)
    async with Leader(shop.database).lead(f"replay {replay_id}") as leadership:
        assert leadership is not None
        run._leadership = leadership
        run._connection = OwnConnection(leadership.session)
        assert await run._begin()
        yield run
        run._connection.close()


async def execute(shop: Stage, sql: str, *values: object) -> None:
    async with shop.database.connection() as connection:
        await connection.execute(sql, *values)


async def create_replay(
    shop: Stage, events: EventFilter = DEAD, *, dry: bool = False, rate: int = 10_000
) -> ReplayId:
    """A replay that no process runs yet."""
    services = Services(shop.database, shop.rules)
    request = ReplayRequest(filter=events, dry_run=dry, rate=rate)
    return (await services.replays.create(request, ACTOR, wait_s=0)).id


async def get_replay(shop: Stage, replay_id: ReplayId) -> Replay:
    return await Services(shop.database, shop.rules).replays.get(replay_id)


async def run(
    shop: Stage, replay_id: ReplayId, max_chunk: int = 2, rules: Rules | None = None
) -> Replay:
    """Run it to its end."""
    assert await ReplayRun(shop.database, rules or shop.rules, replay_id, max_chunk).run()
    return await get_replay(shop, replay_id)


async def recorded_events(shop: Stage, replay_id: ReplayId) -> list[str]:
    """The events of the replay in the audit log, with repetitions."""
    found = await shop.rows(
        "SELECT event_id FROM audit_log WHERE action = 'event_reprocessed'"
        " AND details->>'replay' = $1 ORDER BY event_id",
        str(replay_id),
    )
    return [str(row["event_id"]) for row in found]


async def state(shop: Stage) -> Sequence[Any]:
    """Everything that a replay could change, without the replay itself."""
    return [
        await shop.rows(f"SELECT * FROM {table} ORDER BY 1")
        for table in (
            "webhook_events",
            "payments",
            "subscriptions",
            "outbox",
            "event_queue",
            "event_keys",
        )
    ]


async def test_a_replay_applies_payments_that_can_be_applied_now(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 PAY-3: each event once, with an audit entry; a second replay changes nothing."""
    items = await dead_letters(shop, processor, *(f"p-{number}" for number in range(5)))
    replay_id = await create_replay(shop)
    done = await run(shop, replay_id)
    assert (done.status, done.done, done.total) == ("DONE", 5, 5)
    assert done.counts == {"DEAD_LETTER → PROCESSED": 5}
    assert (done.applied.number, done.applied.sums) == (5, {"RUB": "4950.00"})
    assert await recorded_events(shop, replay_id) == sorted(str(item.event_id) for item in items)
    again = await run(shop, await create_replay(shop, EventFilter(source="plain")))
    assert again.counts == {"PROCESSED → PROCESSED": 5}
    assert again.applied.number == 0
    assert await shop.number("outbox") == 5


async def test_a_dry_run_predicts_the_replay_and_changes_nothing(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4: also for two events of one payment in different chunks."""
    await dead_letters(shop, processor, "p-1", "p-2", "p-1")
    await processor.process([shop.paid("nobody")])
    before = await state(shop)
    everything = EventFilter(source="plain")
    seen = await run(shop, await create_replay(shop, everything, dry=True), max_chunk=1)
    assert await state(shop) == before
    done = await run(shop, await create_replay(shop, everything), max_chunk=1)
    assert seen.counts == done.counts
    assert seen.counts == {
        "DEAD_LETTER → PROCESSED": 3,
        "FAILED_RETRYABLE → FAILED_RETRYABLE": 1,
    }
    assert seen.applied == done.applied
    assert done.applied.number == 2
    assert [one["event_id"] for one in seen.sample] == [one["event_id"] for one in done.sample]


async def test_a_dry_run_waits_for_no_lock(shop: Stage, processor: Processor) -> None:
    """OPS-4: and it takes no lock."""
    await dead_letters(shop, processor, "p")
    replay_id = await create_replay(shop, dry=True)
    async with shop.database.transaction() as other:
        for table in ("webhook_events", "payments", "users"):
            await other.execute(f"SELECT 1 FROM {table} FOR UPDATE")
        seen = await run(shop, replay_id)
    assert seen.counts == {"DEAD_LETTER → PROCESSED": 1}


async def test_a_dry_run_starts_over_in_another_process(shop: Stage, processor: Processor) -> None:
    """OPS-4: nothing is counted twice."""
    await dead_letters(shop, processor, "p-1", "p-2")
    replay_id = await create_replay(shop, dry=True)
    async with leading(shop, replay_id, max_chunk=1) as first:
        assert await first._step()
        assert (await get_replay(shop, replay_id)).done == 1
    seen = await run(shop, replay_id)
    assert (seen.done, seen.applied.number) == (2, 2)


async def test_a_locked_event_is_tried_again_and_then_skipped(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4: it blocks no other event, and the replay ends."""
    monkeypatch.setattr(replay_worker, "LOCKED_PAUSE_S", 0.001)
    held, *others = await dead_letters(shop, processor, "p-1", "p-2", "p-3")
    replay_id = await create_replay(shop)
    async with shop.database.transaction() as other:
        await other.execute("SELECT 1 FROM webhook_events WHERE id = $1 FOR UPDATE", held.event_id)
        done = await run(shop, replay_id)
    assert (done.status, done.done) == ("DONE", 3)
    assert done.counts == {"DEAD_LETTER → PROCESSED": 2, "DEAD_LETTER → skipped": 1}
    assert (await shop.event_row(held))["status"] == "DEAD_LETTER"
    assert len(await recorded_events(shop, replay_id)) == 3
    for item in others:
        assert (await shop.event_row(item))["status"] == "PROCESSED"


async def test_an_event_whose_payment_is_locked_briefly_is_not_skipped(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4: it is stored as skipped, and tried again."""
    await dead_letters(shop, processor, "p-1", "p-2")
    replay_id = await create_replay(shop)
    other = await shop.database.dedicated()
    transaction = other.transaction()
    await transaction.start()
    payment = await shop.payment("p-1")
    await other.execute("SELECT 1 FROM payments WHERE id = $1 FOR UPDATE", payment["id"])
    running = asyncio.create_task(run(shop, replay_id))
    while not (await shop.one("SELECT skipped FROM replays"))["skipped"]:
        await asyncio.sleep(0)
    await transaction.rollback()
    await other.close()
    done = await running
    assert done.counts == {"DEAD_LETTER → PROCESSED": 2}
    assert done.applied.number == 2


@pytest.mark.parametrize("how", ["pause", "cancel"])
async def test_pausing_or_canceling_rolls_back_the_current_chunk(
    shop: Stage, processor: Processor, how: str
) -> None:
    """OPS-4: it does not wait; the chunk is rolled back."""
    await dead_letters(shop, processor, "p-1", "p-2")
    replay_id = await create_replay(shop)
    services = Services(shop.database, shop.rules)
    async with leading(shop, replay_id, max_chunk=1) as working:
        connection = await working._connection.get()
        found = await replay_store.find(connection, ReplayState, replay_id)
        assert found is not None
        page = await replay_store.page(connection, found.events, None, 1)
        stop = services.replays.pause if how == "pause" else services.replays.cancel
        await stop(replay_id, ACTOR)
        await working._process(connection, found, page.ids, page.cursor)
        assert not await working._step()
        assert await recorded_events(shop, replay_id) == []
        assert (await get_replay(shop, replay_id)).done == 0
    if how == "pause":
        await services.replays.resume(replay_id, ACTOR)
        assert (await run(shop, replay_id)).done == 2
        assert len(await recorded_events(shop, replay_id)) == 2


async def test_two_processes_cannot_process_the_same_chunk(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4: even if both believe that they run the replay."""
    await dead_letters(shop, processor, "p-1", "p-2")
    replay_id = await create_replay(shop)
    one, two = (ReplayRun(shop.database, shop.rules, replay_id, 1) for _ in range(2))
    one._connection = OwnConnection(shop.database.dedicated)
    two._connection = OwnConnection(shop.database.dedicated)
    assert await one._begin()
    connection = await one._connection.get()
    stale = await replay_store.find(connection, ReplayState, replay_id)
    assert stale is not None
    page = await replay_store.page(connection, stale.events, None, 1)
    assert await two._step()
    await one._process(connection, stale, page.ids, page.cursor)
    assert len(await recorded_events(shop, replay_id)) == 1
    assert (await get_replay(shop, replay_id)).done == 1
    one._connection.close()
    two._connection.close()


async def test_one_process_runs_a_replay_at_a_time(shop: Stage, processor: Processor) -> None:
    """OPS-4: and another one as soon as it has gone."""
    await dead_letters(shop, processor, "p")
    replay_id = await create_replay(shop)
    async with Leader(shop.database).lead(f"replay {replay_id}"):
        assert not await ReplayRun(shop.database, shop.rules, replay_id).run()
        assert (await get_replay(shop, replay_id)).status == "PENDING"
    assert (await run(shop, replay_id)).status == "DONE"


async def test_the_rate_holds_across_chunks_and_processes(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4: by the clock of the database."""
    await dead_letters(shop, processor, *(f"p-{number}" for number in range(4)))
    replay_id = await create_replay(shop, rate=2)
    for _ in range(2):  # each as if it had been started anew
        async with leading(shop, replay_id) as once:
            before = (await get_replay(shop, replay_id)).done
            while (await get_replay(shop, replay_id)).done == before:
                assert await once._step()
    done = await run(shop, replay_id)
    assert done.done == 4
    assert done.started_at is not None
    assert done.finished_at is not None
    assert done.finished_at - done.started_at > timedelta(seconds=1.5)


async def test_a_replay_that_crashes_its_process_repeatedly_fails(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 RET-3: it needs a person."""
    await dead_letters(shop, processor, "p")
    replay_id = await create_replay(shop)
    for _ in range(MAX_STARTS):
        async with shop.database.connection() as connection:
            await replay_store.QUERIES["begin"].value(connection, replay_id=replay_id)
    done = await run(shop, replay_id)
    assert done.status == "FAILED"
    assert "ended 5 times" in (done.error or "")
    (entry,) = await shop.rows("SELECT * FROM audit_log WHERE action = 'replay_finished'")
    assert not entry["success"]


async def test_a_clean_stop_does_not_count_as_a_crash(shop: Stage, processor: Processor) -> None:
    """OPS-4: however often it is stopped before any progress."""
    await dead_letters(shop, processor, "p")
    replay_id = await create_replay(shop)
    service = Service("test")
    service.finish()
    for _ in range(MAX_STARTS + 1):
        assert await ReplayRun(shop.database, shop.rules, replay_id, 1, service).run()
    assert (await run(shop, replay_id)).status == "DONE"


async def test_an_internal_error_fails_the_replay(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4: never an endless loop."""
    monkeypatch.setattr(replay_worker, "LOCKED_PAUSE_S", 0.001)
    await dead_letters(shop, processor, "p")
    await execute(shop, "ALTER TABLE audit_log ADD CHECK (action <> 'event_reprocessed') NOT VALID")
    done = await run(shop, await create_replay(shop))
    assert (done.status, done.done) == ("FAILED", 0)
    assert "CheckViolationError" in (done.error or "")


class Sealed(Plain):
    """A gateway that signs with a word."""

    def verify(self, delivery: Any) -> None:
        if json.loads(delivery.body).get("word") != "right":
            raise InvalidSignatureError("the word is not right")


async def test_authentic_refused_deliveries_become_events(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 SEC-5: a forged delivery stays evidence, and is counted."""
    source = replace(shop.source, provider=Sealed())
    rules = replace(shop.rules, sources={source.id: source})
    refusal = InvalidSignatureError("our secret was wrong")
    items = [
        shop.paid("p-1", word="right"),
        shop.paid("p-1", word="right"),
        shop.paid("p-2", word="wrong"),
    ]
    await processor.process(
        [
            Rejected(one.event_id, one.source, one.request, one.delivery, refusal, False)
            for one in items
        ]
    )
    await shop.user("p-1@example.com")
    forged = EventFilter(error_code="INVALID_SIGNATURE")
    seen = await run(shop, await create_replay(shop, forged, dry=True), 10, rules)
    done = await run(shop, await create_replay(shop, forged), 10, rules)
    expected = {
        "FAILED_FINAL → PROCESSED": 1,
        "FAILED_FINAL → duplicate": 1,
        "FAILED_FINAL → refused": 1,
    }
    assert seen.counts == done.counts == expected
    assert done.applied.number == 1
    made = await shop.rows("SELECT * FROM webhook_events WHERE status = 'PROCESSED'")
    assert [row["raw_body"] for row in made] == [items[0].delivery.body]
    assert made[0]["received_at"] == items[0].delivery.received_at


async def test_a_replay_leaves_out_events_that_arrive_after_its_start(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4: neither new events nor those that it creates."""
    await dead_letters(shop, processor, "p-1")
    replay_id = await create_replay(shop, EventFilter(source="plain"))
    await asyncio.sleep(0.005)  # ids know milliseconds
    await processor.process([shop.paid("p-2")])
    assert (await run(shop, replay_id)).done == 1


async def test_a_filter_selects_the_events(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4: in pages that read few events each."""
    monkeypatch.setattr(replay_store, "SCAN", 2)
    for number in range(7):
        await shop.user(f"p-{number}@example.com")
        await processor.process([shop.paid(f"p-{number}")])
    ordered = shop.paid("q", order="o-1")
    await processor.process([ordered])
    await execute(shop, NAME_ORDER, ordered.event_id)
    await processor.process([shop.event(EventType.FAILED, "p-6", key="late")])
    first, *_ = await shop.rows("SELECT id, received_at FROM webhook_events ORDER BY id")
    ours = str((await shop.payment("p-3"))["id"])
    past, future = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))

    async def matching(**chosen: Any) -> int:
        found, cursor = 0, None
        async with shop.database.connection() as connection:
            for _ in range(20):
                page = await replay_store.page(connection, EventFilter(**chosen), cursor, 2)
                assert len(page.ids) <= 2
                found, cursor = found + len(page.ids), page.cursor
                if page.is_last:
                    return found
        raise AssertionError("it never ends")

    assert await matching(source="plain") == 9
    assert await matching(source="nobody") == 0
    assert await matching(status=EventStatus.PROCESSED) == 7
    assert await matching(status=EventStatus.IGNORED) == 1
    assert await matching(status=EventStatus.IGNORED, error_code="OUT_OF_ORDER") == 1
    assert await matching(error_code="ORDER_MISSING") == 1
    assert await matching(order="o-1") == await matching(order="o-1", payment="q") == 1
    assert await matching(order="o-1", payment="p-1") == 0
    assert await matching(order="") == await matching(payment="") == 0
    assert await matching(payment="p-6") == 2
    assert await matching(payment="p-6", status=EventStatus.IGNORED) == 1
    assert await matching(payment=ours) == await matching(payment="p-3") == 1
    assert await matching(since=past, until=future) == 9
    assert await matching(since=future) == await matching(until=past) == 0
    assert await matching(since=first["received_at"]) == 9


async def test_what_was_processed_stays_processed(shop: Stage, processor: Processor) -> None:
    """OPS-4 PAY-2: whatever is known by now; one that was ignored stays ignored."""
    names = [f"p-{number}" for number in range(3)]
    for name in names:
        await shop.user(f"{name}@example.com")
        await processor.process([shop.event(EventType.PENDING, name)])
        await processor.process([shop.paid(name)])
        await processor.process([shop.event(EventType.FAILED, name)])
    before = await statuses(shop)
    assert [one for one, _ in before] == ["PROCESSED", "PROCESSED", "IGNORED"] * 3
    dry = await run(shop, await create_replay(shop, EventFilter(source="plain"), dry=True))
    done = await run(shop, await create_replay(shop, EventFilter(source="plain")))
    assert await statuses(shop) == before
    assert [sum(one.counts.values()) for one in (dry, done)] == [9, 9]
    assert {*dry.counts, *done.counts} == {"PROCESSED → PROCESSED", "IGNORED → IGNORED"}


async def statuses(shop: Stage) -> list[tuple[str, str | None]]:
    """What became of each event, in the order of arrival."""
    rows = await shop.rows("SELECT status, error_code FROM webhook_events ORDER BY id")
    return [(row["status"], row["error_code"]) for row in rows]


async def test_the_worker_finds_a_replay_and_runs_it(shop: Stage, processor: Processor) -> None:
    """OPS-4: also one that was created elsewhere."""
    await dead_letters(shop, processor, "p")
    worker = ReplayWorker(shop.database, shop.rules)
    running = asyncio.create_task(worker.run())
    services = Services(shop.database, shop.rules)
    done = await services.replays.create(
        ReplayRequest(filter=DEAD, dry_run=False), ACTOR, wait_s=10
    )
    assert (done.status, done.done) == ("DONE", 1)
    worker.finish()
    await running


async def test_replays_of_other_processes_do_not_block_the_worker(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4: however many there are, and however long they take."""
    await dead_letters(shop, processor, "p")
    held = [await create_replay(shop) for _ in range(MAX_AT_ONCE)]
    free = await create_replay(shop)
    other = Leader(shop.database)
    worker = ReplayWorker(shop.database, shop.rules)
    async with contextlib.AsyncExitStack() as stack:
        for one in held:
            assert await stack.enter_async_context(other.lead(f"replay {one}"))
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(120):
            while (await get_replay(shop, free)).status != "DONE":
                await asyncio.sleep(0.05)
        assert [(await get_replay(shop, one)).status for one in held] == ["PENDING"] * MAX_AT_ONCE
    async with asyncio.timeout(120):
        while {(await get_replay(shop, one)).status for one in held} != {"DONE"}:
            await asyncio.sleep(0.05)
    worker.finish()
    await running
