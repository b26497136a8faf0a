"""Paidonce under a flood of forged deliveries: do honest ones suffer?

The load is the same. At the same time one client, from another address, sends deliveries with a
wrong signature as fast as it can.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import orjson

from benchmarks.contender import ROOT, HttpServer, Load, Running, stop
from benchmarks.contenders import Paidonce
from benchmarks.load import Flood, LoadResult
from benchmarks.meter import Marks

ANSWER_TIMEOUT_S = 20.0


class Flooded(Paidonce):
    """`paidonce serve` with its default limits."""

    name = "flooded"
    title = "Paidonce, flooded with forgeries"
    once = True

    async def prepare(self, url: str, *, users: int, work_dir: Path) -> None:
        """Prepare as Paidonce alone, without the flood."""
        await Paidonce().prepare(url, users=users, work_dir=work_dir)

    @asynccontextmanager
    async def running(  # type: ignore[override]
        self, url: str, *, work_dir: Path
    ) -> AsyncIterator[Running]:
        """Run the server. The forger starts with the load."""
        async with self.serving(url, work_dir=work_dir) as server:
            yield FloodedServer(server.pid, server)


@dataclass(frozen=True, slots=True)
class FloodedServer(Running):
    """A server that is flooded while it is under load."""

    pid: int
    server: HttpServer

    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Send the load and the forgeries."""
        options = (f"--port={self.server.port}", f"--path={self.server.path}")
        forger = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.forger", *options),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        begun_s = perf_counter()
        try:
            result = await self.server.drive(load, meter)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                told, _ = await forger.communicate(b"")
        finally:
            await stop(forger)
        return replace(result, flood=Flood(perf_counter() - begun_s, orjson.loads(told)))
