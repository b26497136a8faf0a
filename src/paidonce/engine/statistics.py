"""Keeps the statistics: folds what batches have counted, and counts what no batch has."""

import asyncio
from datetime import datetime
from typing import Final

from paidonce.domain.events import EventStatus
from paidonce.domain.tally import Tally
from paidonce.engine.items import Refused, tally_key
from paidonce.errors import DatabaseAwayError
from paidonce.store import statistics
from paidonce.store.db import Database
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

FOLD_PERIOD_S: Final = 15.0
MAX_FOLDED: Final = 10_000
WRITE_PERIOD_S: Final = 3.0


class Folding:
    """Folds the deltas of the batches into the counts of each day."""

    name = "statistics"
    period_s = FOLD_PERIOD_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Fold some of them; returns whether there are more."""
        return await statistics.fold(connection, MAX_FOLDED) == MAX_FOLDED


class Dropped:
    """Counts refused deliveries of which nothing is kept (SEC-5).

    A flood of them costs a row every few seconds. What a crash finds uncounted, of seconds at most,
    stays uncounted.
    """

    def __init__(self) -> None:
        self._tally = Tally()

    def count(self, refused: Refused) -> None:
        """One more."""
        self._tally.received(tally_key(refused), EventStatus.FAILED_FINAL)

    async def run(self, database: Database) -> None:
        """Write what was counted now and then, and once more when cancelled."""
        try:
            while True:
                await asyncio.sleep(WRITE_PERIOD_S)
                await self.write_once(database)
        finally:
            await self.write_once(database)

    async def write_once(self, database: Database) -> None:
        """Write what was counted. When the database is away it is kept for the next time."""
        counted, self._tally = self._tally, Tally()
        rows = counted.rows()
        if not rows:
            return
        try:
            async with database.connection() as connection:
                await statistics.add(connection, rows)
        except DatabaseAwayError as error:
            log.warning("refused_not_counted_yet", error=str(error))
            self._tally.add(counted)
