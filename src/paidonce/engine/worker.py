"""Settles what waits: events that are due again, or were stored for later (RET-1..4).

A worker takes what is due and settles it in the same transaction. Killed, it lets go at once, and
the events are there for the next one. Any number of workers may run.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from paidonce.crashpoints import Point, passing
from paidonce.domain.events import Code, EventStatus, Outcome
from paidonce.engine.bell import Bell
from paidonce.engine.items import Item, Result, Rules, Settled, Verdict, Waiting
from paidonce.engine.outcomes import report
from paidonce.engine.settle import settle
from paidonce.engine.transactions import settle_whatever_happens
from paidonce.engine.waiting import FOREIGN_DELAY, foreign, waiting_items
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
STOP_TIMEOUT_S: Final = 5.0
PUT_OFF: Final = timedelta(seconds=1)
"""After how long an event is due again that could not even be said to have failed."""
CAREFUL_EVENTS: Final = MAX_BATCH
"""How many events a new process settles one by one, if there are so many: it may have been started
because an event ended the one before it."""
MAX_STARTS: Final = 5
"""How often a process may have ended while it settled an event, before a person has to see it."""


class Worker:
    """Claims due events and settles them, each batch in the transaction that claimed it."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        bell: Bell | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._database = database
        self._rules = rules
        self._bell = bell or Bell(database)
        self._max_batch = max_batch
        self._claims = due.DueClaims()
        self._connection: Connection | None = None
        self._careful_events_left = CAREFUL_EVENTS
        self._is_stopping = False
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped."""
        try:
            while not self._is_stopping:
                await self._work()
        finally:
            await self.close()
            self._stopped.set()

    async def stop(self) -> None:
        """Finish what is in hand, then stop; for a few seconds at most."""
        self._is_stopping = True
        self._bell.ring()
        try:
            await asyncio.wait_for(self._stopped.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            log.warning("worker_cut_off")

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
                await self._bell.heard(await self._idle_s())
        except Exception as error:
            log.warning("worker_failed", exc_info=error)
            await self.close()
            await self._bell.heard(PAUSE_AFTER_FAILURE_S)

    async def run_once(self) -> int:
        """Settle what is due, up to a batch; returns how many events were taken."""
        connection = await self._connected()
        async with connection.transaction():
            claim = await self._claims.take(connection, self._max_batch)
            settled = await self._settle(connection, claim)
        passing(Point.WORKED)
        report(settled)
        return claim.number

    async def run_carefully(self) -> int:
        """Settle one event, having committed before that it is tried; returns how many it was."""
        connection = await self._connected()
        event_id = await self._claims.start_next(connection)
        if event_id is None:
            return 0
        self._careful_events_left -= 1
        async with connection.transaction():
            claim = await due.claim_started(connection, event_id)
            settled = await self._settle(connection, claim)
        passing(Point.WORKED)
        report(settled)
        return 1

    async def _settle(self, connection: Connection, claim: due.Claim) -> Settled:
        """Settle what was claimed. Part of it may fail, and is put off; the rest is settled."""
        passing(Point.CLAIMED)
        await self._put_back(connection, foreign(claim.events, self._rules))
        items = waiting_items(claim.events, self._rules, _deadly)
        claimed = {one.event_id: one for one in claim.events}

        async def attempt(items: Sequence[Item]) -> Settled:
            async with connection.transaction():
                return await settle(connection, items, self._rules)

        async def put_off(item: Item, error: Exception) -> Verdict:
            assert isinstance(item, Waiting)
            log.error("event_put_off", webhook_event_id=str(item.event_id), exc_info=error)
            await due.put_back(connection, claimed[item.event_id], PUT_OFF)
            return Verdict(item, Result.BUSY, item.event_id)

        return await settle_whatever_happens(items, attempt, put_off)

    async def _put_back(self, connection: Connection, foreign: Sequence[due.Claimed]) -> None:
        """What cannot be read waits until its source is configured again."""
        for one in foreign:
            log.warning(
                "source_not_configured",
                webhook_event_id=str(one.event_id),
                source_number=one.source_id,
                remedy="configure the source again to settle what waits",
            )
            await due.put_back(connection, one, FOREIGN_DELAY)

    async def _idle_s(self) -> float:
        next_s = await self._claims.next_run_in_s(await self._connected())
        return (
            SLOWEST_POLL_S if next_s is None else min(max(next_s, FASTEST_POLL_S), SLOWEST_POLL_S)
        )

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.dedicated()
        return self._connection


def _deadly(claimed: due.Claimed) -> Outcome | None:
    """The outcome of an event that ended the process each time it was tried."""
    if claimed.starts <= MAX_STARTS:
        return None
    fault = f"the process ended {claimed.starts - 1} times while it settled this event"
    return Outcome(EventStatus.DEAD_LETTER, Code.INTERNAL, fault)
