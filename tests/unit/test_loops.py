"""Loops that run side by side, and how they end."""

import asyncio
from contextlib import AsyncExitStack

from structlog.testing import capture_logs

from paidonce import loops


class Working:
    """Goes on until it is told to finish; or, if it is stubborn, until it is cut off."""

    def __init__(self, is_stubborn: bool = False) -> None:
        self._asked = asyncio.Event()
        self._is_stubborn = is_stubborn
        self.ended = ""

    async def run(self) -> None:
        try:
            await self._asked.wait()
            if self._is_stubborn:
                await asyncio.Event().wait()
            self.ended = "finished"
        except asyncio.CancelledError:
            self.ended = "cut off"
            raise

    def finish(self) -> None:
        self._asked.set()


class Broken(Working):
    """Ends by an error."""

    async def run(self) -> None:
        raise RuntimeError("not foreseen")


async def test_loops_finish_and_are_cut_off_if_they_do_not() -> None:
    """REL-2"""
    good, stubborn = Working(), Working(is_stubborn=True)
    with capture_logs() as logged:
        async with AsyncExitStack() as stack:
            loops.start(stack, [good, stubborn])
            await asyncio.sleep(0)
    assert (good.ended, stubborn.ended) == ("finished", "cut off")
    assert [(one["event"], one["what"]) for one in logged] == [("cut_off", "Working")]


async def test_a_loop_that_ends_by_an_error_is_told_of() -> None:
    """OBS-1"""
    with capture_logs() as logged:
        async with AsyncExitStack() as stack:
            loops.start(stack, [Broken()])
            await asyncio.sleep(0.01)
    assert [(one["event"], one["what"]) for one in logged] == [("loop_ended", "Broken")]
