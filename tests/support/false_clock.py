"""Another clock for real processes: libfaketime, loaded into them, reads its offset from a file.

Only the wall clock is false; durations are right. The library comes with the wheel `libfaketime`,
which has it for Linux on x86-64: elsewhere these tests are skipped.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

HOUR_S: Final = 3600
DAY_S: Final = 86_400
TOLERANCE_S: Final = 60.0


class FalseClock:
    """The clock of all processes that are started with its `environment`."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        self.set(0)
        file.chmod(0o644)

    @property
    def environment(self) -> Mapping[str, str]:
        """For a process that is to have this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset_s: float) -> None:
        """Set the clock, at once: so many seconds ahead of the right time, or behind it."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+.0f}\n", encoding="ascii")
        new.replace(self._file)

    def works(self) -> bool:
        """Whether a program is told the false time."""
        self.set(100 * DAY_S)
        command = [sys.executable, "-c", "import time; print(time.time())"]
        said = subprocess.run(
            command, env=dict(self.environment), capture_output=True, text=True, check=False
        )
        self.set(0)
        try:
            return abs(float(said.stdout) - time.time() - 100 * DAY_S) < TOLERANCE_S
        except ValueError:
            return False


@contextmanager
def false_clock(folder: Path) -> Iterator[FalseClock]:
    """A clock in this folder, which is right until it is set. Skips the test if there is none."""
    clock = _clock_in(folder)
    try:
        yield clock
    finally:
        _remove_shared_memory()


def _remove_shared_memory() -> None:
    """Remove what the library leaves behind of processes that have ended."""
    for file in Path("/dev/shm").glob("*faketime_s*_*"):
        if not Path("/proc", file.name.rpartition("_")[2]).exists():
            with suppress(OSError):
                file.unlink()


def _clock_in(folder: Path) -> FalseClock:
    package = find_spec("libfaketime")
    if package is None or package.origin is None:
        pytest.skip("libfaketime is not installed")
    vendor = Path(package.origin).parent / "vendor" / "libfaketime" / "src"
    library = folder / "libfaketime.so.1"
    shutil.copyfile(vendor / library.name, library)  # where the user of a database can read it
    library.chmod(0o755)
    clock = FalseClock(folder / "clock", library)
    if not clock.works():
        pytest.skip("libfaketime does not work here")
    return clock
