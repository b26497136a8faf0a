"""Unsigned deliveries: who is looked up first, and how much of one sender waits (SEC-12)."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final
from uuid import uuid4

import pytest
import pytest_asyncio

from paidonce.core.events import EventId, SourceId
from paidonce.errors import SenderQueueFullError
from paidonce.inbox.group import Group
from paidonce.inbox.intake import Intake
from paidonce.lookup.places import Found, Places
from paidonce.lookup.worker import LookupWorker
from paidonce.processing.items import Request, Result
from paidonce.processing.waiting import Lane
from paidonce.providers.contract import Delivery, Identity, fingerprint
from paidonce.queue.senders import (
    MAX_OF_STRANGER,
    MAX_OF_SUBJECT,
    MAX_WRONG,
    MAX_WRONG_PROVEN,
    SPACING_S,
)
from tests.lookup.test_lookup import QUICK, with_sources
from tests.support.batches import Stage
from tests.support.lookup_gateway import SIGNED, Gateway, Looking, gateway_running, looks, tells

GATEWAY: Final = "198.51.100.7"
ATTACKER: Final = "192.0.2.1"
ORDER: Final = """
INSERT INTO orders (id, reference, kind, status, amount_minor, currency, request_hash, version)
VALUES ($1, $2, 'order', 'PENDING', 500, 'RUB', '', 1)
"""
NOW: Final = "UPDATE event_queue SET run_at = now()"


@dataclass(frozen=True)
class Unsigned(Looking):
    """What anybody can send."""

    is_signed: ClassVar = False

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.json
        names = (said["payment"], said.get("event_type"), said.get("order"))
        key = ":".join(map(str, names))
        return Identity(key, fingerprint(*names), "look", None, said["payment"], order=names[2])


@dataclass(frozen=True)
class Door:
    """An intake whose source signs nothing, and who asks its gateway."""

    intake: Intake
    stage: Stage
    asker: LookupWorker
    gateway: Gateway

    async def deliver(self, payment: str, address: str | None, **said: Any) -> Result:
        request = Request("request", address, time.monotonic())
        body = looks(payment, **said)
        return await self.intake.receive(self.stage.source, SIGNED, body, request)

    async def order(self, reference: str) -> None:
        async with self.stage.database.connection() as connection:
            await connection.execute(ORDER, uuid4(), reference)

    async def lane(self, result: Result) -> Lane:
        row = await self.stage.one(
            "SELECT lane FROM event_queue WHERE event_id = $1", result.event_id
        )
        return Lane(row["lane"])

    async def look_up_all(self) -> None:
        async with self.stage.database.connection() as connection:
            await connection.execute(NOW)
        while await self.asker.run_once():
            pass

    async def prove(self, address: str, payment: str = "proof") -> None:
        """Let the gateway confirm news from this sender."""
        await self.stage.user(f"{payment}@example.com")
        await self.deliver(payment, address)
        await self.look_up_all()

    async def invent(self, address: str, number: int) -> None:
        """Deliver ids that the gateway does not know."""
        for _ in range(number):
            name = f"invented-{uuid4().hex}"
            self.gateway.scripts[name] = unknown
            await self.deliver(name, address)
        await self.look_up_all()


async def unknown(_: Any) -> Any:
    return tells("other", may_pass=False)


@pytest_asyncio.fixture(loop_scope="session")
async def door(shop: Stage) -> AsyncIterator[Door]:
    async with gateway_running() as gateway:
        stage = await with_sources(shop, looking=gateway.api)
        source = replace(stage.source, provider=Unsigned(gateway.api))
        rules = replace(stage.rules, sources={source.id: source})
        stage = replace(stage, rules=rules, source=source)
        group = Group(stage.database, rules, max_waiting=1_000)
        group.start()
        asker = LookupWorker(stage.database, rules, timeouts=QUICK)
        intake = Intake(group, stage.database, {source.name: source}, False)
        yield Door(intake, stage, asker, gateway)
        await asker.close()
        await group.stop()


async def test_what_exists_and_proven_senders_go_before_strangers(door: Door) -> None:
    """SEC-12: in this order, and decided when it is queued."""
    await door.order("o-1")
    known = await door.deliver("p-1", GATEWAY, order="o-1")
    assert await door.lane(known) is Lane.KNOWN
    assert await door.lane(await door.deliver("p-2", GATEWAY)) is Lane.STRANGER
    await door.prove(GATEWAY)
    assert await door.lane(await door.deliver("p-3", GATEWAY)) is Lane.PROVEN
    assert await door.lane(await door.deliver("p-4", GATEWAY, order="o-1")) is Lane.FIRST
    again = await door.deliver("proof", ATTACKER, event_type="canceled")
    assert await door.lane(again) is Lane.KNOWN, "its payment exists"


async def test_an_honest_payment_waits_for_no_invented_one(door: Door) -> None:
    """SEC-12: whatever number came before it."""
    await door.prove(GATEWAY)
    for number in range(40):
        name = f"invented-{number}"
        door.gateway.scripts[name] = unknown
        await door.deliver(name, f"192.0.2.{number}")
    await door.order("o-1")
    await door.stage.user("p@example.com")
    honest = await door.deliver("p", GATEWAY, order="o-1")
    async with door.stage.database.connection() as connection:
        await connection.execute(NOW)
    await door.asker.run_once()
    row = await door.stage.one("SELECT status FROM webhook_events WHERE id = $1", honest.event_id)
    assert row["status"] != "VALIDATED"
    assert len([name for name in door.gateway.asked if name.startswith("invented")]) == 4


async def test_of_one_stranger_only_so_much_waits(door: Door) -> None:
    """SEC-12 SEC-8: nothing of the rest is stored; others are not affected."""
    for number in range(MAX_OF_STRANGER):
        await door.deliver(f"p-{number}", ATTACKER)
    with pytest.raises(SenderQueueFullError):
        await door.deliver("one-more", ATTACKER)
    assert await door.stage.number("webhook_events") == MAX_OF_STRANGER
    await door.deliver("other", "203.0.113.5")
    await door.order("o-1")
    await door.deliver("paid", ATTACKER, order="o-1")  # behind the same proxy


async def test_concurrent_deliveries_do_not_exceed_the_limit(door: Door) -> None:
    """SEC-12"""
    found = await asyncio.gather(
        *(door.deliver(f"p-{number}", ATTACKER) for number in range(2 * MAX_OF_STRANGER)),
        return_exceptions=True,
    )
    refused = sum(isinstance(one, SenderQueueFullError) for one in found)
    stored = await door.stage.number("event_queue")
    assert refused + stored == 2 * MAX_OF_STRANGER
    assert MAX_OF_STRANGER // 2 <= stored <= MAX_OF_STRANGER


async def test_a_proven_sender_is_not_cut_off(door: Door) -> None:
    """SEC-12: the gateway itself, after an outage of its API."""
    await door.prove(GATEWAY)
    for number in range(MAX_OF_STRANGER + 5):
        await door.deliver(f"p-{number}", GATEWAY)
    row = await door.stage.one("SELECT count(*) AS n, max(run_at) <= now() AS d FROM event_queue")
    assert tuple(row.values()) == (MAX_OF_STRANGER + 5, True)


async def test_listed_senders_are_proven(door: Door) -> None:
    """SEC-12 SEC-2: nobody else can deliver to the source."""
    source = replace(door.stage.source, is_restricted=True)
    request = Request("request", GATEWAY, time.monotonic())
    result = await door.intake.receive(source, SIGNED, looks("p"), request)
    assert await door.lane(result) is Lane.PROVEN


async def test_a_network_is_one_sender(door: Door) -> None:
    """SEC-12: the /64 of an IPv6 address; and a Unix socket is one, too."""
    for number in range(MAX_OF_STRANGER):
        await door.deliver(f"p-{number}", f"2001:db8:1:2::{number:x}")
    with pytest.raises(SenderQueueFullError):
        await door.deliver("one-more", "2001:db8:1:2:ffff::1")
    await door.deliver("other", "2001:db8:1:3::1")
    await door.deliver("socket", None)


async def test_what_one_stranger_sends_is_due_one_after_the_other(door: Door) -> None:
    """SEC-12: so that it does not go before what others send later."""
    for number in range(5):
        await door.deliver(f"p-{number}", ATTACKER)
    await door.deliver("other", "203.0.113.5")
    rows = await door.stage.rows(
        "SELECT extract(epoch FROM run_at - min(run_at) OVER ())::float8 AS s, sender"
        " FROM event_queue ORDER BY run_at"
    )
    assert [row["sender"] for row in rows].index("203.0.113.5") <= 4
    waits_s = [row["s"] for row in rows if row["sender"] == ATTACKER]
    assert all(SPACING_S * number - 0.01 <= wait_s for number, wait_s in enumerate(waits_s))


async def test_invented_ids_count_against_their_sender(door: Door) -> None:
    """SEC-12: it is a stranger then, whatever it names, until the gateway confirms news from it."""
    await door.order("o-1")
    await door.invent(ATTACKER, MAX_WRONG)
    assert await door.lane(await door.deliver("p-1", ATTACKER, order="o-1")) is Lane.STRANGER
    assert await door.lane(await door.deliver("p-2", GATEWAY, order="o-1")) is Lane.KNOWN
    await door.prove(ATTACKER)
    assert await door.lane(await door.deliver("p-3", ATTACKER, order="o-1")) is Lane.FIRST


async def test_who_paid_once_cannot_invent_without_end(door: Door) -> None:
    """SEC-12: and a payment that is known already proves nothing."""
    await door.prove(ATTACKER)
    await door.invent(ATTACKER, MAX_WRONG_PROVEN)
    await door.deliver("proof", ATTACKER, event_type="refunded")
    await door.look_up_all()
    assert await door.lane(await door.deliver("p-2", ATTACKER)) is Lane.STRANGER


async def test_one_order_makes_only_a_few_deliveries_known(door: Door) -> None:
    """SEC-12: somebody has ordered, and invents payments of it from many addresses."""
    await door.order("o-1")
    lanes = [
        await door.lane(await door.deliver(f"p-{number}", f"192.0.2.{number}", order="o-1"))
        for number in range(MAX_OF_SUBJECT + 3)
    ]
    assert lanes == [Lane.KNOWN] * MAX_OF_SUBJECT + [Lane.STRANGER] * 3


async def test_strangers_who_name_an_order_do_not_hold_up_its_gateway(door: Door) -> None:
    """SEC-12: references can be guessed, and what strangers may send of one is used up at once."""
    await door.prove(GATEWAY)
    await door.order("o-1")
    for number in range(MAX_OF_SUBJECT):
        await door.deliver(f"invented-{number}", f"192.0.2.{number}", order="o-1")
    lanes = [
        await door.lane(await door.deliver(f"real-{number}", GATEWAY, order="o-1"))
        for number in range(MAX_OF_SUBJECT + 2)
    ]
    assert lanes == [Lane.FIRST] * MAX_OF_SUBJECT + [Lane.PROVEN] * 2


async def test_what_waits_among_strangers_takes_no_place_of_an_order(door: Door) -> None:
    """SEC-12: there it waits for long, and whoever is known after it must not."""
    await door.invent(ATTACKER, MAX_WRONG)
    await door.order("o-1")
    for number in range(MAX_OF_SUBJECT):
        parked = await door.deliver(f"parked-{number}", ATTACKER, order="o-1")
        assert await door.lane(parked) is Lane.STRANGER
    assert await door.lane(await door.deliver("real", GATEWAY, order="o-1")) is Lane.KNOWN


async def test_a_redelivery_keeps_the_lane(door: Door) -> None:
    """SEC-12 REC-7"""
    await door.deliver("p", ATTACKER)
    async with door.stage.database.connection() as connection:
        await connection.execute("UPDATE event_queue SET run_at = now() + interval '1 hour'")
    await door.deliver("p", ATTACKER)
    rows = await door.stage.rows("SELECT DISTINCT lane, sender FROM event_queue")
    assert [tuple(row.values()) for row in rows] == [(Lane.STRANGER, ATTACKER)]


def found(lane: Lane, source: int = 1) -> Found:
    return Found(SourceId(source), EventId(uuid4()), lane)


def test_neither_strangers_nor_others_take_all_places() -> None:
    """SEC-12 RET-1"""
    strangers = [found(Lane.STRANGER) for _ in range(20)]
    honest = [found(Lane.FIRST) for _ in range(20)]
    room = {SourceId(1): 8}
    alone = Places(8).choose(strangers, room)
    assert len(alone) == 4
    both = Places(8).choose(honest + strangers, room)
    assert sorted(one.lane for one in both) == [Lane.FIRST] * 7 + [Lane.STRANGER]
    assert len(Places(8).choose(honest, room)) == 8
    after_failure = Places(8).choose(honest + strangers, {SourceId(1): 1})
    assert [one.lane for one in after_failure] == [Lane.FIRST]
    assert len(Places(1).choose(strangers, {SourceId(1): 1})) == 1
