"""The engine's door for gateways that can be asked, and for those that ask us."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import pytest
import pytest_asyncio

from paidonce.bootstrap.services import Services
from paidonce.errors import (
    DatabaseUnavailableError,
    MalformedError,
    NotApprovedError,
    RejectedError,
    ReplayedNonceError,
    TimestampExpiredError,
)
from paidonce.inbox import intake
from paidonce.inbox.group import Group
from paidonce.inbox.intake import Intake
from paidonce.lookup.worker import LookupWorker
from paidonce.processing.items import QueueName, Request, Result, ResultKind
from paidonce.providers.contract import Delivery
from paidonce.queue.worker import Worker
from tests.lookup.test_lookup import QUICK, applied, with_sources
from tests.support.batches import Stage
from tests.support.lookup_gateway import SIGNED, Gateway, Looking, gateway_running, looks

ORDER: Final = """
INSERT INTO orders (id, reference, kind, status, amount_minor, currency, request_hash, version,
                    sources)
VALUES ($1, $2, 'order', $3, $4, 'RUB', '', 1, $5)
"""


@dataclass(frozen=True)
class Door:
    """An intake whose only source says only "look", and whoever asks."""

    intake: Intake
    stage: Stage
    asker: LookupWorker
    gateway: Gateway

    async def deliver(self, payment: str, **said: Any) -> Result:
        request = Request("request", "192.0.2.1", time.monotonic())
        source = self.stage.source
        return await self.intake.receive(source, SIGNED, looks(payment, **said), request)

    async def events(self) -> list[tuple[Any, ...]]:
        """Key, status and code of all that is kept."""
        rows = await self.stage.rows(
            "SELECT key, status, error_code FROM webhook_events ORDER BY key NULLS FIRST, id"
        )
        return [tuple(row.values()) for row in rows]

    async def order(
        self, reference: str, status: str, amount_minor: int, sources: list[int] | None = None
    ) -> None:
        async with self.stage.database.connection() as connection:
            await connection.execute(ORDER, uuid4(), reference, status, amount_minor, sources)


async def opened(stage: Stage, gateway: Gateway, is_queued: bool) -> AsyncIterator[Door]:
    group = Group(stage.database, stage.rules, max_waiting=1_000)
    group.start()
    sources = {stage.source.name: stage.source}
    asker = LookupWorker(stage.database, stage.rules, timeouts=QUICK)
    yield Door(Intake(group, stage.database, sources, is_queued), stage, asker, gateway)
    await asker.close()
    await group.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[Gateway]:
    async with gateway_running() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session", params=[False, True], ids=["inline", "queued"])
async def door(
    request: pytest.FixtureRequest, shop: Stage, gateway: Gateway
) -> AsyncIterator[Door]:
    stage = await with_sources(shop, looking=gateway.api)
    await stage.user("p@example.com")
    async for one in opened(stage, gateway, request.param):
        yield one


async def test_what_says_only_look_is_stored_to_be_asked(door: Door) -> None:
    """REC-4: whatever the mode; nobody waits for the gateway."""
    result = await door.deliver("p")
    assert result.kind is ResultKind.ACCEPTED
    assert not door.gateway.asked
    row = await door.stage.one("SELECT queue_name, run_at <= now() AS now FROM event_queue")
    assert tuple(row.values()) == (QueueName.LOOKUP, True)


async def test_a_repeated_look_is_a_fresh_one_but_not_too_often(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INB-2: answered as the duplicate that it is."""
    monkeypatch.setattr(intake, "LOOK_AGAIN_S", 10**9)
    first = await door.deliver("p")
    assert await door.asker.run_once() == 1
    for _ in range(3):
        result = await door.deliver("p")
        assert (result.kind, result.event_id) == (ResultKind.DUPLICATE, first.event_id)
        await door.asker.run_once()
    assert door.gateway.asked == {"p": 2}
    keys = [key.split(":")[0] for key, status, _ in await door.events() if status == "PROCESSED"]
    assert keys == ["look", "p"]
    assert await applied(door.stage) == await door.stage.number("outbox") == 1


