"""Events: every delivery that was kept."""

from datetime import datetime
from uuid import UUID

from fastapi import FastAPI

from paidonce.domain.events import EventStatus
from paidonce.operations import Scope
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
        test: bool | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[EventView]:
        """Events, the newest first; rejected and conflicting deliveries are events too.

        `payment` is a gateway's id or ours. So many events are looked at for a page that filters
        which find few together may give a short or even empty one: go on with `next_cursor` until
        it is null, or narrow the time with `since` and `until`.
        """
        found = await verbs.events(
            limit=limit,
            cursor=cursor,
            since=since,
            until=until,
            source=source,
            status=status,
            error_code=error_code,
            order=order,
            payment=payment,
            test=test,
        )
        return page(found)

    @api.get("/api/v1/events/{event_id}", tags=["events"])
    async def get_event(event_id: UUID, verbs: Verbs, actor: Reader) -> EventDetail:
        """One event with its whole trail.

        Who may operate sees what arrived, too, with card numbers and secrets masked.
        """
        may_see = actor.scope.includes(Scope.OPERATE)
        return await verbs.event(event_id, with_evidence=may_see)

    @api.post("/api/v1/events/{event_id}/reprocess", tags=["events"])
    async def reprocess_event(event_id: UUID, verbs: Verbs, actor: Operator) -> ReprocessedEvent:
        """Verify and process one event again, from its raw bytes, at the time at which it arrived.

        What is applied is never applied again. A delivery that was refused and is found authentic
        now becomes an event of its own; one that stays refused is 409 with the code of its refusal.
        """
        return await verbs.reprocess_event(event_id, actor)
