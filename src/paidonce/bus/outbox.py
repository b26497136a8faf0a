"""The outbox: messages that are written in the transaction of their cause (BUS-1)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import asyncpg
import orjson

from paidonce.bus.model import Message, NewMessage, topic_of
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import MAX_COUNTED

QUERIES: Final = load_queries(__file__)


async def add(connection: Connection, messages: Sequence[NewMessage]) -> None:
    """Write messages in this order, in the caller's transaction.

    The rows that they are about have to be locked.
    """
    if messages:
        await QUERIES["add_messages"].run(connection, messages=[_row(one) for one in messages])


async def unpublished(connection: Connection, limit: int) -> dict[int, Message]:
    """The first unpublished messages by `seq`. Those with one key are in the order of commits."""
    return _by_position(await QUERIES["unpublished"].rows(connection, limit=limit))


async def unpublished_positions(connection: Connection, limit: int) -> list[int]:
    """The positions of the first unpublished messages."""
    rows = await QUERIES["unpublished_positions"].rows(connection, limit=limit)
    return [row["seq"] for row in rows]


async def mark_published(connection: Connection, positions: Sequence[int]) -> None:
    """Mark messages as published in this order; PostgreSQL consumers see them after the commit.

    Only the leading relay may call it.
    """
    await QUERIES["mark_published"].run(connection, seq=positions)


async def published_after(
    connection: Connection, positions: Mapping[str, int], limit: int
) -> dict[int, Message]:
    """The next published messages after a position in each aggregate type, by `pos`, in order."""
    rows = await QUERIES["published_after"].rows(
        connection, types=list(positions), pos=list(positions.values()), limit=limit
    )
    return _by_position(rows)


async def backlog(connection: Connection) -> tuple[int, float]:
    """The number of unpublished messages, up to MAX_COUNTED, and the age of the oldest in s."""
    (row,) = await QUERIES["backlog"].rows(connection, most=MAX_COUNTED)
    return row["number"], max(row["oldest_s"], 0.0)


def _row(one: NewMessage) -> tuple[object, ...]:
    payload = orjson.dumps(one.payload, default=str).decode()
    return (one.id, one.aggregate_type, one.key, one.type, one.version, payload, one.occurred_at)


def _by_position(rows: Iterable[asyncpg.Record]) -> dict[int, Message]:
    found: dict[int, Message] = {}
    for row in rows:
        fields = dict(row)
        position, topic = fields.pop("position"), topic_of(fields.pop("aggregate_type"))
        found[position] = Message(topic=topic, **fields)
    return found
