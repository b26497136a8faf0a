"""Effects of the user's own happen once, with everything else, or not at all (FUL-5)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from paidonce.core.events import DEFERRED, EventType, OrderId, PaymentId
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database
from paidonce.errors import Reject, Retry
from paidonce.hooks.registry import Handler, Handlers, HookEvent, HookType
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, Link, QueueName, ResultKind, Rules
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from tests.support.batches import Stage, stage

TIMEOUT_S: Final = 0.3
WRITE: Final = "INSERT INTO parcels (occasion, payment_id, amount_minor) VALUES ($1, $2, $3)"


ORDER: Final = Order(OrderId(UUID(int=1)), "o-1", Kind.ORDER, Money(99_000, "RUB"))


async def write(hook_event: HookEvent) -> None:
    """What a shop's handler does: a row in a table of its own."""
    minor = hook_event.amount.amount_minor if hook_event.amount else 0
    await hook_event.connection.execute(WRITE, hook_event.name, hook_event.payment.id, minor)


@dataclass
class Shop:
    """A shop with handlers of its own, and a worker of their queue_name."""

    stage: Stage
    rules: Rules
    processor: Processor
    worker: Worker
    script: list[Callable[[HookEvent], Awaitable[None]]] = field(default_factory=list)
    calls: list[HookEvent] = field(default_factory=list)

    async def handle(self, hook_event: HookEvent) -> None:
        """Write the row, and then do what the script says for this call."""
        self.calls.append(hook_event)
        await write(hook_event)
        if self.script:
            await self.script.pop(0)(hook_event)

    async def stored(self, item: Incoming) -> Incoming:
        """An event that has arrived, and waits for its handlers."""
        source = replace(item.source, has_handlers=True)
        item = replace(item, source=source, forced_outcome=DEFERRED)
        (result,) = (await self.processor.process([item])).results
        assert result.kind is ResultKind.ACCEPTED
        return item

    async def paid(self, payment: str, **said: Any) -> Incoming:
        """A paid event that waits, and its user."""
        await self.stage.user(f"{payment}@example.com")
        return await self.stored(self.stage.paid(payment, **said))

    async def work(self) -> int:
        """Let the time come for all that waits, and let the worker take one."""
        async with self.stage.database.connection() as connection:
            await connection.execute("UPDATE event_queue SET run_at = now()")
        return await self.worker.run_once()

    async def parcels(self) -> list[tuple[str, int]]:
        rows = await self.stage.rows("SELECT occasion, amount_minor FROM parcels ORDER BY id")
        return [(row["occasion"], row["amount_minor"]) for row in rows]

    async def event(self, item: Incoming) -> tuple[str, str | None, str | None]:
        row = await self.stage.event_row(item)
        return row["status"], row["error_code"], row["error_message"]


@pytest_asyncio.fixture(loop_scope="session")
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with database.connection() as connection:
        await connection.execute(
            "CREATE TABLE parcels (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " occasion text, payment_id uuid, amount_minor bigint,"
            " UNIQUE (occasion, payment_id, amount_minor));"
            "CREATE TABLE labels"
            " (parcel_id bigint REFERENCES parcels DEFERRABLE INITIALLY DEFERRED)"
        )
    made = await stage(database, RetryPolicy(attempts=3))

    async def handle(hook_event: HookEvent) -> None:
        await made_shop.handle(hook_event)

    handlers: dict[HookType, tuple[Handler, ...]] = dict.fromkeys(HookType, (handle,))
    rules = replace(made.rules, handlers=Handlers(handlers, TIMEOUT_S))
    worker = Worker(database, rules, max_batch=1, queue_name=QueueName.HOOKS)
    made_shop = Shop(made, rules, Processor(database, rules), worker)
    yield made_shop
    await worker.close()
    await made_shop.processor.close()


