"""Events processed again, and dead letters."""

from typing import Any, Final
from uuid import UUID

from paidonce.domain.events import EventId, EventStatus
from paidonce.engine.fates import Again
from paidonce.errors import ConflictError
from paidonce.operations.desk import Actor, Found
from paidonce.operations.events import EventVerbs
from paidonce.operations.replay_views import DiscardView
from paidonce.operations.replays import bounded
from paidonce.store import replays, reprocessing
from paidonce.store.listings import record_action
from paidonce.store.queries import Connection
from paidonce.store.replays import EventFilter
from paidonce.store.reprocessing import Action
from paidonce.views import (
    EventDetail,
    EventView,
    ReprocessedEvent,
    ReprocessedView,
    reprocessed_event,
)

DISCARD_BATCH: Final = 500
MAX_BATCHES: Final = 200
"""How much of what matches a filter one call discards."""


class ReprocessingVerbs(EventVerbs):
    """What can be done about events that did not end as they should."""

    async def reprocess_event(self, event_id: UUID, actor: Actor) -> ReprocessedEvent:
        """Verify and process an event again, from its raw bytes, at the time it arrived.

        Raises NotFoundError, StillRefusedError when it stays refused, ConflictError when its source
        is not configured any more, or DatabaseAwayError when others hold it for too long.
        """
        again = await self._reprocessor.reprocess(EventId(event_id), actor.name)
        return _shown(again, await self.event(event_id))

    async def dead_letters(self, **filters: Any) -> Found[EventView]:
        """A page of dead letters, the newest first; the filters are those of `events`."""
        return await self.events(status=EventStatus.DEAD_LETTER, **filters)

    async def retry_dead_letter(self, event_id: UUID, actor: Actor) -> ReprocessedEvent:
        """The same as reprocessing it. Raises ConflictError when it is no dead letter."""
        only = EventStatus.DEAD_LETTER
        again = await self._reprocessor.reprocess(EventId(event_id), actor.name, only)
        return _shown(again, await self.event(event_id))

    async def discard_dead_letter(self, event_id: UUID, actor: Actor, reason: str) -> EventDetail:
        """Give up a dead letter. Its payment, if it has brought one, stays listed.

        Raises NotFoundError, or ConflictError when it is no dead letter, or others have it in hand.
        """
        found = await self.event(event_id)
        async with self._database.transaction() as connection:
            if not await _discard(connection, [EventId(event_id)], actor, reason):
                is_dead = found.status is EventStatus.DEAD_LETTER
                why = "is in somebody else's hands" if is_dead else f"is {found.status}"
                raise ConflictError(f"event {event_id} {why}: only a dead letter is discarded")
        return await self.event(event_id)

    async def discard_dead_letters(
        self, chosen: EventFilter, actor: Actor, reason: str
    ) -> DiscardView:
        """Give up all dead letters that match, in batches that are committed one by one."""
        chosen = bounded(chosen, EventStatus.DEAD_LETTER)
        cursor, discarded = None, 0
        for _ in range(MAX_BATCHES):
            async with self._database.transaction() as connection:
                page = await replays.page(connection, chosen, cursor, DISCARD_BATCH)
                discarded += await _discard(connection, page.ids, actor, reason)
            cursor = page.cursor
            if page.is_last:
                break
        async with self._database.transaction() as connection:
            await record_action(
                connection,
                actor.name,
                "dead_letters_discarded",
                filter=chosen.as_json(),
                reason=reason,
                number=discarded,
            )
        return DiscardView(discarded, not page.is_last)


async def _discard(
    connection: Connection, event_ids: list[EventId], actor: Actor, reason: str
) -> int:
    """Discard those that are dead letters, say so in their trails, and return how many it were."""
    codes = await reprocessing.discard(connection, event_ids, f"discarded: {reason}")
    actions = [
        Action(
            event_id=event_id,
            actor=actor.name,
            action="dead_letter_discarded",
            success=True,
            details={"reason": reason, "error_code": code},
        )
        for event_id, code in codes.items()
    ]
    await reprocessing.record_actions(connection, actions)
    return len(codes)


def _shown(again: Again, event: EventDetail) -> ReprocessedEvent:
    verdict = again.verdict
    assert verdict is not None
    told = ReprocessedView(
        result=verdict.result,
        was=again.stored.status,
        was_error_code=again.stored.error_code,
        event_id=again.event_id,
        signature=again.signature,
        applied=bool(again.applied),
    )
    return reprocessed_event(event, told)
