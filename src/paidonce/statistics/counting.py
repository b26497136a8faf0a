"""Statistics: batches write deltas, which are folded into a row for each day.

Also counts deliveries that no batch has.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from paidonce.core.events import EventStatus
from paidonce.core.tally import Tally, TallyRow
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, load_queries
from paidonce.processing.items import Incoming, Rejected, tally_key
from paidonce.runtime.service import Service

QUERIES: Final = load_queries(__file__)

FOLD_PERIOD_S: Final = 15.0
MAX_FOLDED: Final = 10_000
WRITE_PERIOD_S: Final = 3.0


async def fold(connection: Connection, limit: int) -> int:
    """Fold up to `limit` deltas into the counts; returns how many there were."""
    return int(await QUERIES["fold"].value(connection, limit=limit))


async def add(connection: Connection, rows: Sequence[TallyRow]) -> None:
    """Add counts that no batch has written."""
    await QUERIES["add"].run(connection, counts=rows)


class Folding:
    """Adds the counts of batches to the counts of each day."""

    name = "statistics"
    period_s = FOLD_PERIOD_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Add some of them; returns whether there are more."""
        return await fold(connection, MAX_FOLDED) == MAX_FOLDED


class DroppedDeliveries:
    """Counts refused deliveries of which nothing is kept (SEC-5).

    A flood of them costs a row every few seconds. A crash loses the counts of the last seconds.
    """

    def __init__(self) -> None:
        self._tally = Tally()

    def count(self, item: Incoming | Rejected) -> None:
        """Count one more. A conflict was verified."""
        if isinstance(item, Incoming) or item.signature_valid:
            self._tally.add_event(tally_key(item), EventStatus.FAILED_FINAL)
        else:
            self._tally.add_rejected(tally_key(item))

    async def write(self, database: Database) -> None:
        """Write the counts. If that fails they are kept for the next time."""
        counted, self._tally = self._tally, Tally()
        rows = counted.rows()
        if not rows:
            return
        try:
            async with database.connection() as connection:
                await add(connection, rows)
        except BaseException:
            self._tally.add(counted)
            raise


class DroppedCounter(Service):
    """Writes the counts of dropped deliveries every few seconds."""

    def __init__(self, database: Database, dropped: DroppedDeliveries) -> None:
        super().__init__("statistics counter")
        self._database = database
        self._dropped = dropped

    async def run(self) -> None:
        """Write until asked to finish, and once more then."""
        while not self.is_finishing:
            await self.pause(WRITE_PERIOD_S)
            await self._dropped.write(self._database)
