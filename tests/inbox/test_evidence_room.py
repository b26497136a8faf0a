"""How much of what is forged, or sent again, is kept: by the day, over all processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest
import pytest_asyncio
import structlog

from paidonce.core.events import SourceId
from paidonce.core.notifications import NotificationKind
from paidonce.errors import InvalidSignatureError, MalformedError, RejectedError
from paidonce.inbox.evidence import ROW_BYTES, EvidenceLimits
from paidonce.inbox.evidence_room import MB, PORTIONS, EvidenceRoom, Room
from paidonce.inbox.group import Group
from paidonce.inbox.intake import Intake
from paidonce.processing.items import Request, Result, ResultKind
from paidonce.providers.contract import Delivery, Identity
from paidonce.settings.sections import LimitsSettings
from tests.support.batches import Plain, Stage

SMALL: Final = LimitsSettings(evidence_strangers_mb=1, evidence_senders_mb=1)
ROUTES: Final = {NotificationKind.EVIDENCE: ("people",)}
GATEWAY: Final = "198.51.100.1"
BODY: Final = b"x" * 50_000

MakeDoor = Callable[[], Intake]


@dataclass(frozen=True)
class Signed(Plain):
    """A gateway whose signature is a word, and which signs a nonce where there is one."""

    def verify(self, delivery: Delivery) -> None:
        if delivery.headers.get("signature") != "right":
            raise InvalidSignatureError("the signature is not right")

    def identify(self, delivery: Delivery) -> Identity:
        return replace(super().identify(delivery), nonce=delivery.json.get("nonce"))


@pytest_asyncio.fixture(loop_scope="session")
async def make_door(shop: Stage) -> AsyncIterator[MakeDoor]:
    """Makes the door of one more process, whose only verified sender is the gateway."""
    groups: list[Group] = []

    def is_sender(address: str, source_id: SourceId) -> bool:
        return (address, source_id) == (GATEWAY, shop.source.id)

    def make() -> Intake:
        group = Group(shop.database, shop.rules, max_waiting=1_000)
        group.start()
        groups.append(group)
        source = replace(shop.source, provider=Signed())
        limits = EvidenceLimits(EvidenceRoom(shop.database, SMALL, ROUTES), is_sender)
        return Intake(group, shop.database, {source.name: source}, False, limits)

    yield make
    for group in groups:
        await group.stop()


async def deliver(door: Intake, body: bytes, signature: str, address: str = GATEWAY) -> Result:
    request = Request("request", address, time.monotonic())
    return await door.receive(door.sources["plain"], {"signature": signature}, body, request)


async def forge(door: Intake, times: int, address: str | None = None, body: bytes = BODY) -> None:
    """Each from an address of its own, unless one is given."""
    for number in range(times):
        with pytest.raises(InvalidSignatureError):
            await deliver(door, body, "wrong", address or f"2001:db8:{number:x}::1")


async def test_all_processes_share_the_room_of_a_day(shop: Stage, make_door: MakeDoor) -> None:
    """SEC-5: forged deliveries from many addresses; a restart frees nothing."""
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            await forge(make_door(), 20)
    size = await shop.one("SELECT sum(octet_length(raw_body)) AS bytes FROM webhook_events")
    room = await shop.one("SELECT room, taken, is_told FROM evidence_rooms")
    assert room["room"] == "strangers"
    assert MB * (1 - 2 / PORTIONS) - len(BODY) < size["bytes"] <= room["taken"] <= MB
    assert [one["setting"] for one in lines if one["event"] == "evidence_room_full"] == [
        "limits.evidence_strangers_mb"
    ], "it is told once"
    told = await shop.rows("SELECT kind FROM notifications")
    assert [one["kind"] for one in told] == ["evidence"]


async def test_a_new_day_has_room_again(shop: Stage) -> None:
    """SEC-5"""
    assert not await _filled(EvidenceRoom(shop.database, SMALL, ROUTES))
    async with shop.database.connection() as connection:
        await connection.execute("UPDATE evidence_rooms SET day = day - 1")
    assert await EvidenceRoom(shop.database, SMALL).take(Room.STRANGERS, 1)
    (row,) = await shop.rows("SELECT taken, is_told FROM evidence_rooms")
    assert (row["taken"] < MB / 2, row["is_told"]) == (True, False)
    assert not await _filled(EvidenceRoom(shop.database, SMALL, ROUTES))
    assert await shop.number("notifications") == 2


async def _filled(room: EvidenceRoom) -> bool:
    """Whether one more fits after as much as fits at the most."""
    for _ in range(MB // 1_000):
        await room.take(Room.STRANGERS, 1_000)
    return await room.take(Room.STRANGERS, 1_000)


async def test_strangers_do_not_push_out_the_evidence_of_a_verified_sender(
    shop: Stage, make_door: MakeDoor
) -> None:
    """SEC-5: what a gateway sends under a new secret, before it is configured here."""
    door = make_door()
    await forge(door, 30)
    before = await shop.number("webhook_events")
    await forge(door, 100, GATEWAY, b"{}")
    assert await shop.number("webhook_events") == before + 100, "nor has it a limit by the minute"
    await forge(door, 30, GATEWAY)
    kept = await shop.one(
        "SELECT sum(octet_length(raw_body) + $2::int) AS bytes FROM webhook_events"
        " WHERE remote_address = $1",
        GATEWAY,
        ROW_BYTES,
    )
    assert kept["bytes"] <= MB, "but it has one by the day"


async def test_headers_count_too(shop: Stage, make_door: MakeDoor) -> None:
    """SEC-5: a signature may be as long as a body."""

    @dataclass(frozen=True)
    class Verbose(Signed):
        def evidence_headers(self, headers: object) -> dict[str, str]:
            return {"signature": "x" * 60_000}

    door = make_door()
    source = door.sources["plain"]
    door.sources = {"plain": replace(source, provider=Verbose())}
    await forge(door, 40, body=b"{}")
    assert 0 < await shop.number("webhook_events") <= MB // 60_000


async def test_an_authentic_delivery_that_cannot_be_read_is_kept_once(
    shop: Stage, make_door: MakeDoor
) -> None:
    """SEC-5: whoever has captured it can send it for ever; each time it is refused and counted."""
    door = make_door()
    for _ in range(50):
        with pytest.raises(MalformedError):
            await deliver(door, b"not JSON", "right")
    assert await shop.number("webhook_events") == 1
    await door.dropped.write(shop.database)
    assert await _received(shop) == 50


async def test_a_conflict_that_is_sent_again_is_kept_once(shop: Stage, make_door: MakeDoor) -> None:
    """SEC-5 INB-2: another conflict of the same event is kept as well."""
    await shop.user("p@example.com")
    door = make_door()
    first = await deliver(door, shop.paid("p").delivery.body, "right")
    other = shop.paid("p", amount_minor=1).delivery.body
    found = await asyncio.gather(*(deliver(door, other, "right") for _ in range(10)))
    found += [await deliver(door, other, "right") for _ in range(40)]
    assert {one.kind for one in found} == {ResultKind.CONFLICT}
    kept = await shop.rows("SELECT id FROM webhook_events WHERE conflicts_with IS NOT NULL")
    assert len(kept) <= 10, "those that were under way together"
    assert {one.event_id for one in found} == {row["id"] for row in kept}
    await deliver(door, shop.paid("p", amount_minor=2).delivery.body, "right")
    assert await shop.number("webhook_events") == len(kept) + 2
    again = await deliver(door, shop.paid("p").delivery.body, "right")
    assert (again.kind, again.event_id) == (ResultKind.DUPLICATE, first.event_id)
    await door.dropped.write(shop.database)
    assert await _received(shop) == 53


async def test_a_replayed_nonce_is_kept_once(shop: Stage, make_door: MakeDoor) -> None:
    """SEC-5 SEC-3"""
    await shop.user("p@example.com")
    door = make_door()
    await deliver(door, shop.paid("p", nonce="n").delivery.body, "right")
    replay = shop.paid("q", nonce="n").delivery.body
    for _ in range(50):
        with pytest.raises(RejectedError) as refused:
            await deliver(door, replay, "right")
        assert refused.value.code == "REPLAYED_NONCE"
    assert await shop.number("webhook_events") == 2
    await door.dropped.write(shop.database)
    assert await _received(shop) == 51


async def _received(shop: Stage) -> int:
    row = await shop.one("SELECT sum(received) AS number FROM event_count_deltas")
    return int(row["number"])
