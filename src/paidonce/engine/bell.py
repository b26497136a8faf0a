"""Wakes workers when something has become due: those of this process at once, others by NOTIFY.

Nothing depends on a ring being heard. A worker looks by itself at the next due time, and now and
then, so that a ring that is lost with its connection costs seconds and no event.
"""

import asyncio
from typing import Final, NoReturn

from paidonce.awaiting import comes_within
from paidonce.store import due
from paidonce.store.db import Database
from paidonce.telemetry import logger

log = logger(__name__)

TELL_PAUSE_S: Final = 0.05
"""At least this long between two NOTIFYs: their commits wait for each other."""
RECONNECT_PAUSE_S: Final = 1.0


class Ear:
    """What one listener hears. What was rung while it did not listen counts."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake this listener only."""
        self._rung.set()

    async def heard(self, timeout_s: float) -> bool:
        """Wait for a ring, for so long at most; rings since the last call count."""
        if not await comes_within(self._rung, timeout_s):
            return False
        self._rung.clear()
        return True


class Bell:
    """One for each process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ears: list[Ear] = []
        self._untold = asyncio.Event()

    def ear(self) -> Ear:
        """A listener of this bell, for as long as the process lives."""
        self._ears.append(Ear())
        return self._ears[-1]

    def ring(self) -> None:
        """Something that is due has been committed."""
        self._ring_here()
        self._untold.set()

    async def tell(self) -> NoReturn:
        """Pass rings on to other processes, many in one, until cancelled."""
        while True:
            await self._untold.wait()
            self._untold.clear()
            try:
                async with self._database.connection() as connection:
                    await due.ring(connection)
            except Exception as error:
                log.warning("bell_not_heard", error=type(error).__name__)
            await asyncio.sleep(TELL_PAUSE_S)

    async def listen(self) -> NoReturn:
        """Hear the rings of other processes, until cancelled."""
        while True:
            try:
                await due.listen(self._database, self._ring_here)
            except Exception as error:
                log.warning("bell_lost", error=type(error).__name__)
            self._ring_here()  # what was rung meanwhile has not been heard
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _ring_here(self) -> None:
        for ear in self._ears:
            ear.ring()
