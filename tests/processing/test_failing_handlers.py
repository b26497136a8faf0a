"""A handler that fails: what is told, how long it is tried, and how it works again."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import pytest_asyncio

from paidonce.core.events import DEFERRED
from paidonce.core.masking import Masker
from paidonce.core.notifications import NotificationKind
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database
from paidonce.errors import Retry
from paidonce.hooks.registry import Handlers, HookEvent, HookType
from paidonce.processing.handler_failures import NOTIFY_AFTER
from paidonce.processing.items import Incoming, QueueName, ResultKind, Rules
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from paidonce.replay.reprocess import Reprocessor
from tests.support.batches import Stage, stage

SECRET: Final = "sk_live_dont_tell"
CHANNEL: Final = "people"


@dataclass
class Shop:
    """A shop whose handlers fail for some payments, and workers of several processes."""

    stage: Stage
    rules: Rules
    processor: Processor
    workers: list[Worker]
    broken: set[str] = field(default_factory=set)  # emails; "*" is all
    calls: list[str] = field(default_factory=list)
    error: Exception = field(default_factory=lambda: LookupError("no such mug"))

    async def ship(self, hook_event: HookEvent) -> None:
        email = hook_event.payment.email or ""
        self.calls.append(email.partition("@")[0])
        if {"*", self.calls[-1]} & self.broken:
            raise self.error  # the handler's own line

    async def paid(self, *payments: str) -> list[Incoming]:
        source = replace(self.stage.source, has_handlers=True)
        for one in payments:
            await self.stage.user(f"{one}@example.com")
        items = [replace(self.stage.paid(one), source=source) for one in payments]
        await self.processor.process([replace(one, forced_outcome=DEFERRED) for one in items])
        return items

    async def work(self, number: int = 100, worker: int = 0) -> int:
        """Let a worker take what is due, one event after the other."""
        taken = 0
        while taken < number and await self.workers[worker].run_once():
            taken += 1
        return taken

    async def pass_by(self, **time: float) -> None:
        """Let so much time pass for all that waits."""
        async with self.stage.database.connection() as connection:
            await connection.execute(
                # What becomes due is due now: a claim may begin at what was due a moment ago.
                "UPDATE event_queue SET run_at = greatest(run_at - $1::interval, now()),"
                " scheduled_at = scheduled_at - $1, redelivered_at = redelivered_at - $1",
                timedelta(**time),
            )
            await connection.execute(
                "UPDATE failing_handlers SET failed_at = failed_at - $1::interval,"
                " released_at = released_at - $1, notified_at = notified_at - $1",
                timedelta(**time),
            )

    async def redeliver(self, item: Incoming) -> None:
        again = replace(item, forced_outcome=DEFERRED)
        (result,) = (await self.processor.process([again])).results
        assert result.kind is ResultKind.DUPLICATE

    async def waits_s(self) -> list[float]:
        rows = await self.stage.rows(
            "SELECT extract(epoch FROM run_at - now())::float8 AS s FROM event_queue ORDER BY 1"
        )
        return [row["s"] for row in rows]

    async def status(self, item: Incoming) -> tuple[str, int]:
        row = await self.stage.event_row(item)
        return row["status"], row["attempts"]


@pytest_asyncio.fixture(loop_scope="session")
async def shop(database: Database) -> AsyncIterator[Shop]:
    made = await stage(database, RetryPolicy(attempts=3))

    async def ship(hook_event: HookEvent) -> None:
        await made_shop.ship(hook_event)

    handlers = Handlers({HookType.SUCCEEDED: (ship,)})
    routes = {
        NotificationKind.HANDLER_FAILING: (CHANNEL,),
        NotificationKind.DEAD_LETTER: (CHANNEL,),
    }
    rules = replace(made.rules, handlers=handlers, masker=Masker([SECRET]), routes=routes)
    workers = [Worker(database, rules, max_batch=1, queue_name=QueueName.HOOKS) for _ in range(2)]
    made_shop = Shop(made, rules, Processor(database, rules), workers)
    yield made_shop
    for worker in workers:
        await worker.close()
    await made_shop.processor.close()


async def test_a_handler_that_is_broken_for_days_buries_no_payment(shop: Shop) -> None:
    """RET-1 FUL-5: an attempt every few minutes, until it works."""
    shop.broken = {"*"}
    (item,) = await shop.paid("p")
    assert await shop.work() == 1
    waited_s = 0.0
    while waited_s < 68 * 3600:
        (wait_s,) = await shop.waits_s()
        assert wait_s < 15 * 60, "it is tried every few minutes"
        waited_s += 4 * 3600  # not each attempt of three days
        async with shop.stage.database.connection() as connection:
            await connection.execute(
                "UPDATE webhook_events SET received_at = now() - $1::interval",
                timedelta(seconds=waited_s),
            )
        await shop.pass_by(hours=1)
        assert await shop.work(1) == 1
        assert (await shop.status(item))[0] == "FAILED_RETRYABLE"
    shop.broken = set()
    await shop.pass_by(hours=1)
    assert await shop.work() == 1
    assert (await shop.status(item))[0] == "PROCESSED"


async def test_a_handler_that_never_works_ends_as_a_dead_letter(shop: Shop) -> None:
    """RET-1 RET-3: `retry.handler_for_h` is the limit."""
    shop.broken = {"*"}
    (item,) = await shop.paid("p")
    async with shop.stage.database.connection() as connection:
        await connection.execute("UPDATE webhook_events SET received_at = now() - interval '73 h'")
    for attempt in (1, 2, 3):
        assert await shop.work(1) == 1
        assert (await shop.status(item))[1] == attempt
        await shop.pass_by(hours=1)
    assert (await shop.status(item))[0] == "DEAD_LETTER"


async def test_what_waits_for_a_handler_is_retried_together_when_it_works(shop: Shop) -> None:
    """RET-1: in another process, too, and one after the other."""
    shop.broken = {"*"}
    items = await shop.paid(*(f"p-{number}" for number in range(20)))
    await shop.work(20)
    async with shop.stage.database.connection() as connection:
        await connection.execute("UPDATE event_queue SET run_at = now() + interval '5 minutes'")
    shop.broken = set()
    await shop.paid("new")
    assert await shop.work(1, worker=1) == 1
    waits_s = await shop.waits_s()
    assert max(waits_s) <= 1, "they wait for minutes, though their handler works"
    assert len({round(one, 3) for one in waits_s}) == 20, "they are due one after the other"
    await shop.pass_by(seconds=2)
    assert await shop.work() == 20
    assert {(await shop.status(one))[0] for one in items} == {"PROCESSED"}
    assert (await shop.stage.one("SELECT released_at > failed_at AS a FROM failing_handlers"))["a"]


async def test_a_handler_that_fails_for_some_payments_is_not_called_for_them_at_each_other(
    shop: Shop,
) -> None:
    """RET-1: its successes make the others due, but not more often than once a minute."""
    shop.broken = {"bad"}
    await shop.paid("bad")
    for _ in range(9):
        await shop.work(1)
        await shop.pass_by(minutes=5)
    await shop.work(1)
    shop.calls.clear()
    for number in range(10):
        await shop.paid(f"good-{number}")
        await shop.work()
    assert shop.calls.count("bad") == 1
    assert shop.calls.count("bad") + 10 == len(shop.calls)


async def test_a_retry_waits_as_long_as_its_handler_says(shop: Shop) -> None:
    """FUL-5: whatever works meanwhile; and it is no failure."""
    shop.broken, shop.error = {"later"}, Retry("the warehouse is closed", after=3600)
    await shop.paid("later", "good")
    assert await shop.work() == 2
    await shop.paid("other")
    await shop.work()
    assert min(await shop.waits_s()) > 3500
    assert await shop.stage.number("failing_handlers") == 0


async def test_people_are_told_once_of_a_handler_that_fails(shop: Shop) -> None:
    """OBS-5 RET-1: after a few failures, and not for each event."""
    shop.broken = {"*"}
    await shop.paid(*(f"p-{number}" for number in range(NOTIFY_AFTER - 1)))
    await shop.work()
    assert await shop.stage.number("notifications") == 0
    await shop.paid(*(f"q-{number}" for number in range(10)))
    await shop.work()
    row = await shop.stage.one("SELECT kind, details FROM notifications")
    assert row["kind"] == "handler_failing"
    assert "test_failing_handlers.shop" in row["details"]
    await shop.pass_by(minutes=59)
    await shop.work()
    assert await shop.stage.number("notifications") == 1
    await shop.pass_by(minutes=10)
    await shop.work()
    assert await shop.stage.number("notifications") == 2, "and again each hour"


async def test_a_failure_is_told_with_its_line_and_without_secrets(shop: Shop) -> None:
    """OBS-1 SEC-7: the type, the message and the handler's own line."""
    shop.broken, shop.error = (
        {"*"},
        LookupError(f"no mug for\n{SECRET} a@example.com 4111111111111111"),
    )
    (item,) = await shop.paid("p")
    await shop.work()
    told = (await shop.stage.event_row(item))["error_message"]
    assert told.startswith("handler tests.processing.test_failing_handlers.shop.")
    line = Shop.ship.__code__.co_firstlineno + 4
    assert f" at test_failing_handlers.py:{line} with LookupError: no mug for *** a***@" in told
    assert SECRET not in told
    assert "4111" not in told


