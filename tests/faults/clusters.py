"""A PostgreSQL of an experiment's own, that may be killed."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from paidonce.db.embedded.server import EmbeddedPostgres
from tests.support.memory_folder import make_memory_folder

DEADLINE_S: Final = 120.0
LOOK_AGAIN_S: Final = 0.01


class Cluster:
    """A server that is stopped by signals and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = EmbeddedPostgres(folder)
        self.url = ""

    async def start(self) -> None:
        """Start it and return when it answers."""
        self.url = await self._server.start()

    async def stop_immediately(self) -> None:
        """As `pg_ctl stop -m immediate` does it: without a goodbye, to be recovered from."""
        await kill_postmaster(self._folder, signal.SIGQUIT)

    @property
    def postmaster(self) -> int:
        """Its process id."""
        return postmaster_of(self._folder)

    async def end(self) -> None:
        await self._server.start()
        await self._server.stop()


@asynccontextmanager
async def own_cluster() -> AsyncIterator[Cluster]:
    """A running cluster in a folder that its unprivileged user can reach."""
    with own_folder() as folder:
        cluster = Cluster(folder / "data")
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.end()


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's own; removed at the end."""
    folder = make_memory_folder("faults")
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def kill_postmaster(data_dir: Path, with_signal: signal.Signals) -> None:
    """Send the signal to the postmaster of a data directory and return when it is gone."""
    pid = postmaster_of(data_dir)
    os.kill(pid, with_signal)
    async with asyncio.timeout(DEADLINE_S):
        while _lives(pid):
            await asyncio.sleep(LOOK_AGAIN_S)


def postmaster_of(data_dir: Path) -> int:
    """The process id of the postmaster of a data directory."""
    pid_file = data_dir / "postgres" / "cluster" / "postmaster.pid"
    pid = int(pid_file.read_text().split()[0])
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert str(pid_file.parent).encode() in command, f"{pid} is not this cluster's: {command!r}"
    return pid


def _lives(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
