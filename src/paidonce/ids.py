"""Ids: UUIDv7 of RFC 9562, whose first 60 bits are the time of `paidonce.clock`.

There is no state, so ids follow the clock at once when it is set back. Ids of one process are in
order as long as the clock is: the time has a resolution of 244 ns, and making one takes longer.
"""

import os
from typing import Final
from uuid import UUID, SafeUUID

from paidonce.clock import CLOCK

_FIXED: Final = 7 << 76 | 2 << 62  # version and variant
_RANDOM_BITS: Final = (1 << 62) - 1
_MS: Final = 1_000_000
_UNKNOWN: Final = SafeUUID.unknown


def new_id() -> UUID:
    """A new id, without the checks of `UUID(int=…)`, which take a third of the time."""
    ms, ns = divmod(CLOCK.now_ns(), _MS)
    random = int.from_bytes(os.urandom(8), "big") & _RANDOM_BITS
    number = ms << 80 | (ns << 12) // _MS << 64 | _FIXED | random
    new = object.__new__(UUID)
    object.__setattr__(new, "int", number)
    object.__setattr__(new, "is_safe", _UNKNOWN)
    return new
