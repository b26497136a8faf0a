"""Runs replays: all events that match a filter are processed again (OPS-4).

One process at a time runs a replay, by a lock that ends with its session, so that a killed one is
followed at once. It goes through the events in the order of their ids, a few in one transaction,
and where it stands is committed with what it did: a kill at any instant loses nothing and does
nothing twice.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from paidonce.awaiting import comes_within
from paidonce.crashpoints import Point, passing
from paidonce.domain.events import EventId
from paidonce.engine.bell import Bell
from paidonce.engine.fates import Again, Fate
from paidonce.engine.foreseeing import Foresight
from paidonce.engine.handling import broken_transaction, without_calls
from paidonce.engine.items import Rules
from paidonce.engine.reprocessing import (
    Operator,
    asking_s,
    record_skipped,
    report_changed,
    reprocess,
)
from paidonce.engine.tallies import tallied
from paidonce.store import replays, reprocessing
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.locks import held_by_us
from paidonce.store.queries import Connection
from paidonce.store.replays import Replay, ReplayId, ReplayStatus
from paidonce.store.reprocessing import Action
from paidonce.telemetry import logger

log = logger(__name__)

MAX_CHUNK: Final = 128
CHUNK_S: Final = 0.1
"""A chunk holds what the rate allows in this time, so that the rate is even."""
MAX_AT_ONCE: Final = 2
"""How many replays one process runs at a time."""
MAX_ACTIVE: Final = 100
LOOK_S: Final = 1.0
FASTEST_LOOK_S: Final = 0.2
"""However often the bell rings, replays are not looked for more often than this."""
LOOK_AGAIN_S: Final = 0.5
"""How often to look, while a replay waits for its rate, whether it was paused."""
COUNT_FOR_S: Final = 2.0
"""How long events are counted before they are begun with; of more there is no total."""
MAX_PAGES: Final = 50
"""After so many pages without an event that matches, it is written down how far it was looked."""
MAX_TRIES: Final = 10
BUSY_PAUSE_S: Final = 0.1
"""How often what others hold is tried, before it is skipped, and the pause before each."""
MAX_FAILURES: Final = 5
MAX_STARTS: Final = 5
"""How often a chunk may fail, or end the process, before a person has to see it."""
PAUSE_AFTER_FAILURE_S: Final = 1.0


class Replayer:
    """Looks for replays that nobody runs, and runs them."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        bell: Bell | None = None,
        max_chunk: int = MAX_CHUNK,
    ) -> None:
        self._database = database
        self._rules = rules
        self._ear = (bell or Bell(database)).ear()
        self._max_chunk = max_chunk
        self._tasks: dict[ReplayId, asyncio.Task[None]] = {}
        self._held_s: dict[ReplayId, float] = {}  # when others were last found to run it
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Run replays until stopped."""
        try:
            while not self._stop_asked.is_set():
                await self._work()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def run_once(self) -> int:
        """Run what is there to its end; returns how many replays were begun with."""
        begun = await self._begin()
        await asyncio.gather(*self._tasks.values())
        return begun

    def finish(self) -> None:
        """Finish the chunk in hand, and then stop. The replay goes on where one is running."""
        self._stop_asked.set()
        self._ear.ring()

    async def _work(self) -> None:
        began_s = time.monotonic()
        try:
            await self._begin()
        except Exception as error:
            log.warning("replayer_failed", exc_info=error)
        await self._ear.heard(LOOK_S)
        await _wait(self._stop_asked, began_s + FASTEST_LOOK_S - time.monotonic())

    async def _begin(self) -> int:
        """Begin with replays that are active, as far as there is room."""
        room = MAX_AT_ONCE - len(self._tasks)
        if room <= 0:
            return 0
        async with self._database.connection() as connection:
            active = await replays.active(connection, MAX_ACTIVE)
        self._held_s = {one: self._held_s[one] for one in active if one in self._held_s}
        idle = [one for one in active if one not in self._tasks]
        # What others run does not keep us from what nobody runs; it is tried last, in turns.
        begun = sorted(idle, key=lambda one: self._held_s.get(one, 0.0))[:room]
        for replay_id in begun:
            self._tasks[replay_id] = asyncio.create_task(self._run(replay_id))
        return len(begun)

    async def _run(self, replay_id: ReplayId) -> None:
        run = ReplayRun(self._database, self._rules, replay_id, self._max_chunk, self._stop_asked)
        try:
            if not await run.run():
                self._held_s[replay_id] = time.monotonic()
                await _wait(self._stop_asked, LOOK_S)
        except Exception as error:
            log.warning("replay_interrupted", replay=str(replay_id), exc_info=error)
            await _wait(self._stop_asked, PAUSE_AFTER_FAILURE_S)
        finally:
            del self._tasks[replay_id]
            self._ear.ring()


class ReplayRun:
    """One replay, run by this process as long as it holds its lock."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        replay_id: ReplayId,
        max_chunk: int = MAX_CHUNK,
        stop_asked: asyncio.Event | None = None,
    ) -> None:
        self._database = database
        self._rules = rules
        self._quiet_rules: Rules | None = None  # for the event whose handler broke its transaction
        self._id = replay_id
        self._max_chunk = 1 if rules.handlers else max_chunk
        self._stop_asked = stop_asked or asyncio.Event()
        self._foresight = Foresight(rules)
        self._connection: Connection | None = None
        self._tries = 0
        self._failures = 0

    async def run(self) -> bool:
        """Run it until it has ended, was paused or we are to stop; False if others run it.

        Raises what means that the database is away: then it may be run again.
        """
        holder = await self._database.dedicated()
        try:
            async with held_by_us(holder, f"replay {self._id}") as is_ours:
                if is_ours and await self._begin(holder):
                    while not (holder.is_closed() or self._stop_asked.is_set()):
                        if not await self._step_despite_failures():
                            break
                    if not holder.is_closed():
                        await replays.give_back_start(holder, self._id)
                return is_ours
        finally:
            holder.terminate()
            self._disconnect()

    async def _begin(self, connection: Connection) -> bool:
        starts = await replays.begin(connection, self._id)
        if starts is not None and starts > MAX_STARTS:
            await self._fail(f"the process ended {starts - 1} times at the same events")
            return False
        replay = None if starts is None else await replays.find(connection, self._id)
        if replay is not None and replay.total is None:
            await self._count(connection, replay)
        return replay is not None

    async def _count(self, connection: Connection, replay: Replay) -> None:
        """Find out how many events there are, unless that takes long."""
        total, cursor, deadline_s = 0, replay.cursor, time.monotonic() + COUNT_FOR_S
        while time.monotonic() < deadline_s:
            page = await replays.page(connection, replay.filter, cursor, replays.SCAN)
            total, cursor = total + len(page.ids), page.cursor
            if page.is_last:
                await replays.set_total(connection, self._id, replay.done + total)
                return

    async def _step_despite_failures(self) -> bool:
        """One step; False when it was the last one. A fault ends the replay if it stays."""
        try:
            goes_on = await self._step()
        except Exception as error:
            broken = broken_transaction(error)
            if broken is not None:
                self._quiet_rules = without_calls(self._rules, broken.held)
            elif trouble(error) is Trouble.AWAY:
                raise
            elif trouble(error) is not Trouble.RERUN:
                self._failures += 1
                log.error("replay_failed", replay=str(self._id), exc_info=error)
            self._disconnect()
            if self._failures >= MAX_FAILURES:
                await self._fail(f"it failed with {type(error).__name__}; the log has the details")
                return False
            await _wait(self._stop_asked, BUSY_PAUSE_S)
            return True
        self._failures = 0
        return goes_on

    async def _step(self) -> bool:
        """Wait until the rate allows it, and process a few events; False when none are left."""
        connection = await self._connected()
        replay = await replays.find(connection, self._id)
        if replay is None or replay.status is not ReplayStatus.RUNNING:
            return False
        if replay.wait_s > 0:
            await _wait(self._stop_asked, min(replay.wait_s, LOOK_AGAIN_S))
            return True
        if replay.left_over:
            await _wait(self._stop_asked, BUSY_PAUSE_S)
            assert replay.cursor is not None
            return await self._process(connection, replay, replay.left_over, replay.cursor)
        page = await self._next_page(connection, replay)
        return await self._process(connection, replay, page.ids, page.cursor)

    async def _next_page(self, connection: Connection, replay: Replay) -> replays.Page:
        limit = max(min(int(replay.rate * CHUNK_S), self._max_chunk), 1)
        page = await replays.page(connection, replay.filter, replay.cursor, limit)
        for _ in range(MAX_PAGES):
            if page.ids or page.is_last:
                break
            page = await replays.page(connection, replay.filter, page.cursor, limit)
        return page

    async def _process(
        self, connection: Connection, replay: Replay, ids: Sequence[EventId], cursor: UUID
    ) -> bool:
        """Process the events and say how far it has come, in one transaction."""
        done: list[Again] = []
        is_kept = True
        transaction = connection.transaction()
        await transaction.start()
        try:
            done, busy = await self._chunk(connection, replay, ids)
            is_kept = await self._advance(connection, replay, done, busy, cursor)
        except BaseException:
            if not connection.is_closed():
                await transaction.rollback()
            raise
        passing(Point.REPLAYED)
        await (transaction.commit() if is_kept else transaction.rollback())
        if is_kept and not replay.is_dry_run:
            report_changed(done)
        self._quiet_rules = None
        return True

    async def _chunk(
        self, connection: Connection, replay: Replay, ids: Sequence[EventId]
    ) -> tuple[list[Again], list[EventId]]:
        """What became of the events, and those that others hold: these are to be tried again."""
        if replay.is_dry_run:
            return await self._foresight.look(connection, ids), []
        operator = Operator(replay.actor, str(replay.id))
        rules = self._quiet_rules or self._rules
        done = [
            one
            for one in await reprocess(connection, ids, rules, operator)
            if one.fate is not Fate.BUSY
        ]
        known = {one.stored.event_id for one in done}
        busy = [one for one in ids if one not in known]
        self._tries = self._tries + 1 if busy and replay.left_over else 0
        if self._tries >= MAX_TRIES:
            done += await record_skipped(connection, busy, operator)
            busy = []
        return done, busy

    async def _advance(
        self,
        connection: Connection,
        replay: Replay,
        done: Sequence[Again],
        busy: Sequence[EventId],
        cursor: UUID,
    ) -> bool:
        progress = tallied(replay.progress, done)
        is_kept = await replays.advance(
            connection,
            replay,
            cursor=cursor,
            left_over=busy,
            done=len(done),
            asking_s=asking_s(done),
            progress=progress,
        )
        if is_kept and replays.is_over(cursor, busy):
            number = replay.done + len(done)
            await _finished(connection, replay, True, done=number, counts=progress.counts)
        return is_kept

    async def _fail(self, error: str) -> None:
        async with self._database.transaction() as connection:
            replay = await replays.find(connection, self._id)
            if replay is not None and await replays.fail(connection, self._id, error):
                await _finished(connection, replay, False, done=replay.done, error=error)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _finished(connection: Connection, replay: Replay, success: bool, **told: object) -> None:
    """Say in the audit log that it has ended, and how."""
    details = {"replay": str(replay.id), "dry_run": replay.is_dry_run, **told}
    action = Action(None, replay.actor, "replay_finished", success, details)
    await reprocessing.record_actions(connection, [action])


async def _wait(stop_asked: asyncio.Event, pause_s: float) -> None:
    """Wait, unless asked to stop."""
    await comes_within(stop_asked, pause_s)
