"""Settles what waits: events that are due again, or were stored for later (RET-1..4).

A worker takes what is due and settles it in the same transaction. Killed, it lets go at once, and
the events are there for the next one. Any number of workers may run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from paidonce.awaiting import comes_within
from paidonce.crashpoints import Point, passing
from paidonce.domain.events import Code, EventStatus, Outcome
from paidonce.engine.bell import Bell
from paidonce.engine.claims import settle_claimed, settle_without_calls
from paidonce.engine.handling import broken_transaction
from paidonce.engine.items import Rules
from paidonce.engine.outcomes import report
from paidonce.store import due
from paidonce.store.db import Database
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_BATCH: Final = 128
MAX_BYTES_IN_HAND: Final = 64 * 1024 * 1024
SLOWEST_POLL_S: Final = 5.0
FASTEST_POLL_S: Final = 0.05
"""What is due but held by another worker is not asked for more often than this."""
PAUSE_AFTER_FAILURE_S: Final = 1.0
CAREFUL_EVENTS: Final = MAX_BATCH
"""How many events a new process settles one by one, if there are so many: it may have been started
because an event ended the one before it."""
MAX_STARTS: Final = 5
"""How often a process may have ended while it settled an event, before a person has to see it."""


class Worker:
    """Claims what is due in a lane and settles it, each batch in the transaction of its claim."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        bell: Bell | None = None,
        max_batch: int = MAX_BATCH,
        lane: due.Lane = due.Lane.SETTLE,
    ) -> None:
        self._database = database
        self._rules = rules
        self._ear = (bell or Bell(database)).ear()
        self._max_batch = max_batch
        self._lane = lane
        self._claims = due.DueClaims(lane)
        self._connection: Connection | None = None
        self._careful_events_left = CAREFUL_EVENTS
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped."""
        try:
            while not self._stop_asked.is_set():
                await self._work()
        finally:
            await self.close()

    def finish(self) -> None:
        """Finish what is in hand, and then stop."""
        self._stop_asked.set()
        self._ear.ring()

    async def close(self) -> None:
        """Let go of the connection; whoever goes on working makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _work(self) -> None:
        try:
            taken = await (self.run_carefully() if self._careful_events_left else self.run_once())
            if taken == 0:
                self._careful_events_left = 0
                await self._ear.heard(await self._idle_s())
        except Exception as error:
            log.warning("worker_failed", exc_info=error)
            self._careful_events_left = 0
            await self.close()
            await self._pause(PAUSE_AFTER_FAILURE_S)

    async def run_once(self) -> int:
        """Settle what is due, up to a batch; returns how many events were taken."""
        return await self._despite_handlers(self._settle_batch)

    async def run_carefully(self) -> int:
        """Settle one event, having committed before that it is tried; returns how many it was.

        An event that ended the process each time it was tried becomes a dead letter.
        """
        return await self._despite_handlers(self._settle_marked)

    async def _settle_batch(self) -> int:
        connection = await self._connected()
        async with connection.transaction():
            claim = await self._claims.take(connection, self._max_batch)
            passing(Point.CLAIMED)
            settled = await settle_claimed(connection, claim, self._rules, lane=self._lane)
        passing(Point.WORKED)
        report(settled)
        return claim.number

    async def _settle_marked(self) -> int:
        connection = await self._connected()
        self._careful_events_left = max(self._careful_events_left - 1, 0)
        claim = due.Claim(0, [])
        try:
            async with connection.transaction():
                claim, starts = await self._claims.take_marked(connection, self._database)
                passing(Point.CLAIMED)
                deadly = _deadly(starts) if starts > MAX_STARTS else None
                settled = await settle_claimed(
                    connection, claim, self._rules, preset=deadly, lane=self._lane
                )
        except BaseException:  # also when it is cut off: the process has not ended over the event
            for one in claim.events:
                await due.unmark(self._database, one.event_id)
            raise
        passing(Point.WORKED)
        report(settled)
        return claim.number

    async def _despite_handlers(self, work: Callable[[], Awaitable[int]]) -> int:
        """Do the work. An event whose handler has broken the transaction is held in another one."""
        try:
            return await work()
        except Exception as error:
            broken = broken_transaction(error)
            if broken is None or broken.event_id is None:
                raise
            await self.close()
            connection = await self._connected()
            report(await settle_without_calls(connection, broken, self._rules))
            return 1

    async def _idle_s(self) -> float:
        next_s = await self._claims.next_run_in_s(await self._connected())
        return (
            SLOWEST_POLL_S if next_s is None else min(max(next_s, FASTEST_POLL_S), SLOWEST_POLL_S)
        )

    async def _pause(self, pause_s: float) -> None:
        """Wait, unless asked to stop."""
        await comes_within(self._stop_asked, pause_s)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
        return self._connection


def _deadly(starts: int) -> Outcome:
    fault = f"the process ended {starts - 1} times while it settled this event"
    return Outcome(EventStatus.DEAD_LETTER, Code.INTERNAL, fault)
