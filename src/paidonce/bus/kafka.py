"""The bus for those who have outgrown one machine: Apache Kafka.

Exactly once is the inbox of the consumers, in their database; Kafka delivers at least once, and
each key in its order.
"""

from collections.abc import Collection, Sequence

from paidonce.bus.cloud_events import headers_of
from paidonce.bus.kafka_options import KafkaOptions
from paidonce.bus.kafka_publisher import Publisher, Record
from paidonce.bus.kafka_reader import KafkaReader
from paidonce.bus.kafka_topics import Topics
from paidonce.bus.messages import Message


class KafkaBus:
    """All clients of one Kafka that a process has. Each is driven from a thread of its own."""

    is_the_outbox = False

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._topics = Topics(options)
        self._publisher = Publisher(options, self._topics)

    async def publish(self, messages: Sequence[Message]) -> None:
        """Return when all in-sync replicas have all of them. Raises BusAwayError."""
        await self._publisher.publish([self._record(message) for message in messages])

    def reader(self, group: str, about: Collection[str]) -> KafkaReader:
        """A new member of the group, which joins with its first fetch."""
        return KafkaReader(self._options, self._topics, self._publisher, group, about)

    async def close(self) -> None:
        await self._publisher.close()

    def _record(self, message: Message) -> Record:
        topic = self._options.topic_there(message.topic)
        return Record(topic, message.key.encode(), headers_of(message), message.body)
