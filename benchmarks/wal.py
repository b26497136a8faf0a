"""What the WAL consists of, as pg_waldump counts it."""

import re
import subprocess
from pathlib import Path

TIMEOUT_S = 120.0
# Number, size of the records and size of the page images, each followed by its share.
TOTAL = re.compile(r"^Total\s+\d+\s+\d+ \[[^]]*\]\s+(\d+) \[", re.MULTILINE)


def full_page_bytes(programs: Path, cluster: Path, begin: int, end: int) -> int:
    """The bytes of whole pages between two positions: each page's first change since a checkpoint.

    Raises CalledProcessError when the WAL is gone, or is not on this machine.
    """
    command = [str(programs / "pg_waldump"), "--stats", f"--path={cluster / 'pg_wal'}"]
    command += [f"--start={_position(begin)}", f"--end={_position(end)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    total = TOTAL.search(done.stdout)
    return int(total[1]) if total else 0


def _position(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
