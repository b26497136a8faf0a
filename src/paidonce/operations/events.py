"""Events with their trail, and what waits."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from paidonce.domain.masking import MARGIN, MAX_SHOWN
from paidonce.errors import NotFoundError
from paidonce.operations.desk import Desk
from paidonce.store import listings
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
    ) -> list[EventView]:
        """A page of events, the newest first."""
        last = min(
            listings.LAST_ID if cursor is None else UUID(int=max(cursor.int - 1, 0)),
            listings.LAST_ID if until is None else listings.first_id_at(until),
        )
        first = listings.FIRST_ID if since is None else listings.first_id_at(since)
        async with self._database.connection() as connection:
            rows = await listings.events(
                connection, limit=limit, first_id=first, last_id=last, **filters
            )
        return [event_view(row) for row in rows]

    async def event(self, event_id: UUID, *, with_evidence: bool = False) -> EventDetail:
        """One event and its whole trail, and what arrived, masked. Raises NotFoundError."""
        async with self._database.connection() as connection:
            rows = await listings.events(connection, limit=1, first_id=event_id, last_id=event_id)
            if not rows:
                raise NotFoundError(f"there is no event {event_id}")
            audit = await listings.audit_of_event(connection, event_id)
            evidence = await self._evidence(connection, event_id) if with_evidence else None
        recorded = [
            TrailItem(row["at"], row["action"], row["success"], orjson.loads(row["details"]))
            for row in audit
        ]
        trail = [*happy_trail(event_view(rows[0])), *recorded]
        by_time = sorted(trail, key=lambda item: item.at)
        return EventDetail(**event_fields(rows[0]), trail=by_time, evidence=evidence)

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

    async def ping(self) -> None:
        """Raises DatabaseAwayError unless the database answers."""
        async with self._database.connection() as connection:
            await listings.ping(connection)
