"""Configuration of the Kafka clients: fixed options, our defaults, and the user's own."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from paidonce.bus.model import TOPIC_PREFIX
from paidonce.errors import ConfigurationError
from paidonce.settings.secrets import resolve_secret
from paidonce.settings.sections import BusSettings
from paidonce.telemetry import logger

log = logger(__name__)

LOG_EVERY_S: Final = 30.0
_next_log_s: Final[dict[str, float]] = {}

# With a timeout for each message, an early one could fail while a later one with the same key still
# arrives. So single messages have none: `Publisher` gives up the whole batch and its producer.
_PRODUCER: Final = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    # A broker accepts any sequence number from a producer that it does not know: with several
    # requests in flight, the second could be the first that it accepts.
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 0,
    "partitioner": "murmur2_random",  # the default of the Java clients
}
_CONSUMER: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "cooperative-sticky",
}
_FIXED: Final = {*_PRODUCER, *_CONSUMER, "bootstrap.servers", "group.id", "transactional.id"}

# A request to a broker that does not answer fails after ten seconds instead of a minute, a broker
# that is back is found within a second, and a killed member loses its partitions after ten.
_DEFAULTS: Final = {"socket.timeout.ms": "10000", "reconnect.backoff.max.ms": "1000"}
_PRODUCER_DEFAULTS: Final = {"linger.ms": "2", "compression.type": "zstd"}
_CONSUMER_DEFAULTS: Final = {"session.timeout.ms": "10000"}

# The log of librdkafka is dropped; `_log_error` logs errors.
_DROPPED: Final = logging.getLogger("paidonce.librdkafka")
_DROPPED.addHandler(logging.NullHandler())
_DROPPED.propagate = False


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Brokers, topics and client options. May contain secrets: never log it."""

    servers: str
    prefix: str
    """Of all topics and groups, because a cluster may be shared."""
    partitions: int
    replication: int
    own: Mapping[str, str] = field(repr=False)

    def producer(self) -> dict[str, Any]:
        return {**_PRODUCER_DEFAULTS, **self.admin(), **_PRODUCER}

    def consumer(self, group: str) -> dict[str, Any]:
        fixed = {**_CONSUMER, "group.id": self.prefix + group}
        return {**_CONSUMER_DEFAULTS, **self.admin(), **fixed}

    def admin(self) -> dict[str, Any]:
        fixed = {"bootstrap.servers": self.servers, "error_cb": _log_error, "logger": _DROPPED}
        return {**_DEFAULTS, **self.own, **fixed}

    def kafka_topic(self, topic: str) -> str:
        """The name in Kafka of one of our topics."""
        return self.prefix + topic.removeprefix(TOPIC_PREFIX)

    def our_topic(self, topic: str) -> str:
        """Our name of a topic in Kafka."""
        return TOPIC_PREFIX + topic.removeprefix(self.prefix)


def kafka_options(settings: BusSettings) -> KafkaOptions:
    """The options of the settings. Raises ConfigurationError."""
    own = {name: _resolve(name, value) for name, value in settings.kafka.items()}
    topics = settings.topics
    options = KafkaOptions(
        settings.kafka_servers, topics.prefix, topics.partitions, topics.replication, own
    )
    try:
        AdminClient(options.admin())
    except (KafkaException, ValueError, TypeError) as error:
        # The error text names the option but may quote its value, which may be a secret.
        name = next((one for one in own if f'"{one}"' in str(error)), "an option")
        raise ConfigurationError(
            f"bus.kafka: librdkafka does not know {name}, or refuses its value (hidden)"
        ) from None
    return options


def _resolve(name: str, value: str) -> str:
    if name in _FIXED:
        raise ConfigurationError(
            f"bus.kafka.{name}: cannot be set, because guarantees depend on it"
        )
    return resolve_secret(value, f"bus.kafka.{name}")


def _log_error(error: KafkaError) -> None:
    """Log each error at most every LOG_EVERY_S: clients reconnect several times a second."""
    now_s = time.monotonic()
    if now_s >= _next_log_s.get(error.name(), 0.0):
        _next_log_s[error.name()] = now_s + LOG_EVERY_S
        log.warning("kafka_client_error", code=error.name())
