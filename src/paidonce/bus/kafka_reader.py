"""Reads topics of Kafka as one of a group of consumers."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from paidonce import telemetry
from paidonce.bus.client_thread import ClientThread
from paidonce.bus.cloud_events import MAX_BODY_BYTES, MAX_KEY_BYTES, headers_of, message_of
from paidonce.bus.contract import Behind
from paidonce.bus.kafka_options import KafkaOptions
from paidonce.bus.kafka_publisher import Publisher, Record
from paidonce.bus.kafka_topics import LOOK_TIMEOUT_S, Topics, away
from paidonce.bus.messages import Message, topic_of
from paidonce.errors import BusAwayError, MessageRefusedError
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

WAIT_S: Final = 0.2
"""How long to wait for a first message."""
CLOSE_TIMEOUT_S: Final = 1.0
MAX_ERROR_CHARS: Final = 1000
MAX_KEPT_HEADERS_BYTES: Final = 16_384
"""Of a foreign message. More are left out of its dead letter, which has to fit."""

_NO_MEMBER: Final = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
"""What we had is others' now, and so is saying how far it is read."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A message that is none of ours, and never will be."""

    place: Place
    offset: int
    record: Record
    error: str


class KafkaReader:
    """One member of a group.

    Every message is either given to whoever fetches, or buried, before its offset is committed. A
    member that was thought dead may have in hand what others have too: the inbox in the database
    tells who was first, and keeps the order, because its keys are waited for.
    """

    def __init__(
        self,
        options: KafkaOptions,
        topics: Topics,
        publisher: Publisher,
        group: str,
        about: Collection[str],
    ) -> None:
        self._options = options
        self._topics = topics
        self._publisher = publisher
        self._group = group
        self._about = {options.topic_there(topic_of(one)): one for one in about}
        self._names = sorted(self._about)
        self._thread = ClientThread(f"kafka-reader-{group}")
        self._consumer: Consumer | None = None
        self._messages: Sequence[Message] = ()
        self._gaps: dict[Place, int] = {}  # where those end that were told of
        self._in_hand: dict[Place, tuple[int, int]] = {}  # offsets: the first, the one to go on at
        self._taken: dict[Place, int] = {}  # offsets to go on at that are not yet committed
        self._buried: set[tuple[Place, int]] = set()  # of what is in hand, or was before a rewind

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Get the next messages. Foreign ones are buried at once. Raises BusAwayError."""
        self._messages = ()
        self._messages, foreign = await self._thread.run(lambda: self._poll(limit))
        unburied = [one for one in foreign if (one.place, one.offset) not in self._buried]
        if unburied:
            await self._publisher.publish([self._dead_foreign(one) for one in unburied])
            self._buried.update((one.place, one.offset) for one in unburied)
            (topic, partition), offset = unburied[0].place, unburied[0].offset
            log.warning(
                "foreign_messages_buried",
                consumer=self._group,
                count=len(unburied),
                first=f"{topic}/{partition}@{offset}",
                error=unburied[0].error,
            )
            telemetry.bound(telemetry.BUS_FOREIGN, self._group).inc(len(unburied))
        if foreign and not self._messages:
            await self.acknowledge()
        return bool(self._messages)

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """What was waited for."""
        return self._messages

    async def settle(self, connection: Connection) -> None:
        """Nothing: the offset is committed after the transaction, and the inbox bears with that."""

    async def acknowledge(self) -> None:
        """Commit the offsets. Where that fails it is tried again, and nothing depends on it."""
        await self._thread.run(self._acknowledge)

    async def rewind(self) -> None:
        await self._thread.run(self._rewind)

    async def bury(
        self, connection: Connection, message: Message, error: str, attempts: int
    ) -> None:
        """Put it into `<topic>.<group>.dlq`. Raises BusAwayError."""
        topic = self._options.topic_there(message.topic)
        headers = [*headers_of(message), *_told(error, attempts, topic)]
        name = self._dead_letters_of(topic)
        await self._publisher.publish([Record(name, message.key.encode(), headers, message.body)])

    async def behind(self, connection: Connection) -> Behind:
        """What the whole group has not acknowledged. Raises BusAwayError."""
        return await self._thread.run(self._behind)

    async def close(self) -> None:
        """Leave the group, so that others go on at once. What is in hand is theirs."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._thread.run(self._leave)
        except TimeoutError:
            log.warning("kafka_left_without_goodbye", group=self._group)
        finally:
            self._thread.end()

    def _poll(self, limit: int) -> tuple[list[Message], list[_Foreign]]:
        self._rewind()  # whoever had these was cut off before it could say what became of them
        consumer = self._consumer or self._join()
        self._commit()
        try:
            first = consumer.poll(WAIT_S)
            rest = consumer.consume(limit - 1, 0) if first is not None and limit > 1 else []
        except (KafkaException, RuntimeError) as error:
            self._leave()
            raise away(error) from None
        return self._sorted(rest if first is None else [first, *rest])

    def _sorted(self, records: Sequence[Any]) -> tuple[list[Message], list[_Foreign]]:
        """Ours and foreign ones. Raises BusAwayError where there was an error among them."""
        messages: list[Message] = []
        foreign: list[_Foreign] = []
        errors = [record.error() for record in records if record.error() is not None]
        for record in records:
            if record.error() is None:
                self._take_in_hand((record.topic(), record.partition()), record.offset())
                self._sort(record, messages, foreign)
        if errors:
            self._topics.forget()
            self._leave()
            raise BusAwayError(f"Kafka stopped giving messages: {errors[0].name()}")
        return messages, foreign

    def _sort(self, record: Any, messages: list[Message], foreign: list[_Foreign]) -> None:
        topic, key, body = record.topic(), record.key(), record.value()
        headers = record.headers() or []
        try:
            messages.append(
                message_of(
                    topic=self._options.topic_here(topic),
                    key=key,
                    headers=headers,
                    body=body,
                    published_at=_written_at(record),
                )
            )
        except MessageRefusedError as error:
            place = topic, record.partition()
            kept = Record(topic, key and key[:MAX_KEY_BYTES], _kept(headers), _cut(body))
            foreign.append(_Foreign(place, record.offset(), kept, str(error)))

    def _take_in_hand(self, place: Place, offset: int) -> None:
        first, _ = self._in_hand.get(place, (offset, offset))
        self._in_hand[place] = (first, offset + 1)

    def _acknowledge(self) -> None:
        self._taken.update({place: following for place, (_, following) in self._in_hand.items()})
        self._in_hand.clear()
        self._buried = {
            (place, offset) for place, offset in self._buried if offset >= self._taken.get(place, 0)
        }
        self._commit()

    def _commit(self) -> None:
        if self._consumer is None or not self._taken:
            return
        offsets = [TopicPartition(*place, offset) for place, offset in self._taken.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
            failed = [at.error for at in done if at.error is not None]
        except KafkaException as error:
            failed = [error.args[0]]
        if failed:
            log.warning("kafka_offsets_not_committed", group=self._group, code=failed[0].name())
        if not failed or failed[0].code() in _NO_MEMBER:
            self._taken.clear()

    def _behind(self) -> Behind:
        # A member asks for its group's offsets. An AdminClient that does so while the broker comes
        # back ends the process: librdkafka up to 2.16.1 looks for a group that it does not have.
        consumer = self._consumer or self._join()
        try:
            places = self._topics.places(self._names)
            committed = consumer.committed(places, timeout=LOOK_TIMEOUT_S)
        except KafkaException as error:
            raise away(error) from None
        lags = dict.fromkeys(self._about.values(), 0)
        lost = 0
        for at, extent in self._topics.extents(committed).items():
            lags[self._about[at.topic]] += max(extent.end - max(at.offset, extent.begin), 0)
            lost += self._untold_gap(at, extent.begin)
        return Behind(lags, lost)

    def _untold_gap(self, committed: TopicPartition, begin: int) -> int:
        """How many messages Kafka has deleted that the group had still to read, told once."""
        if committed.offset < 0:
            return 0
        place = committed.topic, committed.partition
        known = max(committed.offset, self._gaps.get(place, 0))
        self._gaps[place] = max(begin, known)
        return max(begin - known, 0)

    def _rewind(self) -> None:
        """Go back to the first of what is in hand; by joining anew, where it cannot be done."""
        in_hand, self._in_hand = self._in_hand, {}
        if self._consumer is None:
            return
        try:
            for (topic, partition), (first, _) in in_hand.items():
                self._consumer.seek(TopicPartition(topic, partition, first))
        except KafkaException:
            self._leave()

    def _join(self) -> Consumer:
        self._topics.ensure([*self._names, *map(self._dead_letters_of, self._names)])
        consumer = Consumer(self._options.consumer(self._group))
        consumer.subscribe(self._names)
        self._consumer = consumer
        return consumer

    def _leave(self) -> None:
        """Begin anew, the next time, behind what was committed last."""
        consumer, self._consumer = self._consumer, None
        self._in_hand.clear()
        self._taken.clear()
        self._buried.clear()
        if consumer is not None:
            consumer.close()

    def _dead_letters_of(self, topic: str) -> str:
        return f"{topic}.{self._group}.dlq"

    def _dead_foreign(self, one: _Foreign) -> Record:
        topic, partition = one.place
        told = _told(one.error, 0, topic)
        place = [("dlq_partition", b"%d" % partition), ("dlq_offset", b"%d" % one.offset)]
        headers = [*one.record.headers, *told, *place]
        name = self._dead_letters_of(topic)
        return Record(name, one.record.key, headers, one.record.body)


def _written_at(record: Any) -> datetime | None:
    """When it was written, if that can be believed: whoever writes may say what he likes."""
    kind, at_ms = record.timestamp()
    try:
        return (
            None if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(at_ms / 1000, UTC)
        )
    except (ValueError, OverflowError, OSError):
        return None


def _kept(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes]]:
    """A foreign message's headers, unless they are too many to be kept."""
    found = [(name, value or b"") for name, value in headers]
    size = sum(len(name.encode()) + len(value) for name, value in found)
    return found if size <= MAX_KEPT_HEADERS_BYTES else []


def _cut(body: bytes | None) -> bytes | None:
    """As much as a dead letter holds; the whole stays where it was, while its topic keeps it."""
    return body and body[:MAX_BODY_BYTES]


def _told(error: str, attempts: int, topic: str) -> list[tuple[str, bytes]]:
    said = {"dlq_error": error[:MAX_ERROR_CHARS], "dlq_attempts": str(attempts), "dlq_topic": topic}
    return [(name, value.encode()) for name, value in said.items()]
