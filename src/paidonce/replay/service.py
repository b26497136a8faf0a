"""What operators can do with events that did not end as they should: replays and dead letters."""

import asyncio
import time
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce.audit.model import AuditEntry
from paidonce.audit.store import record_action, record_entries
from paidonce.clock import CLOCK
from paidonce.core.actors import Actor
from paidonce.core.events import EventId, EventStatus
from paidonce.db.paging import ListQuery, Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.errors import ConflictError, InvalidRequestError, NotFoundError
from paidonce.events import model as events_model
from paidonce.events.model import DeadLetterFilter, EventFilter
from paidonce.events.service import EventService
from paidonce.ids import new_id
from paidonce.processing.items import Rules
from paidonce.replay import model, store
from paidonce.replay.model import Replay, ReplayId, ReprocessedEvent
from paidonce.replay.reprocess import Reprocessor
from paidonce.replay.store import QUERIES
from paidonce.replay.worker import ReplayRun
from paidonce.runtime.wakeup import notify_workers

DEFAULT_RATE: Final = 100
"""How many events per second a replay processes. A dry run uses MAX_RATE."""
WAIT_S: Final = 1.0
"""How long the request for a replay waits for its end before it is answered."""
POLL_S: Final = 0.05
STANDBY_S: Final = 0.5
"""How often to check whether the process that runs a replay has stopped."""
DISCARD_BATCH: Final = 500
MAX_BATCHES: Final = 200
"""How many batches of dead letters one call discards."""
_ONE_MS: Final = timedelta(milliseconds=1)


