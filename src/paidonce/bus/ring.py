"""Wakes whoever waits in this process for something to be written, published or taken.

Nothing depends on a ring being heard: everybody looks by himself several times a second.
"""

import asyncio
from typing import Final

from paidonce.awaiting import comes_within

FASTEST_POLL_S: Final = 0.01
SLOWEST_POLL_S: Final = 0.25
"""How often to look while nothing has been there for a while."""


class Ring:
    """One for each process."""

    def __init__(self) -> None:
        self._ears: list[Ear] = []

    def ear(self) -> "Ear":
        """A listener, for as long as the process lives."""
        self._ears.append(Ear())
        return self._ears[-1]

    def ring(self) -> None:
        """Something was committed that others wait for."""
        for ear in self._ears:
            ear.ring()


class Ear:
    """What one listener hears. What was rung while it did not listen counts."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake this listener only."""
        self._rung.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a ring, for so long at most."""
        await comes_within(self._rung, timeout_s)
        self._rung.clear()


class Patience:
    """How long to wait before looking again: longer each time that there was nothing."""

    def __init__(self) -> None:
        self._pause_s = FASTEST_POLL_S

    def found(self) -> None:
        """There was something: look again soon."""
        self._pause_s = FASTEST_POLL_S

    def next_s(self) -> float:
        """There was nothing."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, SLOWEST_POLL_S)
        return pause_s
