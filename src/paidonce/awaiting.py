"""Waits for something to happen, for so long at most."""

import asyncio


async def comes_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event; returns whether it came in time.

    `asyncio.wait_for` will not do: in Python 3.11 it forgets a cancellation that comes together
    with what is waited for, and whoever was cancelled goes on for ever.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
