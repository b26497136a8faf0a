"""A broker that is killed, frozen and started again, with messages on their way."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import pytest

from paidonce.bus import kafka_publisher
from paidonce.bus.kafka import KafkaBus
from paidonce.bus.messages import Message
from paidonce.errors import BusAwayError
from paidonce.store.queries import Connection
from tests.brokers.kafka import OwnBroker
from tests.bus.conftest import GROUP, OpenBus
from tests.bus.reading import first_copies, lives, read, until, versions_by_key

BATCH: Final = 50


async def publish_like_a_relay(bus: KafkaBus, messages: Sequence[Message]) -> int:
    """Batch after batch, each until it is safe; returns how often the bus was away."""
    failures = 0
    for begin in range(0, len(messages), BATCH):

        async def is_safe(batch: Sequence[Message] = messages[begin : begin + BATCH]) -> bool:
            nonlocal failures
            failures += 1
            await bus.publish(batch)
            failures -= 1
            return True

        await until(is_safe)
    return failures


@pytest.mark.parametrize("patience_s", [0.5, 10.0], ids=["gives up", "waits"])
async def test_a_broker_that_is_killed_loses_nothing_and_keeps_the_order(
    open_bus: OpenBus,
    own_broker: OwnBroker,
    about: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float,
) -> None:
    """BUS-1 REL-1: while it is written to and read from, twice."""
    monkeypatch.setattr(kafka_publisher, "PUBLISH_TIMEOUT_S", patience_s)
    bus, sent = open_bus(), lives(about, keys=10, versions=200)
    reader = open_bus().reader(GROUP, [about])
    got: list[Message] = []

    async def has_all() -> bool:
        got.extend(await reader.fetch(connection, BATCH))
        await reader.acknowledge()
        return len({one.id for one in got}) >= len(sent)

    reading = asyncio.create_task(until(has_all))
    for half in (sent[:1000], sent[1000:]):
        publishing = asyncio.create_task(publish_like_a_relay(bus, half))
        await until(lambda half=half: is_seen(got, half[100]))
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await publishing
    await reading
    await reader.close()
    assert versions_by_key(first_copies(got)) == versions_by_key(sent)


async def test_a_relay_is_told_that_the_broker_is_away_and_goes_on_later(
    bus: KafkaBus,
    own_broker: OwnBroker,
    about: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BUS-1: nothing may be marked as published that is not."""
    sent = lives(about, keys=2, versions=2)
    await bus.publish(sent[:2])
    monkeypatch.setattr(kafka_publisher, "PUBLISH_TIMEOUT_S", 0.5)
    await asyncio.to_thread(own_broker.kill)
    try:
        with pytest.raises(BusAwayError):
            await bus.publish(sent[2:])
    finally:
        await asyncio.to_thread(own_broker.start)
    await publish_like_a_relay(bus, sent[2:])
    reader = bus.reader(GROUP, [about])
    got = await read(reader, connection, 4)
    await reader.close()
    assert versions_by_key(first_copies(got)) == versions_by_key(sent)


async def test_a_broker_that_does_not_answer_does_not_stop_the_loop(
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


async def test_whoever_gives_up_publishing_or_reading_gets_away_at_once(
    bus: KafkaBus, own_broker: OwnBroker, about: str, connection: Connection
) -> None:
    """BUS-1: a process that is told to stop does not wait for a broker that is away."""
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
        assert time.monotonic() - begun_s < kafka_publisher.PUBLISH_TIMEOUT_S
    finally:
        own_broker.thaw()


async def is_seen(got: Sequence[Message], message: Message) -> bool:
    return any(one.id == message.id for one in got)


async def longest_pause(turns: int) -> float:
    """How long the loop let somebody wait at most who wants to go on every 10 ms."""
    longest_s = 0.0
    for _ in range(turns):
        begun_s = time.monotonic()
        await asyncio.sleep(0.01)
        longest_s = max(longest_s, time.monotonic() - begun_s)
    return longest_s
