"""An event is processed again where nobody else can settle it, and by the rules of all others."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from paidonce.domain.events import EventStatus
from paidonce.engine import reprocessing
from paidonce.engine.asking import Asker
from paidonce.engine.fates import Again, Fate
from paidonce.engine.foreseeing import Foresight
from paidonce.engine.handlers import Handlers, Happened, Occasion
from paidonce.engine.items import Incoming, Rules
from paidonce.engine.reprocessing import Reprocessor
from paidonce.engine.transactions import Settler
from paidonce.errors import ConflictError, DatabaseAwayError, NotFoundError, StillRefusedError
from paidonce.operations import EventFilter
from paidonce.store.db import POOL_SIZE
from tests.store import test_asking
from tests.store.batches import Stage
from tests.store.test_nonces import WithNonce
from tests.store.test_replays import begun, buried, execute, run
from tests.thin import Gateway, gateway_running


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[Gateway]:
    """A gateway that can be asked."""
    async with gateway_running() as running:
        yield running


async def reprocessed(
    shop: Stage, item: Incoming, rules: Rules | None = None, only: EventStatus | None = None
) -> Again:
    return await Reprocessor(shop.database, rules or shop.rules).reprocess(
        item.event_id, "tester", only
    )


async def test_an_event_that_somebody_settles_is_not_processed_beside_him(
    shop: Stage, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4 PAY-3: after a while the operator is told to try again."""
    monkeypatch.setattr(reprocessing, "PATIENCE_S", 0.1)
    (item,) = await buried(shop, settler, "p")
    async with shop.database.transaction() as other:
        await other.execute(
            "SELECT 1 FROM webhook_events WHERE id = $1 FOR NO KEY UPDATE", item.event_id
        )
        with pytest.raises(DatabaseAwayError, match="try again"):
            await reprocessed(shop, item)
    assert await shop.number("outbox") == 0
    assert (await reprocessed(shop, item)).applied


async def test_ten_operators_at_once_apply_a_payment_once(shop: Stage, settler: Settler) -> None:
    """OPS-4 PAY-3: each of them is answered."""
    (item,) = await buried(shop, settler, "p")
    done = await asyncio.gather(*(reprocessed(shop, item) for _ in range(10)))
    assert len([one for one in done if one.applied]) == 1
    assert await shop.number("outbox") == 1
    assert (await shop.event_row(item))["attempts"] == 11


async def test_only_what_is_still_a_dead_letter_is_retried_as_one(
    shop: Stage, settler: Settler
) -> None:
    """OPS-5"""
    (item,) = await buried(shop, settler, "p")
    assert (await reprocessed(shop, item, only=EventStatus.DEAD_LETTER)).applied
    with pytest.raises(ConflictError, match="is PROCESSED"):
        await reprocessed(shop, item, only=EventStatus.DEAD_LETTER)
    with pytest.raises(NotFoundError):
        await reprocessed(shop, shop.paid("unknown"))


