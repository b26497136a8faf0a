"""The bus: how far it is behind, and the messages that could not be taken."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict

from paidonce.operations import LetterFilter
from paidonce.views import BusView, DeadMessagesView, DeadMessageView
from paidonce.web.api.shapes import Limit, Page, Reason, Text, Time, page
from paidonce.web.auth import Operator, Reader, Verbs

LAST_NUMBER: Final = 2**63 - 1

LetterId = Annotated[int, Path(ge=1, le=LAST_NUMBER)]
Cursor = Annotated[int, Query(ge=1, le=LAST_NUMBER)]


class ChosenMessages(BaseModel):
    """Which messages; all that is given has to match. Times are those of their death."""

    model_config = ConfigDict(extra="forbid")
    consumer: Text | None = None
    type: Text | None = None
    topic: Text | None = None
    since: Time | None = None
    until: Time | None = None

    def as_filter(self) -> LetterFilter:
        return LetterFilter(**self.model_dump())


class RetryMessages(BaseModel):
    """Which messages to give to their groups again, all if nothing is given."""

    model_config = ConfigDict(extra="forbid")
    filter: ChosenMessages
    dry_run: bool = False


class DiscardMessages(Reason):
    """Which messages to give up, all if nothing is given, and why."""

    filter: ChosenMessages
    dry_run: bool = False


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
        type_: Annotated[Text | None, Query(alias="type")] = None,
        topic: Text | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        discarded: bool = False,
        limit: Limit = 50,
        cursor: Cursor | None = None,
    ) -> Page[DeadMessageView]:
        """Messages that a group of consumers could not take, the newest first.

        Those that wait for a person, or those that were discarded.
        """
        chosen = LetterFilter(consumer, type_, topic, since, until)
        found = await verbs.dead_messages(
            limit=limit, cursor=cursor, chosen=chosen, is_discarded=discarded
        )
        return page(found)

    @api.post("/api/v1/bus/dead-letters/retry", tags=["bus"])
    async def retry_dead_messages(
        body: RetryMessages, verbs: Verbs, actor: Operator
    ) -> DeadMessagesView:
        """Give all messages that match to their groups again. A dry run says how many."""
        chosen = body.filter.as_filter()
        return await verbs.retry_dead_messages(chosen, actor, is_dry_run=body.dry_run)

    @api.post("/api/v1/bus/dead-letters/discard", tags=["bus"])
    async def discard_dead_messages(
        body: DiscardMessages, verbs: Verbs, actor: Operator
    ) -> DeadMessagesView:
        """Give up all messages that match. A dry run says how many."""
        chosen = body.filter.as_filter()
        return await verbs.discard_dead_messages(
            chosen, actor, body.reason, is_dry_run=body.dry_run
        )

    @api.post("/api/v1/bus/dead-letters/{letter_id}/retry", tags=["bus"])
    async def retry_dead_message(
        letter_id: LetterId, verbs: Verbs, actor: Operator
    ) -> DeadMessageView:
        """Give a message to its group again. It is listed until the group has taken it."""
        return await verbs.retry_dead_message(letter_id, actor)

    @api.post("/api/v1/bus/dead-letters/{letter_id}/discard", tags=["bus"])
    async def discard_dead_message(
        letter_id: LetterId, body: Reason, verbs: Verbs, actor: Operator
    ) -> DeadMessageView:
        """Give up a message: it is kept, and listed no more but among the discarded."""
        return await verbs.discard_dead_message(letter_id, actor, body.reason)
