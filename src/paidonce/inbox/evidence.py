"""Limits how much evidence is stored: a flood must not fill the disk (SEC-5)."""

import time
from collections import Counter, OrderedDict
from typing import Final

MAX_EVIDENCE_PER_ADDRESS: Final = 60
MAX_EVIDENCE: Final = 1_000
"""How many rejected deliveries are stored in a minute, from one address and in total."""
MAX_BYTES_PER_ADDRESS: Final = 1024 * 1024
MAX_BYTES: Final = 8 * 1024 * 1024
"""Their total size."""
MAX_EXPIRED: Final = 60_000
"""How many expired deliveries are stored in a minute: far more than after an outage."""
MAX_EXPIRED_REMEMBERED: Final = 100_000
"""How many expired deliveries are remembered, to store each once."""


class EvidenceLimit:
    """Limits what forged deliveries can write in a minute, by address and in total (SEC-5)."""

    def __init__(self) -> None:
        self._minute = 0
        self._stored: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def allows(self, address: str, size: int) -> bool:
        """Whether one more may be stored; if so, it is counted."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._stored.clear()
            self._bytes.clear()
        if (
            self._stored.total() >= MAX_EVIDENCE
            or self._stored[address] >= MAX_EVIDENCE_PER_ADDRESS
            or self._bytes.total() + size > MAX_BYTES
            or self._bytes[address] + size > MAX_BYTES_PER_ADDRESS
        ):
            return False
        self._stored[address] += 1
        self._bytes[address] += size
        return True


class ExpiredLimit:
    """Limits what expired deliveries can write: each is stored once, and a number in a minute.

    Only the gateway can create one, but an attacker can send a captured one for ever.
    """

    def __init__(self) -> None:
        self._minute = 0
        self._stored = 0
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def allows(self, digest: bytes) -> bool:
        """Whether this one may be stored; if so, it is counted and remembered."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._stored = minute, 0
        if digest in self._seen or self._stored >= MAX_EXPIRED:
            return False
        self._stored += 1
        self._seen[digest] = None
        if len(self._seen) > MAX_EXPIRED_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def forget(self, digest: bytes) -> None:
        """It was not stored after all."""
        self._seen.pop(digest, None)
