"""Paidonce in queued mode: it answers when an event is stored, and settles it after that."""

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
IS_ANY_DUE = "SELECT EXISTS (SELECT 1 FROM due)"


class Queued(Paidonce):
    """As `paidonce serve` runs it, receiving and working in one process."""

    name = "queued"
    title = "Paidonce, queued"
    mode = "queued"
    once = True

    def running(self, url: str, *, work_dir: Path) -> AbstractAsyncContextManager[Running]:  # type: ignore[override]
        """The server, with a look at its queue."""
        return self._running(url, super().running(url, work_dir=work_dir))

    @asynccontextmanager
    async def _running(
        self, url: str, starting: AbstractAsyncContextManager[HttpServer]
    ) -> AsyncIterator[Running]:
        async with starting as server:
            yield QueuedServer(server.pid, server, url)


@dataclass(frozen=True, slots=True)
class QueuedServer(Running):
    """A server whose work is done only when its queue is empty."""

    pid: int
    server: HttpServer
    url: str

    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Press, and measure until all is applied; what warms it up is applied before that."""
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
    """Lets the measured time of a meter last until everything is applied."""

    def __init__(self, meter: Marks | None, url: str) -> None:
        self._meter = meter
        self._url = url
        self.drain_s = 0.0

    async def begin(self) -> None:
        """The measured time begins."""
        if self._meter is not None:
            await self._meter.begin()

    async def end(self) -> None:
        """No more is sent; the measured time is over when the queue is empty."""
        stopped_s = perf_counter()
        await wait_until_applied(self._url)
        self.drain_s = perf_counter() - stopped_s
        if self._meter is not None:
            await self._meter.end()


NOTHING = LoadResult(0.0, 0, 0.0, 0.0, 0.0, 0.0, {}, 0)


async def wait_until_applied(url: str) -> None:
    """Wait until nothing is due any more. Raises BenchmarkError if that takes too long."""
    deadline_s = perf_counter() + MAX_DRAIN_S
    async with connected(url) as connection:
        while await connection.fetchval(IS_ANY_DUE):
            if perf_counter() > deadline_s:
                raise BenchmarkError(f"the queue was not empty after {MAX_DRAIN_S:g} s")
            await asyncio.sleep(POLL_S)
