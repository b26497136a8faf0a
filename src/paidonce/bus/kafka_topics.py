"""Topics: made where they are missing, and how much is in them."""

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from paidonce.bus.kafka_options import KafkaOptions
from paidonce.errors import BusAwayError

TIMEOUT_S: Final = 10.0
LOOK_TIMEOUT_S: Final = 3.0
"""For what is only to be shown. Nothing is taken meanwhile."""
HOUR_MS: Final = 3600 * 1000
KEPT_MS: Final = 7 * 24 * HOUR_MS
"""Less than `processed_events` are, so that nothing is forgotten that may still come again."""
SEGMENT_MS: Final = 12 * HOUR_MS
"""Kafka deletes segments as a whole, when their last message is old enough."""
FOR_EVER_MS: Final = -1

_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_FORBIDDEN: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets of what a partition holds: of the first, and of the next that will be written."""

    begin: int
    end: int


class Topics:
    """The topics of one Kafka. Everything here blocks and may be called from any thread."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._client: AdminClient | None = None
        self._making = threading.Lock()
        self._known: set[str] = set()

    def ensure(self, names: Collection[str]) -> None:
        """Make those that are missing. Raises BusAwayError, which names the remedy."""
        if self._known.issuperset(names):
            return
        missing = set(names) - self._partitions(TIMEOUT_S).keys()
        if missing:
            made = self._admin.create_topics([self._new(name) for name in sorted(missing)])
            for name, future in made.items():
                self._wait_until_made(name, future)
        self._known.update(names)

    def forget(self) -> None:
        """Look again: one that was there may be gone."""
        self._known.clear()

    def places(self, names: Collection[str]) -> list[TopicPartition]:
        """Every partition of these topics. Raises BusAwayError."""
        there = self._partitions(LOOK_TIMEOUT_S)
        return [TopicPartition(name, n) for name in names for n in range(there.get(name, 0))]

    def extents(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, Extent]:
        """Where the messages of each partition begin and end. Raises BusAwayError."""
        try:
            begins = self._offsets(places, _EARLIEST)
            ends = self._offsets(places, _LATEST)
        except (KafkaException, TimeoutError) as error:
            raise away(error) from None
        keys = {at: (at.topic, at.partition) for at in places}
        return {at: Extent(begins[key], ends[key]) for at, key in keys.items()}

    def _partitions(self, timeout_s: float) -> Mapping[str, int]:
        try:
            topics = self._admin.list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            raise away(error) from None
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _offsets(
        self, places: Collection[TopicPartition], spec: OffsetSpec
    ) -> Mapping[tuple[str, int], int]:
        asked = self._admin.list_offsets(dict.fromkeys(places, spec))
        return {
            (at.topic, at.partition): future.result(LOOK_TIMEOUT_S).offset
            for at, future in asked.items()
        }

    def _new(self, name: str) -> NewTopic:
        is_for_dead_letters = name.endswith(".dlq")
        partitions = 1 if is_for_dead_letters else self._options.partitions
        kept_ms = FOR_EVER_MS if is_for_dead_letters else KEPT_MS
        config = {
            "retention.ms": str(kept_ms),
            "segment.ms": str(SEGMENT_MS),
            # The age of a message is not what whoever wrote it says.
            "message.timestamp.type": "LogAppendTime",
        }
        return NewTopic(name, partitions, self._options.replication, config=config)

    def _wait_until_made(self, name: str, future: "Future[Any]") -> None:
        try:
            future.result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code in _FORBIDDEN:
                raise BusAwayError(
                    f"Kafka does not let us make topic {name}: make it with "
                    f"{self._new(name).num_partitions} partitions, or allow CREATE on it"
                ) from None
            raise away(error) from None

    @property
    def _admin(self) -> AdminClient:
        """One for all threads: one that is dropped while answers are due never gives them."""
        with self._making:
            if self._client is None:
                self._client = AdminClient(self._options.admin())
            return self._client


def away(error: Exception) -> BusAwayError:
    """The same, without what a broker or a library may have quoted."""
    said = error.args[0] if error.args else None
    code = said.name() if isinstance(said, KafkaError) else type(error).__name__
    return BusAwayError(f"Kafka does not take or give anything now: {code}")