async def test_a_handler_writes_in_the_transaction_of_its_payment(shop: Shop) -> None:
    """FUL-5"""
    seen: list[Any] = []

    async def look(hook_event: HookEvent) -> None:
        sql = "SELECT applied_at FROM payments WHERE id = $1"
        seen.append(await hook_event.connection.fetchval(sql, hook_event.payment.id))
        seen.append(await shop.stage.rows(sql, hook_event.payment.id))

    shop.script = [look]
    item = await shop.paid("p")
    assert await shop.parcels() == []
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]
    payment = await shop.stage.payment("p")
    assert seen == [payment["applied_at"], []], "who looks from outside sees nothing yet"
    assert (await shop.event(item))[0] == "PROCESSED"
    (call,) = shop.calls
    assert (call.source, call.payment.id, call.order) == ("plain", payment["id"], None)
    assert call.event == item.event
    ids = {payment["transaction_id"], (await shop.stage.event_row(item))["transaction_id"]}
    assert len(ids) == 1


async def test_siblings_and_duplicates_do_not_call_the_handler_again(shop: Shop) -> None:
    """FUL-5 PAY-3"""
    await shop.paid("p")
    sibling = await shop.stored(shop.stage.paid("p", key="other"))
    (again,) = (await shop.processor.process([shop.stage.paid("p")])).results
    assert again.kind is ResultKind.DUPLICATE
    while await shop.work():
        pass
    assert (await shop.event(sibling))[0] == "PROCESSED"
    assert await shop.parcels() == [("payment.succeeded", 99_000)]


async def test_concurrent_workers_call_the_handler_once(shop: Shop) -> None:
    """FUL-5 RET-4"""
    for number in range(12):
        await shop.paid(f"p-{number}")
        await shop.stored(shop.stage.paid(f"p-{number}", key=f"sibling-{number}"))
    workers = [Worker(shop.stage.database, shop.rules, None, 1, QueueName.HOOKS) for _ in range(4)]

    async def work(worker: Worker) -> None:
        while await worker.run_once():
            pass
        await worker.close()

    while await shop.stage.number("event_queue"):
        await asyncio.gather(*map(work, workers))
    assert await shop.stage.number("parcels") == 12


async def test_a_retry_leaves_the_payment_unapplied_and_calls_again_later(shop: Shop) -> None:
    """FUL-5 RET-1: the money is known, and listed as not applied."""

    async def later(hook_event: HookEvent) -> None:
        raise Retry("the warehouse is closed", after=3600)

    shop.script = [later]
    item = await shop.paid("p")
    assert await shop.work() == 1
    assert await shop.parcels() == []
    told = ("FAILED_RETRYABLE", "HANDLER_FAILED", "the warehouse is closed")
    assert await shop.event(item) == told
    payment = await shop.stage.payment("p")
    assert payment["captured_minor"] == 99_000
    assert payment["applied_at"] is None
    assert payment["review"] == "HANDLER_FAILED"
    assert await shop.stage.number("subscriptions") == 0
    assert await shop.stage.number("outbox") == 0
    waits = await shop.stage.one("SELECT run_at, queue_name FROM event_queue")
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    assert abs(waits["run_at"] - in_an_hour) < timedelta(minutes=1)
    assert waits["queue_name"] == QueueName.HOOKS
    assert await shop.worker.run_once() == 0, "it is not due yet"

    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]
    payment = await shop.stage.payment("p")
    assert payment["applied_at"] is not None
    assert payment["review"] is None
    assert await shop.stage.number("outbox") == 1


async def test_a_rejected_payment_fails_with_the_handlers_code(shop: Shop) -> None:
    """FUL-5 RET-2"""

    async def reject(hook_event: HookEvent) -> None:
        raise Reject("SOLD_OUT", "none is left\x00")

    shop.script = [reject]
    item = await shop.paid("p")
    await shop.work()
    assert await shop.event(item) == ("FAILED_FINAL", "SOLD_OUT", "none is left�")
    payment = await shop.stage.payment("p")
    assert (payment["applied_at"], payment["review"]) == (None, "SOLD_OUT")
    assert await shop.stage.number("event_queue") == 0
    assert await shop.parcels() == []
    # An operator links it to the same user: then the handler is called again.
    linker = Linker(shop.stage.database, shop.rules)
    await linker.link(
        PaymentId(payment["id"]), Link(user_id=payment["user_id"]), "ann", "payment_linked"
    )
    assert await shop.parcels() == [("payment.succeeded", 99_000)]
    assert shop.calls[-1].event is None
    assert (await shop.stage.payment("p"))["review"] is None