class ReplayService:
    """Creates, shows, pauses, resumes and cancels replays."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def create(
        self, request: model.ReplayRequest, actor: Actor, *, wait_s: float = WAIT_S
    ) -> Replay:
        """Start a replay of all events that match; a small one is finished on return.

        Events that arrive from now on are not part of it. Raises InvalidRequestError.
        """
        self._validate(request.filter)
        events = _json(_until_now(request.filter))
        replay_id = ReplayId(new_id())
        default_rate = model.MAX_RATE if request.dry_run else DEFAULT_RATE
        async with self._database.transaction() as connection:
            await QUERIES["create"].run(
                connection,
                id=replay_id,
                filter=orjson.dumps(events).decode(),
                is_dry_run=request.dry_run,
                rate=request.rate or default_rate,
                actor=actor.name,
            )
            await record_action(
                connection,
                actor.name,
                "replay_created",
                replay=str(replay_id),
                filter=events,
                dry_run=request.dry_run,
            )
            await notify_workers(connection)
        return await self._wait(replay_id, wait_s)

    async def get(self, replay_id: UUID) -> Replay:
        """One replay. Raises NotFoundError."""
        async with self._database.connection() as connection:
            found = await store.find(connection, Replay, replay_id)
        if found is None:
            raise NotFoundError(f"there is no replay {replay_id}")
        return found

    async def search(self, query: ListQuery) -> Page[Replay]:
        """Replays, newest first."""
        async with self._database.connection() as connection:
            found = await store.search(
                connection, Replay, before=query.cursor, limit=query.limit + 1
            )
        return page_of(found, query.limit, lambda replay: replay.id)

    async def pause(self, replay_id: UUID, actor: Actor) -> Replay:
        """Pause it. Raises NotFoundError, or ConflictError if it does not run."""
        return await self._change(replay_id, actor, "pause", "paused")

    async def resume(self, replay_id: UUID, actor: Actor) -> Replay:
        """Continue it. Raises NotFoundError, or ConflictError if it is not paused."""
        return await self._change(replay_id, actor, "resume", "resumed")

    async def cancel(self, replay_id: UUID, actor: Actor) -> Replay:
        """End it; what it did stays. Raises NotFoundError, or ConflictError if it has ended."""
        return await self._change(replay_id, actor, "cancel", "canceled")

    async def run(self, replay_id: UUID) -> None:
        """Run it in this process, or wait for the one that runs it, until it ends or is paused."""
        while (await self.get(replay_id)).status.is_active:
            run = ReplayRun(self._database, self._rules, ReplayId(replay_id))
            if not await run.run():
                await asyncio.sleep(STANDBY_S)

    def _validate(self, events: EventFilter) -> None:
        if not events.filters():
            raise InvalidRequestError(
                "filter: say which events, by one or more of source, status, error_code, order, "
                "payment, since and until"
            )
        names = [source.name for source in self._rules.sources.values()]
        if events.source is not None and events.source not in names:
            raise InvalidRequestError(f"filter.source: there is no source {events.source!r}")

    async def _wait(self, replay_id: ReplayId, wait_s: float) -> Replay:
        """The replay when it has ended, or after the wait."""
        deadline_s = time.monotonic() + wait_s
        while (found := await self.get(replay_id)).status.is_active:
            if time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(POLL_S)
        return found

    async def _change(self, replay_id: UUID, actor: Actor, action: str, changed: str) -> Replay:
        found = await self.get(replay_id)
        async with self._database.transaction() as connection:
            if await QUERIES[action].value(connection, replay_id=replay_id) is None:
                raise ConflictError(f"replay {replay_id} is {found.status}: it cannot be {changed}")
            await record_action(
                connection,
                actor.name,
                f"replay_{changed}",
                replay=str(replay_id),
                done=found.done,
            )
            await notify_workers(connection)
        return await self.get(replay_id)


class DeadLetterService:
    """Processes single events again; retries and discards dead letters."""

    def __init__(
        self, database: Database, rules: Rules, events: EventService, replays: ReplayService
    ) -> None:
        self._database = database
        self._events = events
        self._replays = replays
        self._reprocessor = Reprocessor(database, rules)

    async def reprocess(
        self, event_id: UUID, actor: Actor, only: EventStatus | None = None
    ) -> ReprocessedEvent:
        """Verify and process an event again, from its raw bytes, as of the time it arrived.

        Raises NotFoundError, ConflictError if it stays rejected, its source is not configured or
        its status is not `only`, or DatabaseUnavailableError if it is locked for too long.
        """
        done = await self._reprocessor.reprocess(EventId(event_id), actor.name, only)
        return model.reprocessed_event(done, await self._events.get(event_id))

    async def search(self, query: events_model.DeadLetterQuery) -> Page[events_model.EventView]:
        """Dead letters, newest first."""
        return await self._events.search(
            events_model.EventQuery(**query.model_dump(), status=EventStatus.DEAD_LETTER)
        )

    async def retry(self, event_id: UUID, actor: Actor) -> ReprocessedEvent:
        """Reprocess a dead letter. Raises as `reprocess` does."""
        return await self.reprocess(event_id, actor, EventStatus.DEAD_LETTER)

    async def retry_matching(self, request: model.RetryRequest, actor: Actor) -> Replay:
        """Start a replay of all dead letters that match. Raises InvalidRequestError."""
        events = _dead_letters(request.filter)
        replay = model.ReplayRequest(filter=events, dry_run=False, rate=request.rate)
        return await self._replays.create(replay, actor)

    async def discard(self, event_id: UUID, actor: Actor, reason: str) -> events_model.EventDetail:
        """Discard a dead letter. Its payment, if it has one, stays listed.

        Raises NotFoundError, or ConflictError if it is no dead letter or is locked.
        """
        found = await self._events.get(event_id)
        async with self._database.transaction() as connection:
            if not await _discard(connection, [EventId(event_id)], actor, reason):
                is_dead = found.status is EventStatus.DEAD_LETTER
                why = "is held by another transaction" if is_dead else f"is {found.status}"
                raise ConflictError(f"event {event_id} {why}: only a dead letter is discarded")
        return await self._events.get(event_id)

    async def discard_matching(
        self, query: DeadLetterFilter, actor: Actor, reason: str
    ) -> model.DiscardResult:
        """Discard all dead letters that match, in batches with a commit for each."""
        events = _until_now(_dead_letters(query))
        cursor, discarded = None, 0
        for _ in range(MAX_BATCHES):
            async with self._database.transaction() as connection:
                found = await store.page(connection, events, cursor, DISCARD_BATCH)
                discarded += await _discard(connection, found.ids, actor, reason)
            cursor = found.cursor
            if found.is_last:
                break
        async with self._database.transaction() as connection:
            await record_action(
                connection,
                actor.name,
                "dead_letters_discarded",
                filter=_json(events),
                reason=reason,
                number=discarded,
            )
        return model.DiscardResult(discarded, not found.is_last)


async def _discard(
    connection: Connection, event_ids: list[EventId], actor: Actor, reason: str
) -> int:
    """Discard the dead letters among these, and record it; returns how many."""
    if not event_ids:
        return 0
    rows = await QUERIES["discard"].rows(
        connection,
        event_id=event_ids,
        first_id=min(event_ids),
        last_id=max(event_ids),
        message=f"discarded: {reason}",
    )
    entries = []
    for event_id, error_code, order in rows:
        named = {"event_id": event_id, "order": order, "reason": reason}
        details = {"error_code": error_code}
        entry = AuditEntry(actor.name, "dead_letter_discarded", details=details, **named)
        entries.append(entry)
    await record_entries(connection, entries)
    return len(rows)


def _json(events: EventFilter) -> dict[str, Any]:
    """The filter as it is stored and shown."""
    return events.model_dump(mode="json", exclude_none=True)


def _dead_letters(query: DeadLetterFilter) -> EventFilter:
    return EventFilter(**query.filters(), status=EventStatus.DEAD_LETTER)


def _until_now(events: EventFilter) -> EventFilter:
    """The filter without events that arrive from now on."""
    now = CLOCK.now() + _ONE_MS
    return events.model_copy(update={"until": min(now, events.until or now)})
