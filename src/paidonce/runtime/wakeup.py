"""Wakes services that wait for new rows. `runtime/notify.py` sends wake-ups to other processes.

Correctness never depends on a wake-up: every service also polls, so a lost one costs seconds.
"""

import asyncio


async def happens_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for the event; returns whether it was set in time. None waits for ever.

    `asyncio.wait_for` in Python 3.11 loses a cancellation that arrives together with the event.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Listener:
    """Waits for wake-ups. One that came while nobody waited ends the next wait at once."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake this listener only."""
        self._woken.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a wake-up; returns whether one came in time."""
        is_woken = await happens_within(self._woken, timeout_s)
        self._woken.clear()
        return is_woken


class Wakeup:
    """A signal to all its listeners, and through `unsent` to other processes."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.unsent = Listener()
        """Woken when this process, and not another one, has something new."""

    def listener(self) -> Listener:
        """A new listener, which lives as long as the process."""
        self._listeners.append(Listener())
        return self._listeners[-1]

    def wake(self) -> None:
        """Wake all listeners: something they wait for was committed."""
        self.wake_here()
        self.unsent.wake()

    def wake_here(self) -> None:
        """Wake the listeners of this process only."""
        for listener in self._listeners:
            listener.wake()
