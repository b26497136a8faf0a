"""Events: every delivery that was kept."""

from datetime import datetime
from uuid import UUID

from fastapi import FastAPI

from paidonce.domain.events import EventStatus
from paidonce.views import EventDetail, EventView, ReprocessedEvent
from paidonce.web.api.shapes import Limit, Page, Text, page
from paidonce.web.auth import Operator, Reader, Verbs


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.get("/api/v1/events", tags=["events"])
    async def list_events(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        status: EventStatus | None = None,
        error_code: Text | None = None,
        order: Text | None = None,
        payment: Text | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[EventView]:
        """Events, the newest first; rejected and conflicting deliveries are events too."""
        items = await verbs.events(
            limit=limit + 1,
            cursor=cursor,
            since=since,
            until=until,
            source=source,
            status=status,
            error_code=error_code,
            order_reference=order,
            payment=payment,
        )
        return page(items, limit)

    @api.get("/api/v1/events/{event_id}", tags=["events"])
    async def get_event(event_id: UUID, verbs: Verbs, actor: Reader) -> EventDetail:
        """One event with its whole trail."""
        return await verbs.event(event_id)

    @api.post("/api/v1/events/{event_id}/reprocess", tags=["events"])
    async def reprocess_event(event_id: UUID, verbs: Verbs, actor: Operator) -> ReprocessedEvent:
        """Verify and process one event again, from its raw bytes, at the time at which it arrived.

        What is applied is never applied again. A delivery that was refused and is found authentic
        now becomes an event of its own; one that stays refused is 409 with the code of its refusal.
        """
        return await verbs.reprocess_event(event_id, actor)
