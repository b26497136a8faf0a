"""The engine's door: what is not authentic leaves a trace of bounded size, and nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import pytest_asyncio

from paidonce.bootstrap.services import Services
from paidonce.errors import InvalidSignatureError, MalformedError, RejectedError
from paidonce.inbox import evidence
from paidonce.inbox.evidence import MAX_EVIDENCE_PER_ADDRESS
from paidonce.inbox.group import Group
from paidonce.inbox.intake import Intake
from paidonce.processing.items import Request, Result, ResultKind
from paidonce.providers.contract import Delivery
from tests.support.batches import Plain, Stage


@dataclass(frozen=True)
class Signed(Plain):
    """A gateway whose signature is a word."""

    def verify(self, delivery: Delivery) -> None:
        if delivery.headers.get("signature") != "right":
            raise InvalidSignatureError("the signature is not right")


@pytest_asyncio.fixture(loop_scope="session")
async def door(shop: Stage) -> AsyncIterator[Intake]:
    """An intake with one source."""
    group = Group(shop.database, shop.rules, max_waiting=1_000)
    group.start()
    source = replace(shop.source, provider=Signed())
    yield Intake(group, shop.database, {source.name: source}, is_queued=False)
    await group.stop()


async def deliver(door: Intake, body: bytes, signature: str) -> Result:
    request = Request("request", "192.0.2.1", time.monotonic())
    return await door.receive(door.sources["plain"], {"signature": signature}, body, request)


async def test_a_forged_delivery_claims_no_key(shop: Stage, door: Intake) -> None:
    """SEC-5: the real one is not its duplicate."""
    await shop.user("p@example.com")
    body = shop.paid("p").delivery.body
    with pytest.raises(InvalidSignatureError):
        await deliver(door, body, "wrong")
    result = await deliver(door, body, "right")
    assert result.kind is ResultKind.PROCESSED
    rows = await shop.rows("SELECT status, signature_valid FROM webhook_events ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [("FAILED_FINAL", False), ("PROCESSED", True)]


async def test_a_flood_of_forgeries_leaves_bounded_evidence(
    shop: Stage, door: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-5: all of it is refused, whether it is kept or not."""
    monkeypatch.setattr(evidence, "time", SimpleNamespace(monotonic=lambda: 0.0))
    body = shop.paid("p").delivery.body
    flood = [deliver(door, body, "wrong") for _ in range(MAX_EVIDENCE_PER_ADDRESS + 20)]
    answers = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(answer) for answer in answers} == {InvalidSignatureError}
    assert await shop.number("webhook_events") == MAX_EVIDENCE_PER_ADDRESS


async def test_what_is_dropped_of_a_flood_is_counted_all_the_same(
    shop: Stage, door: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-1 SEC-5: received and rejected, in one row every few seconds."""
    monkeypatch.setattr(evidence, "time", SimpleNamespace(monotonic=lambda: 0.0))
    body = shop.paid("p").delivery.body
    flood = [deliver(door, body, "wrong") for _ in range(MAX_EVIDENCE_PER_ADDRESS + 20)]
    await asyncio.gather(*flood, return_exceptions=True)
    rows = await shop.number("event_count_deltas")
    await door.dropped.write(shop.database)
    await door.dropped.write(shop.database)
    assert await shop.number("event_count_deltas") == rows + 1
    told = await Services(shop.database, shop.rules).statistics.report()
    assert (told.received, told.rejected, told.failed) == (len(flood), len(flood), 0)


@dataclass(frozen=True)
class Broken(Signed):
    """A reader with faults of its own."""

    def verify(self, delivery: Delivery) -> None:
        if b"unverifiable" in delivery.body:
            raise RuntimeError("a fault of ours")
        super().verify(delivery)


@pytest.mark.parametrize(
    ("body", "refusal", "is_authentic"),
    [(b"unverifiable", InvalidSignatureError, False), (b"not JSON", MalformedError, True)],
)
async def test_a_fault_in_reading_a_delivery_refuses_it_and_keeps_it(
    shop: Stage, door: Intake, body: bytes, refusal: type[RejectedError], is_authentic: bool
) -> None:
    """REC-6: nothing in a body is a way to a 5xx, whatever a provider makes of it."""
    source = replace(shop.source, provider=Broken())
    request = Request("request", "192.0.2.1", time.monotonic())
    with pytest.raises(refusal):
        await door.receive(source, {"signature": "right"}, body, request)
    row = await shop.one("SELECT status, error_code, signature_valid, raw_body FROM webhook_events")
    assert tuple(row.values()) == ("FAILED_FINAL", refusal.code, is_authentic, body)


@dataclass(frozen=True)
class Unsigned(Plain):
    """A gateway that signs nothing, so that anybody can be it."""

    is_signed: ClassVar = False


async def test_what_anybody_can_send_leaves_no_more_evidence_than_forgeries(
    shop: Stage, door: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-5"""
    monkeypatch.setattr(evidence, "time", SimpleNamespace(monotonic=lambda: 0.0))
    source = replace(shop.source, provider=Unsigned())
    request = Request("request", "192.0.2.1", 0.0)
    flood = [
        door.receive(source, {}, b"not JSON", request) for _ in range(MAX_EVIDENCE_PER_ADDRESS + 20)
    ]
    assert len(await asyncio.gather(*flood, return_exceptions=True)) > MAX_EVIDENCE_PER_ADDRESS
    assert await shop.number("webhook_events") == MAX_EVIDENCE_PER_ADDRESS
    assert await shop.rows("SELECT 1 FROM webhook_events WHERE signature_valid") == []
