"""Keeps the house in order: the months ahead have their partitions before they begin."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from paidonce.store.db import Database
from paidonce.store.schema import ensure_partitions
from paidonce.telemetry import logger

log = logger(__name__)

PAUSE_S: Final = 3600.0


class Janitor:
    """Runs its tasks now and then; each can be run by itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_S)
            try:
                await self.run_once(datetime.now(UTC))
            except Exception as error:
                log.warning("janitor_failed", error=type(error).__name__, detail=str(error))

    async def run_once(self, now: datetime) -> list[str]:
        """Make the partitions that are missing; returns their names."""
        async with self._database.connection() as connection:
            made = await ensure_partitions(connection, now)
        if made:
            log.info("partitions_made", names=made)
        return made
