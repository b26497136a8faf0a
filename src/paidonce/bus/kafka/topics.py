"""Kafka topics: created if missing; the range of their offsets."""

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from paidonce.bus.kafka.options import KafkaOptions
from paidonce.errors import BusUnavailableError

TIMEOUT_S: Final = 10.0
LAG_TIMEOUT_S: Final = 3.0
"""For the lag, because nothing is consumed meanwhile."""
HOUR_MS: Final = 3600 * 1000
RETENTION_MS: Final = 7 * 24 * HOUR_MS
"""Shorter than the retention of `processed_events`, which have to know redelivered messages."""
SEGMENT_MS: Final = 12 * HOUR_MS
"""Kafka deletes whole segments, when their last message is old enough."""
FOREVER_MS: Final = -1

_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_FORBIDDEN: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Topics:
    """The topics of one cluster. All methods block, and may be called from any thread."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._client: AdminClient | None = None
        self._lock = threading.Lock()
        self._existing: set[str] = set()

    def ensure(self, names: Collection[str]) -> None:
        """Create missing topics. Raises BusUnavailableError, whose text says what to do."""
        if self._existing.issuperset(names):
            return
        missing = set(names) - self._partition_counts(TIMEOUT_S).keys()
        if missing:
            created = self._admin.create_topics([self._new(name) for name in sorted(missing)])
            for name, future in created.items():
                self._wait_until_created(name, future)
        self._existing.update(names)

    def forget(self) -> None:
        """Check again at the next call: a topic may have been deleted."""
        self._existing.clear()

    def partitions(self, names: Collection[str]) -> list[TopicPartition]:
        """All partitions of these topics. Raises BusUnavailableError."""
        counts = self._partition_counts(LAG_TIMEOUT_S)
        return [TopicPartition(name, n) for name in names for n in range(counts.get(name, 0))]

    def offset_ranges(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """The offset of each partition's first message, and of the next one to be written.

        Raises BusUnavailableError.
        """
        try:
            begins = self._offsets(partitions, _EARLIEST)
            ends = self._offsets(partitions, _LATEST)
        except (KafkaException, TimeoutError) as error:
            raise unavailable(error) from None
        return {at: (begins[at], ends[at]) for at in partitions}

    def _partition_counts(self, timeout_s: float) -> Mapping[str, int]:
        try:
            topics = self._admin.list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            raise unavailable(error) from None
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> Mapping[TopicPartition, int]:
        futures = self._admin.list_offsets(dict.fromkeys(partitions, spec))
        return {at: future.result(LAG_TIMEOUT_S).offset for at, future in futures.items()}

    def _new(self, name: str) -> NewTopic:
        is_dead_letter_topic = name.endswith(".dlq")
        partitions = 1 if is_dead_letter_topic else self._options.partitions
        retention_ms = FOREVER_MS if is_dead_letter_topic else RETENTION_MS
        config = {
            "retention.ms": str(retention_ms),
            "segment.ms": str(SEGMENT_MS),
            # Producers must not choose the age of a message.
            "message.timestamp.type": "LogAppendTime",
        }
        return NewTopic(name, partitions, self._options.replication, config=config)

    def _wait_until_created(self, name: str, future: "Future[Any]") -> None:
        try:
            future.result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code in _FORBIDDEN:
                raise BusUnavailableError(
                    f"Kafka does not allow creating topic {name}: create it with "
                    f"{self._new(name).num_partitions} partitions, or allow CREATE on it"
                ) from None
            raise unavailable(error) from None

    @property
    def _admin(self) -> AdminClient:
        """One client for all threads: a dropped client loses the answers of open requests."""
        with self._lock:
            if self._client is None:
                self._client = AdminClient(self._options.admin())
            return self._client


def unavailable(error: Exception) -> BusUnavailableError:
    """The error without texts of the broker or library, which may quote data."""
    cause = error.args[0] if error.args else None
    code = cause.name() if isinstance(cause, KafkaError) else type(error).__name__
    return BusUnavailableError(f"Kafka is unavailable: {code}")
