"""What Kafka's clients are told: what guarantees depend on, what is usual, and the user's own."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from paidonce.bus.messages import TOPIC_PREFIX
from paidonce.errors import ConfigurationError
from paidonce.settings import BusSettings, resolve_secret
from paidonce.telemetry import logger

log = logger(__name__)

TELL_EVERY_S: Final = 30.0
_tell_again_s: Final[dict[str, float]] = {}

# With a time limit of its own, an early message could be given up while a later one with its key
# still arrives. So none is given up alone: `Publisher` gives up all of them, with their producer.
_PRODUCER: Final = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    # A broker takes any sequence from a producer that it does not know yet: with several requests
    # on their way, the second could be the first one that it takes.
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 0,
    "partitioner": "murmur2_random",  # as Java's clients do it
}
_CONSUMER: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "cooperative-sticky",
}
_OURS: Final = {*_PRODUCER, *_CONSUMER, "bootstrap.servers", "group.id", "transactional.id"}

# A request that a silent broker has got is given up sooner than in a minute, a broker that is back
# is found within a second, and what a killed process had is given to others in ten.
_USUAL: Final = {"socket.timeout.ms": "10000", "reconnect.backoff.max.ms": "1000"}
_USUAL_PRODUCER: Final = {"linger.ms": "2", "compression.type": "zstd"}
_USUAL_CONSUMER: Final = {"session.timeout.ms": "10000"}

# What librdkafka itself writes goes nowhere; `_tell` tells of errors.
_UNHEARD: Final = logging.getLogger("paidonce.librdkafka")
_UNHEARD.addHandler(logging.NullHandler())
_UNHEARD.propagate = False


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How the brokers are reached, and how topics are made. It may hold secrets: never log it."""

    servers: str
    prefix: str
    """Of topics and groups: a Kafka has one space of names for all that use it."""
    partitions: int
    replication: int
    own: Mapping[str, str] = field(repr=False)

    def producer(self) -> dict[str, Any]:
        return {**_USUAL_PRODUCER, **self._all(), **_PRODUCER}

    def consumer(self, group: str) -> dict[str, Any]:
        return {**_USUAL_CONSUMER, **self._all(), **_CONSUMER, "group.id": self.group_id(group)}

    def admin(self) -> dict[str, Any]:
        return self._all()

    def group_id(self, group: str) -> str:
        return self.prefix + group

    def topic_there(self, topic: str) -> str:
        """What Kafka calls a topic of ours."""
        return self.prefix + topic.removeprefix(TOPIC_PREFIX)

    def topic_here(self, topic: str) -> str:
        """What we call a topic of Kafka's."""
        return TOPIC_PREFIX + topic.removeprefix(self.prefix)

    def _all(self) -> dict[str, Any]:
        ours = {"bootstrap.servers": self.servers, "error_cb": _tell, "logger": _UNHEARD}
        return {**_USUAL, **self.own, **ours}


def kafka_options(settings: BusSettings) -> KafkaOptions:
    """The options that the settings give. Raises ConfigurationError."""
    own = {name: _resolved(name, value) for name, value in settings.kafka.items()}
    topics = settings.topics
    options = KafkaOptions(
        settings.kafka_servers, topics.prefix, topics.partitions, topics.replication, own
    )
    try:
        AdminClient(options.admin())
    except (KafkaException, ValueError, TypeError) as error:
        # Its words name the option, and would quote a wrong value: of a secret, that is too much.
        named = next((name for name in own if f'"{name}"' in str(error)), "an option")
        raise ConfigurationError(
            f"bus.kafka: librdkafka does not know {named}, or does not take its value (hidden)"
        ) from None
    return options


def _resolved(name: str, value: str) -> str:
    if name in _OURS:
        raise ConfigurationError(
            f"bus.kafka.{name}: what Paidonce guarantees depends on it; leave it out"
        )
    return resolve_secret(value, f"bus.kafka.{name}")


def _tell(error: KafkaError) -> None:
    """Each kind once in a while: clients try to connect several times a second."""
    now_s = time.monotonic()
    if now_s >= _tell_again_s.get(error.name(), 0.0):
        _tell_again_s[error.name()] = now_s + TELL_EVERY_S
        log.warning("kafka_trouble", code=error.name())
