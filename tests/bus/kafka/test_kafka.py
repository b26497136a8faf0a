"""Kafka as the bus: publish, read, acknowledge, rewind, dead letters."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from paidonce.bus.cloud_events import MAX_BODY_BYTES, headers_of
from paidonce.bus.contract import Lag
from paidonce.bus.kafka.bus import KafkaBus
from paidonce.bus.kafka.reader import WAIT_S, KafkaReader
from paidonce.bus.kafka.topics import HOUR_MS
from paidonce.bus.model import TOPIC_PREFIX, Message
from paidonce.db.queries import Connection
from paidonce.settings.sections import RetentionSettings
from tests.bus.conftest import GROUP, OTHER_GROUP, OpenBus
from tests.bus.reading import DEADLINE_S, lives, message, next_batch, read, until, versions_by_key
from tests.support.kafka import Broker, MockBroker, fresh_name


@asynccontextmanager
async def reading(bus: KafkaBus, about: str, group: str = GROUP) -> AsyncIterator[KafkaReader]:
    reader = bus.reader(group, [about])
    try:
        yield reader
    finally:
        await reader.close()


async def test_messages_are_read_unchanged_in_order_for_each_key(
    bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    sent = lives(about, keys=20, versions=10)
    await bus.publish(sent)
    async with reading(bus, about) as reader:
        got = await read(reader, connection, len(sent))
    as_sent = [replace(one, published_at=None) for one in got]
    assert sorted(as_sent, key=lambda one: one.id) == sent
    assert all(one.published_at is not None for one in got)
    assert versions_by_key(got) == versions_by_key(sent)


async def test_unacknowledged_messages_are_redelivered_after_a_rewind(
    bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    await bus.publish(lives(about, keys=5, versions=4))
    async with reading(bus, about) as reader:
        first = await fetched(reader, connection)
        await reader.rewind()
        again = await read(reader, connection, 20)
    assert {one.id for one in first} <= {one.id for one in again}
    assert len(again) == 20


async def test_messages_of_a_cancelled_fetch_are_redelivered(
    bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1: the caller never saw it, and never said what became of it."""
    await bus.publish([message(about, "first", 1)])
    async with reading(bus, about) as reader:
        await read(reader, connection, 1)
        await bus.publish(lives(about, keys=3, versions=2))
        for _ in range(5):
            cut_off = asyncio.create_task(reader.wait(connection, 10))
            await asyncio.sleep(0)
            time.sleep(2 * WAIT_S)  # the loop is busy, while the fetch gets what there is
            cut_off.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cut_off
        assert len(await read(reader, connection, 6)) == 6


