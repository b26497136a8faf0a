"""CPU time of a process and everything it started, from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    parent_pid: int
    cpu_s: float


def tree_cpu_s(root_pid: int) -> float:
    """Seconds used so far by a process tree, its ended children included; nan without /proc."""
    if not PROC.joinpath("self/stat").exists():
        return float("nan")
    everyone = [times for path in PROC.glob("[0-9]*/stat") if (times := _read(path)) is not None]
    cpu_s = {times.pid: times.cpu_s for times in everyone}
    family = [root_pid]
    for pid in family:  # It grows on the way: a tree, so each process comes once.
        family += [times.pid for times in everyone if times.parent_pid == pid]
    return sum(cpu_s.get(pid, 0.0) for pid in family)


def machine_cpu_s() -> float:
    """Seconds that all cores together were busy or stolen since boot; nan without /proc."""
    stat = PROC / "stat"
    if not stat.exists():
        return float("nan")
    user, nice, system, _idle, _iowait, *interrupts_and_steal = map(int, _first_line(stat)[1:9])
    return (user + nice + system + sum(interrupts_and_steal)) / CLOCK_TICKS_PER_S


def parent_of(pid: int) -> int:
    """The pid of the parent; 0 if there is no such process here."""
    times = _read(PROC / str(pid) / "stat")
    return 0 if times is None else times.parent_pid


def _first_line(path: Path) -> list[str]:
    return path.read_text().partition("\n")[0].split()


def _read(path: Path) -> ProcessTimes | None:
    try:
        # The second field is the program's name in brackets and may itself contain blanks.
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = sum(int(field) for field in fields[11:15])
    return ProcessTimes(int(path.parent.name), int(fields[1]), ticks / CLOCK_TICKS_PER_S)
