"""Stores notifications and their messages."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final
from uuid import UUID

import orjson

from paidonce.core.notifications import WAITING
from paidonce.db.queries import Connection, WrittenRow, from_row, load_queries
from paidonce.notifications import model

QUERIES: Final = load_queries(__file__)

MAX_PENDING: Final = 1_000
"""How many notifications of one kind and source a channel stores; more are only counted."""
MAX_PER_MESSAGE: Final = 10_000
MAX_AGE_S: Final = 7 * 86_400.0
"""Notifications of a failed message that are older are not sent again."""


async def add(
    connection: Connection, routes: model.Routes, *notifications: model.Notification
) -> None:
    """Store notifications for the channels of their kinds, in the caller's transaction."""
    await write(connection, [row for one in notifications for row in one.rows(routes)])


async def write(connection: Connection, rows: Sequence[WrittenRow]) -> None:
    """Store rows of notifications. Waits for no lock."""
    if rows:
        columns = dict(zip(model.COLUMNS, zip(*rows, strict=True), strict=True))
        await QUERIES["add"].run(connection, **columns, max_pending=MAX_PENDING)


async def is_message_due(connection: Connection, channel: str, every_s: float) -> bool:
    """Whether notifications are pending, no message is, and the last one is old enough."""
    query = QUERIES["is_message_due"]
    return bool(await query.value(connection, channel=channel, every_s=every_s))


async def assign(
    connection: Connection, channel: str, message_id: UUID
) -> list[model.PendingNotification]:
    """Assign pending notifications to a message, oldest first, in the caller's transaction."""
    await QUERIES["delete_resolved"].run(connection, channel=channel, waiting=sorted(WAITING))
    rows = await QUERIES["assign"].rows(
        connection, channel=channel, message_id=message_id, limit=MAX_PER_MESSAGE
    )
    return [
        from_row(model.PendingNotification, row, details=orjson.loads(row["details"]))
        for row in sorted(rows, key=itemgetter("id"))
    ]


async def add_message(
    connection: Connection, message_id: UUID, channel: str, content: model.Content
) -> None:
    """Store a message to be sent, in the caller's transaction."""
    text = orjson.dumps(content, default=str).decode()
    await QUERIES["add_message"].run(connection, id=message_id, channel=channel, content=text)


async def begin_attempt(
    connection: Connection, channel: str, delays_s: Sequence[float]
) -> model.NotificationMessage | None:
    """The channel's message that is due; schedules the next attempt.

    The delays are those after each attempt; the last one is repeated.
    """
    row = await QUERIES["begin_attempt"].row(connection, channel=channel, delays_s=delays_s)
    if row is None:
        return None
    return from_row(model.NotificationMessage, row, content=orjson.loads(row["content"]))


async def end_attempt(
    connection: Connection, message_id: UUID, status: str, error: str | None
) -> None:
    """Record an attempt: SENT, FAILED, or PENDING for another attempt. In the caller's transaction.

    Notifications of a failed message are pending again, if they are not older than MAX_AGE_S.
    """
    await QUERIES["end_attempt"].run(connection, id=message_id, status=status, error=error)
    if status == "FAILED":
        await QUERIES["release"].run(connection, message_id=message_id, max_age_s=MAX_AGE_S)


async def count_pending(
    connection: Connection, channels: Iterable[str]
) -> list[model.PendingCount]:
    """How many notifications each of the channels has not received."""
    rows = await QUERIES["count_pending"].rows(connection, channels=list(channels))
    return [model.PendingCount(**row) for row in rows]