async def test_what_is_stale_is_refused_and_asked_for_all_the_same(door: Door) -> None:
    """PRV-8: an outage must not cost a payment; what the gateway itself says is not stale."""
    with pytest.raises(TimestampExpiredError):
        await door.deliver("p", stale=True)
    assert await door.asker.run_once() == 1
    (evidence, event) = await door.events()
    assert evidence == (None, "FAILED_FINAL", "TIMESTAMP_EXPIRED")
    assert event[0].startswith("expired:")
    assert event[1:] == ("PROCESSED", None)
    assert await applied(door.stage) == 1


async def test_a_delivery_of_which_two_events_are_made_is_counted_once(door: Door) -> None:
    """OPS-1: received once; each of the events counts when it ends."""
    with pytest.raises(TimestampExpiredError):
        await door.deliver("p", stale=True)
    await door.deliver("q")
    await door.deliver("q")
    told = await Services(door.stage.database, door.stage.rules).statistics.report()
    assert (told.received, told.duplicates, told.failed) == (3, 1, 1)
    assert told.waiting == await door.stage.number("event_queue")


async def test_what_is_stale_stands_for_nothing_that_comes_in_time(door: Door) -> None:
    """PRV-8: it claims no key of the gateway's, and no nonce."""
    with pytest.raises(TimestampExpiredError):
        await door.deliver("p", stale=True, key="k", nonce="n")
    assert await door.stage.number("nonces") == 0
    assert (await door.deliver("p", key="k", nonce="n")).kind is ResultKind.ACCEPTED


async def test_what_is_stale_is_asked_for_once_however_often_it_comes(door: Door) -> None:
    """PRV-8 SEC-5: whoever has captured one can send it for ever."""
    for _ in range(5):
        with pytest.raises(TimestampExpiredError):
            await door.deliver("p", stale=True)
        await door.asker.run_once()
    assert door.gateway.asked == {"p": 1}
    assert len(await door.events()) == 2


async def test_what_is_stale_and_cannot_be_asked_is_only_evidence(door: Door) -> None:
    """PRV-8"""
    with pytest.raises(TimestampExpiredError):
        await door.deliver("p", stale=True, event_type="nothing")
    with pytest.raises(TimestampExpiredError):
        await door.deliver("p", stale=True, confirm=1)
    assert {event[2] for event in await door.events()} == {"TIMESTAMP_EXPIRED"}
    assert await door.stage.number("event_keys") == 0


async def test_what_is_stale_and_could_not_be_stored_may_come_again(door: Door) -> None:
    """PRV-8: whoever sends it is told to."""
    door.intake._group._is_closed = True
    with pytest.raises(DatabaseUnavailableError):
        await door.deliver("p", stale=True)
    door.intake._group._is_closed = False
    with pytest.raises(TimestampExpiredError):
        await door.deliver("p", stale=True)
    assert len(await door.events()) == 2


@pytest.mark.parametrize(
    ("status", "amount_minor", "sources", "is_approved"),
    [
        ("PENDING", 500, None, True),
        ("PENDING", 500, "ours", True),
        ("PENDING", 500, "others", False),
        ("PENDING", 501, None, False),
        ("PENDING", 499, None, False),
        ("PAID", 500, None, False),
        ("CANCELED", 500, None, False),
        (None, 500, None, False),
    ],
    ids=[
        "as ordered", "from us", "from others", "less", "more", "paid", "canceled", "no order"
    ],
)  # fmt: skip
async def test_a_payment_is_approved_if_an_order_waits_for_it(
    door: Door, status: str | None, amount_minor: int, sources: str | None, is_approved: bool
) -> None:
    """PRV-3: never by accident."""
    source_id = door.stage.source.id
    named = None if sources is None else [source_id if sources == "ours" else source_id + 1]
    if status == "PAID":
        await door.order("o", "PENDING", amount_minor)
        async with door.stage.database.connection() as connection:
            await connection.execute(
                "UPDATE orders SET status = 'PAID', paid_at = now(),"
                " applied_payment_id = gen_random_uuid()"
            )
    elif status is not None:
        await door.order("o", status, amount_minor, named)
    await door.order("other", "PENDING", 500)
    if is_approved:
        result = await door.deliver("o", confirm=500)
        assert result.kind in (ResultKind.IGNORED, ResultKind.ACCEPTED)
        return
    with pytest.raises(NotApprovedError):
        await door.deliver("o", confirm=500)
    assert await door.events() == [(None, "FAILED_FINAL", "NOT_APPROVED")]


