"""The files of the embedded PostgreSQL, and its configuration.

    data_dir/
      postgres/                 the server's own directory, mode 0700
        cluster/                PostgreSQL's data directory
        tuning.conf             written anew on each start, included by postgresql.conf
        postgres-Mon.log …      seven files, each overwritten a week later
        startup.log             output of the last start before its log was open
        .s.PGSQL.5432           the socket: any user who can enter the directory can connect
      postgres.lock, postgres.users                 see server.py

PostgreSQL refuses to run as root. Started by root, the server runs as the user who owns
`data_dir/postgres`, which on the first start is given to the first of `nobody`, `postgres`,
`daemon` that exists. No user is created, and nothing else changes its owner or mode.

- If that user cannot enter `data_dir` (say it lies in /root), `data_dir/postgres` becomes a link
  to `/var/lib/paidonce/<name>-<hash of the path>`. To delete the data, delete both.
- If it cannot run the wheel's binaries, they are copied to `postgres-binaries-<hash>` beside its
  directory, once per version.

The path of a socket is limited to about 100 bytes. If `data_dir` is longer, or has characters
that a DSN cannot have, the socket is in `/tmp/paidonce-<uid>-<hash of the path>` while the server
runs: never in $TMPDIR, so that all processes look in the same place.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paidonce.db.embedded.installation import (
    Account,
    account_for,
    hash_of,
    is_root,
    name_of,
    runnable_installation,
)
from paidonce.errors import EmbeddedDatabaseError

DATABASE: Final = "paidonce"
SUPERUSER: Final = "paidonce"
STATE_ROOT: Final = Path("/var/lib/paidonce")
UNFINISHED_CLUSTER: Final = "cluster.unfinished-"

_PORT: Final = 5432
_SOCKET: Final = f".s.PGSQL.{_PORT}"
_SHORT_DIR: Final = Path("/tmp")  # noqa: S108 - secure_socket_dir refuses what others made there
_SOCKET_PATH_LIMIT_BYTES: Final = 100  # 107 on Linux, 103 on macOS
_ENTER: Final = 'test -x "$0"'
_SHARED_BUFFERS_LIMIT_MB: Final = 256
_LOG_KEPT_S: Final = 6 * 86_400
_READ_LIMIT_BYTES: Final = 4096
_NO_PID: Final = 2**31 - 1  # above what any kernel hands out


@dataclass(frozen=True, slots=True)
class Placement:
    """The paths and the user of the server of one data directory."""

    home: Path
    installation: Path
    socket_dir: Path
    account: Account

    @property
    def cluster(self) -> Path:
        return self.home / "cluster"

    @property
    def startup_log(self) -> Path:
        return self.home / "startup.log"

    @property
    def lifecycle_lock(self) -> Path:
        return self.home.with_name(f"{self.home.name}.lock")

    @property
    def users_lock(self) -> Path:
        return self.home.with_name(f"{self.home.name}.users")

    @property
    def dsn(self) -> str:
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={self.socket_dir}&port={_PORT}"

    def program(self, name: str) -> str:
        return str(self.installation / "bin" / name)


def locate(data_dir: Path) -> Placement:
    """Find the paths of `data_dir`, and create the directories. Safe to repeat.

    It may copy binaries: call it in a thread. Raises EmbeddedDatabaseError and OSError.
    """
    _make_passable(data_dir)
    data_dir = data_dir.resolve()
    link = data_dir / "postgres"
    account = account_for(link)
    if is_root() and not os.path.lexists(link) and not account.succeeds(_ENTER, data_dir):
        _lead_to_state_root(link)
    home = link.resolve()
    _make_home(home, account, ours=home.parent in (data_dir, STATE_ROOT))
    installation = runnable_installation(account, home.parent)
    return Placement(home, installation, _socket_dir(home, account), account)


def find(data_dir: Path) -> Placement | None:
    """The placement of `data_dir` if the server was ever started. Changes nothing.

    Enough to see whether it runs, not to run it. Raises EmbeddedDatabaseError and OSError.
    """
    link = data_dir.absolute().resolve() / "postgres"
    if not link.exists():
        return None
    account, home = account_for(link), link.resolve()
    return Placement(home, Path(), _socket_dir(home, account), account)


def secure_socket_dir(placement: Placement) -> None:
    """Create the directory of the socket. Raises if another user created it: /tmp is shared."""
    directory, account = placement.socket_dir, placement.account
    _make_private(directory, account)
    found = directory.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    if found.st_uid != account.uid or not private:
        raise EmbeddedDatabaseError(
            f"{directory}, where the socket must lie, is not a directory of mode 0700 that belongs "
            f"to {account.name}. Remedy: remove it if it is in /tmp, else correct its mode"
        )


def remove_socket_dir(placement: Placement) -> None:
    if placement.socket_dir != placement.home:
        with contextlib.suppress(OSError):
            placement.socket_dir.rmdir()


def prepare_launch(placement: Placement) -> None:
    """Write the configuration and remove what a crash left. No postmaster may be running."""
    _write(placement.home / "tuning.conf", _tuning(placement))
    _disarm_lock_file(placement.cluster / "postmaster.pid")
    _disarm_lock_file(placement.socket_dir / f"{_SOCKET}.lock")
    for unfinished in placement.home.glob(f"{UNFINISHED_CLUSTER}*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    # The server truncates a weekday's file at midnight, if it runs then.
    for log in placement.home.glob("postgres-*.log"):
        # The clock that dates files.
        if log.lstat().st_mtime < time.time() - _LOG_KEPT_S:  # noqa: TID251
            log.unlink()


def running_postmaster(placement: Placement, known: int | None) -> int | None:
    """`known` or the pid in the pid file, if it is a postmaster of this cluster."""
    for pid in (known, _pid_in(_read(placement.cluster / "postmaster.pid"))):
        if pid is not None and is_postmaster(placement, pid):
            return pid
    return None


def is_postmaster(placement: Placement, pid: int) -> bool:
    """Whether a live process with this pid was started on this cluster. A zombie was not."""
    return f" -D {placement.cluster} " in f"{_command_line(pid)} "


def _make_passable(directory: Path) -> None:
    if not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        # The server's user must pass through, whatever umask we were started with.
        directory.chmod(0o755)


def _lead_to_state_root(link: Path) -> None:
    _make_passable(STATE_ROOT)
    # Two processes that come here at once write the same link.
    with contextlib.suppress(FileExistsError):
        link.symlink_to(STATE_ROOT / f"{link.parent.name}-{hash_of(bytes(link.parent))}")


def _make_private(directory: Path, account: Account) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if is_root() and directory.lstat().st_uid == 0:
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)


def _make_home(home: Path, account: Account, *, ours: bool) -> None:
    """Create it if it is `ours`: the target of an operator's own link is not changed."""
    if ours:
        _make_private(home, account)
    owner = home.stat().st_uid
    if owner != account.uid:
        raise EmbeddedDatabaseError(
            f"{home} belongs to user {name_of(owner)}, not to {account.name}. Remedy: run as its "
            "owner, give it away with all that it holds, or choose another data directory"
        )
    if is_root() and not account.succeeds(_ENTER, home.parent):
        raise EmbeddedDatabaseError(
            f"user {account.name}, as whom PostgreSQL runs here, cannot enter {home.parent}. "
            "Remedy: let others pass (chmod o+x on each directory that leads there), or move it"
        )


