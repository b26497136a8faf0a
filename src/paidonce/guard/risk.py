"""Risk scores of addresses, and how long they are banned (SEC-4)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

REMEMBERED_DAYS: Final = 7
"""A ban that ended longer ago does not make the next one longer."""
VERIFIED_DAYS: Final = 30
"""An address that sent a verified delivery is not banned for this long."""


class Suspicion(StrEnum):
    """What adds to the risk score."""

    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"  # before it could be verified
    UNKNOWN_SOURCE = "unknown_source"  # may be a mistake in the gateway's settings
    INSISTENCE = "insistence"  # a flood of requests over the limit


POINTS: Final = {
    Suspicion.BAD_SIGNATURE: 1.0,
    Suspicion.MALFORMED: 1.0,
    Suspicion.UNKNOWN_SOURCE: 0.5,
    Suspicion.INSISTENCE: 0.5,
}
"""What each adds to the score."""


@dataclass(frozen=True, slots=True)
class BanPolicy:
    """When an address is banned, and for how long."""

    threshold: float
    half_life_s: float
    first_s: float
    longest_s: float

    def decayed(self, score: float, age_s: float) -> float:
        """A score after some time."""
        return float(score * 0.5 ** (max(age_s, 0.0) / self.half_life_s))

    def length_s(self, times: int) -> float:
        """The length of the n-th ban of an address, from 1."""
        doublings = min(times - 1, 30)
        return min(self.first_s * 2.0**doublings, self.longest_s)
