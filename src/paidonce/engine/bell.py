"""Wakes workers when something has become due: those of this process at once, others by NOTIFY.

Nothing depends on a ring being heard. A worker looks by itself at the next due time, and now and
then, so that a ring that is lost with its connection costs seconds and no event.
"""

import asyncio
from typing import Final, NoReturn

from paidonce.store import due
from paidonce.store.db import Database
from paidonce.telemetry import logger

log = logger(__name__)

TELL_PAUSE_S: Final = 0.05
"""At least this long between two NOTIFYs: their commits wait for each other."""
RECONNECT_PAUSE_S: Final = 1.0


class Bell:
    """One for each process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rung = asyncio.Event()
        self._untold = asyncio.Event()

    def ring(self) -> None:
        """Something that is due has been committed."""
        self._rung.set()
        self._untold.set()

    async def heard(self, timeout_s: float) -> bool:
        """Wait for a ring, for so long at most; rings since the last call count."""
        try:
            await asyncio.wait_for(self._rung.wait(), timeout_s)
        except TimeoutError:
            return False
        self._rung.clear()
        return True

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
                await due.listen(self._database, self._rung.set)
            except Exception as error:
                log.warning("bell_lost", error=type(error).__name__)
            self._rung.set()  # what was rung meanwhile has not been heard
            await asyncio.sleep(RECONNECT_PAUSE_S)
