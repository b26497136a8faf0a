"""The retry schedule: when an event is tried again, and when it is given up (RET-1, RET-2)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from paidonce.core.events import Code, Reason

SLOW_RETRY_CODES: Final = frozenset(
    {Code.USER_MISSING, Code.UNLINKED_PAYMENT, Code.ORDER_MISSING, Code.PROVIDER_UNREACHABLE}
)
"""Failures that somebody else has to resolve, on the slow schedule."""

SLOW_DELAYS_S: Final = (60.0, 300.0, 900.0, 3_600.0, 10_800.0, 21_600.0, 43_200.0)
"""The slow schedule, from a minute to twelve hours; the last delay is repeated."""

HANDLER_DELAYS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 120.0, 300.0, 600.0)
"""The schedule of an event whose handler fails; the last delay is repeated."""

SLOW_FOR: Final = timedelta(hours=84)
"""How long the slow schedule lasts. Redeliveries do not shorten it."""

_JITTER: Final = 0.2
"""The largest part of a delay that jitter adds."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff for our own failures; a slow schedule for `SLOW_RETRY_CODES`.

    An event whose handler fails is tried for hours: a handler is often mended by its next version.
    """

    attempts: int = 5
    initial_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0
    handler_for_h: float = 72.0

    def should_retry(self, code: Reason, times: int, age: timedelta) -> bool:
        """Whether to try an event again that failed `times` times with such a code.

        Where time counts, an event of any age has some attempts: it may have waited in our queue.
        """
        if code in SLOW_RETRY_CODES:
            return age < SLOW_FOR or times < len(SLOW_DELAYS_S)
        if code is Code.HANDLER_FAILED:
            return age < timedelta(hours=self.handler_for_h) or times < self.attempts
        return times < self.attempts

    def delay(self, code: Reason, times: int, jitter: float) -> timedelta:
        """The delay after `times` failures. `jitter` is a random number from 0 to 1."""
        fixed_s = _fixed_delays_s(code)
        if fixed_s:
            delay_s = fixed_s[min(times, len(fixed_s)) - 1]
        else:
            delay_s = min(self.initial_s * self.factor ** (times - 1), self.max_s)
        return timedelta(seconds=delay_s * (1 + _JITTER * jitter))


def _fixed_delays_s(code: Reason) -> tuple[float, ...]:
    if code in SLOW_RETRY_CODES:
        return SLOW_DELAYS_S
    return HANDLER_DELAYS_S if code is Code.HANDLER_FAILED else ()
