"""A stored event is processed again: locked, and by the same rules as a new one."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from paidonce.core.events import EventStatus, EventType
from paidonce.db.pool import POOL_SIZE
from paidonce.errors import ConflictError, DatabaseUnavailableError, NotFoundError
from paidonce.events.model import EventFilter
from paidonce.hooks.registry import Handlers, HookEvent, HookType
from paidonce.lookup.worker import LookupWorker
from paidonce.processing.items import Incoming, Rules
from paidonce.processing.transactions import Processor
from paidonce.replay import reprocess
from paidonce.replay.dry_run import DryRun
from paidonce.replay.model import ReprocessKind, ReprocessResult
from paidonce.replay.reprocess import Reprocessor
from tests.lookup import test_lookup
from tests.processing.test_nonces import WithNonce
from tests.replay.test_replays import create_replay, dead_letters, execute, run
from tests.support.batches import Stage
from tests.support.lookup_gateway import Gateway, gateway_running


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway with lookups."""
    async with gateway_running() as running:
        yield running


async def reprocessed(
    shop: Stage, item: Incoming, rules: Rules | None = None, only: EventStatus | None = None
) -> ReprocessResult:
    return await Reprocessor(shop.database, rules or shop.rules).reprocess(
        item.event_id, "tester", only
    )


