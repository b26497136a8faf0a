"""All events that match are processed again: each once, whoever comes in between (OPS-4)."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from paidonce.domain.events import EventStatus, Says
from paidonce.engine import replaying
from paidonce.engine.items import Incoming, Refused, Rules
from paidonce.engine.replaying import MAX_AT_ONCE, MAX_STARTS, Replayer, ReplayRun
from paidonce.engine.transactions import Settler
from paidonce.errors import InvalidSignatureError
from paidonce.operations import Actor, EventFilter, Operations, ReplayView, Scope
from paidonce.store import replays
from paidonce.store.locks import held_by_us
from paidonce.store.replays import ReplayId
from tests.store.batches import Plain, Stage

ACTOR: Final = Actor("tester", Scope.OPERATE)
DEAD: Final = EventFilter(status=EventStatus.DEAD_LETTER)
BURY: Final = """
UPDATE webhook_events SET status = 'DEAD_LETTER', processed_at = now(), error_code = 'USER_MISSING'
 WHERE id = ANY ($1::uuid[])
"""
NAME_ORDER: Final = "UPDATE webhook_events SET order_reference = 'o-1' WHERE id = $1"


async def buried(shop: Stage, settler: Settler, *payments: str) -> list[Incoming]:
    """Dead letters of payments whose users came too late; a payment named twice has two."""
    items = [shop.paid(payment, key=f"{number}") for number, payment in enumerate(payments)]
    for item in items:
        await settler.settle([item])
    await execute(shop, BURY, [item.event_id for item in items])
    await execute(shop, "DELETE FROM due")
    for payment in set(payments):
        await shop.user(f"{payment}@example.com")
    return items


async def execute(shop: Stage, sql: str, *values: object) -> None:
    async with shop.database.connection() as connection:
        await connection.execute(sql, *values)


async def begun(
    shop: Stage, chosen: EventFilter = DEAD, *, dry: bool = False, rate: int = 10_000
) -> ReplayId:
    """A replay that nobody runs yet."""
    verbs = Operations(shop.database, shop.rules)
    made = await verbs.create_replay(chosen, ACTOR, is_dry_run=dry, rate=rate, patience_s=0)
    return ReplayId(made.id)


async def shown(shop: Stage, replay_id: ReplayId) -> ReplayView:
    return await Operations(shop.database, shop.rules).replay(replay_id)


async def run(
    shop: Stage, replay_id: ReplayId, max_chunk: int = 2, rules: Rules | None = None
) -> ReplayView:
    """Run it to its end."""
    assert await ReplayRun(shop.database, rules or shop.rules, replay_id, max_chunk).run()
    return await shown(shop, replay_id)


async def audited(shop: Stage, replay_id: ReplayId) -> list[str]:
    """The events that the replay says it has processed again, as often as it does."""
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
        for table in ("webhook_events", "payments", "subscriptions", "outbox", "due", "event_keys")
    ]


async def test_a_replay_applies_what_can_be_applied_now(shop: Stage, settler: Settler) -> None:
    """OPS-4 PAY-3: each event once, with its entry; a second replay finds nothing to do."""
    items = await buried(shop, settler, *(f"p-{number}" for number in range(5)))
    replay_id = await begun(shop)
    done = await run(shop, replay_id)
    assert (done.status, done.done, done.total) == ("DONE", 5, 5)
    assert done.counts == {"DEAD_LETTER → PROCESSED": 5}
    assert (done.applied.number, done.applied.sums) == (5, {"RUB": "4950.00"})
    assert await audited(shop, replay_id) == sorted(str(item.event_id) for item in items)
    again = await run(shop, await begun(shop, EventFilter(source="plain")))
    assert again.counts == {"PROCESSED → PROCESSED": 5}
    assert again.applied.number == 0
    assert await shop.number("outbox") == 5


async def test_a_dry_run_says_what_the_replay_then_does_and_changes_nothing(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: also for two events of one payment that are looked at one after the other."""
    await buried(shop, settler, "p-1", "p-2", "p-1")
    await settler.settle([shop.paid("nobody")])
    before = await state(shop)
    everything = EventFilter(source="plain")
    seen = await run(shop, await begun(shop, everything, dry=True), max_chunk=1)
    assert await state(shop) == before
    done = await run(shop, await begun(shop, everything), max_chunk=1)
    assert seen.counts == done.counts
    assert seen.counts == {
        "DEAD_LETTER → PROCESSED": 3,
        "FAILED_RETRYABLE → FAILED_RETRYABLE": 1,
    }
    assert seen.applied == done.applied
    assert done.applied.number == 2
    assert [one["event_id"] for one in seen.sample] == [one["event_id"] for one in done.sample]


