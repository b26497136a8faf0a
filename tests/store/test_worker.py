"""What waits is settled once, by whoever comes first, and nothing stands in its way (RET-1..4)."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pytest

from paidonce.domain.events import DEFERRED, Ignored, PaymentEvent, UserId
from paidonce.engine.bell import Bell
from paidonce.engine.items import Incoming, Result, Rules
from paidonce.engine.retry import RetryPolicy
from paidonce.engine.transactions import Settler
from paidonce.engine.worker import CAREFUL_EVENTS, MAX_STARTS, Worker
from paidonce.providers.contract import Delivery
from paidonce.store import due
from paidonce.store.db import Database
from tests.store.batches import Plain, Stage, stage

WAKE: Final = "INSERT INTO due (run_at, event_id) VALUES (now(), $1)"


@dataclass(frozen=True)
class Faulty(Plain):
    """A gateway's reader that has a fault: it cannot read some payments."""

    unreadable: str = "bad"

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        if self.unreadable.encode() in delivery.body:
            raise RuntimeError("a fault of ours")
        return super().translate(delivery)


def faulty(shop: Stage, **rules: Any) -> Rules:
    """The shop's rules, with a reader that fails."""
    source = replace(shop.source, provider=Faulty())
    return replace(shop.rules, sources={source.id: source}, **rules)


async def stored(shop: Stage, settler: Settler, *payments: str) -> list[Incoming]:
    """Events that are stored and due, and the users that they belong to."""
    for payment in payments:
        await shop.user(f"{payment}@example.com")
    items = [shop.paid(payment, preset=DEFERRED) for payment in payments]
    settled = await settler.settle(items)
    assert {verdict.result for verdict in settled.verdicts} == {Result.ACCEPTED}
    assert settled.schedules
    return items


async def make_due(shop: Stage) -> None:
    """Let the time come for all that waits."""
    async with shop.database.connection() as connection:
        await connection.execute("UPDATE due SET run_at = now()")


async def applied(shop: Stage) -> int:
    row = await shop.one("SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL")
    return int(row["n"])


async def test_workers_share_what_is_due_and_settle_each_event_once(
    shop: Stage, settler: Settler
) -> None:
    """RET-4 PAY-3"""
    await stored(shop, settler, *(f"p-{number}" for number in range(60)))
    workers = [Worker(shop.database, shop.rules, max_batch=7) for _ in range(3)]

    async def work(worker: Worker) -> int:
        taken = 0
        while number := await worker.run_once():
            taken += number
        await worker.close()
        return taken

    shares = await asyncio.gather(*map(work, workers))
    assert sum(shares) == 60
    assert await applied(shop) == await shop.number("outbox") == 60
    assert await shop.number("due") == 0


