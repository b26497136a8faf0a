"""Rate limits: so many in a window of time, for each address or source (SEC-1).

They are counted in the memory of the process, at once. Where several machines share their counts,
those are exchanged behind that (`shared_limits.py`), so that no request ever waits for a limit.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from limits import RateLimitItem, parse

from paidonce.engine.bounded import Bounded

OnHit = Callable[["Limit", str], None]


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of a limit is left to somebody, and how long until there is more."""

    policy: str
    quota: int
    window_s: int
    remaining: int
    reset_s: int
    refused: int = 0  # how often he came all the same

    def fields(self) -> tuple[tuple[str, str], ...]:
        """As header fields: draft-ietf-httpapi-ratelimit-headers-10, looked up in November 2026."""
        policy = f'"{self.policy}";q={self.quota};w={self.window_s}'
        left = f'"{self.policy}";r={self.remaining};t={self.reset_s}'
        return ("ratelimit-policy", policy), ("ratelimit", left)


@dataclass(slots=True)
class _Window:
    ends_s: float
    count: int = 0
    refused: int = 0


class Limit:
    """One limit. It begins to count somebody when he is first met, and anew after its window."""

    def __init__(self, name: str, rate: str, on_hit: OnHit | None = None) -> None:
        self.name = name
        self.item: RateLimitItem = parse(rate)
        self.window_s = int(self.item.get_expiry())
        self._quota = int(self.item.amount)
        self._on_hit = on_hit
        self._windows: Bounded[str, _Window] = Bounded()

    def refusal(self, key: str, times: int = 1) -> Standing | None:
        """Where somebody stands who has used up his quota, so many times; else None."""
        window = self._windows.get(key)
        if window is None or window.count < self._quota * times:
            return None
        if window.ends_s <= time.monotonic():
            self._windows.pop(key, None)
            return None
        window.refused += 1
        return self._standing(window)

    def hit(self, key: str) -> Standing:
        """Count one more."""
        now_s = time.monotonic()
        window = self._windows.get(key)
        if window is None or window.ends_s <= now_s:
            window = _Window(now_s + self.window_s)
            self._windows.put(key, window)
        window.count += 1
        if self._on_hit is not None:
            self._on_hit(self, key)
        return self._standing(window)

    def standing(self, key: str) -> Standing:
        """Where somebody stands."""
        window = self._windows.get(key)
        if window is None or window.ends_s <= time.monotonic():
            return Standing(self.name, self._quota, self.window_s, self._quota, self.window_s)
        return self._standing(window)

    def learn(self, key: str, count: int, left_s: float) -> None:
        """All processes together have counted so many, in a window that ends then."""
        now_s = time.monotonic()
        window = self._windows.get(key)
        if window is None or window.ends_s <= now_s:
            window = _Window(now_s)
            self._windows.put(key, window)
        window.count = max(window.count, count)
        window.ends_s = now_s + min(max(left_s, 0.0), self.window_s)

    def forget(self, key: str) -> None:
        """Begin anew with somebody."""
        self._windows.pop(key, None)

    def _standing(self, window: _Window) -> Standing:
        left_s = max(math.ceil(window.ends_s - time.monotonic()), 1)
        remaining = max(self._quota - window.count, 0)
        return Standing(self.name, self._quota, self.window_s, remaining, left_s, window.refused)
