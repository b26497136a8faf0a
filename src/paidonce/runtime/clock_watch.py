"""Compares this machine's clock with the database's, and corrects `paidonce.clock`."""

import asyncio
from typing import Final

from paidonce.clock import CLOCK
from paidonce.db.pool import Database, read_clock
from paidonce.errors import DatabaseUnavailableError
from paidonce.runtime.service import Service
from paidonce.telemetry import logger

log = logger(__name__)

COMPARE_EVERY_S: Final = 5.0
MAX_READINGS: Final = 3


class ClockWatch(Service):
    """One for each process. It is degraded while this machine's clock is wrong."""

    def __init__(self, database: Database) -> None:
        super().__init__("clock")
        self._database = database
        self._comparing: asyncio.Task[None] | None = None

    @property
    def is_degraded(self) -> bool:
        """Whether it failed, or the clocks differ."""
        return bool(CLOCK.offset_ns) or super().is_degraded

    async def run(self) -> None:
        """Compare until asked to finish."""
        while not self.is_finishing:
            await self.compare()
            await self.pause(COMPARE_EVERY_S)

    async def be_certain(self) -> None:
        """Return when CLOCK is right: at once, unless this machine's clock was set a moment ago.

        Raises DatabaseUnavailableError.
        """
        while not CLOCK.is_certain:
            if self._comparing is None or self._comparing.done():
                self._comparing = asyncio.create_task(self.compare())
            await asyncio.shield(self._comparing)

    async def compare(self) -> None:
        """Ask the database for the time. Raises DatabaseUnavailableError."""
        before_s = CLOCK.offset_s
        async with self._database.connection() as connection:
            for _ in range(MAX_READINGS):
                reading = await read_clock(connection)
                if reading is not None:
                    break
            else:
                raise DatabaseUnavailableError("the database was too slow to compare the clocks")
        CLOCK.learn(reading.database_ns, reading.wall_ns, reading.monotonic_ns)
        _log_change(before_s)


def _log_change(before_s: float) -> None:
    """Report a new difference, or its end."""
    if CLOCK.offset_s and not before_s:
        log.error(
            "clock_wrong",
            skew_s=round(CLOCK.offset_s, 3),
            detail="this machine's clock differs from the database's, which is used: set both",
        )
    elif before_s and not CLOCK.offset_s:
        log.info("clock_right_again")
