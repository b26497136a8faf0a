"""Waiting for something to happen, for so long at most."""

import asyncio

import pytest

from paidonce.awaiting import comes_within

LONG_S = 60.0


async def test_what_comes_in_time_is_told_from_what_does_not() -> None:
    event = asyncio.Event()
    assert not await comes_within(event, 0.0)
    event.set()
    assert await comes_within(event, LONG_S)


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_that_comes_with_the_event_counts(turns: int) -> None:
    """Whoever is cut off ends, at whatever moment it is: SIGTERM waits for it."""
    event = asyncio.Event()

    async def wait_and_go_on() -> None:
        while True:
            await comes_within(event, LONG_S)
            event.clear()

    task = asyncio.create_task(wait_and_go_on())
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=1.0)
    assert not pending