async def test_redeliveries_use_up_no_attempts(shop: Shop) -> None:
    """RET-1 REC-7: 15 of them while a handler fails for a moment."""
    shop.broken = {"*"}
    (item,) = await shop.paid("p")
    await shop.work()
    async with shop.stage.database.connection() as connection:
        await connection.execute(
            "UPDATE event_queue SET run_at = now() + interval '5 minutes', handler_attempt = 9"
        )
    before, calls = await shop.status(item), len(shop.calls)
    for _ in range(15):
        await shop.redeliver(item)
        await shop.work()
    assert await shop.status(item) == before
    assert len(shop.calls) == calls + 1, "the rest came within half a minute"
    await shop.pass_by(seconds=31)
    await shop.redeliver(item)
    await shop.work()
    assert len(shop.calls) == calls + 2
    assert await shop.status(item) == before
    (waits_s,) = await shop.waits_s()
    assert 200 < waits_s < 300 - 31, "its own schedule stays"
    shop.broken = set()
    await shop.pass_by(hours=1)
    await shop.work()
    assert await shop.status(item) == ("PROCESSED", 2)


async def test_an_operator_uses_up_no_attempts_of_an_event_that_waits(shop: Shop) -> None:
    """RET-1 OPS-4"""
    shop.broken = {"*"}
    (item,) = await shop.paid("p")
    await shop.work()
    reprocessor = Reprocessor(shop.stage.database, shop.rules)
    async with shop.stage.database.connection() as connection:
        await connection.execute("UPDATE event_queue SET run_at = run_at + interval '1 minute'")
    before = await shop.status(item)  # on a busy machine, the second attempt may have been due
    row: dict[str, Any] = await shop.stage.one("SELECT handler_attempt FROM event_queue")
    for _ in range(5):
        await reprocessor.reprocess(item.event_id, "ann")
        assert await shop.status(item) == before
    assert await shop.stage.one("SELECT handler_attempt FROM event_queue") == row
    shop.broken = set()
    await reprocessor.reprocess(item.event_id, "ann")
    assert (await shop.status(item))[0] == "PROCESSED"
