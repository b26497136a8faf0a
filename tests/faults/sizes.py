"""How large each experiment is: one number for `make test`, one for `make soak`."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Size:
    """A number that depends on how much time there is."""

    test: int
    soak: int

    def at(self, full: bool) -> int:
        return self.soak if full else self.test


SERVER_KILLS: Final = Size(test=3, soak=100)
DATABASE_KILLS: Final = Size(test=3, soak=200)
SUPERVISED_KILLS: Final = Size(test=1, soak=20)
CONNECTION_CUTS: Final = Size(test=15, soak=600)
WORKER_KILLS: Final = Size(test=2, soak=50)
WALLET_PAYMENTS: Final = Size(test=400, soak=10_000)
SERVICE_KILLS: Final = Size(test=1, soak=20)
SERVICE_CRASHES: Final = Size(test=1, soak=5)
REPLAYED: Final = Size(test=4_000, soak=100_000)
CRASH_SEEDS: Final = Size(test=1, soak=10)
CLOCK_EVENTS: Final = Size(test=30, soak=150)
FAULT_S: Final = Size(test=2, soak=30)
RACES: Final = Size(test=1, soak=10)
COPIES: Final = Size(test=500, soak=500)
SAME_USER: Final = Size(test=200, soak=200)
RANDOM_BODIES: Final = Size(test=100, soak=3_000)
RANDOM_REQUESTS: Final = Size(test=200, soak=3_000)
FORGERIES: Final = Size(test=1_000, soak=100_000)
SLOW_CONNECTIONS: Final = Size(test=300, soak=300)
