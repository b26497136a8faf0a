"""The order of the measurements, one measurement, and the medians of all."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.contender import BenchmarkError, Contender, Load, tail_of
from benchmarks.databases import Databases
from benchmarks.load import Flood, LoadResult, OrdersPaid
from benchmarks.meter import Meter, Usage
from benchmarks.quiet import wait_for_quiet


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement to make."""

    round: int
    contender: Contender
    connections: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one measurement, or the medians of several. CPU and WAL are per event."""

    acked_per_s: float
    applied_per_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    postgres_cpu_us: float
    client_cpu_us: float
    wal_bytes: float
    foreign_cpu_share: float
    errors: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """A trial and its result."""

    trial: Trial
    figures: Figures
    orders: OrdersPaid | None = None
    flood: Flood | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is varied and how long each measurement takes."""

    contenders: Sequence[Contender]
    connections: Sequence[int]
    rounds: int
    users: int
    warmup_s: float
    seconds: float
    patience_s: float

    def trials(self) -> Iterator[Trial]:
        """Every combination in every round. Which contender goes first alternates."""
        for number in range(self.rounds):
            order = self.contenders if number % 2 == 0 else self.contenders[::-1]
            for connections in self.connections:
                for contender in order:
                    if number == 0 or not contender.once:
                        yield Trial(number, contender, connections)

    def load(self, connections: int) -> Load:
        """The load of one measurement."""
        return Load.timed(
            connections=connections,
            users=self.users,
            warmup_s=self.warmup_s,
            seconds=self.seconds,
        )


async def prepare(plan: Plan, databases: Databases, work_dir: Path) -> None:
    """Create the databases from which all measurements start.

    Contenders with the same schema share one; the last of them, which is the faster, fills it.
    """
    for contender in {each.template: each for each in plan.contenders}.values():
        url = await databases.create(contender.template)
        await contender.prepare(url, users=plan.users, work_dir=work_dir)


async def measure(plan: Plan, trial: Trial, databases: Databases, work_dir: Path) -> Measurement:
    """One trial on a fresh copy of the prepared database, with no other contender running."""
    contender, name = trial.contender, f"bench_{trial.contender.name}_trial"
    url = await databases.create(name, template=contender.template)
    applied_before = await contender.count_applied(url)
    async with contender.running(url, work_dir=work_dir) as running:
        meter = Meter(databases, server_pid=running.pid, postgres_pid=await databases.server_pid())
        await databases.checkpoint()
        await wait_for_quiet(patience_s=plan.patience_s)
        result = await running.drive(plan.load(trial.connections), meter)
        applied = await contender.count_applied(url) - applied_before
    try:
        check_honesty(trial, result, applied)
    except BenchmarkError as error:
        if output := tail_of(work_dir / contender.log_name):
            error.add_note(f"The end of its output:\n{output}")
        raise
    await databases.drop(name)
    return Measurement(trial, figures_of(result, meter.usage()), result.orders, result.flood)


def check_honesty(trial: Trial, result: LoadResult, applied: int) -> None:
    """Raise BenchmarkError unless 200 answers and applied payments match.

    A request whose answer was lost may or may not have been applied. No answer at all is an error.
    """
    if result.events == 0 or not result.accepted <= applied <= result.accepted + result.lost:
        raise BenchmarkError(
            f"{trial.contender.name} at {trial.connections} connections applied {applied} "
            f"payments, but answered {result.answers} and lost {result.lost}"
        )


def figures_of(result: LoadResult, usage: Usage) -> Figures:
    """The figures of one measurement."""
    events = max(result.events, 1)
    return Figures(
        acked_per_s=result.events / result.seconds,
        applied_per_s=result.events / (result.seconds + result.drain_s),
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
        server_cpu_us=usage.server_cpu_s / events * 1e6,
        postgres_cpu_us=usage.postgres_cpu_s / events * 1e6,
        client_cpu_us=result.client_cpu_s / events * 1e6,
        wal_bytes=usage.wal_bytes / events,
        foreign_cpu_share=foreign_cpu_share(result, usage),
        errors=result.refused + result.lost,
    )


def foreign_cpu_share(result: LoadResult, usage: Usage) -> float:
    """The share of the machine that other processes used. If it is not small, measure again."""
    ours_s = usage.server_cpu_s + usage.postgres_cpu_s + result.client_cpu_s
    available_s = (result.seconds + result.drain_s) * (os.cpu_count() or 1)
    return max(usage.machine_cpu_s - ours_s, 0.0) / available_s


def median_of(measurements: Sequence[Measurement]) -> Figures:
    """The median of each figure, and the sum of the errors."""

    def middle(read: Callable[[Figures], float]) -> float:
        return median(read(measurement.figures) for measurement in measurements)

    return Figures(
        acked_per_s=middle(lambda figures: figures.acked_per_s),
        applied_per_s=middle(lambda figures: figures.applied_per_s),
        p50_ms=middle(lambda figures: figures.p50_ms),
        p99_ms=middle(lambda figures: figures.p99_ms),
        server_cpu_us=middle(lambda figures: figures.server_cpu_us),
        postgres_cpu_us=middle(lambda figures: figures.postgres_cpu_us),
        client_cpu_us=middle(lambda figures: figures.client_cpu_us),
        wal_bytes=middle(lambda figures: figures.wal_bytes),
        foreign_cpu_share=middle(lambda figures: figures.foreign_cpu_share),
        errors=sum(measurement.figures.errors for measurement in measurements),
    )
