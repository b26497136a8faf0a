"""docs/reliability.md, written by `make soak` when every experiment has passed at full size."""

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

What was done to running services, and what came of it: real `paidonce` processes and a real
PostgreSQL, spoken to over sockets and judged by the rows. Every delivery and every answer is
written into a ledger (`tests/faults/ledger.py`), which is compared with the database afterwards:

- every acknowledged event is there, once, with the bytes that were sent, processed, its payment
  applied once, its message in the outbox once;
- what was not acknowledged is there whole or not at all, and is applied once when it is sent again;
- each subscription ends exactly at its first start plus thirty days for each payment;
- no answer but 200, or 503 with Retry-After; a repeated delivery is a duplicate with the id of the
  first.

This page is written by `make soak`, and only when every experiment has passed at its full size
(`tests/faults/sizes.py`). `make test` runs the same experiments at a small size.
"""


class Experiment(Enum):
    """Each experiment, in the order of the page, by what is done."""

    SERVER_KILLED = "SIGKILL of the server under load"
    DATABASE_KILLED = "PostgreSQL stopped with `immediate` under load"
    SUPERVISED_KILLED = "The embedded PostgreSQL killed under load"
    CONNECTIONS_CUT = "The service's connections to PostgreSQL cut under load"
    WORKERS_KILLED = "SIGKILL of workers while they settle"
    REPLAYS_KILLED = "SIGKILL of the server in the middle of a replay"
    SERVICES_KILLED = "SIGKILL of relay, payment service and query service under load"
    CRASH_POINTS = "The process dies at a named point"
    COPIES_RACED = "Copies of one webhook at once, over all processes"
    PAYMENTS_RACED = "Payments of one user at once, over all processes"
    MALFORMED = "Malformed bodies, signed and unsigned"
    FLOODED = "100 MB in one body"
    FORGED = "Forged deliveries, as fast as one address can send them"
    SLOW = "A byte a second"
    HELD = "Connections held by empty lines"
    FUZZED = "Random bodies and random requests"
    FLIPPED = "Every bit of a signed request flipped"


@dataclass(slots=True)
class Findings:
    """What the experiments of one run have found."""

    began_s: float = field(default_factory=time.monotonic)
    rows: dict[Experiment, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, experiment: Experiment, done: str, found: str) -> None:
        """An experiment has passed: what was done how often, and what came of it."""
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
    lines = ["| experiment | how often | what came of it |", "| --- | --- | --- |"]
    for experiment in Experiment:
        for done, found in findings.rows.get(experiment, ()):
            lines.append(f"| {experiment.value} | {done} | {found} |")
    return lines


def _machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB of memory, {system}"