async def test_an_event_that_somebody_has_in_hand_stays_in_the_queue(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-4: what wakes it meanwhile is not lost."""
    (item,) = await stored(shop, settler, "p")
    other = await shop.database.dedicated()
    transaction = other.transaction()
    await transaction.start()
    claim = await due.DueClaims().take(other, 1)
    assert [one.event_id for one in claim.events] == [item.event_id]
    async with shop.database.connection() as connection:
        await connection.execute(WAKE, item.event_id)
    assert await worker.run_once() == 0
    assert await shop.number("due") == 2, "the claim is not committed, and the other row is kept"
    other.terminate()  # as if its process had been killed
    await other.close()
    await _until_gone(worker)
    assert await applied(shop) == 1
    assert await shop.number("due") == 0


@pytest.mark.parametrize("how", ["due", "waiting"])
async def test_no_claim_waits_for_an_event_that_somebody_has_in_hand(
    shop: Stage, settler: Settler, how: str
) -> None:
    """RET-4: nor for a row of the queue that came while it was in hand."""
    await settler.settle([shop.paid("p")])
    await make_due(shop)
    (waiting,) = await shop.rows("SELECT event_id, waits_on FROM due")
    claims = {
        "due": lambda connection: due.DueClaims().take(connection, 9),
        "waiting": lambda connection: due.claim_waiting(connection, [waiting["waits_on"]], 9),
    }
    one, other = await shop.database.dedicated(), await shop.database.dedicated()
    async with one.transaction(), other.transaction():
        assert (await claims[how](one)).number == 1
        assert (await claims[how](other)).number == 0
        async with shop.database.connection() as connection:
            await connection.execute(
                "INSERT INTO due (run_at, event_id, waits_on)"
                " VALUES (now() - interval '1 minute', $1, $2)",
                *waiting.values(),
            )
        assert (await claims[how](other)).number == 0
    for connection in (one, other):
        await connection.close()


async def test_a_row_of_the_queue_that_somebody_holds_is_left_to_him(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-4: an event that is taken by one of its rows does not wait for another of them."""
    (item,) = await stored(shop, settler, "p")
    async with shop.database.transaction() as connection:
        await connection.execute("SELECT 1 FROM due FOR UPDATE")
        async with shop.database.connection() as other:
            await other.execute(WAKE, item.event_id)
        assert await worker.run_once() == 1
    assert await applied(shop) == 1
    assert await shop.number("due") == 1, "the row that was held; its event is final now"


class ProcessEnds(BaseException):
    """What no handler catches."""


@dataclass(frozen=True)
class Deadly(Plain):
    """A reader that ends whoever uses it."""

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        raise ProcessEnds


async def test_what_a_worker_had_in_hand_when_it_ended_is_there_for_the_next_one(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-4: the claim is part of the transaction that settles it."""
    await stored(shop, settler, "p")
    source = replace(shop.source, provider=Deadly())
    ended = Worker(shop.database, replace(shop.rules, sources={source.id: source}))
    with pytest.raises(ProcessEnds):
        await ended.run_once()
    await ended.close()
    assert await worker.run_once() == 1
    assert await applied(shop) == 1


async def test_all_that_stands_in_the_queue_for_an_event_is_taken_with_it(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """REC-7: redeliveries do not make it longer and longer."""
    await settler.settle([shop.paid("p")])
    async with shop.database.connection() as connection:
        await connection.execute(
            "INSERT INTO due (run_at, event_id) SELECT now(), event_id FROM due,"
            " generate_series(1, 20)"
        )
    assert await worker.run_once() == 1
    (row,) = await shop.rows("SELECT run_at > now() AS later, waits_on FROM due")
    assert row["later"]
    assert row["waits_on"] is not None


async def test_a_row_of_the_queue_whose_event_is_final_is_dropped(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-4"""
    (item,) = await stored(shop, settler, "p")
    assert await worker.run_once() == 1
    async with shop.database.connection() as connection:
        await connection.execute(WAKE, item.event_id)
    assert await worker.run_once() == 1
    assert (await shop.event_row(item))["attempts"] == 1
    assert await shop.number("due") == 0
    assert await shop.number("outbox") == 1


async def test_a_fault_of_ours_is_tried_as_often_as_the_policy_says(database: Database) -> None:
    """RET-1 RET-3: each attempt is recorded, and the last one is a dead letter."""
    shop = await stage(database)
    settler = Settler(database, shop.rules)
    (item,) = await stored(shop, settler, "bad")
    worker = Worker(database, faulty(shop, retry=RetryPolicy(attempts=3)))
    for attempt in (1, 2, 3):
        await make_due(shop)
        assert await worker.run_once() == 1
        row = await shop.event_row(item)
        assert (row["attempts"], row["error_code"]) == (attempt, "INTERNAL")
        assert row["status"] == ("DEAD_LETTER" if attempt == 3 else "FAILED_RETRYABLE")
    assert await shop.number("due") == 0
    actions = await shop.rows("SELECT action FROM audit_log ORDER BY id")
    started = [row["action"] for row in actions].count("processing_attempt_started")
    assert started == 3
    await worker.close()
    await settler.close()


async def test_having_waited_for_others_uses_up_no_attempt_at_faults(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-1: two schedules, each with its own count."""
    item = shop.paid("bad")
    await settler.settle([item])
    for _ in range(6):
        await make_due(shop)
        await worker.run_once()
    assert (await shop.event_row(item))["attempts"] == 7
    failing = Worker(shop.database, faulty(shop, retry=RetryPolicy(attempts=2)))
    await make_due(shop)
    assert await failing.run_once() == 1
    assert (await shop.event_row(item))["status"] == "FAILED_RETRYABLE"
    row = await shop.one("SELECT attempt, run_at - now() < interval '2 seconds' AS soon FROM due")
    assert (row["attempt"], row["soon"]) == (1, True)
    await make_due(shop)
    await failing.run_once()
    assert (await shop.event_row(item))["status"] == "DEAD_LETTER"
    await failing.close()


async def test_what_cannot_be_read_does_not_stand_in_the_way_of_others(
    shop: Stage, settler: Settler
) -> None:
    """RET-4"""
    await stored(shop, settler, "bad", "p-1", "p-2")
    worker = Worker(shop.database, faulty(shop))
    assert await worker.run_once() == 3
    assert await applied(shop) == 2
    await worker.close()


@dataclass(frozen=True)
class Poisoned(Plain):
    """A reader that lets through what no text column can hold."""

    unreadable_payment: str = "bad"

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        event = super().translate(delivery)
        assert isinstance(event, PaymentEvent)
        is_bad = event.ids[0].value == self.unreadable_payment
        return replace(event, plan_id="x\x00y") if is_bad else event


async def test_poison_falls_on_the_poisoned_event_and_on_no_other(
    shop: Stage, settler: Settler
) -> None:
    """RET-2 RET-4: whoever else works at the same time."""
    names = [f"p-{number}" for number in range(20)]
    (bad, *_) = await stored(shop, settler, "bad", *names)
    source = replace(shop.source, provider=Poisoned())
    rules = replace(shop.rules, sources={source.id: source})
    workers = [Worker(shop.database, rules, max_batch=8) for _ in range(3)]
    while sum(await asyncio.gather(*(one.run_once() for one in workers))):
        pass
    row = await shop.event_row(bad)
    assert (row["status"], row["error_code"]) == ("FAILED_RETRYABLE", "INTERNAL")
    assert await applied(shop) == len(names)
    (left,) = await shop.rows("SELECT event_id, attempt FROM due")
    assert (left["event_id"], left["attempt"]) == (bad.event_id, 1)
    for one in workers:
        await one.close()


async def test_an_event_that_ends_the_process_each_time_becomes_a_dead_letter(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-3: it is noticed because its start is committed before it is tried."""
    bad, *good = await stored(shop, settler, "deadly", "p-1", "p-2")
    for _ in range(MAX_STARTS):
        await end_over_the_next_event(shop)
    assert await worker.run_carefully() == 1
    row = await shop.event_row(bad)
    assert (row["status"], row["error_code"]) == ("DEAD_LETTER", "INTERNAL")
    assert str(MAX_STARTS) in row["error_message"]
    for item in good:
        assert await worker.run_carefully() == 1
        assert (await shop.event_row(item))["status"] == "PROCESSED"
    assert await worker.run_carefully() == 0
    assert await shop.number("started") == 0


async def end_over_the_next_event(shop: Stage) -> None:
    """What is left by a process that ended while it settled the event that is due first."""
    connection = await shop.database.dedicated()
    transaction = connection.transaction()
    await transaction.start()
    await due.DueClaims().take_marked(connection, shop.database)
    await transaction.rollback()
    await connection.close()


async def test_workers_that_start_together_take_nothing_for_deadly(
    shop: Stage, settler: Settler
) -> None:
    """RET-3 RET-4: only who holds an event can say that it is tried."""
    names = [f"p-{number}" for number in range(60)]
    await stored(shop, settler, *names)
    workers = [Worker(shop.database, shop.rules) for _ in range(6)]
    while sum(await asyncio.gather(*(one.run_carefully() for one in workers))):
        pass
    for one in workers:
        await one.close()
    assert await applied(shop) == len(names)
    assert await shop.rows("SELECT 1 FROM webhook_events WHERE status = 'DEAD_LETTER'") == []
    assert await shop.number("started") == 0


async def test_a_failure_that_is_survived_does_not_make_an_event_deadly(
    shop: Stage, settler: Settler
) -> None:
    """RET-3"""
    (item,) = await stored(shop, settler, "p")
    async with shop.database.connection() as connection:
        await connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"
        )
        await connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON payments EXECUTE FUNCTION refuse()"
        )
    for _ in range(MAX_STARTS + 1):
        worker = Worker(shop.database, shop.rules)
        with pytest.raises(Exception, match="no room"):
            await worker.run_carefully()
        await worker.close()
    async with shop.database.connection() as connection:
        await connection.execute("DROP TRIGGER refuse ON payments")
    worker = Worker(shop.database, shop.rules)
    assert await worker.run_carefully() == 1
    await worker.close()
    assert (await shop.event_row(item))["status"] == "PROCESSED"


async def test_a_start_that_came_to_its_end_is_forgotten(
    shop: Stage, settler: Settler, worker: Worker
) -> None:
    """RET-3: only those in a row count."""
    item = shop.paid("p")
    await settler.settle([item])
    for _ in range(MAX_STARTS + 2):
        await make_due(shop)
        assert await worker.run_carefully() == 1
    assert (await shop.event_row(item))["status"] == "FAILED_RETRYABLE"


async def test_a_new_worker_is_careful_first_and_then_takes_batches(
    shop: Stage, settler: Settler
) -> None:
    """RET-4"""
    number = CAREFUL_EVENTS + 10
    user_id = await shop.user("one@example.com")
    items = [
        shop.paid(f"p-{one}", email="one@example.com", preset=DEFERRED) for one in range(number)
    ]
    await settler.settle(items)
    bell = Bell(shop.database)
    worker = Worker(shop.database, shop.rules, bell)
    running = asyncio.create_task(worker.run())
    await _until_empty(shop)
    worker.finish()
    await asyncio.wait_for(running, 5)
    assert await applied(shop) == number
    (version,) = await shop.rows("SELECT version FROM subscriptions WHERE user_id = $1", user_id)
    assert version["version"] < number, "the last ones were a batch"
    assert await _period_days(shop, user_id) == 30 * number


async def test_a_stopped_worker_ends_although_nothing_is_due(shop: Stage) -> None:
    """RET-4: and although it would have slept for seconds."""
    worker = Worker(shop.database, shop.rules)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    worker.finish()
    await asyncio.wait_for(running, 3)


async def test_a_ring_is_heard_in_another_process(shop: Stage) -> None:
    """RET-4: woken when work arrives."""
    here, there = Bell(shop.database), Bell(shop.database)
    ear = there.ear()
    listening = asyncio.create_task(there.listen())
    telling = asyncio.create_task(here.tell())
    for _ in range(100):
        here.ring()
        if await ear.heard(0.1):
            break
    else:
        raise AssertionError("nothing was heard")
    for task in (listening, telling):
        task.cancel()
    await asyncio.gather(listening, telling, return_exceptions=True)


async def test_a_listener_that_lost_its_connection_listens_again(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RET-4"""
    monkeypatch.setattr("paidonce.engine.bell.RECONNECT_PAUSE_S", 0.01)
    bell = Bell(shop.database)
    ear = bell.ear()
    listening = asyncio.create_task(bell.listen())
    async with shop.database.connection() as connection:
        lost = await _until_listening(connection)
        await connection.execute("SELECT pg_terminate_backend($1)", lost)
        assert await ear.heard(10), "what was rung meanwhile may have been missed"
        assert await _until_listening(connection, besides=lost) != lost
        await due.ring(connection)
        assert await ear.heard(10)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_after_a_slow_look_claims_begin_where_it_found_something(
    shop: Stage, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-2: and what lies before that is found when everything is looked at again."""
    monkeypatch.setattr(due, "CHEAP_LOOK_S", -1.0)
    monkeypatch.setattr(due, "HINT_FACTOR", 1e9)
    monkeypatch.setattr(due, "EMPTY_HINT_FACTOR", 1e8)
    monkeypatch.setattr(due, "LONGEST_HINT_S", 1e9)
    await stored(shop, settler, "p-1", "p-2")
    claims = due.DueClaims()
    connection = await shop.database.dedicated()
    async with connection.transaction():
        first = await claims.take(connection, 1)
    assert len(first.events) == 1
    assert claims.not_before > due.LONG_AGO
    await connection.execute("UPDATE due SET run_at = run_at - interval '1 hour'")
    async with connection.transaction():
        assert (await claims.take(connection, 1)).number == 0
    assert 0 < (await claims.next_run_in_s(connection) or 0) <= claims.hinted_for_s + 1
    monkeypatch.setattr(due, "EMPTY_HINT_FACTOR", 0)
    assert (await claims.next_run_in_s(connection) or 0) < 0, "it is found again"
    async with connection.transaction():
        assert (await claims.take(connection, 1)).number == 1
    await connection.close()


async def _until_gone(worker: Worker) -> None:
    """Work as soon as the server has noticed that whoever held the event is dead."""
    for _ in range(1_000):
        if await worker.run_once():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody let go")


async def _until_empty(shop: Stage) -> None:
    for _ in range(1_000):
        if await shop.number("due") == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("something waits for ever")


async def _until_listening(connection: Any, besides: int = 0) -> int:
    """The session that listens; `besides` is one that may not have noticed yet that it ends."""
    for _ in range(1_000):
        pid: int | None = await connection.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE query ILIKE 'listen%' AND state = 'idle'"
            " AND datname = current_database() AND pid <> $1",
            besides,
        )
        if pid is not None:
            return pid
        await asyncio.sleep(0.01)
    raise AssertionError("nobody listens")


async def _period_days(shop: Stage, user_id: UserId) -> int:
    row = await shop.one("SELECT * FROM subscriptions WHERE user_id = $1", user_id)
    first = await shop.one("SELECT min(applied_at) AS at FROM payments")
    granted: timedelta = row["current_period_end"] - first["at"]
    return round(granted / timedelta(days=1))
