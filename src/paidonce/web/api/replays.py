"""Replays: all events that match a filter, processed again."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, status
from pydantic import BaseModel, ConfigDict, Field

from paidonce.domain.events import EventStatus
from paidonce.operations import MAX_RATE, EventFilter, ReplayView
from paidonce.web.api.shapes import Limit, Page, Text, Time, page
from paidonce.web.auth import Operator, Reader, Verbs

Rate = Annotated[int, Field(ge=1, le=MAX_RATE)]
"""How many events a second at most."""


class Chosen(BaseModel):
    """Which events; all that is given has to match."""

    model_config = ConfigDict(extra="forbid")
    source: Text | None = None
    error_code: Text | None = None
    order: Text | None = None
    payment: Text | None = None
    since: Time | None = None
    until: Time | None = None

    def as_filter(self) -> EventFilter:
        return EventFilter(**self.model_dump())


class ChosenEvents(Chosen):
    """Which events, by their status too."""

    status: EventStatus | None = None


class NewReplay(BaseModel):
    """Which events to process again. A dry run says what would change, and changes nothing."""

    model_config = ConfigDict(extra="forbid")
    filter: ChosenEvents
    dry_run: bool
    rate: Rate | None = None


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post("/api/v1/replays", status_code=status.HTTP_201_CREATED, tags=["replays"])
    async def create_replay(body: NewReplay, verbs: Verbs, actor: Operator) -> ReplayView:
        """Process again all events that match. A small replay is finished when it is answered.

        What is applied is never applied again. Events that arrive from now on are not among them.
        """
        return await verbs.create_replay(
            body.filter.as_filter(), actor, is_dry_run=body.dry_run, rate=body.rate
        )

    @api.get("/api/v1/replays", tags=["replays"])
    async def list_replays(
        verbs: Verbs, actor: Reader, limit: Limit = 50, cursor: UUID | None = None
    ) -> Page[ReplayView]:
        """Replays, the newest first."""
        return page(await verbs.replays(limit=limit, cursor=cursor))

    @api.get("/api/v1/replays/{replay_id}", tags=["replays"])
    async def get_replay(replay_id: UUID, verbs: Verbs, actor: Reader) -> ReplayView:
        """One replay, and how far it has come."""
        return await verbs.replay(replay_id)

    @api.post("/api/v1/replays/{replay_id}/pause", tags=["replays"])
    async def pause_replay(replay_id: UUID, verbs: Verbs, actor: Operator) -> ReplayView:
        """Stop it for a while; what it has done stays."""
        return await verbs.pause_replay(replay_id, actor)

    @api.post("/api/v1/replays/{replay_id}/resume", tags=["replays"])
    async def resume_replay(replay_id: UUID, verbs: Verbs, actor: Operator) -> ReplayView:
        """Go on with one that was paused."""
        return await verbs.resume_replay(replay_id, actor)

    @api.post("/api/v1/replays/{replay_id}/cancel", tags=["replays"])
    async def cancel_replay(replay_id: UUID, verbs: Verbs, actor: Operator) -> ReplayView:
        """End it; what it has done stays."""
        return await verbs.cancel_replay(replay_id, actor)
