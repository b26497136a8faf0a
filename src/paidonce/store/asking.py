"""What waits for an answer of its gateway, and whose turn it is to ask."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import orjson

from paidonce.domain.events import EventId, SourceId
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class Question:
    """A stored event whose gateway is to be asked what it means."""

    event_id: EventId
    source_id: SourceId
    received_at: datetime
    headers: Mapping[str, str]
    body: bytes
    waits: bool  # False: it is final already, and only its rows in the queue are left


async def due_of_sources(
    connection: Connection, sources: Iterable[SourceId], in_hand: Collection[EventId], limit: int
) -> list[tuple[SourceId, EventId]]:
    """What is due of each of these sources, up to `limit` of each, the oldest first."""
    rows = await QUERIES["due_of_sources"].rows(
        connection, source_id=list(sources), in_hand=list(in_hand), limit=limit
    )
    return list(dict.fromkeys((SourceId(row[0]), EventId(row[1])) for row in rows))


async def next_in_s(
    connection: Connection, sources: Iterable[SourceId], in_hand: Collection[EventId]
) -> float | None:
    """How long until something is due of one of these sources; None when nothing waits."""
    row = await QUERIES["next_of_sources"].row(
        connection, source_id=list(sources), in_hand=list(in_hand)
    )
    return None if row is None else row["in_s"]


async def read(connection: Connection, event_ids: Sequence[EventId]) -> list[Question]:
    """What the events brought, in this order."""
    if not event_ids:
        return []
    rows = await QUERIES["read"].rows(
        connection, event_id=event_ids, first_id=min(event_ids), last_id=max(event_ids)
    )
    found = {
        row["id"]: Question(
            event_id=row["id"],
            source_id=row["source_id"],
            received_at=row["received_at"],
            headers=orjson.loads(row["headers"]),
            body=row["raw_body"],
            waits=row["waits"],
        )
        for row in rows
    }
    return [found[one] for one in event_ids if one in found]


async def lock_sources(connection: Connection, sources: Collection[SourceId]) -> set[SourceId]:
    """Those of these sources that nobody else asks, for as long as this session lives.

    Give none that is held already: a lock that was taken twice has to be given back twice.
    """
    rows = await QUERIES["lock_sources"].rows(connection, source_id=list(sources))
    return {SourceId(row["source_id"]) for row in rows}


async def unlock_sources(connection: Connection, sources: Collection[SourceId]) -> None:
    """Let others ask these."""
    await QUERIES["unlock_sources"].rows(connection, source_id=list(sources))
