"""What waits is settled once, by whoever comes first, and nothing stands in its way (RET-1..4)."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pytest

from paidonce.core.events import DEFERRED, Ignored, PaymentEvent, UserId
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database
from paidonce.processing.items import Incoming, ResultKind, Rules
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery
from paidonce.queue import store as queue_store
from paidonce.queue.worker import GUARDED_EVENTS, MAX_STARTS, Worker
from paidonce.runtime.service import Supervisor
from paidonce.runtime.wakeup import Wakeup, WakeupReceiver, WakeupSender, notify_workers
from tests.support.batches import Plain, Stage, stage

WAKE: Final = "INSERT INTO event_queue (run_at, event_id) VALUES (now(), $1)"


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


async def stored(shop: Stage, processor: Processor, *payments: str) -> list[Incoming]:
    """Events that are stored and due, and the users that they belong to."""
    for payment in payments:
        await shop.user(f"{payment}@example.com")
    items = [shop.paid(payment, forced_outcome=DEFERRED) for payment in payments]
    processed = await processor.process(items)
    assert {result.kind for result in processed.results} == {ResultKind.ACCEPTED}
    assert processed.schedules
    return items


async def make_due(shop: Stage) -> None:
    """Let the time come for all that waits."""
    async with shop.database.connection() as connection:
        await connection.execute("UPDATE event_queue SET run_at = now()")


async def applied(shop: Stage) -> int:
    row = await shop.one("SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL")
    return int(row["n"])


async def test_workers_share_due_events_and_process_each_once(
    shop: Stage, processor: Processor
) -> None:
    """RET-4 PAY-3"""
    await stored(shop, processor, *(f"p-{number}" for number in range(60)))
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
    assert await shop.number("event_queue") == 0


async def test_a_locked_event_stays_in_the_queue(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-4: what wakes it meanwhile is not lost."""
    (item,) = await stored(shop, processor, "p")
    other = await shop.database.dedicated()
    transaction = other.transaction()
    await transaction.start()
    claim = await queue_store.ClaimQueue().claim(other, 1)
    assert [one.event_id for one in claim.events] == [item.event_id]
    async with shop.database.connection() as connection:
        await connection.execute(WAKE, item.event_id)
    assert await worker.run_once() == 0
    assert await shop.number("event_queue") == 2, (
        "the claim is not committed, and the other row is kept"
    )
    other.terminate()  # as if its process had been killed
    await other.close()
    await _until_gone(worker)
    assert await applied(shop) == 1
    assert await shop.number("event_queue") == 0


@pytest.mark.parametrize("how", ["due", "waiting"])
async def test_no_claim_waits_for_a_locked_event(
    shop: Stage, processor: Processor, how: str
) -> None:
    """RET-4: nor for a row of the queue that came while it was in hand."""
    await processor.process([shop.paid("p")])
    await make_due(shop)
    (waiting,) = await shop.rows("SELECT event_id, blocked_on FROM event_queue")
    claims = {
        "due": lambda connection: queue_store.ClaimQueue().claim(connection, 9),
        "waiting": lambda connection: queue_store.claim_blocked(
            connection, [waiting["blocked_on"]], 9
        ),
    }
    one, other = await shop.database.dedicated(), await shop.database.dedicated()
    async with one.transaction(), other.transaction():
        assert (await claims[how](one)).number == 1
        assert (await claims[how](other)).number == 0
        async with shop.database.connection() as connection:
            await connection.execute(
                "INSERT INTO event_queue (run_at, event_id, blocked_on)"
                " VALUES (now() - interval '1 minute', $1, $2)",
                *waiting.values(),
            )
        assert (await claims[how](other)).number == 0
    for connection in (one, other):
        await connection.close()