async def test_a_locked_event_is_not_reprocessed(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4 PAY-3: after a while the operator gets an error: try again."""
    monkeypatch.setattr(reprocess, "PATIENCE_S", 0.1)
    (item,) = await dead_letters(shop, processor, "p")
    async with shop.database.transaction() as other:
        await other.execute(
            "SELECT 1 FROM webhook_events WHERE id = $1 FOR NO KEY UPDATE", item.event_id
        )
        with pytest.raises(DatabaseUnavailableError, match="try again"):
            await reprocessed(shop, item)
    assert await shop.number("outbox") == 0
    assert (await reprocessed(shop, item)).applied


async def test_ten_operators_at_once_apply_a_payment_once(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 PAY-3: each of them is answered."""
    (item,) = await dead_letters(shop, processor, "p")
    done = await asyncio.gather(*(reprocessed(shop, item) for _ in range(10)))
    assert len([one for one in done if one.applied]) == 1
    assert await shop.number("outbox") == 1
    assert (await shop.event_row(item))["attempts"] == 11


async def test_only_a_dead_letter_is_retried(shop: Stage, processor: Processor) -> None:
    """OPS-5"""
    (item,) = await dead_letters(shop, processor, "p")
    assert (await reprocessed(shop, item, only=EventStatus.DEAD_LETTER)).applied
    with pytest.raises(ConflictError, match="is PROCESSED"):
        await reprocessed(shop, item, only=EventStatus.DEAD_LETTER)
    with pytest.raises(NotFoundError):
        await reprocessed(shop, shop.paid("unknown"))


async def test_reprocessing_removes_the_event_from_the_queue(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 RET-4: no worker tries it again."""
    item = shop.paid("p")
    await processor.process([item])
    await shop.user("p@example.com")
    assert await shop.number("event_queue") == 1
    again = await reprocessed(shop, item)
    assert (again.stored.status, again.new_status) == ("FAILED_RETRYABLE", "PROCESSED")
    assert await shop.number("event_queue") == 0


async def test_an_event_that_was_processed_stays_processed(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 PAY-2: though it would be out of order if it came now."""
    await shop.user("p@example.com")
    pending = shop.event(EventType.PENDING, "p")
    for item in (pending, shop.paid("p")):
        await processor.process([item])
    again = await reprocessed(shop, pending)
    assert (again.stored.status, again.new_status) == ("PROCESSED", "PROCESSED")
    row = await shop.event_row(pending)
    assert (row["status"], row["error_code"], row["attempts"]) == ("PROCESSED", None, 2)


async def test_an_event_that_needs_a_lookup_is_looked_up_again(
    shop: Stage, gateway: Gateway
) -> None:
    """OPS-4 PRV-3: also a final one; outside of any transaction."""
    looking = await test_lookup.with_sources(shop, looking=gateway.api)
    (item,) = await test_lookup.stored(looking, "p")
    asker = LookupWorker(looking.database, looking.rules, timeouts=test_lookup.QUICK)
    assert await asker.run_once() == 1
    assert (await shop.event_row(item))["status"] == "PROCESSED"

    again = await reprocessed(looking, item)

    assert again.new_status == "VALIDATED"
    assert [row["queue_name"] for row in await test_lookup.due_rows(shop)] == [1]
    assert await asker.run_once() == 1
    await asker.close()
    assert gateway.asked["p"] == 2
    row = await shop.event_row(item)
    assert (row["status"], row["attempts"]) == ("PROCESSED", 2)
    assert await shop.number("outbox") == 1


async def test_a_dry_run_makes_no_lookup(shop: Stage, gateway: Gateway) -> None:
    """OPS-4: such events are counted as ones that would be looked up."""
    looking = await test_lookup.with_sources(shop, looking=gateway.api)
    await test_lookup.stored(looking, "p")
    seen = await run(looking, await create_replay(looking, EventFilter(source="looking"), dry=True))
    assert seen.counts == {"VALIDATED → would be looked up": 1}
    assert not gateway.asked


async def test_handlers_are_called_once_and_never_by_a_dry_run(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 FUL-5: once for each payment, in the transaction that applies it."""
    calls: list[str] = []

    async def handle(hook_event: HookEvent) -> None:
        calls.append(hook_event.name)
        await hook_event.connection.execute("INSERT INTO parcels VALUES (1)")

    await execute(shop, "CREATE TABLE parcels (number integer)")
    rules = replace(shop.rules, handlers=Handlers({HookType.SUCCEEDED: (handle,)}))
    (item,) = await dead_letters(shop, processor, "p")
    async with shop.database.connection() as connection:
        (seen,) = await DryRun(rules).run(connection, [item.event_id])
    assert (seen.kind, calls) == (ReprocessKind.CALLS_HANDLERS, [])
    assert (await reprocessed(shop, item, rules)).applied
    assert not (await reprocessed(shop, item, rules)).applied
    assert calls == ["payment.succeeded"]
    assert await shop.number("parcels") == 1


@pytest.mark.parametrize("how", ["one", "replay"])
async def test_a_handler_that_breaks_the_transaction_does_not_stop_the_replay(
    shop: Stage, processor: Processor, how: str
) -> None:
    """OPS-4 FUL-5: its event fails, and the others are processed."""

    async def handle(hook_event: HookEvent) -> None:
        if hook_event.payment.email == "bad@example.com":
            await hook_event.connection.execute("ROLLBACK")

    rules = replace(shop.rules, handlers=Handlers({HookType.SUCCEEDED: (handle,)}))
    items = await dead_letters(shop, processor, "good", "bad", "fine")
    if how == "one":
        for item in items:
            await reprocessed(shop, item, rules)
    else:
        done = await run(shop, await create_replay(shop), rules=rules)
        assert done.counts == {
            "DEAD_LETTER → PROCESSED": 2,
            "DEAD_LETTER → FAILED_RETRYABLE": 1,
        }
    rows = [await shop.event_row(item) for item in items]
    assert [row["status"] for row in rows] == ["PROCESSED", "FAILED_RETRYABLE", "PROCESSED"]
    assert rows[1]["error_code"] == "HANDLER_FAILED"
    assert await shop.number("outbox") == 2


async def test_a_replayed_nonce_stays_refused(shop: Stage, processor: Processor) -> None:
    """OPS-4 SEC-3: and no new evidence is stored."""
    source = replace(shop.source, provider=WithNonce())
    rules = replace(shop.rules, sources={source.id: source})
    shop = replace(shop, source=source, rules=rules)
    first, second = shop.paid("p", nonce="n"), shop.paid("q", nonce="n")
    await processor.process([first])
    await processor.process([second])
    with pytest.raises(ConflictError) as refused:
        await reprocessed(shop, second)
    assert refused.value.code == "REPLAYED_NONCE"
    assert await shop.number("webhook_events") == 2
    async with shop.database.connection() as connection:
        (seen,) = await DryRun(rules).run(connection, [second.event_id])
    assert (seen.kind, seen.code) == (ReprocessKind.REFUSED, "REPLAYED_NONCE")
    await execute(shop, "DELETE FROM nonces")
    again = await reprocessed(shop, second)
    assert again.event_id != second.event_id
    assert (await shop.payment("q"))["captured_minor"] == 99_000


async def test_an_event_that_the_database_rejects_is_retried_later(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 RET-1: an internal error, with a new count of attempts."""
    (item,) = await dead_letters(shop, processor, "p")
    await execute(shop, "ALTER TABLE payments ADD CHECK (applied_at IS NULL) NOT VALID")
    again = await reprocessed(shop, item)
    assert (again.new_status, again.code) == ("FAILED_RETRYABLE", "INTERNAL")
    assert (await shop.one("SELECT attempt FROM event_queue"))["attempt"] == 1
    entry = await shop.one("SELECT * FROM audit_log WHERE action = 'event_reprocessed'")
    assert not entry["success"]
    assert json.loads(entry["details"])["is"] == "FAILED_RETRYABLE"


async def test_slow_handlers_leave_connections_to_others(shop: Stage, processor: Processor) -> None:
    """OPS-4 FUL-5: however many requests wait for them."""
    called, may_end = asyncio.Event(), asyncio.Event()

    async def handle(hook_event: HookEvent) -> None:
        called.set()
        await may_end.wait()

    rules = replace(shop.rules, handlers=Handlers({HookType.SUCCEEDED: (handle,)}, concurrency=2))
    items = await dead_letters(shop, processor, *(f"p-{number}" for number in range(POOL_SIZE)))
    reprocessor = Reprocessor(shop.database, rules)
    work = [asyncio.create_task(reprocessor.reprocess(item.event_id, "tester")) for item in items]
    async with asyncio.timeout(120):
        await called.wait()
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(120):
        for _ in range(POOL_SIZE):
            await stack.enter_async_context(shop.database.connection())
    may_end.set()
    assert all(one.applied for one in await asyncio.gather(*work))


async def test_a_slow_handler_that_breaks_its_transaction_is_recorded(
    shop: Stage, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4 FUL-5: also if it takes longer than the wait for a locked event."""
    monkeypatch.setattr(reprocess, "PATIENCE_S", 0.5)

    async def handle(hook_event: HookEvent) -> None:
        await asyncio.sleep(0.6)
        await hook_event.connection.execute("ROLLBACK")

    rules = replace(shop.rules, handlers=Handlers({HookType.SUCCEEDED: (handle,)}))
    (item,) = await dead_letters(shop, processor, "p")
    again = await reprocessed(shop, item, rules)
    assert (again.new_status, again.code) == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert (await shop.event_row(item))["status"] == "FAILED_RETRYABLE"


async def test_a_reprocessed_event_still_conflicts_with_its_payment(
    shop: Stage, processor: Processor
) -> None:
    """OPS-4 PAY-5: until an operator links the payment."""
    for email in ("a@example.com", "b@example.com"):
        await shop.user(email)
    first = shop.paid("p", email="a@example.com")
    other = shop.paid("p", email="b@example.com", key="other")
    await processor.process([first])
    await processor.process([other])
    again = await reprocessed(shop, other)
    assert (again.new_status, again.code) == ("FAILED_FINAL", "LINK_CONFLICT")
    assert not again.is_changed
    assert (await reprocessed(shop, first)).new_status == "PROCESSED"
