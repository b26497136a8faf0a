"""Batches on a real database: duplicates, conflicts, busy rows, poison, refunds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from paidonce.core.events import (
    DEFERRED,
    Code,
    EventId,
    EventStatus,
    EventType,
    PaymentEvent,
    PaymentId,
    SourceId,
)
from paidonce.core.money import Money
from paidonce.core.plans import Plan, plan_book
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.errors import NotFoundError
from paidonce.processing import store as processing_store
from paidonce.processing.items import Incoming, Item, Link, Reapply, ResultKind
from paidonce.processing.store import MAX_HASTENED, Changes, LoadKeys
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from tests.support.batches import DAYS, Stage, stage


async def results(processor: Processor, *items: Item) -> list[ResultKind]:
    processed = await processor.process(items)
    return [result.kind for result in processed.results]


def with_event(item: Incoming, **said: Any) -> Incoming:
    assert isinstance(item.event, PaymentEvent)
    return replace(item, event=replace(item.event, **said))


async def test_duplicates_inside_a_batch_count_once(shop: Stage, processor: Processor) -> None:
    """INB-2 PAY-3"""
    await shop.user("p-1@example.com")
    items = [shop.paid("p-1") for _ in range(5)]
    processed = await processor.process(items)
    assert [one.kind for one in processed.results] == [
        ResultKind.PROCESSED,
        *[ResultKind.DUPLICATE] * 4,
    ]
    assert {one.event_id for one in processed.results} == {items[0].event_id}
    assert await shop.number("webhook_events") == await shop.number("event_keys") == 1
    assert await shop.number("payments") == await shop.number("subscriptions") == 1
    assert await shop.number("outbox") == 1
    end = (await shop.one("SELECT current_period_end FROM subscriptions"))["current_period_end"]
    assert end == processed.now + DAYS


async def test_a_duplicate_of_an_earlier_batch_is_one_too(
    shop: Stage, processor: Processor
) -> None:
    """INB-2 REC-7"""
    first, again = shop.paid("p-1"), shop.paid("p-1")
    await processor.process([first])
    (result,) = (await processor.process([again])).results
    assert (result.kind, result.event_id) == (ResultKind.DUPLICATE, first.event_id)
    assert await shop.number("webhook_events") == 1


async def test_siblings_inside_a_batch_are_applied_once(shop: Stage, processor: Processor) -> None:
    """PAY-3: other events, one payment."""
    await shop.user("p-1@example.com")
    processed = await processor.process(
        [shop.paid("p-1", key=f"evt-{number}") for number in range(10)]
    )
    assert [one.kind for one in processed.results] == [ResultKind.PROCESSED] * 10
    assert await shop.number("payments") == await shop.number("outbox") == 1
    subscription = await shop.one("SELECT current_period_end, version FROM subscriptions")
    assert subscription["current_period_end"] == processed.now + DAYS
    assert subscription["version"] == 1


async def test_payments_of_one_user_in_one_batch_add_up(shop: Stage, processor: Processor) -> None:
    """FUL-1 PAY-3"""
    await shop.user("buyer@example.com")
    items = [shop.paid(f"p-{number}", email="Buyer@example.com") for number in range(4)]
    processed = await processor.process(items)
    end = (await shop.one("SELECT current_period_end FROM subscriptions"))["current_period_end"]
    assert end == processed.now + 4 * DAYS
    periods = await shop.rows("SELECT period_start, period_end FROM payments ORDER BY period_start")
    assert [one["period_end"] - one["period_start"] for one in periods] == [DAYS] * 4
    assert [one["period_start"] for one in periods[1:]] == [
        one["period_end"] for one in periods[:-1]
    ]


def refund_of(shop: Stage, name: str, at: datetime) -> Incoming:
    item = shop.event(EventType.REFUNDED, name, amount_minor=99_000, currency="RUB")
    return with_event(item, occurred_at=at, email="buyer@example.com")


async def periods_in_days(shop: Stage, since: datetime) -> list[tuple[int, int]]:
    rows = await shop.rows("SELECT period_start, period_end FROM payments ORDER BY applied_at, id")
    return [((row["period_start"] - since).days, (row["period_end"] - since).days) for row in rows]


async def test_a_refund_moves_later_periods_up(shop: Stage, processor: Processor) -> None:
    """FUL-7: of payments that were applied long before, in transactions of their own."""
    await shop.user("buyer@example.com")
    names = ("a", "b", "c")
    for name in names:
        await processor.process([shop.paid(name, email="buyer@example.com")])
    first = await shop.one("SELECT min(applied_at) AS at FROM payments")
    await shop.rows("UPDATE payments SET applied_at = $1, paid_at = $1", first["at"])
    at = first["at"] + timedelta(days=10)
    (result,) = (await processor.process([refund_of(shop, "a", at)])).results
    assert result.kind is ResultKind.PROCESSED
    assert await periods_in_days(shop, first["at"]) == [(0, 10), (10, 40), (40, 70)]
    row = await shop.one("SELECT current_period_end, version FROM subscriptions")
    assert (row["current_period_end"], row["version"]) == (first["at"] + timedelta(days=70), 4)


async def test_a_refund_waits_for_a_locked_payment_of_its_subscription(
    shop: Stage, processor: Processor
) -> None:
    """FUL-7 REC-3: what is decided without it would be wrong."""
    await shop.user("buyer@example.com")
    for name in ("a", "b"):
        await processor.process([shop.paid(name, email="buyer@example.com")])
    refund = refund_of(shop, "a", datetime.now(UTC))
    lock = "SELECT 1 FROM payments WHERE id = $1 FOR UPDATE"
    async with held(shop, lock, (await shop.payment("b"))["id"]):
        assert await results(processor, refund) == [ResultKind.LOCKED]
        assert (await shop.payment("a"))["refunded_minor"] == 0
    assert await results(processor, refund) == [ResultKind.PROCESSED]
    assert (await shop.payment("a"))["reversed_minor"] == 99_000


async def test_months_keep_their_anchor_day(shop: Stage) -> None:
    """FUL-8: the day is stored with the subscription."""
    await shop.user("buyer@example.com")
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    monthly = Plan("monthly", Money(99_000, "RUB"), "default", 0, 1, True, long_ago)
    rules = replace(shop.rules, plans=plan_book([monthly]))
    processor = Processor(shop.database, rules)
    await processor.process([shop.paid("a", email="buyer@example.com")])
    february = datetime(2099, 2, 28, 12, tzinfo=UTC)
    await shop.rows("UPDATE subscriptions SET current_period_end = $1, anchor_day = 31", february)
    await processor.process([shop.paid("b", email="buyer@example.com")])
    await processor.process([shop.paid("c", email="buyer@example.com")])
    row = await shop.one("SELECT current_period_end, anchor_day FROM subscriptions")
    assert (row["current_period_end"], row["anchor_day"]) == (
        datetime(2099, 4, 30, 12, tzinfo=UTC),
        31,
    )
    await processor.close()


async def test_a_conflict_inside_a_batch_is_kept_as_evidence(
    shop: Stage, processor: Processor
) -> None:
    """INB-2: the first stays."""
    await shop.user("p-1@example.com")
    first = shop.paid("p-1", key="evt")
    other = shop.paid("p-1", key="evt", amount_minor=1)
    assert await results(processor, first, other) == [ResultKind.PROCESSED, ResultKind.CONFLICT]
    row = await shop.event_row(other)
    assert (row["status"], row["error_code"]) == ("FAILED_FINAL", "PAYLOAD_CONFLICT")
    assert row["conflicts_with"] == first.event_id
    assert (await shop.payment("p-1"))["captured_minor"] == 99_000
    audit = await shop.one("SELECT * FROM audit_log WHERE action = 'conflict_detected'")
    assert (audit["event_id"], audit["success"]) == (first.event_id, False)


async def test_a_conflict_with_an_earlier_batch_is_kept_as_evidence(
    shop: Stage, processor: Processor
) -> None:
    """INB-2"""
    await processor.process([shop.paid("p-1", key="evt")])
    others = [shop.paid("p-2", key="evt"), shop.paid("p-1", key="evt", currency="USD")]
    assert await results(processor, *others) == [ResultKind.CONFLICT] * 2
    assert await shop.number("payments") == 1
    assert await shop.number("event_keys") == 1
    assert await shop.number("webhook_events") == 3


async def test_the_same_key_of_another_source_is_another_event(
    shop: Stage, processor: Processor
) -> None:
    """INB-1"""
    first = shop.paid("p-1", key="evt")
    source = replace(shop.source, id=SourceId(shop.source.id + 1), name="other")
    second = replace(first, event_id=EventId(uuid7()), source=source)
    second = replace(second, key=(source.id, first.key[1]))
    assert await results(processor, first, second) == [ResultKind.UNLINKED] * 2
    assert await shop.number("payments") == 2


@asynccontextmanager
async def held(shop: Stage, sql: str, *arguments: object) -> AsyncIterator[None]:
    """Rows that another transaction has locked."""
    async with shop.database.transaction() as connection:
        assert await connection.fetch(sql, *arguments)
        yield


@pytest.mark.parametrize("table", ["payments", "subscriptions"])
async def test_a_locked_row_blocks_only_its_own_events(
    shop: Stage, processor: Processor, table: str
) -> None:
    """REC-3: one locked row must not stall the rest, and nothing of what is busy is written."""
    for name in ("busy", "free"):
        await shop.user(f"{name}@example.com")
        await processor.process([shop.paid(name)])
    by_payment = {
        "payments": "SELECT 1 FROM payments WHERE email = 'busy@example.com' FOR UPDATE",
        "subscriptions": "SELECT 1 FROM subscriptions AS s JOIN users AS u ON u.id = s.user_id"
        " WHERE u.email = 'busy@example.com' FOR UPDATE OF s",
    }
    same = shop.event(EventType.REFUNDED, "busy", amount_minor=100, currency="RUB")
    busy = {
        "payments": same,
        "subscriptions": shop.paid("busy-2", email="busy@example.com"),
    }[table]
    free = shop.paid("free-2", email="free@example.com")
    new = shop.paid("new")
    async with held(shop, by_payment[table]):
        found = await results(processor, busy, free, busy, new)
    assert found == [
        ResultKind.LOCKED,
        ResultKind.PROCESSED,
        ResultKind.LOCKED,
        ResultKind.UNLINKED,
    ]
    assert await shop.rows("SELECT 1 FROM webhook_events WHERE id = $1", busy.event_id) == []
    assert await results(processor, busy) == [ResultKind.PROCESSED]


async def test_a_queued_event_whose_row_is_locked_is_due_again_soon(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """RET-4 REC-4"""
    user_id = await shop.user("p@example.com")
    await processor.process([shop.paid("p")])
    deferred = shop.paid("p-2", email="p@example.com", forced_outcome=DEFERRED)
    assert await results(processor, deferred) == [ResultKind.ACCEPTED]
    lock = "SELECT 1 FROM subscriptions WHERE user_id = $1 FOR UPDATE"
    async with held(shop, lock, user_id):
        assert await worker.run_once() == 1
    assert (await shop.event_row(deferred))["attempts"] == 0, "waiting for a row is no attempt"
    due = await shop.one("SELECT run_at <= now() + interval '1 second' AS soon FROM event_queue")
    assert due["soon"]


async def test_a_stored_event_is_processed_by_a_worker_once(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """REC-4 RET-4"""
    await shop.user("p@example.com")
    item = shop.paid("p", forced_outcome=DEFERRED)
    await processor.process([item])
    row = await shop.event_row(item)
    assert (row["status"], row["attempts"], row["processed_at"]) == ("VALIDATED", 0, None)
    assert await worker.run_once() == 1
    assert await worker.run_once() == 0
    row = await shop.event_row(item)
    assert (row["status"], row["attempts"]) == ("PROCESSED", 1)
    assert (await shop.payment("p"))["applied_at"] is not None


async def test_a_redelivery_of_a_queued_event_makes_it_due_now(
    shop: Stage, processor: Processor, worker: Worker
) -> None:
    """REC-7"""
    await processor.process([shop.paid("p")])
    await shop.user("p@example.com")
    assert await worker.run_once() == 0, "it waits on the slow schedule"
    assert await results(processor, shop.paid("p"), shop.paid("p")) == [ResultKind.DUPLICATE] * 2
    assert await worker.run_once() == 1
    assert (await shop.payment("p"))["applied_at"] is not None


async def test_a_redelivery_hastens_no_event_that_was_tried_very_often(
    shop: Stage, processor: Processor
) -> None:
    """REC-7 OBS-4: each attempt leaves a trail, and a captured delivery can be sent for ever."""
    item = shop.paid("p")
    await processor.process([item])
    for attempts, is_due in ((MAX_HASTENED, False), (MAX_HASTENED - 1, True)):
        async with shop.database.connection() as connection:
            await connection.execute("UPDATE webhook_events SET attempts = $1", attempts)
        (result,) = (await processor.process([shop.paid("p")])).results
        assert result.kind is ResultKind.DUPLICATE
        assert (await shop.one("SELECT min(run_at) <= now() AS is_due FROM event_queue"))[
            "is_due"
        ] is is_due


async def test_a_redelivery_of_a_processed_event_changes_nothing(
    shop: Stage, processor: Processor
) -> None:
    """REC-7"""
    await shop.user("p@example.com")
    item = shop.paid("p")
    await processor.process([item])
    before = (await shop.event_row(item), await shop.payment("p"))
    await processor.process([shop.paid("p")])
    assert (await shop.event_row(item), await shop.payment("p")) == before
    assert await shop.number("event_queue") == 0


POISON = {"a NUL": "x\x00y@example.com", "a lone surrogate": "x\ud800y@example.com"}


@pytest.mark.parametrize("text", POISON.values(), ids=POISON.keys())
async def test_a_poisoned_event_is_stored_and_fails_no_other(
    shop: Stage, processor: Processor, text: str
) -> None:
    """REC-6 REC-4: the batch is halved until it is alone."""
    good = [shop.paid(f"p-{number}") for number in range(7)]
    for number in range(7):
        await shop.user(f"p-{number}@example.com")
    poisoned = with_event(shop.paid("poisoned"), email=text)
    items = [*good[:3], poisoned, *good[3:]]
    found = await results(processor, *items)
    assert found[3] is ResultKind.FAILED_RETRYABLE
    assert found[:3] + found[4:] == [ResultKind.PROCESSED] * 7
    row = await shop.event_row(poisoned)
    assert (row["status"], row["error_code"], row["attempts"]) == (
        "FAILED_RETRYABLE",
        "INTERNAL",
        1,
    )
    assert row["raw_body"] == poisoned.delivery.body
    assert await shop.number("payments") == 7
    assert await shop.number("event_queue") == 1


async def test_an_unstorable_event_fails_no_other(shop: Stage, processor: Processor) -> None:
    """REC-2 REC-3: its companions are settled and answered, whatever becomes of it."""
    bad = shop.paid("bad")
    bad = replace(bad, identity=replace(bad.identity, payment_id="x\x00y"))
    good = [shop.paid(f"p-{number}") for number in range(3)]
    told = None
    try:
        await processor.process([good[0], bad, *good[1:]])
    except Exception as error:
        told = error
    assert await shop.number("payments") == 3
    assert told is None, "the answer to all of the batch was an error"


async def test_a_poisoned_event_becomes_a_dead_letter(database: Database) -> None:
    """RET-3"""
    shop = await stage(database, RetryPolicy(attempts=1))
    processor = Processor(shop.database, shop.rules)
    poisoned = with_event(shop.paid("poisoned"), email="x\x00y@example.com")
    assert await results(processor, poisoned) == [ResultKind.DEAD_LETTER]
    await processor.close()
    assert (await shop.event_row(poisoned))["status"] == "DEAD_LETTER"
    assert await shop.number("event_queue") == 0


async def test_an_exception_in_decide_fails_that_event_only(
    shop: Stage, processor: Processor
) -> None:
    """REC-4: a period that ends after the last year there is."""
    user_id = await shop.user("p@example.com")
    end = datetime(9999, 12, 30, tzinfo=UTC)
    async with shop.database.connection() as connection:
        await connection.execute(
            "INSERT INTO subscriptions (id, user_id, product, status, current_period_end, version)"
            " VALUES ($1, $2, 'default', 'ACTIVE', $3, 1)",
            uuid7(),
            user_id,
            end,
        )
    found = await results(processor, shop.paid("other"), shop.paid("p"))
    assert found == [ResultKind.UNLINKED, ResultKind.FAILED_RETRYABLE]


def refund(shop: Stage, refund_id: str | None, amount_minor: int, payment: str = "p") -> Incoming:
    key = f"refund:{refund_id}:{amount_minor}:{payment}"
    said: dict[str, Any] = {"refund_id": refund_id, "amount_minor": amount_minor}
    said["currency"] = "RUB"
    return shop.event(EventType.REFUNDED, payment, key=key, **said)


async def test_refunds_add_up_over_batches_by_their_ids(shop: Stage, processor: Processor) -> None:
    """PAY-2 PAY-6: what was kept is what the next batch starts from."""
    await processor.process([shop.paid("p")])
    for item in (refund(shop, "r-1", 100), refund(shop, "r-2", 200), refund(shop, None, 250)):
        await processor.process([item])
    payment = await shop.payment("p")
    assert (payment["refunded_minor"], payment["refund_total_minor"]) == (300, 250)
    assert payment["status"] == "PARTIALLY_REFUNDED"
    rows = await shop.rows("SELECT refund_id, amount_minor FROM refunds ORDER BY refund_id")
    assert [tuple(row.values()) for row in rows] == [("r-1", 100), ("r-2", 200)]
    await processor.process([refund(shop, "r-3", 98_700)])
    assert (await shop.payment("p"))["status"] == "REFUNDED"


async def test_a_repeated_refund_counts_once_with_its_largest_amount(
    shop: Stage, processor: Processor
) -> None:
    """PAY-2"""
    await processor.process([shop.paid("p"), refund(shop, "r-1", 100)])
    again = replace(refund(shop, "r-1", 100), key=(shop.source.id, b"k" * 16))
    await processor.process([again, refund(shop, "r-1", 300), refund(shop, "r-1", 200)])
    assert (await shop.payment("p"))["refunded_minor"] == 300
    assert (await shop.one("SELECT amount_minor FROM refunds"))["amount_minor"] == 300


async def test_a_refund_before_its_payment_is_kept_and_takes_part(
    shop: Stage, processor: Processor
) -> None:
    """PAY-6 PAY-3"""
    await shop.user("p@example.com")
    assert await results(processor, refund(shop, "r-1", 99_000)) == [ResultKind.PROCESSED]
    assert (await shop.payment("p"))["status"] == "PENDING"
    await processor.process([shop.paid("p")])
    payment = await shop.payment("p")
    assert (payment["status"], payment["applied_at"]) == ("REFUNDED", None)
    assert await shop.number("subscriptions") == 0


async def test_refunded_amounts_never_shrink(shop: Stage, processor: Processor) -> None:
    """PAY-2 PAY-6: not even when a gateway names one refund for two payments."""
    await processor.process([shop.paid("p"), shop.paid("q")])
    await processor.process([refund(shop, "r-1", 99_000, "p")])
    await processor.process([refund(shop, "r-1", 99_000, "q")])
    before = (await shop.payment("q"))["refunded_minor"]
    await processor.process([shop.event(EventType.PROCESSING, "q")])
    assert (await shop.payment("q"))["refunded_minor"] >= before


async def test_every_fact_is_stored_and_loaded(shop: Stage, processor: Processor) -> None:
    """PAY-1 PAY-2: times too, and in batches of one."""
    said = [EventType.PENDING, EventType.PROCESSING, EventType.FAILED, EventType.VOIDED]
    for event_type in said:
        await processor.process([shop.event(event_type, "p")])
    assert (await shop.payment("p"))["status"] == "CANCELED"
    await processor.process([shop.paid("p")])
    assert (await shop.payment("p"))["status"] == "SUCCEEDED"
    await processor.process([refund(shop, None, 10)])
    await processor.process([shop.event(EventType.CANCELED, "p")])
    payment = await shop.payment("p")
    assert payment["status"] == "CANCELED"
    for name in (
        "processing_at",
        "failed_at",
        "voided_at",
        "paid_at",
        "refunded_at",
        "canceled_at",
    ):
        assert payment[name] is not None
    assert payment["version"] == 7, "pending, the first word, and six more; each wrote once"


async def test_a_payment_is_found_by_all_of_its_ids(shop: Stage, processor: Processor) -> None:
    """PAY-1"""
    paid = shop.paid("intent")
    assert isinstance(paid.event, PaymentEvent)
    await processor.process([paid])
    await processor.process([shop.event(EventType.PROCESSING, "intent", "charge", "session")])
    await processor.process([shop.event(EventType.CANCELED, "session")])
    assert await shop.number("payments") == 1
    assert (await shop.payment("charge"))["status"] == "CANCELED"


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "in three"])
async def test_an_event_that_names_two_payments_merges_them(
    shop: Stage, processor: Processor, at_once: bool
) -> None:
    """PAY-1: with the facts of both, and known by the ids of both."""
    items = [
        shop.event(EventType.PROCESSING, "one"),
        shop.event(EventType.FAILED, "two"),
        shop.event(EventType.PENDING, "one", "two"),
    ]
    for batch in [items] if at_once else [[item] for item in items]:
        await processor.process(batch)
    one, two = await shop.payment("one"), await shop.payment("two")
    assert one == two
    assert (one["status"], one["processing_at"] is None) == ("FAILED", False)
    assert (await shop.number("payments"), await shop.number("payment_ids")) == (1, 2)


async def test_reapplying_an_unknown_payment_is_refused(shop: Stage, processor: Processor) -> None:
    """OPS-5: it is not busy, and would not be any later."""
    reapply = Reapply(PaymentId(UUID(int=7)), Link(await shop.user("p@example.com")))
    with pytest.raises(NotFoundError):
        await processor.process([reapply])


async def loaded_payment(shop: Stage, connection: Connection, external_id: str) -> Any:
    payment_id = PaymentId((await shop.payment(external_id))["id"])
    loaded = await processing_store.load(connection, LoadKeys(payments={payment_id}), shop.rules)
    return loaded.state.payments[payment_id], loaded.now


async def assert_refused(connection: Connection, changes: Changes, now: datetime) -> None:
    """The write is undone, and whoever sent it is told to run again."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        async with connection.transaction():
            await processing_store.write(connection, changes, now)
    assert trouble(caught.value) is Trouble.RERUN


