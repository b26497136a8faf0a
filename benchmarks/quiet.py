"""Wait until the machine is idle."""

import asyncio
import os
from time import monotonic

from benchmarks.cpu import machine_cpu_s

PROBE_S = 1.0
QUIET_SHARE = 0.10


async def wait_for_quiet(*, patience_s: float) -> bool:
    """Wait for a second in which the cores were nearly idle; False after a timeout."""
    deadline = monotonic() + patience_s
    while monotonic() < deadline:
        if await _busy_share() <= QUIET_SHARE:
            return True
    return False


async def _busy_share() -> float:
    before_s = machine_cpu_s()
    await asyncio.sleep(PROBE_S)
    return (machine_cpu_s() - before_s) / PROBE_S / (os.cpu_count() or 1)
