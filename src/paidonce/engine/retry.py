"""When what failed or waits is tried again, and when it is given up (RET-1, RET-2)."""

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from paidonce.domain.events import Code, Reason

WAITS_FOR_OTHERS: Final = frozenset(
    {
        Code.USER_MISSING,
        Code.UNLINKED_PAYMENT,
        Code.ORDER_MISSING,
        Code.PROVIDER_UNREACHABLE,
    }
)
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
)
"""For what waits for others; the last one is repeated."""

SLOW_FOR: Final = timedelta(hours=84)
"""How long such an event is tried before a person has to see it. Redeliveries do not use it up."""

_JITTER: Final = 0.2
"""How much of a delay chance may add, so that what failed together does not return together."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff for what failed for a moment; a slow schedule for what waits."""

    attempts: int = 5
    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0

    def goes_on(self, code: Reason, times: int, age: timedelta) -> bool:
        """Whether an event that failed so often like this, and is this old, is tried again.

        What waits for others is tried for days, and some times also if it is older than that: it
        may have waited for us.
        """
        if code in WAITS_FOR_OTHERS:
            return age < SLOW_FOR or times < len(SLOW_DELAYS_S)
        return times < self.attempts

    def delay(self, code: Reason, times: int) -> timedelta:
        """How long to wait after it has failed this many times, or waited in vain."""
        if code in WAITS_FOR_OTHERS:
            delay_s = SLOW_DELAYS_S[min(times, len(SLOW_DELAYS_S)) - 1]
        else:
            delay_s = min(self.initial_s * self.factor ** (times - 1), self.max_s)
        return timedelta(seconds=delay_s * (1 + _JITTER * random.random()))
