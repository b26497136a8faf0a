"""The bus that needs nothing installed: PostgreSQL itself (BUS-1).

What is published is what the relay has given a position. A group has a cursor in each topic, which
is moved in the transaction that takes the messages: what is taken is never sent again.
"""

from collections.abc import Collection, Sequence

from paidonce.bus.contract import Behind
from paidonce.bus.messages import Message, topic_of
from paidonce.store import cursors, outbox
from paidonce.store.outbox import Entry
from paidonce.store.queries import Connection


class PostgresBus:
    """Messages stay where they were written; readers follow their positions."""

    is_the_outbox = True

    async def publish(self, messages: Sequence[Message]) -> None:
        """Nothing is to be done: the relay's mark, which gives a position, is what publishes."""

    def reader(self, group: str, about: Collection[str]) -> "PostgresReader":
        """A reader of these topics. Of a group's processes one at a time reads each."""
        return PostgresReader(group, about)

    async def close(self) -> None: ...


class PostgresReader:
    """Reads after the cursors of a group."""

    def __init__(self, group: str, about: Collection[str]) -> None:
        self._group = group
        self._about = sorted(about)
        self._read: dict[str, int] = {}

    async def wait(self, connection: Connection, limit: int) -> bool:
        """Only look: whoever locks a row writes, and nothing is to be written while all is idle."""
        return await cursors.is_behind(connection, self._group, self._about)

    async def fetch(self, connection: Connection, limit: int) -> Sequence[Message]:
        """The next messages; none, too, while another process of the group reads."""
        held = await cursors.lock(connection, self._group, self._about)
        entries = await outbox.after(connection, held, limit) if held else []
        self._read = {entry.about: entry.place for entry in entries}  # the last one of each counts
        return [message_of(entry) for entry in entries]

    async def settle(self, connection: Connection) -> None:
        """Move the cursors past what was fetched."""
        await cursors.advance(connection, self._group, self._read)

    async def acknowledge(self) -> None:
        """The cursors are committed already."""

    async def rewind(self) -> None:
        """The cursors were not moved."""

    async def bury(
        self, connection: Connection, message: Message, error: str, attempts: int
    ) -> None:
        """The table of dead letters is all that there is."""

    async def behind(self, connection: Connection) -> Behind | None:
        """The database counts it."""
        return None

    async def close(self) -> None: ...


def message_of(entry: Entry) -> Message:
    """What stands in the outbox, as it travels."""
    return Message(
        id=entry.id,
        topic=topic_of(entry.about),
        key=entry.key,
        type=entry.type,
        version=entry.version,
        time=entry.occurred_at,
        body=entry.body,
        published_at=entry.published_at,
    )
