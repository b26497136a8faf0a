"""Work that goes on until the process ends, and how it ends."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final, Protocol

from paidonce.telemetry import logger

log = logger(__name__)

FINISH_S: Final = 1.0
"""How long loops have to finish what is in hand. What is not done then is done again."""
CUT_OFF_S: Final = 1.5
"""How long loops that were cut off have to let go. A user's handler has a part of it."""


class Loop(Protocol):
    """Something that works until it is told to stop."""

    async def run(self) -> None: ...

    def finish(self) -> None:
        """End what is in hand, begin nothing new, and then return from `run`."""


def start(stack: AsyncExitStack, loops: Sequence[Loop]) -> None:
    """Run the loops side by side; at the end they may finish, and are then cut off, all at once."""
    tasks = [asyncio.create_task(loop.run(), name=type(loop).__name__) for loop in loops]
    for task in tasks:
        task.add_done_callback(_tell_why)

    async def stop() -> None:
        for loop in loops:
            loop.finish()
        _, unfinished = await asyncio.wait(tasks, timeout=FINISH_S)
        for task in unfinished:
            log.warning("cut_off", what=task.get_name())
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=CUT_OFF_S)

    if loops:
        stack.push_async_callback(stop)


def _tell_why(task: asyncio.Task[None]) -> None:
    """A loop that ends by an error would be missed by nobody until much later."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("loop_ended", what=task.get_name(), exc_info=error)
