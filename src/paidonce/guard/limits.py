"""Rate limits: a number of requests in a time window, for each address or source (SEC-1).

Each process counts in memory. Machines that share their counts exchange them in the background
(`shared_limits.py`), so no request waits for a limit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from limits import RateLimitItem, parse

from paidonce.runtime.bounded import Bounded

OnHit = Callable[["Limit", str], None]


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """How much of a limit is left, and when it is reset."""

    policy: str
    quota: int
    window_s: int
    remaining: int
    reset_s: int
    rejected: int = 0  # requests over the limit

    def fields(self) -> tuple[tuple[str, str], ...]:
        """The header fields of draft-ietf-httpapi-ratelimit-headers-10 (November 2026)."""
        policy = f'"{self.policy}";q={self.quota};w={self.window_s}'
        left = f'"{self.policy}";r={self.remaining};t={self.reset_s}'
        return ("ratelimit-policy", policy), ("ratelimit", left)


@dataclass(slots=True)
class _Window:
    ends_s: float
    count: int = 0
    rejected: int = 0


class Limit:
    """One limit. The window of a key begins with its first request."""

    def __init__(self, name: str, rate: str, on_hit: OnHit | None = None) -> None:
        self.name = name
        self.item: RateLimitItem = parse(rate)
        self.window_s = int(self.item.get_expiry())
        self._quota = int(self.item.amount)
        self._on_hit = on_hit
        self._windows: Bounded[str, _Window] = Bounded()

    def exceeded(self, key: str, times: int = 1) -> RateLimitState | None:
        """The state of a key that has used its quota this many times; else None."""
        window = self._windows.get(key)
        if window is None or window.count < self._quota * times:
            return None
        if window.ends_s <= time.monotonic():
            self._windows.pop(key, None)
            return None
        window.rejected += 1
        return self._state(window)

    def hit(self, key: str) -> RateLimitState:
        """Count a request."""
        window = self._current(key)
        window.count += 1
        if self._on_hit is not None:
            self._on_hit(self, key)
        return self._state(window)

    def state(self, key: str) -> RateLimitState:
        """The state of a key."""
        window = self._windows.get(key)
        if window is None or window.ends_s <= time.monotonic():
            return RateLimitState(self.name, self._quota, self.window_s, self._quota, self.window_s)
        return self._state(window)

    def learn(self, key: str, count: int, left_s: float) -> None:
        """Take over the count of all processes, in a window that ends in `left_s`."""
        window = self._current(key)
        window.count = max(window.count, count)
        window.ends_s = time.monotonic() + min(max(left_s, 0.0), self.window_s)

    def forget(self, key: str) -> None:
        """Reset a key."""
        self._windows.pop(key, None)

    def _current(self, key: str) -> _Window:
        """The window of a key; a new one if there is none, or if it is over."""
        now_s = time.monotonic()
        window = self._windows.get(key)
        if window is None or window.ends_s <= now_s:
            window = _Window(now_s + self.window_s)
            self._windows.put(key, window)
        return window

    def _state(self, window: _Window) -> RateLimitState:
        left_s = max(math.ceil(window.ends_s - time.monotonic()), 1)
        remaining = max(self._quota - window.count, 0)
        return RateLimitState(
            self.name, self._quota, self.window_s, remaining, left_s, window.rejected
        )
