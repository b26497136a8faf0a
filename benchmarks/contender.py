"""The interface of a contender, and how a web server implements it."""

import asyncio
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from benchmarks.load import HOST, LoadResult
from benchmarks.meter import Marks

ROOT = Path(__file__).parent.parent
READY_ATTEMPTS = 300
READY_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 20.0
# For building the requests before the clock starts and waiting for the last answers after it.
LOAD_GRACE_S = 180.0
MAX_EVENTS_PER_S = 15_000
LOG_TAIL_BYTES = 2000


class BenchmarkError(Exception):
    """A contender did not start, did not finish, or did not do what it answered."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much load, and for how long. Without events: one event per user."""

    connections: int
    users: int
    warmup_s: float
    seconds: float
    events: int | None

    @classmethod
    def timed(cls, *, connections: int, users: int, warmup_s: float, seconds: float) -> "Load":
        """As many events as will be answered in the time."""
        supply = int(MAX_EVENTS_PER_S * (warmup_s + seconds))
        return cls(connections, users, warmup_s, seconds, supply)


class Running(ABC):
    """A contender that is ready for load."""

    pid: int

    @abstractmethod
    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Send the load, and tell the meter when the measured time begins and ends."""


class Contender(ABC):
    """A program that applies payments and is measured."""

    name: str
    title: str
    template: str  # The prepared database; those of one name need only one.
    once: bool = False  # Whether one round is enough.

    @property
    def log_name(self) -> str:
        """The file in the work directory that receives its output."""
        return f"{self.name}.log"

    @abstractmethod
    async def prepare(self, url: str, *, users: int, work_dir: Path) -> None:
        """Fill an empty database so that every user has a subscription."""

    @abstractmethod
    def running(self, url: str, *, work_dir: Path) -> AbstractAsyncContextManager[Running]:
        """Start on a prepared database; stop at the end of the block."""

    @abstractmethod
    async def count_applied(self, url: str) -> int:
        """How many payments are applied, according to the database."""


@dataclass(frozen=True, slots=True)
class HttpServer(Running):
    """A started server process and the address of its webhook."""

    pid: int
    port: int
    path: str

    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Run the load generator against the webhook."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.load", *self._arguments(load)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(load.warmup_s + load.seconds + LOAD_GRACE_S):
                return await follow(process, meter)
        finally:
            await stop(process)

    def _arguments(self, load: Load) -> list[str]:
        values = {
            "port": self.port,
            "path": self.path,
            "connections": load.connections,
            "users": load.users,
            "warmup": load.warmup_s,
            "seconds": load.seconds,
        }
        if load.events is not None:
            values["events"] = load.events
        return [f"--{name}={value}" for name, value in values.items()]


async def follow(process: asyncio.subprocess.Process, meter: Marks | None) -> LoadResult:
    """Read the three lines of the load generator: begin, end, result."""
    assert process.stdout is not None
    lines = []
    for on_line in (meter.begin if meter else None, meter.end if meter else None, None):
        lines.append(await process.stdout.readline())
        if on_line is not None and lines[-1]:
            await on_line()
    try:
        return LoadResult(**orjson.loads(lines[-1]))
    except (ValueError, TypeError):
        raise BenchmarkError(f"no result but {lines[-1]!r}; see above") from None


@asynccontextmanager
async def http_server(
    command: list[str], *, port: int, path: str, log: Path
) -> AsyncIterator[HttpServer]:
    """Run a server until the end of the block; raises BenchmarkError if it is not ready in time."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
    try:
        await _until_ready(process, port, log)
        yield HttpServer(process.pid, port, path)
    finally:
        await stop(process)


async def _until_ready(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(READY_ATTEMPTS):
            if process.returncode is not None:
                break
            if await _is_ready(session, port):
                return
            await asyncio.sleep(READY_INTERVAL_S)
    raise BenchmarkError(f"the server did not become ready; the end of its output:\n{tail_of(log)}")


def tail_of(log: Path) -> str:
    """The end of a log, if there is one."""
    content = log.read_bytes() if log.exists() else b""
    return content[-LOG_TAIL_BYTES:].decode(errors="replace")


async def _is_ready(session: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with session.get(f"http://{HOST}:{port}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def stop(process: asyncio.subprocess.Process) -> None:
    """Stop a process that was started here: SIGTERM first, then SIGKILL."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
