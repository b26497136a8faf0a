"""PostgreSQL as the bus (BUS-1): consumers read the outbox.

The relay publishes a message by assigning it a position. A group has a cursor in each topic, which
moves in the transaction that consumes the messages: a consumed message is never delivered again.
"""

from collections.abc import Collection, Sequence

from paidonce.bus import groups, outbox
from paidonce.bus.contract import Lag
from paidonce.bus.model import Message
from paidonce.db.queries import Connection


class PostgresBus:
    """Messages stay in the outbox; readers follow their positions."""

    is_outbox = True

    async def publish(self, messages: Sequence[Message]) -> None:
        """Nothing to do: the relay publishes by marking."""

    def reader(self, group: str, aggregate_types: Collection[str]) -> "PostgresReader":
        """A reader. One process of a group at a time reads each topic."""
        return PostgresReader(group, aggregate_types)

    async def close(self) -> None: ...


class PostgresReader:
    """Reads published messages after the cursors of a group."""

    def __init__(self, group: str, aggregate_types: Collection[str]) -> None:
        self._group = group
        self._aggregate_types = sorted(aggregate_types)
        self._positions: dict[str, int] = {}

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Look without a lock: locking rows writes, and an idle group must not write."""
        return await groups.has_unread(connection, self._group, self._aggregate_types)

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """The next messages; none while another process of the group reads."""
        cursors = await groups.lock_cursors(connection, self._group, self._aggregate_types)
        entries = await outbox.published_after(connection, cursors, limit) if cursors else []
        self._positions = {one.aggregate_type: one.position for one in entries}  # the last of each
        return [one.message for one in entries]

    async def advance(self, connection: Connection) -> None:
        """Move the cursors past the fetched messages."""
        await groups.advance(connection, self._group, self._positions)

    async def acknowledge(self) -> None:
        """Nothing to do: the cursors are committed."""

    async def rewind(self) -> None:
        """Nothing to do: the cursors were not moved."""

    async def dead_letter(
        self, connection: Connection, message: Message, error: str, attempts: int
    ) -> None:
        """Nothing to do: the table has it."""

    async def lag(self, connection: Connection) -> Lag:
        """Empty: the database counts it."""
        return Lag({})

    async def close(self) -> None: ...
