"""Events with their trail, and what waits."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from paidonce.domain.masking import MARGIN, MAX_SHOWN
from paidonce.errors import NotFoundError
from paidonce.operations.desk import Desk, Found, below
from paidonce.store import event_search, listings, notices
from paidonce.store.queries import Connection
from paidonce.views import (
    EventDetail,
    EventView,
    EvidenceView,
    TrailItem,
    event_fields,
    event_view,
    evidence_view,
    happy_trail,
)


class EventVerbs(Desk):
    """What can be asked of events, and of all that waits."""

    async def events(
        self,
        *,
        limit: int,
        cursor: UUID | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        **filters: Any,
    ) -> Found[EventView]:
        """A page of events, the newest first.

        The filters are those of `store.event_search`. Without a filter that finds few, a page may
        be short; see Found.
        """
        last = listings.LAST_ID if until is None else listings.first_id_at(until)
        first = listings.FIRST_ID if since is None else listings.first_id_at(since)
        async with self._database.connection() as connection:
            page = await event_search.search(
                connection,
                limit=limit,
                first_id=first,
                last_id=min(below(cursor), last),
                **filters,
            )
        return Found([event_view(row) for row in page.rows], page.next)

    async def deliveries(
        self, events: Sequence[EventView]
    ) -> list[tuple[EventView, dict[str, str], bytes]]:
        """The events with the headers that were kept of them, and their bytes."""
        async with self._database.connection() as connection:
            found = await event_search.deliveries(connection, [one.id for one in events])
        return [(one, *found[one.id]) for one in events if one.id in found]

    async def event(self, event_id: UUID, *, with_evidence: bool = False) -> EventDetail:
        """One event and its whole trail, and what arrived, masked. Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await event_search.find(connection, event_id)
            if row is None:
                raise NotFoundError(f"there is no event {event_id}")
            audit = await listings.audit_of_event(connection, event_id)
            evidence = await self._evidence(connection, event_id) if with_evidence else None
        recorded = [
            TrailItem(row["at"], row["action"], row["success"], orjson.loads(row["details"]))
            for row in audit
        ]
        trail = [*happy_trail(event_view(row)), *recorded]
        by_time = sorted(trail, key=lambda item: item.at)
        return EventDetail(**event_fields(row), trail=by_time, evidence=evidence)

    async def _evidence(self, connection: Connection, event_id: UUID) -> EvidenceView | None:
        limit = MAX_SHOWN + MARGIN
        row = await listings.evidence_of_event(connection, event_id, limit)
        if row is None:
            return None
        # In a thread: a body that was made for it takes long to look through.
        return await asyncio.to_thread(evidence_view, row, self._rules.masker)

    async def backlog(self) -> list[Mapping[str, Any]]:
        """Events that wait, by status: number and age of the oldest."""
        async with self._database.connection() as connection:
            return await listings.backlog(connection)

    async def unapplied_money(self) -> list[Mapping[str, Any]]:
        """Money received and not applied, by currency: number, sum and age of the oldest."""
        async with self._database.connection() as connection:
            return await listings.unapplied_money(connection)

    async def to_review(self) -> list[Mapping[str, Any]]:
        """Payments that a person should look at, by reason: number and age of the oldest."""
        async with self._database.connection() as connection:
            return await listings.to_review(connection)

    async def untold_notices(self) -> list[Mapping[str, Any]]:
        """What people are still to be told, by channel: number and age of the oldest."""
        channels = {name for names in self._rules.told_to.values() for name in names}
        if not channels:
            return []
        async with self._database.connection() as connection:
            return [dict(row) for row in await notices.untold(connection, sorted(channels))]

    async def ping(self) -> None:
        """Raises DatabaseAwayError unless the database answers."""
        async with self._database.connection() as connection:
            await listings.ping(connection)
