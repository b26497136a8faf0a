"""A message that cannot be taken, and who takes all others."""

from collections.abc import Sequence
from typing import Final

from paidonce.bus.consumer import Consumer
from paidonce.bus.messages import Message
from paidonce.store.queries import Connection
from tests.bus.traffic import follow

POISON: Final = "poison"


class Picky:
    """Takes everything but what is called poison, for as long as it is not cured."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_cured = False
        self.asked = 0

    async def take(self, connection: Connection, messages: Sequence[Message]) -> None:
        self.asked += 1
        await follow(connection, messages)
        if not self.is_cured and any(one.key == POISON for one in messages):
            raise self.error


async def drained(consumer: Consumer) -> None:
    """Call it until it has nothing to take, as its loop does, without the pauses."""
    idle = 0
    for _ in range(200):
        idle = 0 if await consumer.run_once() else idle + 1
        if idle > 20:
            return
    raise AssertionError("there is no end of it")
