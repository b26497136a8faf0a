"""How long to wait before the next try: longer after each failure."""

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff. Jitter adds up to that share of the delay, at random."""

    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0
    jitter: float = 0.2

    def delay_s(self, failures: int) -> float:
        """The delay after this many failures in a row."""
        try:
            delay_s = min(self.initial_s * self.factor ** (failures - 1), self.max_s)
        except OverflowError:
            delay_s = self.max_s
        return delay_s * (1 + self.jitter * random.random())


@dataclass(slots=True)
class Delays:
    """The delays of one series of failures."""

    backoff: Backoff
    failures: int = field(default=0, init=False)

    def next_s(self) -> float:
        """Count a failure; returns the delay before the next try."""
        self.failures += 1
        return self.backoff.delay_s(self.failures)

    def reset(self) -> None:
        """Start again with the shortest delay."""
        self.failures = 0
