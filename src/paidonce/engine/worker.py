"""Settles what waits: events that are due again, or were stored for later."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from paidonce.domain.events import Code, EventStatus, Outcome
from paidonce.engine.items import Rules, Settled
from paidonce.engine.outcomes import report
from paidonce.engine.settle import settle
from paidonce.engine.waiting import FOREIGN_DELAY, foreign, waiting_items
from paidonce.store import due
from paidonce.store.db import Database, Trouble, trouble
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

MAX_BATCH: Final = 64
SLOWEST_POLL_S: Final = 1.0
PAUSE_AFTER_FAILURE_S: Final = 1.0


class Worker:
    """Claims due events and settles them, each batch in the transaction that claimed it."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                settled = await self.run_once()
                pause_s = 0.0 if settled else await self._idle_s()
            except Exception as error:
                log.warning("worker_failed", exc_info=error)
                pause_s = PAUSE_AFTER_FAILURE_S
            await asyncio.sleep(pause_s)

    async def run_once(self, limit: int = MAX_BATCH) -> int:
        """Settle what is due, up to the limit; returns how many events were claimed."""
        try:
            settled = await self._settle_due(limit)
        except Exception as error:
            if trouble(error) not in (Trouble.POISON, None):
                raise
            if limit > 1:
                return await self._one_by_one(limit)
            settled = await self._settle_due(1, poison=error)
        report(settled)
        return len(settled.verdicts)

    async def _one_by_one(self, number: int) -> int:
        """A batch that the database refuses holds one event that it refuses."""
        return sum([await self.run_once(1) for _ in range(number)])

    async def _settle_due(self, limit: int, poison: Exception | None = None) -> Settled:
        async with self._database.transaction() as connection:
            claimed = await due.claim_due(connection, limit)
            await self._put_back(connection, foreign(claimed, self._rules))
            items = waiting_items(claimed, self._rules)
            if poison is not None:
                items = [replace(item, preset=_poisoned(poison)) for item in items]
            return await settle(connection, items, self._rules)

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
        async with self._database.connection() as connection:
            next_s = await due.next_run_in_s(connection)
        return SLOWEST_POLL_S if next_s is None else min(max(next_s, 0.0), SLOWEST_POLL_S)


def _poisoned(error: Exception) -> Outcome:
    fault = f"settling failed: {type(error).__name__}"
    return Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
