"""Limits how much evidence is stored: a flood must not fill the disk (SEC-5)."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from paidonce.core.events import SourceId
from paidonce.errors import DatabaseUnavailableError
from paidonce.guard.addresses import sender_unit
from paidonce.inbox.evidence_room import EvidenceRoom, Room
from paidonce.processing.items import Rejected
from paidonce.runtime.bounded import Bounded
from paidonce.telemetry.metrics import Dropped

MAX_EVIDENCE_PER_ADDRESS: Final = 60
MAX_EVIDENCE: Final = 1_000
"""How many rejected deliveries are stored in a minute, from one stranger and from all of them."""
MAX_BYTES_PER_ADDRESS: Final = 1024 * 1024
MAX_BYTES: Final = 8 * 1024 * 1024
"""Their total size."""
ROW_BYTES: Final = 1_000
"""What a row and its places in indexes take beside headers and body, rounded up."""
MAX_STORED_ONCE: Final = 60_000
"""How many authentic rejected deliveries are stored in a minute: far more than after an outage."""
MAX_REMEMBERED: Final = 100_000
"""How many of them are remembered, to store each once."""


class EvidenceLimit:
    """Limits what strangers can write in a minute, by address and in total (SEC-5)."""

    def __init__(self) -> None:
        self._minute = 0
        self._stored: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def excess(self, address: str, size: int) -> Dropped | None:
        """Why no more may be stored; None if it may, and then it is counted."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._stored.clear()
            self._bytes.clear()
        if (
            self._stored[address] >= MAX_EVIDENCE_PER_ADDRESS
            or self._bytes[address] + size > MAX_BYTES_PER_ADDRESS
        ):
            return Dropped.ADDRESS
        if self._stored.total() >= MAX_EVIDENCE or self._bytes.total() + size > MAX_BYTES:
            return Dropped.MINUTE
        self._stored[address] += 1
        self._bytes[address] += size
        return None


class EvidenceLimits:
    """All limits of evidence that could not be verified."""

    def __init__(
        self, room: EvidenceRoom, is_sender: Callable[[str, SourceId], bool] | None = None
    ) -> None:
        self._strangers = EvidenceLimit()
        self._room = room
        self._is_sender = is_sender or (lambda _address, _source: False)

    async def excess(self, refused: Rejected) -> Dropped | None:
        """Why it may not be stored; None if it may, and then it is counted.

        A verified sender has no limit but the room of the day: its deliveries are probably real,
        and only the secret is wrong.
        """
        unit, size = sender_unit(refused.request.remote_address or ""), evidence_size(refused)
        if self._is_sender(unit, refused.source.id):
            room = Room.SENDERS
        else:
            room = Room.STRANGERS
            if excess := self._strangers.excess(unit, size):
                return excess
        try:
            return None if await self._room.take(room, size) else Dropped.DAY
        except DatabaseUnavailableError:
            return Dropped.UNAVAILABLE


def evidence_size(refused: Rejected) -> int:
    """How many bytes it takes in the database, compression aside."""
    delivery = refused.delivery
    headers = refused.source.provider.evidence_headers(delivery.headers)
    return (
        ROW_BYTES + len(delivery.body) + sum(len(one) for pair in headers.items() for one in pair)
    )


class StoredOnce:
    """Limits what authentic rejected deliveries can write: each once, and a number in a minute.

    Only the gateway can create one, but an attacker can send a captured one for ever.
    """

    def __init__(self) -> None:
        self._minute = 0
        self._stored = 0
        self._seen: Bounded[bytes, None] = Bounded(MAX_REMEMBERED)

    def allows(self, digest: bytes) -> bool:
        """Whether this one may be stored; if so, it is counted and remembered."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._stored = minute, 0
        if digest in self._seen or self._stored >= MAX_STORED_ONCE:
            return False
        self._stored += 1
        self._seen.put(digest, None)
        return True

    def forget(self, digest: bytes) -> None:
        """It was not stored after all."""
        self._seen.pop(digest, None)
