"""How often a loop looks for work: soon after there was some, seldom when there is none."""

import asyncio
import contextlib
from typing import Final

QUICKEST_S: Final = 0.02
SLOWEST_S: Final = 1.0
GROWTH: Final = 1.6


class Pace:
    """Pauses that grow while nothing happens, and begin anew when something does."""

    def __init__(self, quickest_s: float = QUICKEST_S, slowest_s: float = SLOWEST_S) -> None:
        self._quickest_s = quickest_s
        self._slowest_s = slowest_s
        self._pause_s = quickest_s
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Look at once, and then often: what was announced may not be committed yet."""
        self._pause_s = self._quickest_s
        self._hurried.set()

    async def pause(self) -> None:
        """Wait for a while, or until hurried."""
        if self._hurried.is_set():
            self._hurried.clear()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), self._pause_s)
            self._hurried.clear()
            return
        self._pause_s = min(self._pause_s * GROWTH, self._slowest_s)

    async def rest(self, pause_s: float, until: asyncio.Event) -> None:
        """Wait so long, or until the event."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), pause_s)
