"""Messages of the bus that a consumer could not take, and what becomes of them (BUS-1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from paidonce.store.outbox import MAX_COUNTED
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
_OPEN: Final = QUERIES["list"].without("discarded")
_DISCARDED: Final = QUERIES["list"].without("open")
_LOCK_ASKED_TOO: Final = QUERIES["lock_page"].without("unasked")


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which messages; all that is given has to match. Times are those of their death."""

    consumer: str | None = None
    type: str | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """What is given of it."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in given.items()
        }


@dataclass(frozen=True, slots=True)
class Buried:
    """A message for a person to look at. `retried_at` says that its consumer is to get it again,
    `discarded_at` that nobody wants it any more.
    """

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
    discarded_at: datetime | None
    discarded_by: str | None
    discard_reason: str | None


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
    connection: Connection,
    chosen: LetterFilter,
    *,
    is_discarded: bool,
    after: int | None,
    limit: int,
) -> list[Buried]:
    """Those that wait for a person, or were discarded, the newest first, older than `after`."""
    query = _DISCARDED if is_discarded else _OPEN
    rows = await query.rows(connection, **asdict(chosen), after=after, limit=limit)
    return [Buried(**row) for row in rows]


async def lock_page(
    connection: Connection, chosen: LetterFilter, *, with_retried: bool, after: int, limit: int
) -> list[int]:
    """The next that match and that nobody has in hand, the oldest first.

    Held to the transaction's end. Those that are to be retried anyway only if wanted.
    """
    query = _LOCK_ASKED_TOO if with_retried else QUERIES["lock_page"]
    rows = await query.rows(connection, **asdict(chosen), after=after, limit=limit)
    return [row["id"] for row in rows]


async def number_of(
    connection: Connection, chosen: LetterFilter, *, with_retried: bool, limit: int
) -> int:
    """How many match, up to a limit; nothing is locked."""
    query = (_LOCK_ASKED_TOO if with_retried else QUERIES["lock_page"]).without("locks")
    return len(await query.rows(connection, **asdict(chosen), after=0, limit=limit))


async def ask_retry(connection: Connection, letter_ids: Sequence[int]) -> list[Buried]:
    """Let their consumers get these again, and return them; none that was taken or discarded."""
    rows = await QUERIES["ask_retry"].rows(connection, id=letter_ids)
    return [Buried(**row) for row in rows]


async def discard(
    connection: Connection, letter_ids: Sequence[int], *, actor: str, reason: str
) -> list[Buried]:
    """Nobody wants these any more; returns them; none that was taken or discarded before."""
    rows = await QUERIES["discard"].rows(connection, id=letter_ids, actor=actor, reason=reason)
    return [Buried(**row) for row in rows]


async def ending(connection: Connection, letter_id: int) -> str | None:
    """How one that is not open has ended, in words. None if there is no such message."""
    row = await QUERIES["ended"].row(connection, id=letter_id)
    if row is None:
        return None
    return f"was discarded by {row['discarded_by']}" if row["discarded_by"] else "was taken already"


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
