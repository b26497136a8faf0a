"""What a bus provides: publishing, and a reader for each consumer group."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from paidonce.bus.model import Message
from paidonce.db.queries import Connection
from paidonce.errors import ConfigurationError
from paidonce.settings.sections import BusSettings

Consume = Callable[[Connection, Sequence[Message]], Awaitable[None]]
"""Writes the effect of messages that the group has not consumed before, in the open transaction.
Raises InvalidMessageError for a message that can never be consumed."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind. Empty if the database counts it."""

    by_type: Mapping[str, int]
    """Published messages that are not consumed, by aggregate type."""
    lost: int = 0
    """Messages that were deleted before the group consumed them, since the last call."""


class Reader:
    """Reads messages for one consumer group. Messages with the same key arrive in order.

    The consumer waits for messages, fetches them in a transaction, writes their effect, calls
    `advance`, commits, and then calls `acknowledge`. If any of it fails, it calls `rewind`, and the
    same messages are delivered again. A bus overrides what it has to do something for.
    """

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Whether there are messages to fetch; may wait a moment. Outside a transaction."""
        raise NotImplementedError

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """The next messages; none if another process of the group was first."""
        raise NotImplementedError

    async def advance(self, connection: Connection) -> None:
        """Record in this transaction that the fetched messages are consumed, if the bus can."""

    async def acknowledge(self) -> None:
        """The transaction is committed: do not deliver the fetched messages again."""

    async def rewind(self) -> None:
        """The transaction failed: deliver the fetched messages again."""

    async def dead_letter(self, message: Message, error: str, attempts: int) -> None:
        """Copy a dead letter, which `bus_dead_letters` has, to the bus, if that has a place."""

    async def lag(self) -> Lag:
        """How far the group is behind. Raises BusUnavailableError."""
        return Lag({})

    async def close(self) -> None:
        """Close all connections."""


class Bus:
    """Publishes messages, and creates readers."""

    is_outbox: bool
    """Whether consumers read the outbox itself: a message is published when it is marked so."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Return when all messages are stored safely, in order for each key.

        Raises BusUnavailableError; then any part of them may have been published. Not called if
        consumers read the outbox.
        """
        raise NotImplementedError

    def reader(self, group: str, aggregate_types: Collection[str]) -> Reader:
        """A reader of messages of these aggregate types, such as `wallet-payment`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close all connections."""


def open_bus(settings: BusSettings) -> Bus:
    """The configured bus, not connected yet. Raises ConfigurationError."""
    if not settings.is_kafka:
        from paidonce.bus.postgres import PostgresBus

        return PostgresBus()
    try:
        from paidonce.bus.kafka.bus import KafkaBus
        from paidonce.bus.kafka.options import kafka_options
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "confluent_kafka":
            raise
        raise ConfigurationError(
            f"bus.url = {settings.url!r}: the Kafka client is not installed; "
            "pip install 'paidonce[kafka]'"
        ) from None
    return KafkaBus(kafka_options(settings))
