"""Folders for the databases of tests: in memory, if there is enough of it."""

import os
import tempfile
from pathlib import Path
from typing import Final

from tests.support import fork_server

NEEDED_BYTES: Final = 4 * 2**30
"""The tests write some gigabytes, at most."""


def make_memory_folder(prefix: str) -> Path:
    """A new folder, which is removed when the test process ends, also if it is killed."""
    folder = Path(tempfile.mkdtemp(prefix=f"paidonce-{prefix}-", dir=_parent()))
    fork_server.remove_at_the_end(folder)
    return folder


def _parent() -> str:
    """Memory, if it has enough space and programs may run there.

    A database is hundreds of files. To create and drop one on a disk takes ten times as long.
    """
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        space = os.statvfs(memory)
        is_enough = space.f_bavail * space.f_frsize > NEEDED_BYTES
        if is_enough and not space.f_flag & os.ST_NOEXEC:
            return str(memory)
    return "/tmp"
