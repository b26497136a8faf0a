"""Routes of the bus: status and dead letters."""

from typing import Annotated

from fastapi import FastAPI, Path

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.bus import model
from paidonce.bus.service import BusService
from paidonce.core.input import Input, Reason
from paidonce.db.paging import Page

LetterId = Annotated[int, Path(ge=1, le=model.MAX_ID)]


class RetryBusDeadLetters(Input):
    """Which dead letters to retry; all if the filter is empty."""

    filter: model.BusDeadLetterFilter
    dry_run: bool = False


class DiscardBusDeadLetters(Reason, RetryBusDeadLetters):
    """Which dead letters to discard, and why; all if the filter is empty."""


def add_to(api: FastAPI, bus: BusService) -> None:
    @api.get("/api/v1/bus", tags=["bus"])
    async def get_bus(actor: Reader) -> model.BusStatus:
        """Unpublished messages, and the lag of each consumer group."""
        return await bus.status()

    @api.get("/api/v1/bus/dead-letters", tags=["bus"])
    async def list_bus_dead_letters(
        query: FromQuery[model.BusDeadLetterQuery], actor: Reader
    ) -> Page[model.BusDeadLetter]:
        """Messages that a consumer group could not consume, newest first."""
        return await bus.search(query)

    @api.post("/api/v1/bus/dead-letters/retry", tags=["bus"])
    async def retry_bus_dead_letters(
        body: RetryBusDeadLetters, actor: Operator
    ) -> model.BusDeadLetterCount:
        """Deliver all messages that match to their groups again. A dry run only counts them."""
        return await bus.retry_matching(body.filter, actor, is_dry_run=body.dry_run)

    @api.post("/api/v1/bus/dead-letters/discard", tags=["bus"])
    async def discard_bus_dead_letters(
        body: DiscardBusDeadLetters, actor: Operator
    ) -> model.BusDeadLetterCount:
        """Discard all messages that match. A dry run only counts them."""
        return await bus.discard_matching(body.filter, actor, body.reason, is_dry_run=body.dry_run)

    @api.post("/api/v1/bus/dead-letters/{letter_id}/retry", tags=["bus"])
    async def retry_bus_dead_letter(letter_id: LetterId, actor: Operator) -> model.BusDeadLetter:
        """Deliver a message to its group again. It is listed until the group has consumed it."""
        return await bus.retry(letter_id, actor)

    @api.post("/api/v1/bus/dead-letters/{letter_id}/discard", tags=["bus"])
    async def discard_bus_dead_letter(
        letter_id: LetterId, body: Reason, actor: Operator
    ) -> model.BusDeadLetter:
        """Discard a message. It is kept, and listed with `discarded=true`."""
        return await bus.discard(letter_id, actor, body.reason)
