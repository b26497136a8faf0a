"""Apache Kafka as the bus, for more than one machine.

Kafka delivers at least once, in order for each key. Consumers deduplicate in their database.
"""

from collections.abc import Collection, Sequence

from paidonce.bus.cloud_events import Record, headers_of
from paidonce.bus.contract import Bus
from paidonce.bus.kafka.options import KafkaOptions
from paidonce.bus.kafka.publisher import Publisher
from paidonce.bus.kafka.reader import KafkaReader
from paidonce.bus.kafka.topics import Topics
from paidonce.bus.model import Message


class KafkaBus(Bus):
    """The Kafka clients of a process. Each one runs in its own thread."""

    is_outbox = False

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._topics = Topics(options)
        self._publisher = Publisher(options, self._topics)

    async def publish(self, messages: Sequence[Message]) -> None:
        """Return when all in-sync replicas have the messages. Raises BusUnavailableError."""
        await self._publisher.publish([self._record(message) for message in messages])

    def reader(self, group: str, aggregate_types: Collection[str]) -> KafkaReader:
        """A new member of the group; it joins with its first fetch."""
        return KafkaReader(self._options, self._topics, self._publisher, group, aggregate_types)

    async def close(self) -> None:
        await self._publisher.close()

    def _record(self, message: Message) -> Record:
        topic = self._options.kafka_topic(message.topic)
        return Record(topic, message.key.encode(), headers_of(message), message.body)
