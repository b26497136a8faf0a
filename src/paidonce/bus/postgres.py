"""PostgreSQL as the bus (BUS-1): consumers read the outbox.

The relay publishes a message by assigning it a position. A group has a cursor in each topic, which
moves in the transaction that consumes the messages: a consumed message is never delivered again.
"""

from collections.abc import Collection, Sequence

from paidonce.bus import outbox
from paidonce.bus.contract import Bus, Reader
from paidonce.bus.groups import QUERIES
from paidonce.bus.model import TOPIC_PREFIX, Message
from paidonce.db.queries import Connection


class PostgresBus(Bus):
    """Messages stay in the outbox; readers follow their positions."""

    is_outbox = True

    def reader(self, group: str, aggregate_types: Collection[str]) -> "PostgresReader":
        """A reader. One process of a group at a time reads each topic."""
        return PostgresReader(group, aggregate_types)


class PostgresReader(Reader):
    """Reads published messages after the cursors of a group, whose lag the database counts."""

    def __init__(self, group: str, aggregate_types: Collection[str]) -> None:
        self._group = group
        self._cursors = {"consumer": group, "types": sorted(aggregate_types)}
        self._positions: dict[str, int] = {}

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Look without a lock: locking rows writes, and an idle group must not write."""
        return await QUERIES["has_unread"].row(connection, **self._cursors) is not None

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """The next messages; none while another process of the group reads."""
        rows = await QUERIES["lock_cursors"].rows(connection, **self._cursors)
        cursors = {row["aggregate_type"]: row["pos"] for row in rows}
        found = await outbox.published_after(connection, cursors, limit) if cursors else {}
        self._positions = {  # the last of each
            message.topic.removeprefix(TOPIC_PREFIX): position
            for position, message in found.items()
        }
        return list(found.values())

    async def advance(self, connection: Connection) -> None:
        """Move the cursors past the fetched messages."""
        types, positions = list(self._positions), list(self._positions.values())
        await QUERIES["advance_cursors"].run(
            connection, consumer=self._group, types=types, pos=positions
        )
