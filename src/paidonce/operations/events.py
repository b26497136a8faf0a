"""Events with their trail, and what waits."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from paidonce.errors import NotFoundError
from paidonce.operations.desk import Desk
from paidonce.store import listings, notices
from paidonce.views import (
    EventDetail,
    EventView,
    TrailItem,
    event_fields,
    event_view,
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

    async def event(self, event_id: UUID) -> EventDetail:
        """One event and its whole trail. Raises NotFoundError."""
        async with self._database.connection() as connection:
            rows = await listings.events(connection, limit=1, first_id=event_id, last_id=event_id)
            if not rows:
                raise NotFoundError(f"there is no event {event_id}")
            audit = await listings.audit_of_event(connection, event_id)
        recorded = [
            TrailItem(row["at"], row["action"], row["success"], orjson.loads(row["details"]))
            for row in audit
        ]
        trail = [*happy_trail(event_view(rows[0])), *recorded]
        by_time = sorted(trail, key=lambda item: item.at)
        return EventDetail(**event_fields(rows[0]), trail=by_time)

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
