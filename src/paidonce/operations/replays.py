"""Replays: all events that match a filter, processed again."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.domain.events import EventStatus
from paidonce.engine.replaying import ReplayRun
from paidonce.errors import ConflictError, InvalidRequestError, NotFoundError
from paidonce.operations.desk import Actor, Desk, Found, first_of
from paidonce.operations.replay_views import ReplayView, replay_view
from paidonce.store import due, replays
from paidonce.store.listings import record_action
from paidonce.store.replays import EventFilter, Replay, ReplayId

DEFAULT_RATE: Final = 100
MAX_RATE: Final = 10_000
"""How many events a second are processed again, and at most. A dry run may take all of it."""
PATIENCE_S: Final = 1.0
"""How long whoever asks for a replay waits for it to be finished before he is answered."""
LOOK_S: Final = 0.05
STANDBY_S: Final = 0.5
"""How often to look whether whoever runs a replay has stopped."""
_A_MOMENT: Final = timedelta(milliseconds=1)


class ReplayVerbs(Desk):
    """What can be asked of replays, and done with them."""

    async def create_replay(
        self,
        chosen: EventFilter,
        actor: Actor,
        *,
        is_dry_run: bool,
        rate: int | None = None,
        patience_s: float = PATIENCE_S,
    ) -> ReplayView:
        """Begin to process again all events that match; a small replay is finished on return.

        Events that arrive from now on are not among them. A dry run says what would change, and
        changes nothing. Raises InvalidRequestError.
        """
        self._refuse_unfit(chosen, rate)
        replay_id = ReplayId(uuid7())
        usual = MAX_RATE if is_dry_run else DEFAULT_RATE
        chosen = bounded(chosen)
        async with self._database.transaction() as connection:
            await replays.create(
                connection,
                replay_id=replay_id,
                chosen=chosen,
                is_dry_run=is_dry_run,
                rate=rate or usual,
                actor=actor.name,
            )
            await record_action(
                connection,
                actor.name,
                "replay_created",
                replay=str(replay_id),
                filter=chosen.as_json(),
                dry_run=is_dry_run,
            )
            await due.ring(connection)
        return await self._finished(replay_id, patience_s)

    async def retry_dead_letters(
        self, chosen: EventFilter, actor: Actor, rate: int | None = None
    ) -> ReplayView:
        """A replay of all dead letters that match. Raises InvalidRequestError."""
        dead = replace(chosen, status=EventStatus.DEAD_LETTER)
        return await self.create_replay(dead, actor, is_dry_run=False, rate=rate)

    async def replay(self, replay_id: UUID) -> ReplayView:
        """One replay, as it stands. Raises NotFoundError."""
        return replay_view(await self._replay(replay_id))

    async def replays(self, *, limit: int, cursor: UUID | None = None) -> Found[ReplayView]:
        """A page of replays, the newest first."""
        async with self._database.connection() as connection:
            newest = await replays.newest(connection, cursor, limit + 1)
        return first_of([replay_view(one) for one in newest], limit, lambda one: one.id)

    async def pause_replay(self, replay_id: UUID, actor: Actor) -> ReplayView:
        """Stop it for a while. Raises NotFoundError, or ConflictError when it does not run."""
        return await self._change(replay_id, actor, "pause", "paused")

    async def resume_replay(self, replay_id: UUID, actor: Actor) -> ReplayView:
        """Go on with it. Raises NotFoundError, or ConflictError when it is not paused."""
        return await self._change(replay_id, actor, "resume", "resumed")

    async def cancel_replay(self, replay_id: UUID, actor: Actor) -> ReplayView:
        """End it; what it has done stays. Raises NotFoundError, or ConflictError when it ended."""
        return await self._change(replay_id, actor, "cancel", "canceled")

    async def run_replay(self, replay_id: UUID) -> None:
        """Run it here, or wait for who runs it, until it has ended or was paused."""
        while (await self._replay(replay_id)).status.is_active:
            run = ReplayRun(self._database, self._rules, ReplayId(replay_id))
            if not await run.run():
                await asyncio.sleep(STANDBY_S)

    def _refuse_unfit(self, chosen: EventFilter, rate: int | None) -> None:
        if chosen.is_empty:
            raise InvalidRequestError(
                "filter: say which events, by one or more of source, status, error_code, order, "
                "payment, since and until"
            )
        if rate is not None and not 1 <= rate <= MAX_RATE:
            raise InvalidRequestError(f"rate: give 1 to {MAX_RATE} events a second")
        names = [source.name for source in self._rules.sources.values()]
        if chosen.source is not None and chosen.source not in names:
            raise InvalidRequestError(f"filter.source: there is no source {chosen.source!r}")

    async def _finished(self, replay_id: ReplayId, patience_s: float) -> ReplayView:
        """The replay when it has ended, or as it stands when that takes long."""
        deadline_s = time.monotonic() + patience_s
        while (found := await self._replay(replay_id)).status.is_active:
            if time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(LOOK_S)
        return replay_view(found)

    async def _replay(self, replay_id: UUID) -> Replay:
        async with self._database.connection() as connection:
            found = await replays.find(connection, replay_id)
        if found is None:
            raise NotFoundError(f"there is no replay {replay_id}")
        return found

    async def _change(self, replay_id: UUID, actor: Actor, how: str, changed: str) -> ReplayView:
        found = await self._replay(replay_id)
        async with self._database.transaction() as connection:
            if not await replays.change(connection, replay_id, how):
                raise ConflictError(f"replay {replay_id} is {found.status}: it cannot be {changed}")
            action, named = f"replay_{changed}", str(replay_id)
            await record_action(connection, actor.name, action, replay=named, done=found.done)
            await due.ring(connection)
        return await self.replay(replay_id)


def bounded(chosen: EventFilter, status: EventStatus | None = None) -> EventFilter:
    """The filter without what arrives from now on, and of this status if one is given."""
    until = datetime.now(UTC) + _A_MOMENT
    if chosen.until is not None:
        until = min(until, chosen.until)
    return replace(chosen, until=until, status=status or chosen.status)
