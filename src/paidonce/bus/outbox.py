"""The outbox: messages that are written in the transaction of their cause (BUS-1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg
import orjson

from paidonce.bus.model import Backlog, Message, NewMessage, topic_of
from paidonce.db.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

MAX_COUNTED: Final = 100_000
"""Backlogs and lags are counted up to this number."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A message in the outbox."""

    position: int
    """`seq` of an unpublished message, `pos` of a published one."""
    aggregate_type: str
    message: Message


async def add(connection: Connection, messages: Sequence[NewMessage]) -> None:
    """Write messages in this order, in the caller's transaction.

    The rows that they are about have to be locked.
    """
    if messages:
        await QUERIES["add_messages"].run(connection, messages=[_row(one) for one in messages])


async def unpublished(connection: Connection, limit: int) -> list[OutboxEntry]:
    """The first unpublished messages. Those with the same key are in the order of commits."""
    rows = await QUERIES["unpublished"].rows(connection, limit=limit)
    return [_entry(row, row["seq"]) for row in rows]


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
) -> list[OutboxEntry]:
    """The next published messages after a position in each aggregate type, in order."""
    rows = await QUERIES["published_after"].rows(
        connection, types=list(positions), pos=list(positions.values()), limit=limit
    )
    return [_entry(row, row["pos"], row["published_at"]) for row in rows]


async def backlog(connection: Connection) -> Backlog:
    """The unpublished messages, counted up to MAX_COUNTED."""
    row = await QUERIES["backlog"].row(connection, most=MAX_COUNTED)
    assert row is not None
    return Backlog(row["number"], max(row["oldest_s"], 0.0))


def _row(message: NewMessage) -> tuple[object, ...]:
    payload = orjson.dumps(message.payload, default=str).decode()
    return (
        message.id,
        message.aggregate_type,
        message.key,
        message.type,
        message.version,
        payload,
        message.occurred_at,
    )


def _entry(row: asyncpg.Record, position: int, published_at: datetime | None = None) -> OutboxEntry:
    message = Message(
        id=row["id"],
        topic=topic_of(row["aggregate_type"]),
        key=row["key"],
        type=row["type"],
        version=row["version"],
        time=row["occurred_at"],
        body=row["body"].encode(),
        published_at=published_at,
    )
    return OutboxEntry(position, row["aggregate_type"], message)
