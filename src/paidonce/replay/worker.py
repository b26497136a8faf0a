"""Runs replays: all events that match a filter are processed again (OPS-4).

One process at a time runs a replay, as its leader; when that process is killed or frozen, another
one continues. It goes through the events in the order of their ids, a few in one transaction, and
commits its position in the same transaction: a kill at any instant loses nothing and does nothing
twice.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import orjson

from paidonce.audit.model import AuditEntry
from paidonce.audit.store import record_entries
from paidonce.core.events import EventId
from paidonce.db.pool import Database, OwnConnection, Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.db.search import LAST_ID
from paidonce.processing.hook_calls import find_broken_transaction, without_hooks
from paidonce.processing.items import Rules
from paidonce.replay import model, reprocess, store
from paidonce.replay.dry_run import DryRun
from paidonce.replay.model import ReplayId, ReplayState, ReprocessResult
from paidonce.replay.store import QUERIES
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.runtime.leader import Leader, LeadershipLostError
from paidonce.runtime.service import Service
from paidonce.runtime.wakeup import Wakeup
from paidonce.telemetry import logger

log = logger(__name__)

MAX_CHUNK: Final = 128
CHUNK_S: Final = 0.1
"""A chunk has as many events as the rate allows in this time."""
MAX_AT_ONCE: Final = 2
"""How many replays one process runs at a time."""
MAX_ACTIVE: Final = 100
POLL_S: Final = 1.0
MIN_POLL_S: Final = 0.2
"""The shortest time between two polls, however many wake-ups arrive."""
PAUSED_POLL_S: Final = 0.5
"""How often a replay that waits for its rate checks whether it was paused."""
MAX_COUNT_S: Final = 2.0
"""How long events are counted at the start. If there are more, there is no total."""
MAX_PAGES: Final = 50
"""After this many pages without a match, the position is stored."""
MAX_TRIES: Final = 10
LOCKED_PAUSE_S: Final = 0.1
"""How often locked events are tried before they are skipped, and the pause before each try."""
MAX_FAILURES: Final = 5
MAX_STARTS: Final = 5
"""How often a chunk may fail, or crash the process, before the replay fails."""
PAUSE_AFTER_FAILURE_S: Final = 1.0


class ReplayWorker(Service):
    """Finds active replays that no process runs, and runs them."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        wakeup: Wakeup | None = None,
        max_chunk: int = MAX_CHUNK,
        leader: Leader | None = None,
    ) -> None:
        super().__init__("replay worker")
        self._database = database
        self._rules = rules
        self._listener = (wakeup or Wakeup()).listener()
        self._leader = leader or Leader(database)
        self._max_chunk = max_chunk
        self._tasks: dict[ReplayId, asyncio.Task[None]] = {}
        self._others_s: dict[ReplayId, float] = {}  # when another process was last seen to run it

    async def run(self) -> None:
        """Run replays until asked to finish: after the current chunk, another process continues."""
        try:
            while not self.is_finishing:
                began_s = time.monotonic()
                await self._begin()
                await self._listener.wait(POLL_S)
                await self.pause(began_s + MIN_POLL_S - time.monotonic())
        finally:
            if self.is_finishing:
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            for task in self._tasks.values():
                task.cancel()

    async def run_once(self) -> int:
        """Run the active replays to their end; returns how many were begun."""
        begun = await self._begin()
        await asyncio.gather(*self._tasks.values())
        return begun

    async def _begin(self) -> int:
        """Begin active replays, as far as there is room; returns how many."""
        room = MAX_AT_ONCE - len(self._tasks)
        if room <= 0:
            return 0
        async with self._database.connection() as connection:
            rows = await QUERIES["active"].rows(connection, limit=MAX_ACTIVE)
        active = [row["id"] for row in rows]
        self._others_s = {one: self._others_s[one] for one in active if one in self._others_s}
        idle = [one for one in active if one not in self._tasks]
        # Replays that other processes run are tried last, in turns.
        begun = sorted(idle, key=lambda one: self._others_s.get(one, 0.0))[:room]
        for replay_id in begun:
            self._tasks[replay_id] = asyncio.create_task(self._run(replay_id))
        return len(begun)

    async def _run(self, replay_id: ReplayId) -> None:
        run = ReplayRun(self._database, self._rules, replay_id, self._max_chunk, self, self._leader)
        try:
            if not await run.run():
                self._others_s[replay_id] = time.monotonic()
                await self.pause(POLL_S)
        except LeadershipLostError as error:
            log.warning("leadership_lost", replay=str(replay_id), detail=str(error))
        except Exception as error:
            self.record_failure(error, PAUSE_AFTER_FAILURE_S, replay=str(replay_id))
            await self.pause(PAUSE_AFTER_FAILURE_S)
        finally:
            del self._tasks[replay_id]
            self._listener.wake()