async def test_what_stands_in_the_queue_for_an_event_is_taken_with_it(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4 RET-4: nobody tries again what has been settled meanwhile."""
    item = shop.paid("p")
    await settler.settle([item])
    await shop.user("p@example.com")
    assert await shop.number("due") == 1
    again = await reprocessed(shop, item)
    assert (again.stored.status, again.becomes) == ("FAILED_RETRYABLE", "PROCESSED")
    assert await shop.number("due") == 0


async def test_an_event_whose_gateway_has_to_be_asked_is_asked_again(
    shop: Stage, gateway: Gateway
) -> None:
    """OPS-4 PRV-3: a final one too, outside of any transaction."""
    looking = await test_asking.with_sources(shop, looking=gateway.api)
    (item,) = await test_asking.stored(looking, "p")
    asker = Asker(looking.database, looking.rules, patience=test_asking.QUICK)
    assert await asker.run_once() == 1
    assert (await shop.event_row(item))["status"] == "PROCESSED"

    again = await reprocessed(looking, item)

    assert again.becomes == "VALIDATED"
    assert [row["lane"] for row in await test_asking.due_rows(shop)] == [1]
    assert await asker.run_once() == 1
    await asker.close()
    assert gateway.asked["p"] == 2
    row = await shop.event_row(item)
    assert (row["status"], row["attempts"]) == ("PROCESSED", 2)
    assert await shop.number("outbox") == 1


async def test_a_dry_run_asks_no_gateway(shop: Stage, gateway: Gateway) -> None:
    """OPS-4: such events are counted as ones that would be asked."""
    looking = await test_asking.with_sources(shop, looking=gateway.api)
    await test_asking.stored(looking, "p")
    seen = await run(looking, await begun(looking, EventFilter(source="looking"), dry=True))
    assert seen.counts == {"VALIDATED → would be asked": 1}
    assert not gateway.asked


async def test_handlers_are_called_as_ever_and_never_by_a_dry_run(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4 FUL-5: once for what is applied, in the transaction in which it is."""
    calls: list[str] = []

    async def handle(happened: Happened) -> None:
        calls.append(happened.name)
        await happened.connection.execute("INSERT INTO parcels VALUES (1)")

    await execute(shop, "CREATE TABLE parcels (number integer)")
    rules = replace(shop.rules, handlers=Handlers({Occasion.SUCCEEDED: (handle,)}))
    (item,) = await buried(shop, settler, "p")
    async with shop.database.connection() as connection:
        (seen,) = await Foresight(rules).look(connection, [item.event_id])
    assert (seen.fate, calls) == (Fate.HANDLED, [])
    assert (await reprocessed(shop, item, rules)).applied
    assert not (await reprocessed(shop, item, rules)).applied
    assert calls == ["payment.succeeded"]
    assert await shop.number("parcels") == 1


@pytest.mark.parametrize("how", ["one", "replay"])
async def test_a_handler_that_breaks_the_transaction_does_not_end_the_work(
    shop: Stage, settler: Settler, how: str
) -> None:
    """OPS-4 FUL-5: its event is held, and the others are done."""

    async def handle(happened: Happened) -> None:
        if happened.payment.email == "bad@example.com":
            await happened.connection.execute("ROLLBACK")

    rules = replace(shop.rules, handlers=Handlers({Occasion.SUCCEEDED: (handle,)}))
    items = await buried(shop, settler, "good", "bad", "fine")
    if how == "one":
        for item in items:
            await reprocessed(shop, item, rules)
    else:
        done = await run(shop, await begun(shop), rules=rules)
        assert done.counts == {
            "DEAD_LETTER → PROCESSED": 2,
            "DEAD_LETTER → FAILED_RETRYABLE": 1,
        }
    rows = [await shop.event_row(item) for item in items]
    assert [row["status"] for row in rows] == ["PROCESSED", "FAILED_RETRYABLE", "PROCESSED"]
    assert rows[1]["error_code"] == "HANDLER_FAILED"
    assert await shop.number("outbox") == 2


async def test_a_replayed_nonce_stays_refused(shop: Stage, settler: Settler) -> None:
    """OPS-4 SEC-3: and no more evidence of it is made."""
    source = replace(shop.source, provider=WithNonce())
    rules = replace(shop.rules, sources={source.id: source})
    shop = replace(shop, source=source, rules=rules)
    first, second = shop.paid("p", nonce="n"), shop.paid("q", nonce="n")
    await settler.settle([first])
    await settler.settle([second])
    with pytest.raises(StillRefusedError) as refused:
        await reprocessed(shop, second)
    assert refused.value.code == "REPLAYED_NONCE"
    assert await shop.number("webhook_events") == 2
    async with shop.database.connection() as connection:
        (seen,) = await Foresight(rules).look(connection, [second.event_id])
    assert (seen.fate, seen.code) == (Fate.REFUSED, "REPLAYED_NONCE")
    await execute(shop, "DELETE FROM nonces")
    again = await reprocessed(shop, second)
    assert again.event_id != second.event_id
    assert (await shop.payment("q"))["captured_minor"] == 99_000


async def test_an_event_that_the_database_refuses_is_put_off_like_any_other(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4 RET-1: it becomes a failure of ours, with attempts of its own again."""
    (item,) = await buried(shop, settler, "p")
    await execute(shop, "ALTER TABLE payments ADD CHECK (applied_at IS NULL) NOT VALID")
    again = await reprocessed(shop, item)
    assert (again.becomes, again.code) == ("FAILED_RETRYABLE", "INTERNAL")
    assert (await shop.one("SELECT attempt FROM due"))["attempt"] == 1
    entry = await shop.one("SELECT * FROM audit_log WHERE action = 'event_reprocessed'")
    assert not entry["success"]
    assert json.loads(entry["details"])["is"] == "FAILED_RETRYABLE"


async def test_slow_handlers_leave_connections_to_others(shop: Stage, settler: Settler) -> None:
    """OPS-4 FUL-5: however many operators wait for them."""
    called, may_end = asyncio.Event(), asyncio.Event()

    async def handle(happened: Happened) -> None:
        called.set()
        await may_end.wait()

    rules = replace(shop.rules, handlers=Handlers({Occasion.SUCCEEDED: (handle,)}, at_once=2))
    items = await buried(shop, settler, *(f"p-{number}" for number in range(POOL_SIZE)))
    reprocessor = Reprocessor(shop.database, rules)
    work = [asyncio.create_task(reprocessor.reprocess(item.event_id, "tester")) for item in items]
    async with asyncio.timeout(10):
        await called.wait()
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(4):
        for _ in range(POOL_SIZE):
            await stack.enter_async_context(shop.database.connection())
    may_end.set()
    assert all(one.applied for one in await asyncio.gather(*work))


async def test_a_slow_handler_that_breaks_its_transaction_is_recorded(
    shop: Stage, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-4 FUL-5: also when it took longer than an event that others hold is waited for."""
    monkeypatch.setattr(reprocessing, "PATIENCE_S", 0.5)

    async def handle(happened: Happened) -> None:
        await asyncio.sleep(0.6)
        await happened.connection.execute("ROLLBACK")

    rules = replace(shop.rules, handlers=Handlers({Occasion.SUCCEEDED: (handle,)}))
    (item,) = await buried(shop, settler, "p")
    again = await reprocessed(shop, item, rules)
    assert (again.becomes, again.code) == ("FAILED_RETRYABLE", "HANDLER_FAILED")
    assert (await shop.event_row(item))["status"] == "FAILED_RETRYABLE"


async def test_an_event_that_contests_its_payment_does_so_again(
    shop: Stage, settler: Settler
) -> None:
    """OPS-4 PAY-5: as long as nobody has said what the payment is for."""
    for email in ("a@example.com", "b@example.com"):
        await shop.user(email)
    first = shop.paid("p", email="a@example.com")
    other = shop.paid("p", email="b@example.com", key="other")
    await settler.settle([first])
    await settler.settle([other])
    again = await reprocessed(shop, other)
    assert (again.becomes, again.code) == ("FAILED_FINAL", "LINK_CONFLICT")
    assert not again.is_changed
    assert (await reprocessed(shop, first)).becomes == "PROCESSED"
