"""Waiting for a wake-up."""

import asyncio

import pytest

from paidonce.runtime.service import happens_within
from paidonce.runtime.wakeup import Wakeup

LONG_S = 60.0


async def test_an_event_in_time_is_told_from_one_that_is_not() -> None:
    event = asyncio.Event()
    assert not await happens_within(event, 0.0)
    event.set()
    assert await happens_within(event, LONG_S)


async def test_a_wakeup_reaches_every_listener_also_one_that_did_not_wait() -> None:
    wakeup = Wakeup()
    listeners = [wakeup.listener() for _ in range(2)]
    wakeup.wake()
    assert [await one.wait(LONG_S) for one in listeners] == [True, True]
    assert not await listeners[0].wait(0.0), "it is used up"


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_together_with_the_event_is_not_lost(turns: int) -> None:
    """A cancelled service ends, at whatever moment it is: SIGTERM waits for it."""
    event = asyncio.Event()

    async def wait_and_go_on() -> None:
        while True:
            await happens_within(event, LONG_S)
            event.clear()

    task = asyncio.create_task(wait_and_go_on())
    await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=LONG_S)
    assert not pending
