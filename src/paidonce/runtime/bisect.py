"""Splits a batch that failed into halves, until the item at fault is alone.

The others succeed without it. A lost race is run again before anything is split.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from paidonce.telemetry import logger

log = logger(__name__)

RERUN_PAUSE_S: Final = 0.01
PATIENCE_S: Final = 1.5  # how long after the first failure smaller parts of a batch are tried

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Bisection(Generic[T, R]):
    """How a batch is run, and what happens to the parts that fail."""

    attempt: Callable[[Sequence[T]], Awaitable[R]]
    """Does all of the items, or raises and does none."""
    max_runs: Callable[[Exception, int], int]
    """How often a batch of this size may be run in all when it fails like this; 0: raise it."""
    fail: Callable[[T, Exception, float], Awaitable[R]]
    """The result of an item that failed alone; the number is the deadline."""
    give_up: Callable[[Sequence[T], Exception], Awaitable[R]]
    """The result of items that still fail after the deadline."""
    combine: Callable[[R, R], R]

    async def run(self, items: Sequence[T], deadline_s: float | None = None) -> R:
        """Do all items that can be done.

        The deadline starts with the first failure: items behind a lock that is held for long must
        not be tried one by one.
        """
        assert items
        runs = 0
        while True:
            try:
                return await self.attempt(items)
            except Exception as failure:
                max_runs = self.max_runs(failure, len(items))
                if max_runs == 0:
                    raise
                error = failure
            runs += 1
            deadline_s = deadline_s or time.monotonic() + PATIENCE_S
            if runs >= max_runs:
                break
            await asyncio.sleep(RERUN_PAUSE_S * (runs - 1) * random.random())
        if time.monotonic() > deadline_s:
            return await self.give_up(items, error)
        if len(items) == 1:
            return await self.fail(items[0], error, deadline_s)
        log.warning("batch_halved", items=len(items), exc_info=error)
        middle = len(items) // 2
        first = await self.run(items[:middle], deadline_s)
        return self.combine(first, await self.run(items[middle:], deadline_s))
