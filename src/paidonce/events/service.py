"""What operators can ask about stored events."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from paidonce.audit import store as audit_store
from paidonce.clock import CLOCK
from paidonce.core.masking import MARGIN, MAX_SHOWN, Masker
from paidonce.db.paging import Page
from paidonce.db.pool import Database
from paidonce.db.queries import Row
from paidonce.errors import NotFoundError
from paidonce.events import model, store

LOOK_BACK: Final = timedelta(seconds=10)
"""Ids are assigned on arrival and visible after the commit, so an older one may appear later."""
PAGE: Final = 500
MAX_PAGES: Final = 20
MAX_REMEMBERED: Final = 50_000


class EventService:
    """Searches events; shows one with its audit trail and evidence."""

    def __init__(self, database: Database, masker: Masker) -> None:
        self._database = database
        self._masker = masker

    async def search(self, query: model.EventQuery) -> Page[model.EventView]:
        """Events, newest first."""
        async with self._database.snapshot() as connection:
            return (await store.search(connection, query)).map(model.event_view)

    async def deliveries(
        self, events: Sequence[model.EventView]
    ) -> list[tuple[model.EventView, dict[str, str], bytes]]:
        """The events with their stored headers and raw bodies."""
        async with self._database.connection() as connection:
            found = await store.deliveries(connection, [one.id for one in events])
        return [(one, *found[one.id]) for one in events if one.id in found]

    async def get(self, event_id: UUID, *, with_evidence: bool = False) -> model.EventDetail:
        """One event with its audit trail, and evidence if asked. Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            row = await store.EVENTS.find(connection, event_id)
            if row is None:
                raise NotFoundError(f"there is no event {event_id}")
            recorded = await audit_store.trail(connection, event=event_id)
            delivered = None
            if with_evidence:
                delivered = await store.evidence(connection, event_id, MAX_SHOWN + MARGIN)
        evidence = None if delivered is None else await self._masked(delivered)
        trail = [*model.basic_trail(model.event_view(row)), *recorded]
        return model.event_detail(row, sorted(trail, key=lambda item: item.at), evidence)

    async def _masked(self, delivered: Row) -> model.EvidenceView:
        """In a thread, and without a connection: masking a hostile body can take long."""
        return await asyncio.to_thread(model.evidence_view, delivered, self._masker)

    async def backlog(self) -> list[Mapping[str, Any]]:
        """Unfinished events by status: number and age of the oldest."""
        async with self._database.connection() as connection:
            return await store.backlog(connection)


class EventFollower:
    """Searches repeatedly for new events."""

    def __init__(self, events: EventService, query: model.EventQuery) -> None:
        self._events = events
        self._query = query
        self._started_at = CLOCK.now()
        self._seen: OrderedDict[UUID, None] = OrderedDict()

    async def poll(self) -> list[model.EventView]:
        """Events since the last call, oldest first; at most the newest PAGE * MAX_PAGES."""
        since = max(self._started_at, CLOCK.now() - LOOK_BACK)
        new: list[model.EventView] = []
        query = self._query.model_copy(update={"limit": PAGE, "since": since})
        for _ in range(MAX_PAGES):
            found = await self._events.search(query)
            new += [one for one in found.items if one.id not in self._seen]
            if found.next_cursor is None:
                break
            query = query.model_copy(update={"cursor": UUID(found.next_cursor)})
        for one in reversed(new):
            self._seen[one.id] = None
        while len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return new[::-1]
