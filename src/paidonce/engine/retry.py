"""When what failed or waits is tried again, and when it is given up (RET-1, RET-2)."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from paidonce.domain.events import Code

WAITS_FOR_OTHERS: Final = frozenset({Code.USER_MISSING, Code.UNLINKED_PAYMENT})
"""Failures that pass when somebody else acts; what they wait for wakes them earlier."""

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
SLOW_DELAYS_S: Final = (
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    3 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    12 * _HOUR,
    24 * _HOUR,
    24 * _HOUR,
)
"""82 hours in all."""

_JITTER: Final = 0.2
"""How much of a delay chance may add, so that what failed together does not return together."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff for what failed for a moment; a slow schedule for what waits."""

    attempts: int = 5
    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0

    def next_run(self, code: Code, attempts: int, now: datetime) -> datetime | None:
        """When to try again after this many attempts, or None when they have run out."""
        delay_s = self._delay_s(code, attempts)
        if delay_s is None:
            return None
        return now + timedelta(seconds=delay_s * (1 + _JITTER * random.random()))

    def _delay_s(self, code: Code, attempts: int) -> float | None:
        if code in WAITS_FOR_OTHERS:
            return SLOW_DELAYS_S[attempts - 1] if attempts <= len(SLOW_DELAYS_S) else None
        if attempts >= self.attempts:
            return None
        return float(min(self.initial_s * self.factor ** (attempts - 1), self.max_s))
