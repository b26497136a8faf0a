"""How much of what is refused is kept: a flood must not fill the disk (SEC-5)."""

import time
from collections import Counter, OrderedDict
from typing import Final

MAX_EVIDENCE_PER_ADDRESS: Final = 60
MAX_EVIDENCE: Final = 1_000
"""How many refused deliveries are kept in a minute, from one address and from all."""
MAX_BYTES_PER_ADDRESS: Final = 1024 * 1024
MAX_BYTES: Final = 8 * 1024 * 1024
"""How large those may be together."""
MAX_STALE: Final = 60_000
"""How many stale ones are kept in a minute: far more than an outage leaves behind."""
MAX_STALE_REMEMBERED: Final = 100_000
"""How many stale ones are known again when they come again."""


class EvidenceLimit:
    """Bounds what forged deliveries can write, per address and minute and over all (SEC-5)."""

    def __init__(self) -> None:
        self._minute = 0
        self._kept: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def allows(self, address: str, size: int) -> bool:
        """Whether one more may be kept; if so, it is counted."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._kept.clear()
            self._bytes.clear()
        if (
            self._kept.total() >= MAX_EVIDENCE
            or self._kept[address] >= MAX_EVIDENCE_PER_ADDRESS
            or self._bytes.total() + size > MAX_BYTES
            or self._bytes[address] + size > MAX_BYTES_PER_ADDRESS
        ):
            return False
        self._kept[address] += 1
        self._bytes[address] += size
        return True


class StaleLimit:
    """Bounds what stale deliveries can write: each is kept once, and so many in a minute.

    Nobody but the gateway can make a new one, but whoever has captured one can send it for ever.
    """

    def __init__(self) -> None:
        self._minute = 0
        self._kept = 0
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def allows(self, digest: bytes) -> bool:
        """Whether this one may be kept; if so, it is counted and remembered."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._kept = minute, 0
        if digest in self._seen or self._kept >= MAX_STALE:
            return False
        self._kept += 1
        self._seen[digest] = None
        if len(self._seen) > MAX_STALE_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def forget(self, digest: bytes) -> None:
        """It was not kept after all."""
        self._seen.pop(digest, None)
