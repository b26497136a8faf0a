"""Publishes the outbox: in order for each key, each message at least once (BUS-1).

One relay at a time does it, by a lock of the very session that marks what is published: cut off, it
can mark nothing any more. Killed between publishing and marking, its successor publishes the same
again, which consumers know by the ids.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from paidonce import telemetry
from paidonce.awaiting import comes_within
from paidonce.bus.contract import Bus
from paidonce.bus.postgres import message_of
from paidonce.bus.ring import Patience, Ring
from paidonce.crashpoints import Point, passing
from paidonce.errors import BusAwayError, DatabaseAwayError
from paidonce.store import outbox
from paidonce.store.db import Database
from paidonce.store.locks import MAX_SILENCE_S, held_by_us
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

LOCK: Final = "relay"
MAX_BATCH: Final = 1_000
FOLLOWER_POLL_S: Final = 1.0
"""How often a process looks whether the one that publishes is gone."""
PAUSE_AFTER_FAILURE_S: Final = 0.5


class Relay:
    """Publishes what is in the outbox, batch by batch."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        *,
        ring: Ring | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._database = database
        self._bus = bus
        self._ring = ring or Ring()
        self._ear = self._ring.ear()
        self._max_batch = max_batch
        self._limit = max_batch
        self._patience = Patience()
        self._stop_asked = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped: publish, or wait until whoever publishes is gone."""
        while not self._stop_asked.is_set():
            await self.follow()
            await self._pause(FOLLOWER_POLL_S)

    def finish(self) -> None:
        """Finish the batch in hand, and then stop."""
        self._stop_asked.set()
        self._ear.ring()

    async def follow(self) -> None:
        """Be the one that publishes, as soon as nobody else is; until stopped or cut off."""
        try:
            connection = await self._database.dedicated(max_silence_s=MAX_SILENCE_S)
        except DatabaseAwayError as error:
            log.warning("relay_failed", error=type(error).__name__)
            return
        try:
            while self._goes_on(connection):
                await self._lead(connection)
                await self._pause(FOLLOWER_POLL_S)
        except Exception as error:
            log.warning("relay_failed", exc_info=error)
        finally:
            connection.terminate()

    async def _lead(self, connection: Connection) -> None:
        async with held_by_us(connection, LOCK) as is_ours:
            while is_ours and self._goes_on(connection):
                await self._work(connection)

    def _goes_on(self, connection: Connection) -> bool:
        return not self._stop_asked.is_set() and not connection.is_closed()

    async def run_once(self, connection: Connection) -> int:
        """Publish one batch; returns how many messages it was. The lock has to be held.

        Raises BusAwayError.
        """
        places = await self._published(connection)
        if not places:
            return 0
        passing(Point.PUBLISHED)
        await outbox.mark_published(connection, places)
        self._ring.ring()
        telemetry.PUBLISHED.inc(len(places))
        return len(places)

    async def _published(self, connection: Connection) -> Sequence[int]:
        """Give the bus what is next; returns where that stands in the outbox."""
        if self._bus.is_the_outbox:
            return await outbox.unpublished_places(connection, self._limit)
        entries = await outbox.unpublished(connection, self._limit)
        if entries:
            passing(Point.RELAY_READ)
            await self._bus.publish([message_of(entry) for entry in entries])
        return [entry.place for entry in entries]

    async def _work(self, connection: Connection) -> None:
        try:
            published = await self.run_once(connection)
        except BusAwayError as error:
            log.warning("bus_away", detail=str(error))
            self._limit = max(self._limit // 2, 1)  # a slow bus may take a smaller one in its time
            await self._pause(PAUSE_AFTER_FAILURE_S)
            return
        self._limit = min(self._limit * 2, self._max_batch)
        if published:
            self._patience.found()
        else:
            await self._ear.wait(self._patience.next_s())

    async def _pause(self, pause_s: float) -> None:
        """Wait, unless asked to stop."""
        await comes_within(self._stop_asked, pause_s)
