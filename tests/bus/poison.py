"""A message that cannot be consumed, and a consumer of all others."""

from collections.abc import Sequence
from typing import Final

from paidonce.bus.consumer import Consumer
from paidonce.bus.model import Message
from paidonce.db.queries import Connection
from tests.bus.traffic import follow

POISON: Final = "poison"


class PoisonConsumer:
    """Consumes everything but messages with the key `poison`, until it is cured."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_cured = False
        self.calls = 0

    async def consume(self, connection: Connection, messages: Sequence[Message]) -> None:
        self.calls += 1
        await follow(connection, messages)
        if not self.is_cured and any(one.key == POISON for one in messages):
            raise self.error


async def drained(consumer: Consumer) -> None:
    """Run the consumer until it has nothing to consume, without pauses."""
    idle = 0
    for _ in range(200):
        idle = 0 if await consumer.run_once() else idle + 1
        if idle > 20:
            return
    raise AssertionError("it does not end")
