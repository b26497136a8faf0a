"""Dead letters: events that a person has to look at."""

from datetime import datetime
from uuid import UUID

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from paidonce.operations import DiscardView, ReplayView
from paidonce.views import EventDetail, EventView, ReprocessedEvent
from paidonce.web.api.replays import Chosen, Rate
from paidonce.web.api.shapes import Limit, Page, Reason, Text, page
from paidonce.web.auth import Operator, Reader, Verbs


class Retry(BaseModel):
    """Which dead letters to process again, all if nothing is given, and at how many a second."""

    model_config = ConfigDict(extra="forbid")
    filter: Chosen
    rate: Rate | None = None


class Discard(Reason):
    """Which dead letters to give up, all if nothing is given, and why."""

    filter: Chosen


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.get("/api/v1/dead-letters", tags=["dead letters"])
    async def list_dead_letters(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        error_code: Text | None = None,
        order: Text | None = None,
        payment: Text | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[EventView]:
        """Events that were tried often enough, the newest first."""
        found = await verbs.dead_letters(
            limit=limit,
            cursor=cursor,
            since=since,
            until=until,
            source=source,
            error_code=error_code,
            order=order,
            payment=payment,
        )
        return page(found)

    @api.post("/api/v1/dead-letters/retry", status_code=201, tags=["dead letters"])
    async def retry_dead_letters(body: Retry, verbs: Verbs, actor: Operator) -> ReplayView:
        """Process again all dead letters that match: a replay, which goes on by itself."""
        return await verbs.retry_dead_letters(body.filter.as_filter(), actor, rate=body.rate)

    @api.post("/api/v1/dead-letters/discard", tags=["dead letters"])
    async def discard_dead_letters(body: Discard, verbs: Verbs, actor: Operator) -> DiscardView:
        """Give up all dead letters that match. The money that they brought stays listed."""
        return await verbs.discard_dead_letters(body.filter.as_filter(), actor, body.reason)

    @api.post("/api/v1/dead-letters/{event_id}/retry", tags=["dead letters"])
    async def retry_dead_letter(event_id: UUID, verbs: Verbs, actor: Operator) -> ReprocessedEvent:
        """Process one dead letter again."""
        return await verbs.retry_dead_letter(event_id, actor)

    @api.post("/api/v1/dead-letters/{event_id}/discard", tags=["dead letters"])
    async def discard_dead_letter(
        event_id: UUID, body: Reason, verbs: Verbs, actor: Operator
    ) -> EventDetail:
        """Give up one dead letter. The money that it brought stays listed."""
        return await verbs.discard_dead_letter(event_id, actor, body.reason)
