"""Where tests keep databases: in memory, if there is enough of it."""

import os
from pathlib import Path
from typing import Final

ROOM_NEEDED_BYTES: Final = 4 * 2**30
"""The tests write some gigabytes, at most."""


def roomy_directory() -> str:
    """Memory where there is enough of it, and programs may run there: no power fails in tests.

    A database is hundreds of files. To make and drop one on a disk takes ten times as long.
    """
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        room = os.statvfs(memory)
        is_enough = room.f_bavail * room.f_frsize > ROOM_NEEDED_BYTES
        if is_enough and not room.f_flag & os.ST_NOEXEC:
            return str(memory)
    return "/tmp"
