"""Events that wait for a lookup at their gateway."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from paidonce.core.events import EventId, SourceId
from paidonce.db.queries import Connection, load_queries
from paidonce.providers.contract import Delivery

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class PendingLookup:
    """A stored event that has to be looked up at its gateway."""

    event_id: EventId
    source_id: SourceId
    delivery: Delivery
    is_pending: bool  # False: the event is final, only its queue rows remain


async def find_due(
    connection: Connection, sources: Iterable[SourceId], running: Collection[EventId], limit: int
) -> list[tuple[SourceId, EventId]]:
    """Return the due events of these sources, up to `limit` of each, the oldest first."""
    rows = await QUERIES["find_due"].rows(
        connection, source_id=list(sources), running=list(running), limit=limit
    )
    return list(dict.fromkeys((SourceId(row[0]), EventId(row[1])) for row in rows))


async def seconds_until_due(
    connection: Connection, sources: Iterable[SourceId], running: Collection[EventId]
) -> float | None:
    """Return the time until the next event of these sources is due; None if there is none."""
    seconds: float | None = await QUERIES["seconds_until_due"].value(
        connection, source_id=list(sources), running=list(running)
    )
    return seconds


async def load(connection: Connection, event_ids: Sequence[EventId]) -> list[PendingLookup]:
    """Load the deliveries of the events, in this order."""
    if not event_ids:
        return []
    rows = await QUERIES["load"].rows(
        connection, event_id=event_ids, first_id=min(event_ids), last_id=max(event_ids)
    )
    found = {
        event_id: PendingLookup(
            event_id, source_id, Delivery(orjson.loads(headers), body, received_at), is_pending
        )
        for event_id, source_id, headers, body, received_at, is_pending in rows
    }
    return [found[one] for one in event_ids if one in found]
