"""A log that nobody reads affects nobody."""

import os
import subprocess
import sys
from typing import Final

LOGS: Final = """
import sys
from paidonce.settings.sections import LogSettings
from paidonce.telemetry import configure_logging, flush_log, logger
configure_logging(LogSettings())
for _ in range(3):
    logger("test").warning("nobody reads this")
flush_log()
sys.stderr.write("alive")
sys.stdout = None
"""


def test_a_line_that_cannot_be_written_is_dropped() -> None:
    """OBS-1 REL-1: standard output is a pipe, and its reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", LOGS], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.stderr.startswith("alive"), done.stderr
