"""How much evidence of forged deliveries is stored in a day, over all processes (SEC-5).

The database counts the bytes, a portion at a time, so a process asks it rarely and a restart frees
nothing. Strangers and verified senders have rooms of their own: forgeries of strangers must not
push out what a gateway sends under a secret that is not configured yet.
"""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from paidonce.clock import CLOCK
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.db.queries import load_queries
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes
from paidonce.settings.sections import LimitsSettings
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)

MB: Final = 1_000_000
PORTIONS: Final = 64
"""A process takes this part of a room at once; it loses what it has not used when it ends."""
MAX_PORTION: Final = MB
FULL_FOR_S: Final = 60.0
"""A room that was full is asked for again after this time: a new day may have begun."""


class Room(StrEnum):
    """Whose evidence it is."""

    STRANGERS = "strangers"
    SENDERS = "senders"  # that sent a verified delivery to the same source before


class EvidenceRoom:
    """The part of each room that this process may still fill."""

    def __init__(
        self, database: Database, limits: LimitsSettings, routes: Routes | None = None
    ) -> None:
        self._database = database
        self._routes = routes or {}
        self._sizes: Mapping[Room, int] = {
            Room.STRANGERS: limits.evidence_strangers_mb * MB,
            Room.SENDERS: limits.evidence_senders_mb * MB,
        }
        self._left = dict.fromkeys(Room, 0)
        self._full_until_s = dict.fromkeys(Room, 0.0)
        self._taking = asyncio.Lock()

    async def take(self, room: Room, size: int) -> bool:
        """Whether so many bytes may be stored; if so, they are counted.

        Raises DatabaseUnavailableError.
        """
        async with self._taking:
            if self._left[room] < size and not await self._take_portion(room, size):
                return False
            self._left[room] -= size
            return True

    async def _take_portion(self, room: Room, size: int) -> bool:
        limit = self._sizes[room]
        if limit == 0 or time.monotonic() < self._full_until_s[room]:
            return False
        wanted = max(size - self._left[room], min(limit // PORTIONS, MAX_PORTION))
        if wanted <= limit:
            async with self._database.connection() as connection:
                taken = await QUERIES["take_evidence_room"].value(
                    connection, room=room, wanted=wanted, max_bytes=limit
                )
            if taken is not None:
                self._left[room] += wanted
                return True
        self._full_until_s[room] = time.monotonic() + FULL_FOR_S
        await self._tell_full(room, limit)
        return False

    async def _tell_full(self, room: Room, limit: int) -> None:
        """Log and notify it, once a day in all processes."""
        setting = f"limits.evidence_{room}_mb"
        details = {"room": room, "setting": setting, "mb": limit // MB}
        told = Notification(NotificationKind.EVIDENCE, CLOCK.now(), details=details)
        async with self._database.transaction() as connection:
            if await QUERIES["tell_evidence_room_full"].value(connection, room=room) is None:
                return
            await notifications_store.add(connection, self._routes, told)
        log.warning(
            "evidence_room_full",
            **details,
            detail="rejected deliveries are counted, but not stored until the next day (UTC)",
        )