async def test_a_payment_that_changed_since_it_was_read_is_not_overwritten(
    shop: Stage, processor: Processor
) -> None:
    """PAY-3: the version guards, even where no lock did."""
    await processor.process([shop.paid("p")])
    async with shop.database.connection() as connection:
        stale, now = await loaded_payment(shop, connection, "p")
        await processor.process([refund(shop, None, 10)])
        await assert_refused(connection, Changes(payments=[replace(stale, email="x")]), now)
    payment = await shop.payment("p")
    assert (payment["email"], payment["refunded_minor"]) == ("p@example.com", 10)


async def test_a_payment_that_was_applied_is_not_applied_again(
    shop: Stage, processor: Processor
) -> None:
    """PAY-3: guarded by applied_at, even where the version agrees."""
    await shop.user("p@example.com")
    await processor.process([shop.paid("p")])
    before = await shop.payment("p")
    async with shop.database.connection() as connection:
        payment, now = await loaded_payment(shop, connection, "p")
        later = replace(payment, applied_at=payment.applied_at + timedelta(seconds=1))
        await assert_refused(connection, Changes(payments=[later]), now)
        undone = replace(
            payment, applied_at=None, subscription_id=None, period_start=None, period_end=None
        )
        await assert_refused(connection, Changes(payments=[undone]), now)
    assert await shop.payment("p") == before


