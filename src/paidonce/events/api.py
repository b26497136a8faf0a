"""HTTP routes of events."""

from uuid import UUID

from fastapi import FastAPI

from paidonce.api.requests import FromQuery, Reader
from paidonce.core.actors import Scope
from paidonce.db.paging import Page
from paidonce.events.model import EventDetail, EventQuery, EventView
from paidonce.events.service import EventService


def add_to(api: FastAPI, events: EventService) -> None:
    @api.get("/api/v1/events", tags=["events"])
    async def list_events(query: FromQuery[EventQuery], actor: Reader) -> Page[EventView]:
        """Events, newest first: every delivery that was stored."""
        return await events.search(query)

    @api.get("/api/v1/events/{event_id}", tags=["events"])
    async def get_event(event_id: UUID, actor: Reader) -> EventDetail:
        """One event with its audit trail.

        Keys of scope `operate` also see the delivery, with card numbers and secrets masked.
        """
        may_see = actor.scope.includes(Scope.OPERATE)
        return await events.get(event_id, with_evidence=may_see)