def _socket_dir(home: Path, account: Account) -> Path:
    fits = len(os.fsencode(home / _SOCKET)) <= _SOCKET_PATH_LIMIT_BYTES
    if fits and re.fullmatch(r"[A-Za-z0-9/._-]+", str(home)):
        return home
    return _SHORT_DIR / f"paidonce-{account.uid}-{hash_of(bytes(home))}"


def _tuning(placement: Placement) -> str:
    return f"""\
# Written by Paidonce on each start; changes are lost.
listen_addresses = ''
port = {_PORT}
unix_socket_directories = '{placement.socket_dir}'
unix_socket_permissions = 0700
max_connections = 100
shared_buffers = {_shared_buffers_mb()}MB
# Few checkpoints: after each, the first change of a page writes the whole page to the WAL.
max_wal_size = 4GB
checkpoint_timeout = 15min
fsync = on
synchronous_commit = on
max_parallel_workers_per_gather = 0
timezone = UTC
logging_collector = on
log_directory = '..'
log_filename = 'postgres-%a.log'
log_rotation_age = 1d
log_rotation_size = 0
log_truncate_on_rotation = on
log_timezone = UTC
# Statements and details of refused rows contain customers' data. The client gets them anyway.
log_min_error_statement = panic
log_error_verbosity = terse
"""


def _shared_buffers_mb() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # The limit of a container; the file says "max" if there is none.
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    if limit.isdecimal():
        memory = min(memory, int(limit))
    return max(16, min(_SHARED_BUFFERS_LIMIT_MB, memory // 4 // 2**20))


def _disarm_lock_file(path: Path) -> None:
    """Replace the pid in a lock file that a crash left.

    PostgreSQL refuses to start while any process has that pid, and after a crash it may belong to
    another program. The rest of the file stays: it names the shared memory by which PostgreSQL
    detects backends of a killed postmaster that still use the files.
    """
    text = _read(path)
    if _pid_in(text) is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, "\n".join([str(_NO_PID), *text.split("\n")[1:]]))


def _pid_in(text: str) -> int | None:
    first = text.partition("\n")[0].strip()
    return int(first) if re.fullmatch(r"[1-9][0-9]{0,9}", first) else None


def _command_line(pid: int) -> str:
    if Path("/proc/self/cmdline").exists():
        return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")
    command = ["ps", "-ww", "-p", str(pid), "-o", "command="]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _read(path: Path) -> str:
    """The beginning of a file, or "" if it does not exist. Follows no links."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(_READ_LIMIT_BYTES).decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, readable by the server's user. Follows no links."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(unfinished, flags, 0o644), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
    unfinished.replace(path)
