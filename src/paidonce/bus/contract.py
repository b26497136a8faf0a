"""What a bus is: a place that messages are put into, and one reader for each group of consumers."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paidonce.bus.messages import Message
from paidonce.store.queries import Connection

Take = Callable[[Connection, Sequence[Message]], Awaitable[None]]
"""Writes the effect of some messages, none of which the group has taken before, in the transaction
that is open. Raises MessageRefusedError for what cannot be taken however often it comes."""


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a group is behind on a bus that the database knows nothing of."""

    lags: Mapping[str, int]
    """Of each kind of thing, how many messages are published and not yet taken."""
    lost: int
    """How many were gone before they were taken, and were not told of yet."""


class Reader(Protocol):
    """What one group of consumers reads. Messages with one key come in their order.

    Messages are waited for, fetched in a transaction, their effect is written together with
    `settle`, that is committed, and then they are acknowledged. Where any of it fails, `rewind`,
    and the same messages come again.
    """

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Whether there is something to fetch, if need be after a moment. In no transaction."""
        ...

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """The next messages, in the transaction that will take them; others may have been first."""
        ...

    async def settle(self, connection: Connection) -> None:
        """Remember in this transaction, where the bus can, that what was fetched is taken."""
        ...

    async def acknowledge(self) -> None:
        """The transaction is committed: do not send what was fetched again."""
        ...

    async def rewind(self) -> None:
        """What was fetched was not taken: send it again."""
        ...

    async def bury(
        self, connection: Connection, message: Message, error: str, attempts: int
    ) -> None:
        """Put a message that cannot be taken where the bus itself keeps such, if it does.

        The consumer has written it to the table `bus_dead_letters`, whichever bus it is.
        """
        ...

    async def behind(self, connection: Connection) -> Behind | None:
        """How far the group is behind. None if the database tells, from the cursors it keeps."""
        ...

    async def close(self) -> None: ...


class Bus(Protocol):
    """Where the relay puts messages, and where readers come from."""

    is_the_outbox: bool
    """Whether messages stay where they were written, and the relay's mark alone publishes them."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Return when all of them are safe, each key's in its order.

        Raises BusAwayError, and then any part of them may have been published.
        """
        ...

    def reader(self, group: str, about: Collection[str]) -> Reader:
        """A reader of what is about these things, such as `wallet-payment`."""
        ...

    async def close(self) -> None: ...
