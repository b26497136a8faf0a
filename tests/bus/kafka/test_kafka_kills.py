"""A broker that is killed, frozen and started again, with messages on their way."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

import pytest

from paidonce.bus.consumer import Consumer
from paidonce.bus.kafka import publisher
from paidonce.bus.kafka.bus import KafkaBus
from paidonce.bus.model import Message
from paidonce.bus.relay import Relay
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import BusUnavailableError
from paidonce.runtime.leader import Leader
from tests.bus.conftest import GROUP, OpenBus
from tests.bus.reading import first_copies, lives, read, until, versions_by_key
from tests.bus.traffic import change, check, follow, followed, prepare
from tests.support.kafka import OwnBroker

BATCH: Final = 20
CHANGES: Final = 400
KEYS: Final = [f"thing-{number}" for number in range(10)]


@pytest.mark.parametrize("patience_s", [2.0, 30.0], ids=["gives up", "waits"])
async def test_a_killed_broker_loses_nothing_and_keeps_the_order(
    open_bus: OpenBus,
    own_broker: OwnBroker,
    about: str,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    patience_s: float,
) -> None:
    """BUS-1 REL-1: while a relay writes to it and a consumer reads from it."""
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT_S", patience_s)
    await prepare(database, KEYS)
    relay = Relay(open_bus(), Leader(database), max_batch=BATCH)
    consumer = follower(open_bus(), database, about)
    loops = [asyncio.create_task(one.run()) for one in (relay, consumer)]
    kills = 10 if request.config.getoption("--soak") else 1
    for number in range(kills):
        writing = asyncio.create_task(write(database, about, seed=number))
        await until_followed(database, number * CHANGES + CHANGES // 4)
        await asyncio.to_thread(own_broker.kill)
        await writing
        await asyncio.to_thread(own_broker.start)
        await until_followed(database, (number + 1) * CHANGES)
    for one in (relay, consumer):
        one.finish()
    await asyncio.wait(loops)
    await check(database, [GROUP])


async def test_a_relay_notices_an_unavailable_broker_and_continues_later(
    bus: KafkaBus,
    own_broker: OwnBroker,
    about: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BUS-1: nothing may be marked as published that is not."""
    sent = lives(about, keys=2, versions=2)
    await bus.publish(sent[:2])
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT_S", 2.0)
    await asyncio.to_thread(own_broker.kill)
    try:
        with pytest.raises(BusUnavailableError):
            await bus.publish(sent[2:])
    finally:
        await asyncio.to_thread(own_broker.start)

    async def is_safe() -> bool:
        await bus.publish(sent[2:])
        return True

    await until(is_safe)
    reader = bus.reader(GROUP, [about])
    got = await read(reader, connection, 4)
    await reader.close()
    assert versions_by_key(first_copies(got)) == versions_by_key(sent)


async def test_a_broker_that_does_not_answer_does_not_block_the_event_loop(
    bus: KafkaBus, own_broker: OwnBroker, about: str, connection: Connection
) -> None:
    """BUS-1"""
    sent = lives(about, keys=2, versions=2)
    await bus.publish(sent[:2])
    own_broker.freeze()
    try:
        publishing = asyncio.create_task(bus.publish(sent[2:]))
        longest_s = await longest_pause(50)
        assert not publishing.done()
    finally:
        own_broker.thaw()
    await publishing
    assert longest_s < 1.0, "a broker's silence is much longer than that"


async def test_cancelling_a_publish_or_a_fetch_returns_at_once(
    bus: KafkaBus, own_broker: OwnBroker, about: str, connection: Connection
) -> None:
    """BUS-1: a stopping process does not wait for an unavailable broker."""
    sent = lives(about, keys=2, versions=2)
    await bus.publish(sent[:2])
    reader = bus.reader(GROUP, [about])
    await read(reader, connection, 2)
    own_broker.freeze()
    try:
        begun_s = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await bus.publish(sent[2:])
        await bus.close()
        await reader.close()
        assert time.monotonic() - begun_s < publisher.PUBLISH_TIMEOUT_S
    finally:
        own_broker.thaw()


def follower(bus: KafkaBus, database: Database, about: str) -> Consumer:
    async def consume(connection: Connection, messages: Sequence[Message]) -> None:
        await follow(connection, messages, GROUP)

    return Consumer(
        bus, database, name=GROUP, aggregate_types=[about], consume=consume, max_batch=BATCH
    )


async def write(database: Database, about: str, seed: int) -> None:
    """Change things so many times, one after the other."""
    dice = random.Random(seed)
    for _ in range(CHANGES):
        async with database.transaction() as connection:
            await change(connection, dice.choice(KEYS), about=about)


async def until_followed(database: Database, number: int) -> None:
    async def is_followed() -> bool:
        return len(await followed(database, GROUP)) >= number

    await until(is_followed)


async def longest_pause(turns: int) -> float:
    """How long the loop let somebody wait at most who wants to go on every 10 ms."""
    longest_s = 0.0
    for _ in range(turns):
        begun_s = time.monotonic()
        await asyncio.sleep(0.01)
        longest_s = max(longest_s, time.monotonic() - begun_s)
    return longest_s
