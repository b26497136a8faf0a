"""What a measurement uses: CPU of both servers, and WAL."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.cpu import machine_cpu_s, tree_cpu_s
from benchmarks.databases import Databases


@dataclass(frozen=True, slots=True)
class Usage:
    """Used so far, or between two readings."""

    server_cpu_s: float
    postgres_cpu_s: float
    machine_cpu_s: float
    wal_bytes: int

    def since(self, earlier: "Usage") -> "Usage":
        """The difference to an earlier reading."""
        return Usage(
            self.server_cpu_s - earlier.server_cpu_s,
            self.postgres_cpu_s - earlier.postgres_cpu_s,
            self.machine_cpu_s - earlier.machine_cpu_s,
            self.wal_bytes - earlier.wal_bytes,
        )


class Marks(Protocol):
    """Is told when the measured time begins and ends."""

    async def begin(self) -> None:
        """The measured time begins."""

    async def end(self) -> None:
        """The measured time is over."""


class Meter:
    """Measures between `begin`, after the warm-up, and `end`."""

    def __init__(self, databases: Databases, *, server_pid: int, postgres_pid: int) -> None:
        self._databases = databases
        self._server_pid = server_pid
        self._postgres_pid = postgres_pid
        self._readings: list[Usage] = []

    async def begin(self) -> None:
        """The measured time begins."""
        self._readings = [await self._read()]

    async def end(self) -> None:
        """The measured time is over."""
        self._readings.append(await self._read())

    def usage(self) -> Usage:
        """What was used between `begin` and `end`."""
        begin, end = self._readings
        return end.since(begin)

    async def _read(self) -> Usage:
        return Usage(
            tree_cpu_s(self._server_pid),
            tree_cpu_s(self._postgres_pid),
            machine_cpu_s(),
            await self._databases.wal_bytes(),
        )