async def test_a_dry_run_waits_for_no_lock(shop: Stage, settler: Settler) -> None:
    """OPS-4: nor does it take one that others would meet."""
    await buried(shop, settler, "p")
    replay_id = await begun(shop, dry=True)
    async with shop.database.transaction() as other:
        for table in ("webhook_events", "payments", "users"):
            await other.execute(f"SELECT 1 FROM {table} FOR UPDATE")
        seen = await run(shop, replay_id)
    assert seen.counts == {"DEAD_LETTER → PROCESSED": 1}


async def test_a_dry_run_that_another_process_takes_up_begins_anew(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: what the first one remembered is not counted twice."""
    await buried(shop, settler, "p-1", "p-2")
    replay_id = await begun(shop, dry=True)
    stop = asyncio.Event()
    first = ReplayRun(shop.database, shop.rules, replay_id, 1, stop)
    async with shop.database.connection() as connection:
        assert await first._begin(connection)
    assert await first._step()
    assert (await shown(shop, replay_id)).done == 1
    first._disconnect()
    seen = await run(shop, replay_id)
    assert (seen.done, seen.applied.number) == (2, 2)


async def test_an_event_that_somebody_holds_is_tried_again_and_then_skipped(
    shop: Stage, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4: it holds up no other, and the replay comes to an end."""
    monkeypatch.setattr(replaying, "BUSY_PAUSE_S", 0.001)
    held, *others = await buried(shop, settler, "p-1", "p-2", "p-3")
    replay_id = await begun(shop)
    async with shop.database.transaction() as other:
        await other.execute("SELECT 1 FROM webhook_events WHERE id = $1 FOR UPDATE", held.event_id)
        done = await run(shop, replay_id)
    assert (done.status, done.done) == ("DONE", 3)
    assert done.counts == {"DEAD_LETTER → PROCESSED": 2, "DEAD_LETTER → skipped": 1}
    assert (await shop.event_row(held))["status"] == "DEAD_LETTER"
    assert len(await audited(shop, replay_id)) == 3
    for item in others:
        assert (await shop.event_row(item))["status"] == "PROCESSED"


async def test_an_event_whose_payment_somebody_holds_for_a_while_is_not_skipped(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: what was left over is committed with the rest, and tried again."""
    await buried(shop, settler, "p-1", "p-2")
    replay_id = await begun(shop)
    other = await shop.database.dedicated()
    transaction = other.transaction()
    await transaction.start()
    payment = await shop.payment("p-1")
    await other.execute("SELECT 1 FROM payments WHERE id = $1 FOR UPDATE", payment["id"])
    running = asyncio.create_task(run(shop, replay_id))
    while not (await shop.one("SELECT left_over FROM replays"))["left_over"]:
        await asyncio.sleep(0)
    await transaction.rollback()
    await other.close()
    done = await running
    assert done.counts == {"DEAD_LETTER → PROCESSED": 2}
    assert done.applied.number == 2


@pytest.mark.parametrize("how", ["pause", "cancel"])
async def test_what_is_in_hand_when_it_is_stopped_leaves_nothing(
    shop: Stage, settler: Settler, how: str
) -> None:
    """OPS-4: stopping waits for nobody; the chunk is undone."""
    await buried(shop, settler, "p-1", "p-2")
    replay_id = await begun(shop)
    verbs = Operations(shop.database, shop.rules)
    working = ReplayRun(shop.database, shop.rules, replay_id, 1)
    connection = await working._connected()
    assert await working._begin(connection)
    found = await replays.find(connection, replay_id)
    assert found is not None
    page = await replays.page(connection, found.filter, None, 1)
    await (verbs.pause_replay if how == "pause" else verbs.cancel_replay)(replay_id, ACTOR)
    await working._process(connection, found, page.ids, page.cursor)
    assert not await working._step()
    assert await audited(shop, replay_id) == []
    assert (await shown(shop, replay_id)).done == 0
    working._disconnect()
    if how == "pause":
        await verbs.resume_replay(replay_id, ACTOR)
        assert (await run(shop, replay_id)).done == 2
        assert len(await audited(shop, replay_id)) == 2


async def test_two_processes_cannot_do_the_same_chunk(shop: Stage, settler: Settler) -> None:
    """OPS-4: even if both believed that the replay is theirs."""
    await buried(shop, settler, "p-1", "p-2")
    replay_id = await begun(shop)
    one, two = (ReplayRun(shop.database, shop.rules, replay_id, 1) for _ in range(2))
    connection = await one._connected()
    assert await one._begin(connection)
    stale = await replays.find(connection, replay_id)
    assert stale is not None
    page = await replays.page(connection, stale.filter, None, 1)
    assert await two._step()
    await one._process(connection, stale, page.ids, page.cursor)
    assert len(await audited(shop, replay_id)) == 1
    assert (await shown(shop, replay_id)).done == 1
    one._disconnect()
    two._disconnect()


async def test_one_process_runs_a_replay_at_a_time(shop: Stage, settler: Settler) -> None:
    """OPS-4: and another one as soon as that is gone."""
    await buried(shop, settler, "p")
    replay_id = await begun(shop)
    holder = await shop.database.dedicated()
    async with held_by_us(holder, f"replay {replay_id}"):
        assert not await ReplayRun(shop.database, shop.rules, replay_id).run()
        assert (await shown(shop, replay_id)).status == "PENDING"
    await holder.close()
    assert (await run(shop, replay_id)).status == "DONE"


async def test_the_rate_holds_over_chunks_and_for_whoever_goes_on(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: by the time that the database keeps."""
    await buried(shop, settler, *(f"p-{number}" for number in range(4)))
    replay_id = await begun(shop, rate=2)
    for _ in range(2):  # each as if it had been started anew
        once = ReplayRun(shop.database, shop.rules, replay_id)
        async with shop.database.connection() as connection:
            assert await once._begin(connection)
        before = (await shown(shop, replay_id)).done
        while (await shown(shop, replay_id)).done == before:
            assert await once._step()
        once._disconnect()
    done = await run(shop, replay_id)
    assert done.done == 4
    assert done.started_at is not None
    assert done.finished_at is not None
    assert done.finished_at - done.started_at > timedelta(seconds=1.5)


async def test_a_replay_that_ends_its_process_again_and_again_is_given_up(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4 RET-3: a person has to see it."""
    await buried(shop, settler, "p")
    replay_id = await begun(shop)
    for _ in range(MAX_STARTS):
        async with shop.database.connection() as connection:
            await replays.begin(connection, replay_id)
    done = await run(shop, replay_id)
    assert done.status == "FAILED"
    assert "ended 5 times" in (done.error or "")
    (entry,) = await shop.rows("SELECT * FROM audit_log WHERE action = 'replay_finished'")
    assert not entry["success"]


async def test_a_replay_that_is_stopped_in_good_order_has_not_ended_its_process(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: however often it is stopped before it has done anything."""
    await buried(shop, settler, "p")
    replay_id = await begun(shop)
    stop = asyncio.Event()
    stop.set()
    for _ in range(MAX_STARTS + 1):
        assert await ReplayRun(shop.database, shop.rules, replay_id, 1, stop).run()
    assert (await run(shop, replay_id)).status == "DONE"


async def test_a_fault_of_ours_ends_the_replay_and_says_so(
    shop: Stage, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4: never an endless loop."""
    monkeypatch.setattr(replaying, "BUSY_PAUSE_S", 0.001)
    await buried(shop, settler, "p")
    await execute(shop, "ALTER TABLE audit_log ADD CHECK (action <> 'event_reprocessed') NOT VALID")
    done = await run(shop, await begun(shop))
    assert (done.status, done.done) == ("FAILED", 0)
    assert "CheckViolationError" in (done.error or "")


class Sealed(Plain):
    """A gateway that signs with a word."""

    def verify(self, delivery: Any) -> None:
        if json.loads(delivery.body).get("word") != "right":
            raise InvalidSignatureError("the word is not right")


async def test_refused_evidence_that_is_authentic_now_becomes_events(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4 SEC-5: what is still forged stays evidence, and is counted."""
    source = replace(shop.source, provider=Sealed())
    rules = replace(shop.rules, sources={source.id: source})
    refusal = InvalidSignatureError("our secret was wrong")
    items = [
        shop.paid("p-1", word="right"),
        shop.paid("p-1", word="right"),
        shop.paid("p-2", word="wrong"),
    ]
    await settler.settle(
        [
            Refused(one.event_id, one.source, one.request, one.delivery, refusal, False)
            for one in items
        ]
    )
    await shop.user("p-1@example.com")
    forged = EventFilter(error_code="INVALID_SIGNATURE")
    seen = await run(shop, await begun(shop, forged, dry=True), 10, rules)
    done = await run(shop, await begun(shop, forged), 10, rules)
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


async def test_a_replay_does_not_chase_what_arrives_or_what_it_makes(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: what comes later than the replay is not among its events."""
    await buried(shop, settler, "p-1")
    replay_id = await begun(shop, EventFilter(source="plain"))
    await asyncio.sleep(0.005)  # ids know milliseconds
    await settler.settle([shop.paid("p-2")])
    assert (await run(shop, replay_id)).done == 1


async def test_a_filter_names_the_events(
    shop: Stage, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4: in pages of which none looks at more than a few."""
    monkeypatch.setattr(replays, "SCAN", 2)
    for number in range(7):
        await shop.user(f"p-{number}@example.com")
        await settler.settle([shop.paid(f"p-{number}")])
    ordered = shop.paid("q", order="o-1")
    await settler.settle([ordered])
    await execute(shop, NAME_ORDER, ordered.event_id)
    await settler.settle([shop.event(Says.FAILED, "p-6", key="late")])
    first, *_ = await shop.rows("SELECT id, received_at FROM webhook_events ORDER BY id")
    ours = str((await shop.payment("p-3"))["id"])
    past, future = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))

    async def matching(**chosen: Any) -> int:
        found, cursor = 0, None
        async with shop.database.connection() as connection:
            for _ in range(20):
                page = await replays.page(connection, EventFilter(**chosen), cursor, 2)
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


async def test_the_loop_finds_a_replay_and_runs_it(shop: Stage, settler: Settler) -> None:
    """OPS-4: one that was begun elsewhere, too."""
    await buried(shop, settler, "p")
    replayer = Replayer(shop.database, shop.rules)
    running = asyncio.create_task(replayer.run())
    verbs = Operations(shop.database, shop.rules)
    done = await verbs.create_replay(DEAD, ACTOR, is_dry_run=False, patience_s=10)
    assert (done.status, done.done) == ("DONE", 1)
    replayer.finish()
    await running


async def test_what_others_run_does_not_keep_a_replayer_from_what_nobody_runs(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4: however many of them there are, and however long they take."""
    await buried(shop, settler, "p")
    held = [await begun(shop) for _ in range(MAX_AT_ONCE)]
    free = await begun(shop)
    other = await shop.database.dedicated()
    replayer = Replayer(shop.database, shop.rules)
    async with contextlib.AsyncExitStack() as stack:
        for one in held:
            assert await stack.enter_async_context(held_by_us(other, f"replay {one}"))
        running = asyncio.create_task(replayer.run())
        async with asyncio.timeout(20):
            while (await shown(shop, free)).status != "DONE":
                await asyncio.sleep(0.05)
        assert [(await shown(shop, one)).status for one in held] == ["PENDING"] * MAX_AT_ONCE
    async with asyncio.timeout(20):
        while {(await shown(shop, one)).status for one in held} != {"DONE"}:
            await asyncio.sleep(0.05)
    replayer.finish()
    await running
    other.terminate()
