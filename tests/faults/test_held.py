"""What stops a part of the service for a while: a lock, a full disk, a frozen process.

Deliveries go on meanwhile. What is acknowledged is stored and applied once; the rest is answered
503 or waits, and everything is well again by itself when the fault is over.
"""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from tests.faults.clusters import Cluster, own_cluster, own_folder
from tests.faults.ledger import Ledger, processed
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import FAULT_S
from tests.support import fork_server
from tests.support.service import BASIC, KEY, Service, started_service, started_worker

USERS: Final = [f"held-{number}@example.com" for number in range(4)]
QUEUED: Final = f'{BASIC}\n[server]\nmode = "queued"\n'
EVENTS: Final = 100_000  # more than can be sent at this pace
PAUSE_S: Final = 0.2
SOME: Final = 40
ASK_EVERY_S: Final = 0.25
READY_TIMEOUT_S: Final = 120.0
SMALL_DISK_BYTES: Final = 160 * 2**20
MOST_CONNECTIONS: Final = 500


@dataclass
class House:
    """A service and a database of its own, and what was sent and answered."""

    cluster: Cluster
    folder: Path
    service: Service
    ledger: Ledger
    readiness: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return self.cluster.url

    async def suffer(self, fault: Callable[[], Awaitable[None]]) -> None:
        """Deliver before, while and after the fault, and check the ledger."""
        async with Load(self.service.port, self.ledger, EVENTS, pause_s=PAUSE_S) as load:
            await load.until_acknowledged(SOME)
            watch = asyncio.create_task(self._watch())
            await fault()
            watch.cancel()
            await load.until_acknowledged(load.acknowledged + SOME)
            await load.finish(early=True)
        await self._until_ready()
        await deliver_all(self.service.port, self.ledger)
        await processed(self.url)
        await self.ledger.check(self.url, finished=True)

    def told(self) -> str:
        """What was answered, for the page."""
        answers = f"{self.ledger.refused['503']:,} answers 503"
        if self.ledger.refused["no answer"]:
            answers += f", {self.ledger.refused['no answer']:,} without an answer"
        counted = sorted(self.readiness.items())
        codes = ", ".join(f"{code} ({n})" for code, n in counted) or "no answer"
        return f"nothing lost, nothing applied twice; {answers}; `/readyz` meanwhile: {codes}"

    def done(self, seconds: int) -> str:
        sent = f"{self.ledger.deliveries:,} deliveries of {len(self.ledger.said):,} events"
        return f"{seconds} s, {sent}"

    async def _watch(self) -> None:
        while True:
            self.readiness[await asyncio.to_thread(_readiness, self.service)] += 1
            await asyncio.sleep(ASK_EVERY_S)

    async def _until_ready(self) -> None:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while await asyncio.to_thread(_readiness, self.service) != "ready":
                await asyncio.sleep(ASK_EVERY_S)


def _readiness(service: Service) -> str:
    try:
        reply = service.request("GET", "/readyz")
    except OSError:
        return "no answer"
    return "ready" if reply.http == 200 else str(reply.json["code"])


@asynccontextmanager
async def house(folder: Path, config: str = BASIC, *roles: str) -> AsyncIterator[House]:
    async with own_cluster() as cluster:
        service = await asyncio.to_thread(
            started_service, folder, cluster.url, config, arguments=roles
        )
        try:
            for email in USERS:
                service.user(email)
            yield House(cluster, folder, service, Ledger("held", USERS))
        finally:
            service.end()


@pytest.fixture
def seconds(full: bool) -> int:
    return FAULT_S.at(full)


# In the short run one table, the one that every delivery writes to first.
@pytest.mark.parametrize(
    "table",
    [
        "event_keys",
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("payments", "webhook_events")),
    ],
)
async def test_a_locked_table_delays_deliveries_and_loses_none(
    table: str, tmp_path: Path, seconds: int, findings: Findings
) -> None:
    """REL-1 REC-2 REC-5 OPS-3"""
    async with house(tmp_path) as held:

        async def lock() -> None:
            other = await asyncpg.connect(held.url)
            async with other.transaction():
                await other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                await asyncio.sleep(seconds)
            await other.close()

        await held.suffer(lock)
    findings.add(Experiment.TABLE_LOCKED, f"`{table}`, {held.done(seconds)}", held.told())