async def test_a_locked_queue_row_is_not_claimed(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-4: an event that is taken by one of its rows does not wait for another of them."""
    (item,) = await stored(shop, processor, "p")
    async with shop.database.transaction() as connection:
        await connection.execute("SELECT 1 FROM event_queue FOR UPDATE")
        async with shop.database.connection() as other:
            await other.execute(WAKE, item.event_id)
        assert await worker.run_once() == 1
    assert await applied(shop) == 1
    assert await shop.number("event_queue") == 1, "the row that was held; its event is final now"


class ProcessEnds(BaseException):
    """What no handler catches."""


@dataclass(frozen=True)
class Deadly(Plain):
    """A reader that ends whoever uses it."""

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        raise ProcessEnds


async def test_a_killed_workers_claim_is_there_for_the_next_worker(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-4: the claim is part of the transaction that settles it."""
    await stored(shop, processor, "p")
    source = replace(shop.source, provider=Deadly())
    ended = Worker(shop.database, replace(shop.rules, sources={source.id: source}))
    with pytest.raises(ProcessEnds):
        await ended.run_once()
    await ended.close()
    assert await worker.run_once() == 1
    assert await applied(shop) == 1


async def test_all_queue_rows_of_an_event_are_claimed_with_it(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """REC-7: redeliveries do not make it longer and longer."""
    await processor.process([shop.paid("p")])
    async with shop.database.connection() as connection:
        await connection.execute(
            "INSERT INTO event_queue (run_at, event_id) SELECT now(), event_id FROM event_queue,"
            " generate_series(1, 20)"
        )
    assert await worker.run_once() == 1
    (row,) = await shop.rows("SELECT run_at > now() AS later, blocked_on FROM event_queue")
    assert row["later"]
    assert row["blocked_on"] is not None


async def test_a_row_of_the_queue_whose_event_is_final_is_dropped(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-4"""
    (item,) = await stored(shop, processor, "p")
    assert await worker.run_once() == 1
    async with shop.database.connection() as connection:
        await connection.execute(WAKE, item.event_id)
    assert await worker.run_once() == 1
    assert (await shop.event_row(item))["attempts"] == 1
    assert await shop.number("event_queue") == 0
    assert await shop.number("outbox") == 1


async def test_our_own_failures_are_retried_as_the_policy_says(database: Database) -> None:
    """RET-1 RET-3: each attempt is recorded, and the last one is a dead letter."""
    shop = await stage(database)
    processor = Processor(database, shop.rules)
    (item,) = await stored(shop, processor, "bad")
    worker = Worker(database, faulty(shop, retry=RetryPolicy(attempts=3)))
    for attempt in (1, 2, 3):
        await make_due(shop)
        assert await worker.run_once() == 1
        row = await shop.event_row(item)
        assert (row["attempts"], row["error_code"]) == (attempt, "INTERNAL")
        assert row["status"] == ("DEAD_LETTER" if attempt == 3 else "FAILED_RETRYABLE")
    assert await shop.number("event_queue") == 0
    actions = await shop.rows("SELECT action FROM audit_log ORDER BY id")
    started = [row["action"] for row in actions].count("processing_attempt_started")
    assert started == 3
    await worker.close()
    await processor.close()


async def test_slow_retries_use_up_no_quick_attempts(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-1: two schedules, each with its own count."""
    item = shop.paid("bad")
    await processor.process([item])
    for _ in range(6):
        await make_due(shop)
        await worker.run_once()
    assert (await shop.event_row(item))["attempts"] == 7
    failing = Worker(shop.database, faulty(shop, retry=RetryPolicy(attempts=2)))
    await make_due(shop)
    assert await failing.run_once() == 1
    assert (await shop.event_row(item))["status"] == "FAILED_RETRYABLE"
    row = await shop.one(
        "SELECT attempt, run_at - now() < interval '2 seconds' AS soon FROM event_queue"
    )
    assert (row["attempt"], row["soon"]) == (1, True)
    await make_due(shop)
    await failing.run_once()
    assert (await shop.event_row(item))["status"] == "DEAD_LETTER"
    await failing.close()


async def test_an_unreadable_event_delays_no_other(shop: Stage, processor: Processor) -> None:
    """RET-4"""
    await stored(shop, processor, "bad", "p-1", "p-2")
    worker = Worker(shop.database, faulty(shop))
    assert await worker.run_once() == 3
    assert await applied(shop) == 2
    await worker.close()


@dataclass(frozen=True)
class Poisoned(Plain):
    """A reader that lets through what no text column can hold."""

    bad_payment: str = "bad"

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored:
        event = super().translate(delivery)
        assert isinstance(event, PaymentEvent)
        is_bad = event.ids[0].value == self.bad_payment
        return replace(event, plan_id="x\x00y") if is_bad else event


async def test_a_poisoned_event_in_the_queue_fails_no_other(
    shop: Stage, processor: Processor
) -> None:
    """RET-2 RET-4: whoever else works at the same time."""
    names = [f"p-{number}" for number in range(20)]
    (bad, *_) = await stored(shop, processor, "bad", *names)
    source = replace(shop.source, provider=Poisoned())
    rules = replace(shop.rules, sources={source.id: source})
    workers = [Worker(shop.database, rules, max_batch=8) for _ in range(3)]
    while sum(await asyncio.gather(*(one.run_once() for one in workers))):
        pass
    row = await shop.event_row(bad)
    assert (row["status"], row["error_code"]) == ("FAILED_RETRYABLE", "INTERNAL")
    assert await applied(shop) == len(names)
    (left,) = await shop.rows("SELECT event_id, attempt FROM event_queue")
    assert (left["event_id"], left["attempt"]) == (bad.event_id, 1)
    for one in workers:
        await one.close()


async def test_an_event_that_crashes_every_process_becomes_a_dead_letter(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-3: it is noticed because its start is committed before it is tried."""
    bad, *good = await stored(shop, processor, "deadly", "p-1", "p-2")
    for _ in range(MAX_STARTS):
        await end_over_the_next_event(shop)
    assert await worker.run_guarded() == 1
    row = await shop.event_row(bad)
    assert (row["status"], row["error_code"]) == ("DEAD_LETTER", "INTERNAL")
    assert str(MAX_STARTS) in row["error_message"]
    for item in good:
        assert await worker.run_guarded() == 1
        assert (await shop.event_row(item))["status"] == "PROCESSED"
    assert await worker.run_guarded() == 0
    assert await shop.number("crash_guard") == 0


async def end_over_the_next_event(shop: Stage) -> None:
    """What is left by a process that ended while it settled the event that is due first."""
    connection = await shop.database.dedicated()
    transaction = connection.transaction()
    await transaction.start()
    await queue_store.ClaimQueue().claim_guarded(connection, shop.database)
    await transaction.rollback()
    await connection.close()


async def test_workers_that_start_together_count_no_crash(
    shop: Stage, processor: Processor
) -> None:
    """RET-3 RET-4: only who holds an event can say that it is tried."""
    names = [f"p-{number}" for number in range(60)]
    await stored(shop, processor, *names)
    workers = [Worker(shop.database, shop.rules) for _ in range(6)]
    while sum(await asyncio.gather(*(one.run_guarded() for one in workers))):
        pass
    for one in workers:
        await one.close()
    assert await applied(shop) == len(names)
    assert await shop.rows("SELECT 1 FROM webhook_events WHERE status = 'DEAD_LETTER'") == []
    assert await shop.number("crash_guard") == 0


async def test_a_failure_without_a_crash_counts_no_crash(shop: Stage, processor: Processor) -> None:
    """RET-3"""
    (item,) = await stored(shop, processor, "p")
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
            await worker.run_guarded()
        await worker.close()
    async with shop.database.connection() as connection:
        await connection.execute("DROP TRIGGER refuse ON payments")
    worker = Worker(shop.database, shop.rules)
    assert await worker.run_guarded() == 1
    await worker.close()
    assert (await shop.event_row(item))["status"] == "PROCESSED"


async def test_a_finished_start_is_forgotten(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-3: only those in a row count."""
    item = shop.paid("p")
    await processor.process([item])
    for _ in range(MAX_STARTS + 2):
        await make_due(shop)
        assert await worker.run_guarded() == 1
    assert (await shop.event_row(item))["status"] == "FAILED_RETRYABLE"


async def test_a_new_worker_is_guarded_first_and_then_claims_batches(
    shop: Stage, processor: Processor
) -> None:
    """RET-4"""
    number = GUARDED_EVENTS + 10
    user_id = await shop.user("one@example.com")
    items = [
        shop.paid(f"p-{one}", email="one@example.com", forced_outcome=DEFERRED)
        for one in range(number)
    ]
    await processor.process(items)
    worker = Worker(shop.database, shop.rules)
    running = asyncio.create_task(worker.run())
    await _until_empty(shop)
    worker.finish()
    await asyncio.wait_for(running, 120)
    assert await applied(shop) == number
    (version,) = await shop.rows("SELECT version FROM subscriptions WHERE user_id = $1", user_id)
    assert version["version"] < number, "the last ones were a batch"
    assert await _period_days(shop, user_id) == 30 * number


async def test_a_stopped_worker_ends_even_when_idle(shop: Stage) -> None:
    """RET-4: and although it would have slept for seconds."""
    worker = Worker(shop.database, shop.rules)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    worker.finish()
    await asyncio.wait_for(running, 3)


async def test_a_wakeup_reaches_another_process(shop: Stage) -> None:
    """RET-4: woken when work arrives."""
    here, there = Wakeup(), Wakeup()
    listener = there.listener()
    services = Supervisor(WakeupSender(shop.database, here), WakeupReceiver(shop.database, there))
    async with services.running():
        for _ in range(100):
            here.wake()
            if await listener.wait(0.1):
                break
        else:
            raise AssertionError("no wake-up arrived")


async def test_a_receiver_that_lost_its_connection_listens_again(shop: Stage) -> None:
    """RET-4"""
    wakeup = Wakeup()
    listener = wakeup.listener()
    receiver = Supervisor(WakeupReceiver(shop.database, wakeup))
    async with receiver.running(), shop.database.connection() as connection:
        lost = await _until_listening(connection)
        await listener.wait(10)
        await connection.execute("SELECT pg_terminate_backend($1)", lost)
        assert await listener.wait(10), "a wake-up may have been missed meanwhile"
        assert await _until_listening(connection, besides=lost) != lost
        assert receiver.degraded == ["wakeup receiver"]
        await notify_workers(connection)
        assert await listener.wait(10)


async def test_after_a_slow_scan_claims_begin_at_its_first_row(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DAT-2: and what lies before that is found when everything is looked at again."""
    monkeypatch.setattr(queue_store, "CHEAP_SCAN_S", -1.0)
    monkeypatch.setattr(queue_store, "HINT_FACTOR", 1e9)
    monkeypatch.setattr(queue_store, "EMPTY_HINT_FACTOR", 1e8)
    monkeypatch.setattr(queue_store, "LONGEST_HINT_S", 1e9)
    await stored(shop, processor, "p-1", "p-2")
    claims = queue_store.ClaimQueue()
    connection = await shop.database.dedicated()
    async with connection.transaction():
        first = await claims.claim(connection, 1)
    assert len(first.events) == 1
    assert claims.not_before > queue_store.LONG_AGO
    await connection.execute("UPDATE event_queue SET run_at = run_at - interval '1 hour'")
    async with connection.transaction():
        assert (await claims.claim(connection, 1)).number == 0
    assert 0 < (await claims.next_run_in_s(connection) or 0) <= claims.hinted_for_s + 1
    monkeypatch.setattr(queue_store, "EMPTY_HINT_FACTOR", 0)
    assert (await claims.next_run_in_s(connection) or 0) < 0, "it is found again"
    async with connection.transaction():
        assert (await claims.claim(connection, 1)).number == 1
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
        if await shop.number("event_queue") == 0:
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