async def test_a_new_reader_continues_after_acknowledged_messages(
    open_bus: OpenBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    bus = open_bus()
    taken, left = lives(about, keys=4, versions=2), lives(about, keys=4, versions=3)
    await bus.publish(taken)
    async with reading(bus, about) as reader:
        await read(reader, connection, len(taken))
        await bus.publish(left)
        await fetched(reader, connection)
    async with reading(open_bus(), about) as reader:
        got = await read(reader, connection, len(left))
    assert {one.id for one in got} == {one.id for one in left}


async def test_groups_read_independently(bus: KafkaBus, about: str, connection: Connection) -> None:
    """BUS-1"""
    await bus.publish(lives(about, keys=3, versions=2))
    async with reading(bus, about) as one, reading(bus, about, OTHER_GROUP) as two:
        assert len(await read(one, connection, 6)) == len(await read(two, connection, 6)) == 6


async def test_readers_of_one_group_share_the_keys(
    open_bus: OpenBus, about: str, connection: Connection
) -> None:
    """BUS-1: none is lost while the second one comes and the first one goes."""
    bus, got = open_bus(), list[Message]()
    async with reading(open_bus(), about) as second:
        async with reading(bus, about) as first:
            shares = {"first": 0, "second": 0}
            number = 0
            while 0 in shares.values():
                sent = lives(about, keys=30, versions=1)
                number += len(sent)
                await bus.publish(sent)
                for name, reader in (("first", first), ("second", second)):
                    batch = await next_batch(reader, connection, 100)
                    await reader.acknowledge()
                    shares[name] += len(batch)
                    got += batch
                assert number < 30 * 500, shares

        async def is_all_there() -> bool:  # some came to both, while the second one came
            got.extend(await next_batch(second, connection, 100))
            await second.acknowledge()
            return len({one.id for one in got}) == number

        await until(is_all_there)


async def test_lag_counts_unacknowledged_messages(
    bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    async with reading(bus, about) as reader:
        await next_batch(reader, connection, 1)
        await bus.publish(lives(about, keys=5, versions=4))
        assert await lag(reader, connection) == 20
        await fetched(reader, connection)
        await reader.rewind()
        assert await lag(reader, connection) == 20
        await read(reader, connection, 20)
        assert await lag(reader, connection) == 0


async def test_each_topic_has_its_own_lag(bus: KafkaBus, connection: Connection) -> None:
    """BUS-1 OBS-2"""
    one, other = fresh_name("one"), fresh_name("other")
    reader = bus.reader(GROUP, [one, other])
    await bus.publish([*lives(one, keys=5, versions=1), message(other, "thing", 1)])
    assert await reader.lag() == Lag({one: 5, other: 1}, lost=0)
    await reader.close()


async def test_messages_deleted_before_they_were_read_are_reported_once(
    kafka: Broker, bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1: a group that was away for longer than its topic keeps has lost something."""
    if not kafka.is_ours:
        pytest.skip("it deletes records")
    await bus.publish([message(about, "thing", version) for version in range(1, 6)])
    async with reading(bus, about) as reader:
        await read(reader, connection, 5)
        assert (await reader.lag()).lost == 0
        await bus.publish([message(about, "thing", version) for version in range(6, 11)])
        delete_records(kafka, about, before=8)
        assert (await reader.lag()).lost == 3
        assert (await reader.lag()).lost == 0


async def test_a_topic_keeps_messages_for_less_time_than_processed_events(
    kafka: Broker, bus: KafkaBus, about: str
) -> None:
    """BUS-1: Kafka deletes a segment when the last of its messages is old enough."""
    if isinstance(kafka, MockBroker):
        pytest.skip("an imitation has no configuration")
    await bus.publish([message(about, "thing", 1)])
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topic = ConfigResource(ResourceType.TOPIC, TOPIC_PREFIX + about)
    (asked,) = client.describe_configs([topic]).values()
    told = {name: entry.value for name, entry in asked.result(DEADLINE_S).items()}
    inbox_ms = RetentionSettings().processed_events_days * 24 * HOUR_MS
    assert int(told["retention.ms"]) + int(told["segment.ms"]) < inbox_ms
    assert told["message.timestamp.type"] == "LogAppendTime"


async def test_a_dead_letter_has_its_error_in_the_headers(
    kafka: Broker, bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    sent = replace(message(about, "thing", 1), source="/shop")
    await bus.publish([sent])
    async with reading(bus, about) as reader:
        first = (await fetched(reader, connection))[0]
        await reader.dead_letter(first, "no such thing", 5)
    (dead,) = dead_letters(kafka, about, 1)
    headers = dict(dead.headers())
    assert (dead.key(), dead.value()) == (sent.key.encode(), sent.body)
    assert headers.items() >= dict(headers_of(sent)).items()
    assert (headers["dlq_error"], headers["dlq_attempts"]) == (b"no such thing", b"5")


GOOD: Final = {
    "ce_specversion": "1.0",
    "ce_type": "ThingHappened",
    "ce_time": "2026-01-02T03:04:05Z",
}
GOOD_ID: Final = "01890000-0000-7000-8000-000000000001"
FOREIGN: Final[dict[str, dict[str, Any]]] = {
    "no headers": {"headers": {}},
    "no id": {"headers": {"ce_id": None}},
    "an id that is no UUID": {"headers": {"ce_id": "7"}},
    "another version of the specification": {"headers": {"ce_specversion": "0.3"}},
    "a time without a zone": {"headers": {"ce_time": "2026-01-02T03:04:05"}},
    "no time": {"headers": {"ce_time": "yesterday"}},
    "a number that is none": {"headers": {"ce_sequence": "-1"}},
    "a number that no column holds": {"headers": {"ce_sequence": "9223372036854775808"}},
    "a header that is no text": {"headers": {"ce_type": b"\xff"}},
    "a NUL character": {"headers": {"ce_type": b"Thing\0"}},
    "no key": {"key": None},
    "an endless key": {"key": b"k" * 100_000},
    "a tombstone": {"value": None},
    "no JSON": {"value": b"<thing/>"},
    "no JSON object": {"value": b"[1]"},
    "an endless body": {"value": b'{"a": "' + b"x" * MAX_BODY_BYTES + b'"}'},
    "endless headers": {"headers": {f"h{number}": "x" * 1000 for number in range(100)}},
}


async def test_invalid_records_become_dead_letters_at_once(
    kafka: Broker, bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1: anybody may write to a topic, and must not stop the group."""
    before, after = message(about, "thing", 1), message(about, "thing", 2)
    await bus.publish([before])
    send_foreign(kafka, about)
    await bus.publish([after])
    async with reading(bus, about) as reader:
        got = await read(reader, connection, 2, limit=5)
        await until(lambda: has_no_lag(reader, connection))
    assert [one.id for one in got if one.key == "thing"] == [before.id, after.id]
    dead = dead_letters(kafka, about, len(FOREIGN))
    assert len(dead) == len(FOREIGN)
    assert all({"dlq_error", "dlq_offset"} <= dict(one.headers()).keys() for one in dead)


async def test_an_invalid_record_of_a_redelivered_batch_becomes_one_dead_letter(
    kafka: Broker, bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    await bus.publish([message(about, "thing", 1)])
    send_foreign(kafka, about, "thing")
    async with reading(bus, about) as reader:
        for _ in range(3):
            await fetched(reader, connection, 2)
            await reader.rewind()
        await read(reader, connection, 1)
        await until(lambda: has_no_lag(reader, connection))
    assert len(dead_letters(kafka, about, 1)) == 1


async def test_a_waiting_fetch_does_not_block_the_event_loop(
    bus: KafkaBus, about: str, connection: Connection
) -> None:
    """BUS-1"""
    async with reading(bus, about) as reader:
        waiting = asyncio.create_task(reader.wait(connection, 10))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns > 100


async def fetched(reader: KafkaReader, connection: Connection, number: int = 1) -> list[Message]:
    """The next batch that is not empty."""
    for _ in range(int(DEADLINE_S / 0.2)):
        if batch := await next_batch(reader, connection, 100):
            return list(batch)
    raise AssertionError("nothing came")


async def has_no_lag(reader: KafkaReader, connection: Connection) -> bool:
    await next_batch(reader, connection, 100)
    await reader.acknowledge()
    return await lag(reader, connection) == 0


async def lag(reader: KafkaReader, connection: Connection) -> int:
    """The lag in the only topic of the reader."""
    (number,) = (await reader.lag()).by_type.values()
    return number


def delete_records(kafka: Broker, about: str, before: int) -> None:
    """All records of the partition of `thing` that come before an offset."""
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    name = TOPIC_PREFIX + about
    for partition in client.list_topics(name, timeout=DEADLINE_S).topics[name].partitions:
        with contextlib.suppress(KafkaException):  # the others have none
            (deleted,) = client.delete_records([TopicPartition(name, partition, before)]).values()
            deleted.result(DEADLINE_S)


def send_foreign(kafka: Broker, about: str, only_key: str = "") -> None:
    """All kinds of messages that are none of ours; or one that is broken, with this key."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"})
    topic = TOPIC_PREFIX + about
    if only_key:
        producer.produce(topic, b"no JSON", only_key.encode())
    for wrong in [] if only_key else FOREIGN.values():
        headers = {**GOOD, "ce_id": GOOD_ID, **wrong.get("headers", {})}
        if wrong.get("headers") == {}:
            headers = {}
        sent = {"value": b"{}", "key": b"thing", **wrong, "headers": headers}
        producer.produce(topic, **sent)
    assert producer.flush(DEADLINE_S) == 0


def dead_letters(kafka: Broker, about: str, number: int) -> list[Any]:
    """All that are there, once so many are, as a tool of somebody else finds them."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": fresh_name("tool"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([f"{TOPIC_PREFIX}{about}.{GROUP}.dlq"])
    try:
        found = consumer.consume(number, DEADLINE_S)
        return found + consumer.consume(1, 0.5)
    finally:
        consumer.close()
