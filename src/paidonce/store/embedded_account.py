"""As which user of the operating system the embedded PostgreSQL runs: it refuses to be root."""

import contextlib
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paidonce.errors import EmbeddedDatabaseError

_ACCOUNTS: Final = ("nobody", "postgres", "daemon")
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_CHECK_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Account:
    """The user of the operating system that the server runs as."""

    uid: int
    gid: int
    name: str

    def process_options(self) -> dict[str, Any]:
        """Arguments for subprocess: this user, and nothing of our own surroundings."""
        user = {"user": self.uid, "group": self.gid, "extra_groups": []} if is_root() else {}
        return {"env": _ENVIRONMENT, "cwd": "/", "umask": 0o077, **user}

    def succeeds(self, script: str, *arguments: Path) -> bool:
        """Try it as that user: permission bits, access lists and mounts all have their say."""
        command = ["/bin/sh", "-c", script, *map(str, arguments)]
        options = {"capture_output": True, "timeout": _CHECK_TIMEOUT_S, **self.process_options()}
        return subprocess.run(command, check=False, **options).returncode == 0


def account_for(home: Path) -> Account:
    """Ourselves; or, if we are root, the user who owns the home, or else the first that exists."""
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


def is_root() -> bool:
    return os.geteuid() == 0
