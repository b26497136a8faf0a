"""HTTP routes of replays, dead letters and reprocessing."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query, status

from paidonce.api.auth import Operator, Reader
from paidonce.core.input import Reason
from paidonce.db.paging import ListQuery, Page
from paidonce.events.model import DeadLetterFilter, DeadLetterQuery, EventDetail, EventView
from paidonce.replay import model
from paidonce.replay.model import Replay, ReprocessedEvent
from paidonce.replay.service import DeadLetterService, ReplayService


class DiscardRequest(Reason):
    """Which dead letters to discard (without a filter: all), and why."""

    filter: DeadLetterFilter


def add_to(api: FastAPI, replays: ReplayService, dead_letters: DeadLetterService) -> None:
    """Add the routes."""
    _add_replays(api, replays)
    _add_dead_letters(api, dead_letters)

    @api.post("/api/v1/events/{event_id}/reprocess", tags=["events"])
    async def reprocess_event(event_id: UUID, actor: Operator) -> ReprocessedEvent:
        """Verify and process one event again, from its raw bytes, as of the time it arrived.

        A payment that is applied is not applied again. A delivery that was refused and is authentic
        now becomes a new event; if it stays refused, the answer is 409 with its error code.
        """
        return await dead_letters.reprocess(event_id, actor)


def _add_replays(api: FastAPI, replays: ReplayService) -> None:
    @api.post("/api/v1/replays", status_code=status.HTTP_201_CREATED, tags=["replays"])
    async def create_replay(body: model.ReplayRequest, actor: Operator) -> Replay:
        """Process again all events that match. A small replay is finished when it is answered.

        A payment that is applied is not applied again. Events that arrive from now on are not part
        of the replay.
        """
        return await replays.create(body, actor)

    @api.get("/api/v1/replays", tags=["replays"])
    async def list_replays(query: Annotated[ListQuery, Query()], actor: Reader) -> Page[Replay]:
        """Replays, newest first."""
        return await replays.search(query)

    @api.get("/api/v1/replays/{replay_id}", tags=["replays"])
    async def get_replay(replay_id: UUID, actor: Reader) -> Replay:
        """One replay with its progress."""
        return await replays.get(replay_id)

    @api.post("/api/v1/replays/{replay_id}/pause", tags=["replays"])
    async def pause_replay(replay_id: UUID, actor: Operator) -> Replay:
        """Pause a replay; what it did stays."""
        return await replays.pause(replay_id, actor)

    @api.post("/api/v1/replays/{replay_id}/resume", tags=["replays"])
    async def resume_replay(replay_id: UUID, actor: Operator) -> Replay:
        """Continue a paused replay."""
        return await replays.resume(replay_id, actor)

    @api.post("/api/v1/replays/{replay_id}/cancel", tags=["replays"])
    async def cancel_replay(replay_id: UUID, actor: Operator) -> Replay:
        """End a replay; what it did stays."""
        return await replays.cancel(replay_id, actor)


def _add_dead_letters(api: FastAPI, dead_letters: DeadLetterService) -> None:
    @api.get("/api/v1/dead-letters", tags=["dead letters"])
    async def list_dead_letters(
        query: Annotated[DeadLetterQuery, Query()], actor: Reader
    ) -> Page[EventView]:
        """Dead letters, newest first: events that a person must look at."""
        return await dead_letters.search(query)

    @api.post("/api/v1/dead-letters/retry", status_code=201, tags=["dead letters"])
    async def retry_dead_letters(body: model.RetryRequest, actor: Operator) -> Replay:
        """Process again all dead letters that match, with a replay in the background."""
        return await dead_letters.retry_matching(body, actor)

    @api.post("/api/v1/dead-letters/discard", tags=["dead letters"])
    async def discard_dead_letters(body: DiscardRequest, actor: Operator) -> model.DiscardResult:
        """Discard all dead letters that match. Their payments stay listed."""
        return await dead_letters.discard_matching(body.filter, actor, body.reason)

    @api.post("/api/v1/dead-letters/{event_id}/retry", tags=["dead letters"])
    async def retry_dead_letter(event_id: UUID, actor: Operator) -> ReprocessedEvent:
        """Process one dead letter again."""
        return await dead_letters.retry(event_id, actor)

    @api.post("/api/v1/dead-letters/{event_id}/discard", tags=["dead letters"])
    async def discard_dead_letter(event_id: UUID, body: Reason, actor: Operator) -> EventDetail:
        """Discard one dead letter. Its payment stays listed."""
        return await dead_letters.discard(event_id, actor, body.reason)
