"""Paidonce in queued mode: an event is answered when it is stored, and processed later."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from benchmarks.contender import BenchmarkError, HttpServer, Load, Running
from benchmarks.contenders import Paidonce
from benchmarks.databases import connected
from benchmarks.load import LoadResult
from benchmarks.meter import Marks

POLL_S = 0.02
MAX_DRAIN_S = 180.0
IS_ANY_DUE = "SELECT EXISTS (SELECT 1 FROM paidonce.event_queue)"


class Queued(Paidonce):
    """`paidonce serve` in queued mode, with the worker in the same process."""

    name = "queued"
    title = "Paidonce, queued"
    mode = "queued"
    once = True

    def running(self, url: str, *, work_dir: Path) -> AbstractAsyncContextManager[Running]:  # type: ignore[override]
        """Run the server, with access to its queue."""
        return self._running(url, super().running(url, work_dir=work_dir))

    @asynccontextmanager
    async def _running(
        self, url: str, starting: AbstractAsyncContextManager[HttpServer]
    ) -> AsyncIterator[Running]:
        async with starting as server:
            yield QueuedServer(server.pid, server, url)


@dataclass(frozen=True, slots=True)
class QueuedServer(Running):
    """A server that has finished when its queue is empty."""

    pid: int
    server: HttpServer
    url: str

    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Send the load, and measure until all is applied. The warm-up is applied before."""
        warmed_up = await self._warm_up(load)
        until_applied = UntilApplied(meter, self.url)
        result = await self.server.drive(replace(load, warmup_s=0.0), until_applied)
        await wait_until_applied(self.url)  # what was answered after the measured time
        return replace(
            result,
            answers=dict(Counter(warmed_up.answers) + Counter(result.answers)),
            lost=warmed_up.lost + result.lost,
            drain_s=until_applied.drain_s,
        )

    async def _warm_up(self, load: Load) -> LoadResult:
        if load.warmup_s == 0:
            return NOTHING
        short = Load.timed(
            connections=load.connections, users=load.users, warmup_s=0.0, seconds=load.warmup_s
        )
        result = await self.server.drive(short, None)
        await wait_until_applied(self.url)
        return result


class UntilApplied:
    """Extends the measured time until everything is applied."""

    def __init__(self, meter: Marks | None, url: str) -> None:
        self._meter = meter
        self._url = url
        self.drain_s = 0.0

    async def begin(self) -> None:
        """The measured time begins."""
        if self._meter is not None:
            await self._meter.begin()

    async def end(self) -> None:
        """Nothing more is sent. The measured time ends when the queue is empty."""
        stopped_s = perf_counter()
        await wait_until_applied(self._url)
        self.drain_s = perf_counter() - stopped_s
        if self._meter is not None:
            await self._meter.end()


NOTHING = LoadResult(0.0, 0, 0.0, 0.0, 0.0, 0.0, {}, 0)


async def wait_until_applied(url: str) -> None:
    """Wait until the queue is empty. Raises BenchmarkError if that takes too long."""
    deadline_s = perf_counter() + MAX_DRAIN_S
    async with connected(url) as connection:
        while await connection.fetchval(IS_ANY_DUE):
            if perf_counter() > deadline_s:
                raise BenchmarkError(f"the queue was not empty after {MAX_DRAIN_S:g} s")
            await asyncio.sleep(POLL_S)