@pytest.mark.soak
async def test_a_database_that_can_only_be_read_loses_nothing(
    tmp_path: Path, seconds: int, findings: Findings
) -> None:
    """REL-1 REC-2 REC-5 OPS-3: as after a failover to a standby."""
    async with house(tmp_path) as held:

        async def read_only() -> None:
            for value in ("on", "off"):
                await _administer(
                    held.url,
                    f"ALTER SYSTEM SET default_transaction_read_only = {value}",
                    "SELECT pg_reload_conf()",
                )
                await asyncio.sleep(seconds if value == "on" else 0)

        await held.suffer(read_only)
    findings.add(Experiment.READ_ONLY, held.done(seconds), held.told())


@pytest.mark.soak
@pytest.mark.parametrize("who", ["server", "workers", "postmaster", "backends"])
async def test_whoever_is_frozen_loses_nothing(
    who: str, tmp_path: Path, seconds: int, findings: Findings
) -> None:
    """REL-1 REC-2 RET-4: SIGSTOP, and SIGCONT later."""
    is_queued = who == "workers"
    roles = ("--roles", "web") if is_queued else ()
    async with (
        house(tmp_path, QUEUED if is_queued else BASIC, *roles) as held,
        AsyncExitStack() as stack,
    ):
        workers = _workers(held, 2) if is_queued else []
        for worker in workers:
            stack.callback(worker.end)

        async def freeze() -> None:
            pids = {
                "server": [held.service.process.pid],
                "workers": [workers[0].process.pid] if workers else [],
                "postmaster": [held.cluster.postmaster],
                "backends": [] if who != "backends" else await _backends(held.url),
            }[who]
            assert pids
            await _freeze(pids, seconds)

        await held.suffer(freeze)
    findings.add(Experiment.FROZEN, f"{who}, {held.done(seconds)}", held.told())


@pytest.mark.soak
async def test_a_server_without_free_connections_loses_nothing(
    tmp_path: Path, seconds: int, findings: Findings
) -> None:
    """REL-1 REC-2 REC-5: others hold all of them, and the service's own were cut."""
    async with house(tmp_path) as held:

        async def exhaust() -> None:
            taken: list[asyncpg.Connection[asyncpg.Record]] = []
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                try:
                    assert len(taken) < MOST_CONNECTIONS
                    taken.append(await asyncpg.connect(held.url))
                except (asyncpg.TooManyConnectionsError, OSError):
                    await _cut_others(taken)
                    await asyncio.sleep(0.05)
            for one in taken:
                await one.close()

        await held.suffer(exhaust)
    findings.add(Experiment.CONNECTIONS_TAKEN, held.done(seconds), held.told())


@pytest.mark.soak
async def test_a_full_disk_loses_nothing(tmp_path: Path, seconds: int, findings: Findings) -> None:
    """REL-1 REC-2 REC-5 OPS-3: and the service goes on when there is space again."""
    async with AsyncExitStack() as stack:
        disk = stack.enter_context(own_folder()) / "disk"
        disk.mkdir()
        if not _mounted(disk):
            findings.add(Experiment.DISK_FULL, "not run", "to mount a small disk needs root")
            pytest.skip("a small disk cannot be mounted")
        stack.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=False)
        cluster = Cluster(disk / "data")
        await cluster.start()
        stack.push_async_callback(cluster.end)
        service = await asyncio.to_thread(started_service, tmp_path, cluster.url)
        stack.callback(service.end)
        for email in USERS:
            service.user(email)
        held = House(cluster, tmp_path, service, Ledger("held", USERS))

        async def fill() -> None:
            filler = disk / "filler"
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                _fill(filler)  # again and again: the server frees some now and then
                await asyncio.sleep(0.1)
            filler.unlink()
            await cluster.start()  # it has ended, if the log could not be written

        await held.suffer(fill)
    findings.add(Experiment.DISK_FULL, held.done(seconds), held.told())


