"""Messages of the bus that a consumer could not take, and what becomes of them (BUS-1)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce.store.outbox import MAX_COUNTED
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class Buried:
    """A message for a person to look at. `retried_at` says that its consumer is to get it again."""

    id: int
    consumer: str
    event_id: UUID
    topic: str
    key: str
    type: str
    error: str
    attempts: int
    died_at: datetime
    retried_at: datetime | None


@dataclass(frozen=True, slots=True)
class Retried:
    """A message that its consumer is to get again, as it came."""

    id: int
    event_id: UUID
    topic: str
    key: str
    type: str
    version: int
    time: datetime
    body: bytes


async def bury(
    connection: Connection,
    *,
    consumer: str,
    event_id: UUID,
    topic: str,
    key: str,
    type_: str,
    version: int,
    time: datetime,
    body: bytes,
    error: str,
    attempts: int,
) -> None:
    """Keep a message that cannot be taken. In the caller's transaction."""
    await QUERIES["bury"].run(
        connection,
        consumer=consumer,
        event_id=event_id,
        topic=topic,
        key=key,
        type=type_,
        version=version,
        time=time,
        body=body,
        error=error,
        attempts=attempts,
    )


async def listed(
    connection: Connection, *, consumer: str | None, after: int | None, limit: int
) -> list[Buried]:
    """Those that are not taken yet, the newest first, older than the one called `after`."""
    rows = await QUERIES["list"].rows(connection, consumer=consumer, after=after, limit=limit)
    return [Buried(**row) for row in rows]


async def ask_retry(connection: Connection, letter_id: int) -> Buried | None:
    """Let its consumer get it again. None if there is no such, or it was taken already."""
    row = await QUERIES["ask_retry"].row(connection, id=letter_id)
    return None if row is None else Buried(**row)


async def is_known(connection: Connection, letter_id: int) -> bool:
    """Whether there is such a message, taken or not."""
    return await QUERIES["is_known"].row(connection, id=letter_id) is not None


async def next_retried(connection: Connection, consumer: str) -> Retried | None:
    """One that the consumer is to get again and nobody holds; held to the transaction's end."""
    row = await QUERIES["next_retried"].row(connection, consumer=consumer)
    return None if row is None else Retried(**row)


async def taken(connection: Connection, letter_id: int) -> None:
    """It was taken after all. In the transaction of its effect."""
    await QUERIES["taken"].run(connection, id=letter_id)


async def failed_again(connection: Connection, letter_id: int, error: str) -> None:
    """It was not: it stays until somebody asks again."""
    await QUERIES["failed_again"].run(connection, id=letter_id, error=error)


async def numbers_open(connection: Connection) -> dict[str, int]:
    """How many each group has, up to MAX_COUNTED."""
    rows = await QUERIES["count_open"].rows(connection, most=MAX_COUNTED)
    return {row["consumer"]: row["number"] for row in rows}
