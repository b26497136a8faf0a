"""How suspicious an address is, and for how long it is banned (SEC-4)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

REMEMBERED_DAYS: Final = 7
"""A ban that ended that long ago does not make the next one longer."""
KNOWN_DAYS: Final = 30
"""An address from which a verified delivery came is not banned for so long."""


class Suspicion(StrEnum):
    """What only a stranger does."""

    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"  # before it could be verified
    UNKNOWN_SOURCE = "unknown_source"  # it may be a slip in a gateway's settings
    INSISTENCE = "insistence"  # a flood of requests that are refused for its limit


POINTS: Final = {
    Suspicion.BAD_SIGNATURE: 1.0,
    Suspicion.MALFORMED: 1.0,
    Suspicion.UNKNOWN_SOURCE: 0.5,
    Suspicion.INSISTENCE: 0.5,
}
"""What each adds to the score of its address."""


@dataclass(frozen=True, slots=True)
class BanPolicy:
    """From which score an address is banned, and for how long."""

    threshold: float
    half_life_s: float
    first_s: float
    longest_s: float

    def decayed(self, score: float, age_s: float) -> float:
        """What is left of a score after a while."""
        return float(score * 0.5 ** (max(age_s, 0.0) / self.half_life_s))

    def length_s(self, times: int) -> float:
        """How long the ban is that an address gets for the so many'th time, beginning with 1."""
        doublings = min(times - 1, 30)
        return min(self.first_s * 2.0**doublings, self.longest_s)