class ReplayRun:
    """One replay, run by this process while it is its leader. All its writes are fenced."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        replay_id: ReplayId,
        max_chunk: int = MAX_CHUNK,
        service: Service | None = None,
        leader: Leader | None = None,
    ) -> None:
        self._rules = rules
        # For the event whose handler broke its transaction.
        self._rules_without_hooks: Rules | None = None
        self._id = replay_id
        self._max_chunk = 1 if rules.handlers else max_chunk
        self._service = service or Service("replay")
        self._leader = leader or Leader(database)
        self._dry_run = DryRun(rules)
        self._tries = 0
        self._failures = 0

    async def run(self) -> bool:
        """Run it until it ends, is paused or the service finishes; False if it runs elsewhere.

        Raises LeadershipLostError, or an error of the connection: then it may be run again.
        """
        async with self._leader.lead(f"replay {self._id}") as leadership:
            if leadership is None:
                return False
            self._leadership = leadership
            self._connection = OwnConnection(leadership.session)
            try:
                await self._run()
            finally:
                self._connection.close()
        return True

    async def _run(self) -> None:
        if not await self._begin():
            return
        while not self._service.is_finishing:
            self._leadership.require()
            if not await self._try_step():
                break
        # It stops in good order: its start does not count.
        await QUERIES["uncount_start"].run(await self._connection.get(), replay_id=self._id)

    async def _begin(self) -> bool:
        connection = await self._connection.get()
        starts = await QUERIES["begin"].value(connection, replay_id=self._id)
        if starts is not None and starts > MAX_STARTS:
            await self._fail(f"the process ended {starts - 1} times at the same events")
            return False
        replay = None if starts is None else await self._state(connection)
        if replay is not None and replay.total is None:
            await self._count(connection, replay)
        return replay is not None

    async def _state(self, connection: Connection) -> ReplayState | None:
        return await store.find(connection, ReplayState, self._id)

    async def _count(self, connection: Connection, replay: ReplayState) -> None:
        """Count the events, unless that takes long."""
        total, cursor, deadline_s = 0, replay.cursor, time.monotonic() + MAX_COUNT_S
        while time.monotonic() < deadline_s:
            page = await store.page(connection, replay.events, cursor, store.SCAN)
            total, cursor = total + len(page.ids), page.cursor
            if page.is_last:
                total += replay.done
                await QUERIES["set_total"].run(connection, replay_id=self._id, total=total)
                return

    async def _try_step(self) -> bool:
        """One step; False if it was the last one. An error that persists ends the replay."""
        try:
            has_more = await self._step()
        except Exception as error:
            broken = find_broken_transaction(error)
            if broken is not None:
                self._rules_without_hooks = without_hooks(self._rules, broken.blocked)
            elif trouble(error) is Trouble.AWAY or not self._leadership.is_held:
                raise
            elif trouble(error) is not Trouble.RERUN:
                self._failures += 1
                log.error("replay_failed", replay=str(self._id), exc_info=error)
            self._connection.close()
            if self._failures >= MAX_FAILURES:
                await self._fail(f"it failed with {type(error).__name__}; the log has the details")
                return False
            await self._service.pause(LOCKED_PAUSE_S)
            return True
        self._failures = 0
        return has_more

    async def _step(self) -> bool:
        """Wait for the rate, and process a chunk of events; False if the replay does not run."""
        connection = await self._connection.get()
        replay = await self._state(connection)
        if replay is None or replay.status is not model.ReplayStatus.RUNNING:
            return False
        if replay.wait_s > 0:
            await self._service.pause(min(replay.wait_s, PAUSED_POLL_S))
        elif replay.skipped:
            await self._service.pause(LOCKED_PAUSE_S)
            assert replay.cursor is not None
            await self._process(connection, replay, replay.skipped, replay.cursor)
        else:
            page = await self._next_page(connection, replay)
            await self._process(connection, replay, page.ids, page.cursor)
        return True

    async def _next_page(self, connection: Connection, replay: ReplayState) -> store.EventPage:
        limit = max(min(int(replay.rate * CHUNK_S), self._max_chunk), 1)
        page = await store.page(connection, replay.events, replay.cursor, limit)
        for _ in range(MAX_PAGES):
            if page.ids or page.is_last:
                break
            page = await store.page(connection, replay.events, page.cursor, limit)
        return page

    async def _process(
        self, connection: Connection, replay: ReplayState, ids: Sequence[EventId], cursor: UUID
    ) -> None:
        """Process the events and store the position, in one transaction."""
        try:
            async with connection.transaction():
                done, locked = await self._chunk(connection, replay, ids)
                await self._advance(connection, replay, done, locked, cursor)
                maybe_crash(CrashPoint.REPLAYED)
        except _SupersededError:
            done = []
        if not replay.dry_run:
            reprocess.report_changed(done)
        self._rules_without_hooks = None

    async def _chunk(
        self, connection: Connection, replay: ReplayState, ids: Sequence[EventId]
    ) -> tuple[list[ReprocessResult], list[EventId]]:
        """The results, and the events that others have locked: these are tried again."""
        if replay.dry_run:
            return await self._dry_run.run(connection, ids), []
        initiator = reprocess.Initiator(replay.actor, str(replay.id))
        rules = self._rules_without_hooks or self._rules
        done = [
            one
            for one in await reprocess.reprocess(connection, ids, rules, initiator)
            if one.kind is not model.ReprocessKind.LOCKED
        ]
        done_ids = {one.stored.event_id for one in done}
        locked = [event_id for event_id in ids if event_id not in done_ids]
        self._tries = self._tries + 1 if locked and replay.skipped else 0
        if self._tries >= MAX_TRIES:
            done += await reprocess.record_skipped(connection, locked, initiator)
            locked = []
        return done, locked

    async def _advance(
        self,
        connection: Connection,
        replay: ReplayState,
        done: Sequence[ReprocessResult],
        locked: Sequence[EventId],
        cursor: UUID,
    ) -> None:
        """Store the position. Raises _SupersededError."""
        counted = model.add_results(replay, done)
        is_finished = cursor == LAST_ID and not locked
        version = await QUERIES["advance"].value(
            connection,
            replay_id=replay.id,
            version=replay.version,
            cursor=cursor,
            skipped=locked,
            done=len(done),
            lookup_s=reprocess.lookup_time_s(done),
            is_finished=is_finished,
            **{name: orjson.dumps(value).decode() for name, value in counted.items()},
        )
        if version is None:
            raise _SupersededError
        if is_finished:
            number = replay.done + len(done)
            await _record_end(connection, replay, True, done=number, counts=counted["counts"])

    async def _fail(self, error: str) -> None:
        connection = await self._connection.get()
        async with connection.transaction():
            replay = await self._state(connection)
            failed = await QUERIES["fail"].value(connection, replay_id=self._id, error=error)
            if replay is not None and failed is not None:
                await _record_end(connection, replay, False, done=replay.done, error=error)


class _SupersededError(Exception):
    """The replay was stopped meanwhile, or another process was first: the chunk is rolled back."""


async def _record_end(
    connection: Connection, replay: ReplayState, success: bool, **result: object
) -> None:
    details = {"replay": str(replay.id), "dry_run": replay.dry_run, **result}
    entry = AuditEntry(replay.actor, "replay_finished", success, details=details)
    await record_entries(connection, [entry])