async def test_an_approval_is_kept_and_says_so(door: Door) -> None:
    """PRV-3: in every mode, once."""
    await door.order("o", "PENDING", 500)
    await door.deliver("o", confirm=500)
    worker = Worker(door.stage.database, door.stage.rules)
    await worker.run_once()
    await worker.close()
    row = await door.stage.one("SELECT status, error_message FROM webhook_events")
    assert row["status"] == "IGNORED"
    assert "approved" in row["error_message"]
    assert await door.stage.number("payments") == 0


async def test_a_repeated_question_is_answered_anew(door: Door) -> None:
    """PRV-3: what was approved once may not be any more."""
    await door.order("o", "PENDING", 500)
    await door.deliver("o", confirm=500)
    assert (await door.deliver("o", confirm=500)).kind is ResultKind.DUPLICATE
    async with door.stage.database.connection() as connection:
        await connection.execute("UPDATE orders SET status = 'CANCELED'")
    with pytest.raises(NotApprovedError):
        await door.deliver("o", confirm=500)


async def test_nothing_is_approved_while_the_database_is_away(door: Door) -> None:
    """PRV-3 REC-5: nor refused; whoever asked has to ask again."""
    await door.order("o", "PENDING", 500)
    pool = door.stage.database.pool
    held = [await pool.acquire() for _ in range(pool.get_max_size())]
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("paidonce.db.pool.CONNECT_TIMEOUT_S", 0.05)
            with pytest.raises(DatabaseUnavailableError):
                await door.deliver("o", confirm=500)
    finally:
        for connection in held:
            await pool.release(connection)
    assert await door.events() == []


async def test_a_replayed_nonce_is_refused_at_the_door(door: Door) -> None:
    """SEC-3: the same again is not."""
    await door.deliver("p", nonce="n")
    with pytest.raises(ReplayedNonceError):
        await door.deliver("q", nonce="n")
    assert (await door.deliver("p", nonce="n")).kind is ResultKind.DUPLICATE
    assert (None, "FAILED_FINAL", "REPLAYED_NONCE") in await door.events()


async def test_deliveries_with_one_nonce_at_the_same_time_are_told_apart(door: Door) -> None:
    """SEC-3: one of them is accepted."""
    storm = [door.deliver(f"p-{number}", nonce="n") for number in range(10)]
    done = await asyncio.gather(*storm, return_exceptions=True)
    accepted = [one for one in done if isinstance(one, Result)]
    assert [one.kind for one in accepted] == [ResultKind.ACCEPTED]
    assert len([one for one in done if isinstance(one, ReplayedNonceError)]) == 9


@dataclass(frozen=True)
class Broken(Looking):
    """It cannot even say what stale deliveries are."""

    def translate(self, delivery: Delivery) -> Any:
        raise self._error(delivery)

    @staticmethod
    def _error(delivery: Delivery) -> Exception:
        return RuntimeError() if delivery.json.get("fault") else MalformedError("no")


@pytest.mark.parametrize("fault", [True, False])
async def test_what_is_stale_and_cannot_be_read_is_refused_as_stale(
    door: Door, fault: bool
) -> None:
    """PRV-8 REC-6"""
    broken = replace(door.stage.source, provider=Broken(door.gateway.api))
    door = replace(door, stage=replace(door.stage, source=broken))
    with pytest.raises(RejectedError) as caught:
        await door.deliver("p", stale=True, fault=fault)
    assert isinstance(caught.value, TimestampExpiredError)