async def sleep_in_python(hook_event: HookEvent) -> None:
    await asyncio.sleep(60)


async def sleep_in_the_database(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("SELECT pg_sleep(60)")


async def sleep_whatever_happens(hook_event: HookEvent) -> None:
    for _ in range(20):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


async def swallow_an_error(hook_event: HookEvent) -> None:
    try:
        await hook_event.connection.execute("SELECT 1 / 0")
    except asyncpg.PostgresError:
        return


async def let_an_error_through(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("SELECT 1 / 0")


async def write_what_cannot_be_committed(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("INSERT INTO labels VALUES (-1)")


async def commit(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("COMMIT")


async def commit_and_swallow(hook_event: HookEvent) -> None:
    try:
        await hook_event.connection.execute("COMMIT")
    except asyncpg.PostgresError:
        return


async def commit_and_begin_again(hook_event: HookEvent) -> None:
    await commit_and_swallow(hook_event)
    await hook_event.connection.execute("BEGIN")


async def begin_again_and_fail(hook_event: HookEvent) -> None:
    await commit_and_begin_again(hook_event)
    raise LookupError


async def roll_back(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("ROLLBACK")


async def roll_back_and_begin_again(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("ROLLBACK")
    await hook_event.connection.execute("BEGIN")


async def close(hook_event: HookEvent) -> None:
    await hook_event.connection.close()


async def terminate(hook_event: HookEvent) -> None:
    hook_event.connection.terminate()


async def end_the_backend(hook_event: HookEvent) -> None:
    await hook_event.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


async def cancel_itself(hook_event: HookEvent) -> None:
    raise asyncio.CancelledError


async def end_the_process(hook_event: HookEvent) -> None:
    raise SystemExit(1)


async def leave_a_savepoint(hook_event: HookEvent) -> None:
    await hook_event.connection.transaction().start()
    raise LookupError


MISDEEDS: Final = [
    sleep_in_python,
    sleep_in_the_database,
    sleep_whatever_happens,
    swallow_an_error,
    let_an_error_through,
    write_what_cannot_be_committed,
    commit,
    commit_and_swallow,
    commit_and_begin_again,
    begin_again_and_fail,
    roll_back,
    roll_back_and_begin_again,
    close,
    terminate,
    end_the_backend,
    cancel_itself,
    end_the_process,
    leave_a_savepoint,
]


@pytest.mark.parametrize("misdeed", MISDEEDS, ids=lambda one: one.__name__)
async def test_whatever_a_handler_does_nothing_is_half_done(shop: Shop, misdeed: Handler) -> None:
    """FUL-5: it is one attempt that failed, and the next one may succeed."""
    shop.script = [misdeed]
    item = await shop.paid("p")
    async with asyncio.timeout(TIMEOUT_S + 8):
        assert await shop.work() == 1
    status, code, message = await shop.event(item)
    assert (status, code) == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert message is not None
    assert await shop.parcels() == []
    payment = await shop.stage.payment("p")
    assert (payment["applied_at"], payment["review"]) == (None, "HANDLER_FAILED")
    assert (await shop.stage.event_row(item))["attempts"] == 1
    assert await shop.stage.number("running_hooks") == 0
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]
    assert (await shop.event(item))[0] == "PROCESSED"
    assert await shop.stage.number("event_queue") == await shop.stage.number("running_hooks") == 0


@pytest.mark.parametrize("misdeed", MISDEEDS, ids=lambda one: one.__name__)
async def test_whatever_a_handler_does_a_user_is_created(shop: Shop, misdeed: Handler) -> None:
    """FUL-5 PAY-5: the payment is held, and its event is due again."""
    item = await shop.stored(shop.stage.paid("p"))
    assert await shop.work() == 1
    assert (await shop.event(item))[1] == "USER_MISSING"
    shop.script = [misdeed]
    linker = Linker(shop.stage.database, shop.rules)
    user, is_new = await linker.create_user("p@example.com", "somebody")
    assert is_new
    assert await shop.stage.one("SELECT id FROM users") == {"id": user.id}
    assert len(shop.calls) == 1
    assert await shop.parcels() == []
    assert (await shop.event(item))[:2] == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert (await shop.stage.payment("p"))["review"] == "HANDLER_FAILED"
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]


async def test_a_handler_that_does_not_end_is_abandoned(shop: Shop) -> None:
    """FUL-5: nobody waits for one that will not be cut off."""
    released = asyncio.Event()

    async def never_end(hook_event: HookEvent) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    shop.script = [never_end]
    item = await shop.paid("p")
    try:
        done, _ = await asyncio.wait({asyncio.create_task(shop.work())}, timeout=10)
        assert [task.result() for task in done] == [1]
    finally:
        released.set()
    assert (await shop.event(item))[:2] == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]


async def test_creating_a_user_calls_the_handlers_of_its_payments(shop: Shop) -> None:
    """FUL-5 PAY-5: each payment by itself."""
    for payment in ("one", "two", "three"):
        await shop.stored(shop.stage.paid(payment, email="p@example.com"))
        assert await shop.worker.run_once() == 1

    async def fail(hook_event: HookEvent) -> None:
        raise LookupError

    async def well(hook_event: HookEvent) -> None:
        pass

    shop.script = [well, fail]
    await Linker(shop.stage.database, shop.rules).create_user("p@example.com", "somebody")
    assert len(shop.calls) == 3
    reviews = await shop.stage.rows("SELECT review, applied_at FROM payments ORDER BY review")
    assert [row["review"] for row in reviews] == ["HANDLER_FAILED", None, None]
    assert [row["applied_at"] is None for row in reviews] == [True, False, False]
    assert await shop.stage.number("parcels") == 2


async def test_creating_an_order_calls_the_handlers_of_its_payments(shop: Shop) -> None:
    """FUL-5 PAY-5"""
    item = await shop.stored(shop.stage.paid("p", order="o-1"))
    await shop.work()
    assert (await shop.event(item))[1] == "ORDER_MISSING"
    await Linker(shop.stage.database, shop.rules).create_order(ORDER, b"same", "somebody")
    assert await shop.parcels() == [("payment.succeeded", 99_000)]
    (call,) = shop.calls
    assert call.order is not None
    assert (call.order.reference, call.order.kind) == ("o-1", Kind.ORDER)


async def test_a_refund_is_stored_and_its_handler_retried(shop: Shop) -> None:
    """FUL-5 FUL-4: the refund is a fact at once; what was given is taken back with the handler."""
    await shop.paid("p")
    await shop.work()

    async def fail(hook_event: HookEvent) -> None:
        raise LookupError

    shop.script = [fail]
    refund = await shop.stored(
        shop.stage.event(EventType.REFUNDED, "p", amount_minor=99_000, currency="RUB")
    )
    assert await shop.work() == 1
    assert (await shop.event(refund))[:2] == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    payment = await shop.stage.payment("p")
    assert (payment["status"], payment["reversed_minor"]) == ("REFUNDED", 0)
    assert payment["review"] == "HANDLER_FAILED"
    active = "SELECT current_period_end > now() AS active FROM subscriptions"
    assert await shop.stage.one(active) == {"active": True}
    assert await shop.work() == 1
    assert (await shop.event(refund))[0] == "PROCESSED"
    payment = await shop.stage.payment("p")
    assert (payment["reversed_minor"], payment["review"]) == (99_000, None)
    assert await shop.stage.one(active) == {"active": False}
    assert await shop.parcels() == [("payment.succeeded", 99_000), ("payment.refunded", 99_000)]


async def test_a_failed_attempt_calls_its_handler_once_and_so_does_later_money(shop: Shop) -> None:
    """FUL-5: until its handler has heard of it, nothing of it is kept."""

    async def fail(hook_event: HookEvent) -> None:
        raise LookupError

    shop.script = [fail]
    item = await shop.stored(shop.stage.event(EventType.FAILED, "p", email="p@example.com"))
    await shop.work()
    assert (await shop.event(item))[:2] == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert await shop.stage.number("payments") == 0
    await shop.work()
    await shop.stored(shop.stage.event(EventType.FAILED, "p", key="again"))
    await shop.work()
    await shop.paid("p")
    await shop.work()
    assert await shop.parcels() == [("payment.failed", 0), ("payment.succeeded", 99_000)]


async def test_a_canceled_payment_calls_its_handler_once(shop: Shop) -> None:
    """FUL-5"""
    await shop.stored(shop.stage.event(EventType.VOIDED, "p", email="p@example.com"))
    await shop.work()
    await shop.stored(shop.stage.event(EventType.VOIDED, "p", key="again"))
    await shop.work()
    assert await shop.parcels() == [("payment.canceled", 0)]


async def test_several_handlers_run_in_their_order_and_all_or_none(shop: Shop) -> None:
    """FUL-5"""
    order: list[str] = []

    async def first(hook_event: HookEvent) -> None:
        order.append("first")
        await write(hook_event)

    async def second(hook_event: HookEvent) -> None:
        order.append("second")
        if len(order) == 2:
            raise LookupError

    rules = replace(shop.rules, handlers=Handlers({HookType.SUCCEEDED: (first, second)}))
    worker = Worker(shop.stage.database, rules, None, 1, QueueName.HOOKS)
    await shop.paid("p")
    assert await worker.run_once() == 1
    assert await shop.parcels() == []
    shop.worker, usual = worker, shop.worker
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]
    assert order == ["first", "second", "first", "second"]
    await usual.close()


async def test_events_with_handlers_move_to_the_hooks_queue(shop: Shop) -> None:
    """FUL-5: those too that were stored before there were handlers."""
    await shop.stage.user("p@example.com")
    await shop.processor.process([shop.stage.paid("p", forced_outcome=DEFERRED)])
    usual = Worker(shop.stage.database, shop.rules)
    assert await usual.run_once() == 1
    assert await shop.parcels() == []
    assert (await shop.stage.one("SELECT queue_name FROM event_queue"))[
        "queue_name"
    ] == QueueName.HOOKS
    assert await usual.run_once() == 0
    await usual.close()
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]


async def test_a_new_process_handles_events_with_handlers_one_by_one(shop: Shop) -> None:
    """FUL-5 RET-4: also when the first one it tries breaks its transaction."""
    shop.script = [commit_and_swallow]
    item = await shop.paid("p")
    assert await shop.worker.run_guarded() == 1
    assert (await shop.event(item))[:2] == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert await shop.work() == 1
    assert await shop.parcels() == [("payment.succeeded", 99_000)]


async def test_a_handler_has_an_ordinary_session(shop: Shop) -> None:
    """FUL-5: what suits our own statements would make a user's fail, or slow."""
    found: dict[str, str] = {}

    async def look(hook_event: HookEvent) -> None:
        for name in ("lock_timeout", "enable_seqscan", "enable_hashjoin", "plan_cache_mode"):
            found[name] = await hook_event.connection.fetchval("SELECT current_setting($1)", name)

    shop.script = [look]
    await shop.paid("p")
    await shop.work()
    assert found == {
        "lock_timeout": "300ms",
        "enable_seqscan": "on",
        "enable_hashjoin": "on",
        "plan_cache_mode": "auto",
    }


async def test_a_canceled_worker_leaves_no_crash_guard_row(shop: Shop) -> None:
    """RET-4 FUL-5: the process has not ended over it, however often it is stopped in the middle."""
    begun = asyncio.Event()

    async def hang(hook_event: HookEvent) -> None:
        begun.set()
        await asyncio.Event().wait()

    shop.script = [hang]
    await shop.paid("p")
    task = asyncio.create_task(shop.worker.run_guarded())
    await begun.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    marks = await shop.stage.rows("SELECT starts FROM crash_guard WHERE starts > 0")
    assert marks == []