@pytest.mark.soak
async def test_a_server_whose_log_nobody_reads_any_more_loses_nothing(
    tmp_path: Path, seconds: int, findings: Findings
) -> None:
    """REL-1 OBS-1: its standard output is a closed pipe."""
    async with own_cluster() as cluster:
        reader, writer = os.pipe()
        service = await asyncio.to_thread(_logging_to, tmp_path, cluster.url, writer)
        try:
            for email in USERS:
                service.user(email)
            held = House(cluster, tmp_path, service, Ledger("held", USERS))

            async def close_the_pipe() -> None:
                os.close(reader)
                for _ in range(seconds):  # something to log
                    await asyncio.to_thread(service.deliver, b"{", secret="wrong")
                    await asyncio.sleep(1)

            await held.suffer(close_the_pipe)
        finally:
            service.end()
            os.close(writer)
    findings.add(Experiment.LOG_DEAD, held.done(seconds), held.told())


@pytest.mark.soak
async def test_a_server_with_few_file_descriptors_loses_nothing(
    tmp_path: Path, seconds: int, findings: Findings
) -> None:
    """REL-1 SEC-8: others hold connections until it can accept none."""
    async with house(tmp_path) as held:

        async def hold() -> None:
            pid = held.service.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 8, before[1]))
            others = [socket.socket() for _ in range(100)]
            for one in others:
                with suppress(OSError):
                    one.settimeout(1)
                    one.connect(("127.0.0.1", held.service.port))
            await asyncio.sleep(seconds)
            for one in others:
                one.close()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

        await held.suffer(hold)
    findings.add(Experiment.FEW_FILES, held.done(seconds), held.told())


def _workers(held: House, number: int) -> list[Service]:
    found = []
    for one in range(number):
        folder = held.folder / f"worker-{one}"
        folder.mkdir()
        found.append(started_worker(folder, held.url, QUEUED))
    return found


def _logging_to(folder: Path, database_url: str, stdout: int) -> Service:
    """A server with this standard output."""
    text = f'{BASIC}\n[database]\nurl = "{database_url}"\n'
    (folder / "paidonce.toml").write_text(text, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PAIDONCE_BOOTSTRAP_KEY": KEY}
    with (folder / "stderr").open("wb") as err:
        command = ("serve", "--port", str(port))
        process = fork_server.start(command, folder, environment, stdout, err.fileno())
    service = Service(folder, process, port)
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while _readiness(service) != "ready":
        assert time.monotonic() < deadline_s
        time.sleep(ASK_EVERY_S)
    return service


async def _freeze(pids: Collection[int], seconds: int) -> None:
    """Processes of this experiment only."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def _backends(url: str) -> list[int]:
    """The service's sessions. PostgreSQL's ids are those of the system's processes."""
    connection = await asyncpg.connect(url)
    found = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND pid <> pg_backend_pid()"
    )
    await connection.close()
    return [row["pid"] for row in found]


async def _cut_others(ours: Sequence["asyncpg.Connection[asyncpg.Record]"]) -> None:
    """End every session but these: what is free then is taken by whoever is first."""
    if ours:
        await ours[0].fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND NOT pid = ANY ($1::int[])",
            [one.get_server_pid() for one in ours],
        )


async def _administer(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


def _mounted(disk: Path) -> bool:
    """Whether a small disk in memory could be mounted there."""
    if os.geteuid() != 0:
        return False
    size = f"size={SMALL_DISK_BYTES},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _fill(filler: Path) -> None:
    """Let the file grow until nothing is free."""
    with suppress(OSError), filler.open("ab") as file:
        while True:
            file.write(bytes(65_536))
            file.flush()
