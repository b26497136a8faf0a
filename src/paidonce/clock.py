"""The time of the service: this machine's clock, corrected while the database's says otherwise.

The database's clock decides when an event is due, expired or old, and in which month it is stored.
A process whose own clock is wrong uses the difference that it measured last
(`runtime/clock_watch.py`). Durations are measured with `time.monotonic()`, not with this clock.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

MAX_SKEW_S: Final = 5.0
"""A smaller difference between two clocks is not corrected."""
SETTLED_AFTER_S: Final = 86_400.0
"""How long after a jump forward nothing is deleted for its age."""
_S: Final = 1_000_000_000
_MAX_SKEW_NS: Final = int(MAX_SKEW_S * _S)


class Clock:
    """One for each process."""

    def __init__(self) -> None:
        self.offset_ns = 0
        self._offset = timedelta(0)
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        self._database_ns: int | None = None
        self._jumped_s: float | None = None
        self._back_s = 0.0

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns() + self.offset_ns

    def now_s(self) -> float:
        """Seconds since 1970."""
        return self.now_ns() / _S

    def now(self) -> datetime:
        """The time, in UTC."""
        now = datetime.now(UTC)  # noqa: TID251
        return now + self._offset if self.offset_ns else now

    @property
    def is_certain(self) -> bool:
        """False if this machine's clock was set since the last comparison: compare again."""
        return abs(time.time_ns() - time.monotonic_ns() - self._wall_ns) < _MAX_SKEW_NS

    @property
    def is_settled(self) -> bool:
        """False for SETTLED_AFTER_S after the database's clock jumped forward by a day or more.

        What looks old then may be new.
        """
        return self._jumped_s is None or time.monotonic() > self._jumped_s + SETTLED_AFTER_S

    @property
    def offset_s(self) -> float:
        """What is added to this machine's clock; 0 while it is right."""
        return self.offset_ns / _S

    def learn(self, database_ns: int, wall_ns: int, monotonic_ns: int) -> None:
        """Take over a comparison: three clocks at one moment."""
        skew_ns = database_ns - wall_ns
        self.offset_ns = skew_ns if abs(skew_ns) > _MAX_SKEW_NS else 0
        self._offset = timedelta(microseconds=self.offset_ns // 1_000)
        self._wall_ns = wall_ns - monotonic_ns
        before_ns, self._database_ns = self._database_ns, database_ns - monotonic_ns
        if before_ns is not None:
            self._note_jump((self._database_ns - before_ns) / _S)

    def take_back_s(self) -> float:
        """By how much the database's clock was set back since the last call."""
        back_s, self._back_s = self._back_s, 0.0
        return back_s

    def give_back_s(self, back_s: float) -> None:
        """Undo `take_back_s`: what it was taken for has failed."""
        self._back_s += back_s

    def _note_jump(self, jump_s: float) -> None:
        if jump_s > SETTLED_AFTER_S:
            self._jumped_s = time.monotonic()
        elif jump_s < -MAX_SKEW_S:
            self._back_s -= jump_s
            if jump_s < -SETTLED_AFTER_S:
                self._jumped_s = None


CLOCK: Final = Clock()
