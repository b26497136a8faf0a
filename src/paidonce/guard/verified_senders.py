"""Addresses that sent verified deliveries: they have a higher limit and are never banned."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce.db.queries import Connection
from paidonce.guard import store
from paidonce.guard.risk import VERIFIED_DAYS
from paidonce.runtime.bounded import MAX_ENTRIES, Bounded

_DAY_S: Final = 86_400.0
_VERIFIED_S: Final = VERIFIED_DAYS * _DAY_S
MAX_WRITTEN_AT_ONCE: Final = 1_000
OVERLAP: Final = timedelta(seconds=30)
"""Rows that were committed later than their timestamp are read again."""


class VerifiedSenders:
    """The senders that this process knows; `sync` exchanges them with the other processes."""

    def __init__(self) -> None:
        self._verified_s: Bounded[str, float] = Bounded()
        self._unsaved: Bounded[str, None] = Bounded()
        self._since = datetime.now(UTC) - timedelta(days=VERIFIED_DAYS)

    def add(self, address: str) -> bool:
        """Record a verified delivery; returns whether the sender is new today."""
        seen_s = self._verified_s.get(address)
        now_s = time.time()
        if seen_s is not None and now_s - seen_s < _DAY_S:
            return False
        self._verified_s.put(address, now_s)
        self._unsaved.put(address, None)
        return True

    def __contains__(self, address: str) -> bool:
        seen_s = self._verified_s.get(address)
        return seen_s is not None and time.time() - seen_s < _VERIFIED_S

    async def sync(self, connection: Connection) -> None:
        """Write new senders of this process, and read those of others."""
        unsaved = list(self._unsaved)[:MAX_WRITTEN_AT_ONCE]
        if unsaved:
            await store.add_verified_senders(connection, unsaved)
            for address in unsaved:
                self._unsaved.pop(address, None)
        for row in reversed(await store.verified_senders(connection, self._since, MAX_ENTRIES)):
            verified_s = row["verified_at"].timestamp()
            if verified_s > self._verified_s.get(row["address"], 0.0):
                self._verified_s.put(row["address"], verified_s)
            self._since = max(self._since, row["verified_at"] - OVERLAP)