async def test_a_refund_is_never_written_smaller_than_it_is(
    shop: Stage, processor: Processor
) -> None:
    """PAY-2: the statement itself only lets it grow."""
    await processor.process([shop.paid("p"), refund(shop, "r-1", 300)])
    async with shop.database.connection() as connection:
        payment, now = await loaded_payment(shop, connection, "p")
        less = replace(payment, facts=replace(payment.facts, refunds={"r-1": 1}))
        await processing_store.write(connection, Changes(payments=[less]), now)
    assert (await shop.one("SELECT amount_minor FROM refunds"))["amount_minor"] == 300


async def test_a_subscription_that_changed_since_it_was_read_is_not_overwritten(
    shop: Stage, processor: Processor
) -> None:
    """FUL-1 PAY-3"""
    user_id = await shop.user("p@example.com")
    await processor.process([shop.paid("p")])
    async with shop.database.connection() as connection:
        loaded = await processing_store.load(connection, LoadKeys(users={user_id}), shop.rules)
        (stale,) = loaded.state.subscriptions.values()
        await processor.process([shop.paid("p-2", email="p@example.com")])
        await assert_refused(connection, Changes(subscriptions=[stale]), loaded.now)
    row = await shop.one("SELECT current_period_end FROM subscriptions")
    assert stale.current_period_end is not None
    assert row["current_period_end"] == stale.current_period_end + DAYS


async def test_an_amount_mismatch_is_kept_and_listed(shop: Stage, processor: Processor) -> None:
    """PAY-4 PAY-8"""
    await shop.user("p@example.com")
    item = shop.paid("p", amount_minor=50_000)
    assert await results(processor, item) == [ResultKind.FAILED_FINAL]
    row, payment = await shop.event_row(item), await shop.payment("p")
    assert (row["status"], row["error_code"]) == (EventStatus.FAILED_FINAL, Code.AMOUNT_MISMATCH)
    assert (payment["captured_minor"], payment["applied_at"]) == (50_000, None)
    assert payment["review"] == Code.AMOUNT_MISMATCH
    assert await shop.number("subscriptions") == 0
