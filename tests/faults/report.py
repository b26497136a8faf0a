"""Writes docs/reliability.md when every experiment has passed at full size (`make soak`)."""

import os
import platform
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"

HEAD: Final = """\
# Reliability

These experiments damage running services: real `paidonce` processes and a real PostgreSQL, with
deliveries over real sockets. Every delivery and every answer is recorded
(`tests/faults/ledger.py`) and compared with the database afterwards:

- every acknowledged event is stored once, with the bytes that were sent, and processed; its
  payment is applied once, and its message is in the outbox once;
- an event that was not acknowledged is stored completely or not at all, and is applied once when
  it is sent again;
- each subscription ends exactly thirty days per payment after its first start;
- every answer is 200, or 503 with Retry-After; a repeated delivery is a duplicate with the id of
  the first.

`make soak` writes this page, and only if every experiment has passed at full size
(`tests/faults/sizes.py`). `make test` runs most of them at a small size.
"""


class Experiment(Enum):
    """The experiments, in the order of the page."""

    SERVER_KILLED = "SIGKILL of the server under load"
    DATABASE_KILLED = "PostgreSQL stopped with `immediate` under load"
    SUPERVISED_KILLED = "The embedded PostgreSQL killed under load"
    CONNECTIONS_CUT = "The service's connections to PostgreSQL terminated under load"
    WORKERS_KILLED = "SIGKILL of workers while they process events"
    REPLAYS_KILLED = "SIGKILL of the server in the middle of a replay"
    SERVICES_KILLED = "SIGKILL of relay, payment service and query service under load"
    CRASH_POINTS = "The process is killed at a crash point"
    TABLE_LOCKED = "A table that deliveries write is locked"
    READ_ONLY = "The database can only be read"
    FROZEN = "SIGSTOP, and SIGCONT later"
    CONNECTIONS_TAKEN = "Others hold all connections of the database"
    DISK_FULL = "The disk of the database is full"
    LOG_DEAD = "Standard output is a closed pipe"
    FEW_FILES = "The server has few file descriptors, and others hold them"
    CLOCK_JUMPED = "The clock jumps and comes back"
    COPIES_RACED = "Concurrent copies of one webhook, over all processes"
    PAYMENTS_RACED = "Concurrent payments of one user, over all processes"
    MALFORMED = "Malformed bodies, signed and unsigned"
    FLOODED = "100 MB in one body"
    FORGED = "Forged deliveries, as fast as one address can send them"
    SLOW = "One byte per second"
    HELD = "Connections kept open by empty lines"
    FUZZED = "Random bodies and random requests"
    FLIPPED = "Every bit of a signed request flipped"


@dataclass(slots=True)
class Findings:
    """The results of the experiments of one run."""

    began_s: float = field(default_factory=time.monotonic)
    rows: dict[Experiment, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, experiment: Experiment, done: str, found: str) -> None:
        """Record a passed experiment: how often, and its result."""
        self.rows.setdefault(experiment, []).append((done, found))

    @property
    def is_complete(self) -> bool:
        return self.rows.keys() == set(Experiment)


def write_page(findings: Findings, page: Path = PAGE) -> None:
    """Replace the page."""
    minutes = (time.monotonic() - findings.began_s) / 60
    lines = [HEAD, *table(findings)]
    lines += ["", f"- Date: {datetime.now(UTC).date().isoformat()}; the run took {minutes:.0f} min"]
    lines += [f"- Machine: {_machine()}", f"- Python: {platform.python_version()}"]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(findings: Findings) -> list[str]:
    """The lines of the table, in the order of the experiments."""
    lines = ["| experiment | how often | result |", "| --- | --- | --- |"]
    for experiment in Experiment:
        for done, found in findings.rows.get(experiment, ()):
            lines.append(f"| {experiment.value} | {done} | {found} |")
    return lines


def _machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB of memory, {system}"
