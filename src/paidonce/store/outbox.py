"""What the outside is to be told, written with the facts that it is of (BUS-1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson
from uuid_utils.compat import uuid7

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

MAX_COUNTED: Final = 100_000
"""How far a backlog or a lag is counted; more is told as this many."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened to one thing, in words for the outside."""

    about: str
    """What kind of thing, such as `wallet-payment`: the end of its topic's name."""
    key: str
    """Which of them. Facts with one key keep their order."""
    type: str
    version: int
    """Of the thing, after it happened. It grows by each fact."""
    said: Mapping[str, Any]
    at: datetime
    id: UUID = field(default_factory=uuid7)


async def add(connection: Connection, facts: Sequence[Fact]) -> None:
    """Tell of these, in this order, if and when the transaction commits.

    The rows of the things that they are about have to be locked.
    """
    if facts:
        await QUERIES["add"].run(connection, messages=[_row(fact) for fact in facts])


@dataclass(frozen=True, slots=True)
class Entry:
    """A fact as it stands in the outbox. Its body tells the version and the time, too."""

    place: int
    """`seq` of what is unpublished, `pos` of what is published."""
    id: UUID
    about: str
    key: str
    type: str
    version: int
    body: bytes
    occurred_at: datetime
    published_at: datetime | None = None


async def unpublished(connection: Connection, limit: int) -> list[Entry]:
    """The first of what is not published yet. For each key it is in the order of commits."""
    rows = await QUERIES["unpublished"].rows(connection, limit=limit)
    return [_entry(row["seq"], row) for row in rows]


async def mark_published(connection: Connection, entries: Sequence[Entry]) -> None:
    """These are published, in this order: consumers on PostgreSQL see them from the commit on.

    Only whoever holds the relay's lock may call it.
    """
    await QUERIES["mark_published"].run(connection, seq=[entry.place for entry in entries])


async def after(connection: Connection, places: Mapping[str, int], limit: int) -> list[Entry]:
    """What was published next about some things, each after a position, in order."""
    rows = await QUERIES["after"].rows(
        connection, about=list(places), pos=list(places.values()), limit=limit
    )
    return [_entry(row["pos"], row, row["published_at"]) for row in rows]


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not published yet: how many, up to MAX_COUNTED, and the age of the oldest."""

    number: int
    oldest_s: float


async def backlog(connection: Connection) -> Backlog:
    """How far the relay is behind."""
    row = await QUERIES["backlog"].row(connection, most=MAX_COUNTED)
    assert row is not None
    return Backlog(row["number"], max(row["oldest_s"], 0.0))


def _row(fact: Fact) -> tuple[object, ...]:
    said = orjson.dumps(fact.said, default=str).decode()
    return (fact.id, fact.about, fact.key, fact.type, fact.version, said, fact.at)


def _entry(place: int, row: asyncpg.Record, published_at: datetime | None = None) -> Entry:
    return Entry(
        place=place,
        id=row["id"],
        about=row["about"],
        key=row["key"],
        type=row["type"],
        version=row["version"],
        body=row["body"].encode(),
        occurred_at=row["occurred_at"],
        published_at=published_at,
    )
