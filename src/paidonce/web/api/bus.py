"""The bus: how far it is behind, and the messages that could not be taken."""

from typing import Annotated, Final

from fastapi import FastAPI, Path, Query

from paidonce.views import BusView, DeadMessageView
from paidonce.web.api.shapes import Limit, Page, Text, page
from paidonce.web.auth import Operator, Reader, Verbs

LAST_NUMBER: Final = 2**63 - 1

LetterId = Annotated[int, Path(ge=1, le=LAST_NUMBER)]
Cursor = Annotated[int, Query(ge=1, le=LAST_NUMBER)]


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.get("/api/v1/bus", tags=["bus"])
    async def get_bus(verbs: Verbs, actor: Reader) -> BusView:
        """What is not published yet, and how far each group of consumers is behind."""
        return await verbs.bus_status()

    @api.get("/api/v1/bus/dead-letters", tags=["bus"])
    async def list_dead_messages(
        verbs: Verbs,
        actor: Reader,
        consumer: Text | None = None,
        limit: Limit = 50,
        cursor: Cursor | None = None,
    ) -> Page[DeadMessageView]:
        """Messages that a group of consumers could not take, the newest first."""
        return page(await verbs.dead_messages(limit=limit, cursor=cursor, consumer=consumer))

    @api.post("/api/v1/bus/dead-letters/{letter_id}/retry", tags=["bus"])
    async def retry_dead_message(
        letter_id: LetterId, verbs: Verbs, actor: Operator
    ) -> DeadMessageView:
        """Give a message to its group again. It is listed until the group has taken it."""
        return await verbs.retry_dead_message(letter_id, actor)
