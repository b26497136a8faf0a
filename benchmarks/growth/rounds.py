"""The order of the measurements: a small and a large shop, alternating."""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.progress import Progress

from benchmarks.contender import BenchmarkError
from benchmarks.growth.shop import Shop, open_shop
from benchmarks.growth.steps import Cost, Step, measure_step

CONDITIONS = (False, True)
"""Without an old snapshot, and with one."""
SETTLING_STEPS = (Step.RECEIVING, Step.CLAIMING)


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the shops are, and how much is measured in each."""

    small: int
    large: int
    rounds: int
    events: int  # of each step in each round

    @property
    def sizes(self) -> tuple[int, int]:
        """Both sizes, the small one first."""
        return self.small, self.large


@dataclass(frozen=True, slots=True)
class Observation:
    """One step of one round in one shop."""

    step: Step
    with_old_snapshot: bool
    rows: int
    round: int
    cost: Cost


async def measure_growth(
    plan: Plan, work_dir: Path, progress: Progress
) -> tuple[list[Observation], dict[str, str]]:
    """Every observation of the plan, and the settings of the servers."""
    async with AsyncExitStack() as opened:
        shops = [await opened.enter_async_context(open_shop(n, work_dir)) for n in plan.sizes]
        await _fill(shops, progress)
        done = await _rounds(plan, shops, progress, with_old_snapshot=False)
        task = progress.add_task("rows come and go beside an old snapshot", total=None)
        for shop in shops:
            await opened.enter_async_context(shop.old_snapshot())
        progress.remove_task(task)
        done += await _rounds(plan, shops, progress, with_old_snapshot=True)
        await _check_honesty(plan, shops)
        return done, await shops[0].databases.settings()


async def _fill(shops: Sequence[Shop], progress: Progress) -> None:
    for shop in shops:
        task = progress.add_task(f"filling to {shop.rows:,} events", total=shop.rows)
        await shop.fill(partial(progress.advance, task))


async def _rounds(
    plan: Plan, shops: Sequence[Shop], progress: Progress, *, with_old_snapshot: bool
) -> list[Observation]:
    """The rounds of one condition, after one round to warm up."""
    name = "with an old snapshot" if with_old_snapshot else "measuring"
    task, done = progress.add_task(name, total=plan.rounds + 1), []
    for number in range(plan.rounds + 1):
        for step, shop in _turns(shops, number):
            cost = await measure_step(step, shop, plan.events)
            if number > 0:
                done.append(Observation(step, with_old_snapshot, shop.rows, number, cost))
        progress.advance(task)
    return done


def _turns(shops: Sequence[Shop], number: int) -> Iterator[tuple[Step, Shop]]:
    """The steps in order. Which shop goes first alternates between rounds."""
    order = shops if number % 2 == 0 else shops[::-1]
    for step in Step:
        for shop in order:
            yield step, shop


async def _check_honesty(plan: Plan, shops: Sequence[Shop]) -> None:
    """Raise BenchmarkError unless every event left an applied payment."""
    rounds = len(CONDITIONS) * (plan.rounds + 1)
    measured = rounds * len(SETTLING_STEPS) * plan.events
    for shop in shops:
        applied = await shop.count_applied()
        if applied != shop.rows + measured:
            raise BenchmarkError(f"{applied} payments applied, not {shop.rows} + {measured}")


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost of one event. Time is the median of the rounds, the others are means."""

    us: float
    app_us: float
    db_us: float
    record_bytes: float
    page_bytes: float

    @property
    def cpu_us(self) -> float:
        """Of both processes."""
        return self.app_us + self.db_us

    @property
    def wal_bytes(self) -> float:
        """Of both kinds."""
        return self.record_bytes + self.page_bytes


@dataclass(frozen=True, slots=True)
class Growth:
    """A step in one condition, in both shops, with their ratios."""

    step: Step
    with_old_snapshot: bool
    small: Figures
    large: Figures
    time_ratio: float

    @property
    def cpu_ratio(self) -> float:
        """Of the CPU time of both processes together."""
        return self.large.cpu_us / self.small.cpu_us

    @property
    def record_ratio(self) -> float:
        """Of the WAL without page images."""
        return self.large.record_bytes / self.small.record_bytes


def summarise(plan: Plan, observations: Sequence[Observation]) -> list[Growth]:
    """A line for each condition and step."""
    return [
        _growth(
            plan,
            [one for one in observations if (one.step, one.with_old_snapshot) == (step, is_old)],
        )
        for is_old in CONDITIONS
        for step in Step
    ]


def _growth(plan: Plan, own: Sequence[Observation]) -> Growth:
    small, large = ([one.cost for one in own if one.rows == rows] for rows in plan.sizes)
    ratios = [after.seconds / before.seconds for before, after in zip(small, large, strict=True)]
    first = own[0]
    return Growth(
        first.step, first.with_old_snapshot, _figures(small), _figures(large), median(ratios)
    )


def _figures(costs: Sequence[Cost]) -> Figures:
    events = sum(cost.events for cost in costs)
    return Figures(
        us=median(cost.seconds / cost.events for cost in costs) * 1e6,
        app_us=sum(cost.app_cpu_s for cost in costs) / events * 1e6,
        db_us=sum(cost.postgres_cpu_s for cost in costs) / events * 1e6,
        record_bytes=sum(cost.wal_bytes - cost.page_bytes for cost in costs) / events,
        page_bytes=sum(cost.page_bytes for cost in costs) / events,
    )
