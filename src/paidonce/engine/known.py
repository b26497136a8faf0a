"""Addresses from which verified deliveries came: they are limited less, and never banned."""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce.domain.risk import KNOWN_DAYS
from paidonce.engine.bounded import MAX_ENTRIES, Bounded
from paidonce.store import bans as store
from paidonce.store.queries import Connection

_DAY_S: Final = 86_400.0
_KNOWN_S: Final = KNOWN_DAYS * _DAY_S
MAX_WRITTEN_AT_ONCE: Final = 1_000
OVERLAP: Final = timedelta(seconds=30)
"""What was committed later than it was dated is looked for again."""


class KnownAddresses:
    """What this process knows of them; `sync` is how it tells the others and hears of theirs."""

    def __init__(self) -> None:
        self._verified_s: Bounded[str, float] = Bounded()
        self._untold: Bounded[str, None] = Bounded()
        self._since = datetime.now(UTC) - timedelta(days=KNOWN_DAYS)

    def note(self, address: str) -> bool:
        """A verified delivery came from there; returns whether that is news."""
        seen_s = self._verified_s.get(address)
        now_s = time.time()
        if seen_s is not None and now_s - seen_s < _DAY_S:
            return False
        self._verified_s.put(address, now_s)
        self._untold.put(address, None)
        return True

    def __contains__(self, address: str) -> bool:
        seen_s = self._verified_s.get(address)
        return seen_s is not None and time.time() - seen_s < _KNOWN_S

    async def sync(self, connection: Connection) -> None:
        """Write what is new here, and read what is new there."""
        untold = list(self._untold)[:MAX_WRITTEN_AT_ONCE]
        if untold:
            await store.note_known(connection, untold)
            for address in untold:
                self._untold.pop(address, None)
        for row in reversed(await store.known(connection, self._since, MAX_ENTRIES)):
            verified_s = row["verified_at"].timestamp()
            if verified_s > self._verified_s.get(row["address"], 0.0):
                self._verified_s.put(row["address"], verified_s)
            self._since = max(self._since, row["verified_at"] - OVERLAP)
