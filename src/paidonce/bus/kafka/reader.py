"""Reads Kafka topics as a member of a consumer group."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from paidonce.bus import cloud_events
from paidonce.bus.cloud_events import Headers, Record
from paidonce.bus.contract import Lag, Reader
from paidonce.bus.kafka.options import KafkaOptions
from paidonce.bus.kafka.publisher import Publisher
from paidonce.bus.kafka.topics import LAG_TIMEOUT_S, Topics, unavailable
from paidonce.bus.model import Message, topic_of
from paidonce.db.queries import Connection
from paidonce.errors import BusUnavailableError, InvalidMessageError
from paidonce.runtime.daemon_thread import DaemonThread
from paidonce.telemetry import logger, metrics

log = logger(__name__)

WAIT_S: Final = 0.2
"""How long to wait for a first message."""
CLOSE_TIMEOUT_S: Final = 1.0
MAX_ERROR_CHARS: Final = 1000
MAX_HEADERS_BYTES: Final = 16_384
"""Of an invalid record. More headers are left out of its dead letter."""

_NOT_A_MEMBER: Final = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
"""Other members have our partitions now, and commit their offsets."""

Partition = tuple[str, int]
"""A topic and the number of a partition."""


@dataclass(frozen=True, slots=True)
class _InvalidRecord:
    """A record that is not a valid message, and its dead letter."""

    partition: Partition
    offset: int
    error: str
    dead_letter: Record


class KafkaReader(Reader):
    """One member of a consumer group.

    Every record is either fetched or becomes a dead letter before its offset is committed. A member
    that was considered dead may process the same messages as its successor: the claims in the
    database decide who was first, and keep the order, because the second one waits for the first.
    """

    def __init__(
        self,
        options: KafkaOptions,
        topics: Topics,
        publisher: Publisher,
        group: str,
        aggregate_types: Collection[str],
    ) -> None:
        self._options = options
        self._topics = topics
        self._publisher = publisher
        self._group = group
        self._aggregate_types = {options.kafka_topic(topic_of(one)): one for one in aggregate_types}
        self._names = sorted(self._aggregate_types)
        self._thread = DaemonThread(f"kafka-reader-{group}")
        self._consumer: Consumer | None = None
        self._messages: Sequence[Message] = ()
        self._reported: dict[Partition, int] = {}  # ends of the gaps that were counted as lost
        self._fetched: dict[Partition, tuple[int, int]] = {}  # the first offset, and the next one
        self._uncommitted: dict[Partition, int] = {}  # offsets to commit
        self._dead_lettered: set[tuple[Partition, int]] = set()  # since the last committed offsets

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Fetch records. Invalid ones become dead letters at once. Raises BusUnavailableError."""
        self._messages = ()
        self._messages, invalid = await self._thread.run(lambda: self._poll(limit))
        new = [one for one in invalid if (one.partition, one.offset) not in self._dead_lettered]
        if new:
            await self._dead_letter_invalid(new)
        if invalid and not self._messages:
            await self.acknowledge()
        return bool(self._messages)

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """The messages that `wait` has fetched."""
        return self._messages

    async def acknowledge(self) -> None:
        """Commit the offsets. A failed commit is repeated; nothing depends on it."""
        await self._thread.run(self._acknowledge)

    async def rewind(self) -> None:
        await self._thread.run(self._rewind)

    async def dead_letter(self, message: Message, error: str, attempts: int) -> None:
        """Write the message to `<topic>.<group>.dlq`. Raises BusUnavailableError."""
        topic = self._options.kafka_topic(message.topic)
        headers = [*cloud_events.headers_of(message), *_error_headers(error, attempts, topic)]
        name = self._dead_letter_topic(topic)
        await self._publisher.publish([Record(name, message.key.encode(), headers, message.body)])

    async def lag(self) -> Lag:
        """Messages that the whole group has not acknowledged. Raises BusUnavailableError."""
        return await self._thread.run(self._lag)

    async def close(self) -> None:
        """Leave the group, so that other members continue at once."""
        try:
            await self._thread.finish(self._leave, CLOSE_TIMEOUT_S)
        except TimeoutError:
            log.warning("kafka_close_timed_out", group=self._group)

    async def _dead_letter_invalid(self, records: Sequence[_InvalidRecord]) -> None:
        await self._publisher.publish([one.dead_letter for one in records])
        self._dead_lettered.update((one.partition, one.offset) for one in records)
        (topic, partition), offset = records[0].partition, records[0].offset
        log.warning(
            "invalid_messages_dead_lettered",
            consumer=self._group,
            count=len(records),
            first=f"{topic}/{partition}@{offset}",
            error=records[0].error,
        )
        metrics.bound(metrics.BUS_INVALID, self._group).inc(len(records))

    def _poll(self, limit: int) -> tuple[list[Message], list[_InvalidRecord]]:
        self._rewind()  # the last fetch was cancelled: neither acknowledged nor rewound
        consumer = self._consumer or self._join()
        self._commit()
        try:
            first = consumer.poll(WAIT_S)
            rest = consumer.consume(limit - 1, 0) if first is not None and limit > 1 else []
        except (KafkaException, RuntimeError) as error:
            self._leave()
            raise unavailable(error) from None
        return self._parse_all(rest if first is None else [first, *rest])

    def _parse_all(self, records: Sequence[Any]) -> tuple[list[Message], list[_InvalidRecord]]:
        """Valid and invalid ones. Raises BusUnavailableError if the client reports an error."""
        messages: list[Message] = []
        invalid: list[_InvalidRecord] = []
        for record in records:
            if (error := record.error()) is not None:
                self._topics.forget()
                self._leave()
                raise BusUnavailableError(f"Kafka stopped delivering messages: {error.name()}")
            partition, offset = (record.topic(), record.partition()), record.offset()
            first, _ = self._fetched.get(partition, (offset, offset))
            self._fetched[partition] = (first, offset + 1)
            parsed = self._parse(record)
            if isinstance(parsed, Message):
                messages.append(parsed)
            else:
                invalid.append(parsed)
        return messages, invalid

    def _parse(self, record: Any) -> Message | _InvalidRecord:
        topic, key, body = record.topic(), record.key(), record.value()
        headers = record.headers() or []
        try:
            return cloud_events.message_of(
                Record(topic, key, headers, body),
                self._options.our_topic(topic),
                _written_at(record),
            )
        except InvalidMessageError as error:
            partition, offset = record.partition(), record.offset()
            # A dead letter has limits: the whole record stays in its topic, while that keeps it.
            dead_letter = Record(
                self._dead_letter_topic(topic),
                key and key[: cloud_events.MAX_KEY_BYTES],
                [
                    *_limit_headers(headers),
                    *_error_headers(str(error), 0, topic),
                    ("dlq_partition", b"%d" % partition),
                    ("dlq_offset", b"%d" % offset),
                ],
                body and body[: cloud_events.MAX_BODY_BYTES],
            )
            return _InvalidRecord((topic, partition), offset, str(error), dead_letter)

    def _acknowledge(self) -> None:
        self._uncommitted |= {partition: end for partition, (_, end) in self._fetched.items()}
        self._fetched.clear()
        self._dead_lettered = {
            (partition, offset)
            for partition, offset in self._dead_lettered
            if offset >= self._uncommitted.get(partition, 0)
        }
        self._commit()

    def _commit(self) -> None:
        if self._consumer is None or not self._uncommitted:
            return
        offsets = [TopicPartition(*place, offset) for place, offset in self._uncommitted.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
            failed = [at.error for at in done if at.error is not None]
        except KafkaException as error:
            failed = [error.args[0]]
        if failed:
            log.warning("kafka_commit_failed", group=self._group, code=failed[0].name())
        if not failed or failed[0].code() in _NOT_A_MEMBER:
            self._uncommitted.clear()

    def _lag(self) -> Lag:
        # A member asks for its group's offsets. An AdminClient that does so while the broker comes
        # back ends the process: librdkafka up to 2.16.1 looks for a group that it does not have.
        consumer = self._consumer or self._join()
        try:
            partitions = self._topics.partitions(self._names)
            committed = consumer.committed(partitions, timeout=LAG_TIMEOUT_S)
        except KafkaException as error:
            raise unavailable(error) from None
        lags = dict.fromkeys(self._aggregate_types.values(), 0)
        lost = 0
        for at, (begin, end) in self._topics.offset_ranges(committed).items():
            lags[self._aggregate_types[at.topic]] += max(end - max(at.offset, begin), 0)
            lost += self._new_losses(at, begin)
        return Lag(lags, lost)

    def _new_losses(self, committed: TopicPartition, begin: int) -> int:
        """How many unread messages Kafka has deleted since the last call."""
        if committed.offset < 0:
            return 0
        partition = committed.topic, committed.partition
        reported = max(committed.offset, self._reported.get(partition, 0))
        self._reported[partition] = max(begin, reported)
        return max(begin - reported, 0)

    def _rewind(self) -> None:
        """Seek to the first fetched offsets; leave the group if that fails."""
        fetched, self._fetched = self._fetched, {}
        if self._consumer is None:
            return
        try:
            for (topic, partition), (first, _) in fetched.items():
                self._consumer.seek(TopicPartition(topic, partition, first))
        except KafkaException:
            self._leave()

    def _join(self) -> Consumer:
        self._topics.ensure([*self._names, *map(self._dead_letter_topic, self._names)])
        consumer = Consumer(self._options.consumer(self._group))
        consumer.subscribe(self._names)
        self._consumer = consumer
        return consumer

    def _leave(self) -> None:
        """Leave the group. The next fetch joins again, and starts after the committed offsets."""
        consumer, self._consumer = self._consumer, None
        self._fetched.clear()
        self._uncommitted.clear()
        self._dead_lettered.clear()
        if consumer is not None:
            consumer.close()

    def _dead_letter_topic(self, topic: str) -> str:
        return f"{topic}.{self._group}.dlq"


def _written_at(record: Any) -> datetime | None:
    """When the record was written; None if it has no valid time: producers may choose it."""
    kind, at_ms = record.timestamp()
    with suppress(ValueError, OverflowError, OSError):
        if kind != confluent_kafka.TIMESTAMP_NOT_AVAILABLE:
            return datetime.fromtimestamp(at_ms / 1000, UTC)
    return None


def _limit_headers(headers: Headers) -> Headers:
    """The headers of an invalid record; none if they are too large."""
    found = [(name, value or b"") for name, value in headers]
    size = sum(len(name.encode()) + len(value) for name, value in found)
    return found if size <= MAX_HEADERS_BYTES else []


def _error_headers(error: str, attempts: int, topic: str) -> Headers:
    return [
        ("dlq_error", error[:MAX_ERROR_CHARS].encode()),
        ("dlq_attempts", b"%d" % attempts),
        ("dlq_topic", topic.encode()),
    ]
