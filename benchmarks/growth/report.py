"""The growth of the costs: a table on the terminal and in docs/benchmarks.md, and a plot."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.growth.fill import PAYMENTS_PER_USER, SPAN
from benchmarks.growth.rounds import Figures, Growth, Plan
from benchmarks.growth.shop import BATCH
from benchmarks.markdown import markdown_list, markdown_table
from benchmarks.plot import Panel, Series, draw_panels
from benchmarks.terminal import terminal_table

PICTURE = "benchmarks-growth.svg"
COLUMNS = (
    "step",
    "old snapshot",
    "events",
    "µs",
    "app µs",
    "db µs",
    "record B",
    "page B",
    "time ×",
    "CPU ×",
    "record ×",
)
TEXTS = ("step", "old snapshot")
LEGEND = (
    "µs: time per event, median of the rounds; app, db: CPU time per event of the program and of "
    "PostgreSQL; record B: bytes of WAL records per event; page B: bytes of full-page images per "
    "event, one for each page's first change after a checkpoint; ×: the large database relative "
    "to the small one, for time the median of the ratios of the rounds"
)
COLOURS = ("#8a8a8a", "#0b7a75")


def growth_table(growths: Sequence[Growth], plan: Plan) -> Table:
    """The table for the terminal."""
    table = terminal_table(COLUMNS, texts=TEXTS, caption=LEGEND)
    for growth in growths:
        for row in _rows(growth, plan):
            table.add_row(*row)
        table.add_section()
    return table


def growth_parts(
    growths: Sequence[Growth], plan: Plan, *, machine: dict[str, str], command: str
) -> Iterator[str]:
    """The parts of the section in docs/benchmarks.md."""
    yield f"`{command}`"
    yield f"![Time and WAL per event in a small and a large database]({PICTURE})"
    rows = [row for growth in growths for row in _rows(growth, plan)]
    yield markdown_table(COLUMNS, rows, texts=TEXTS)
    yield (
        "Two servers run side by side with the settings of the embedded one. One has a history of "
        f"{plan.small:,} events, the other of {plan.large:,}, over {SPAN.days} days and "
        f"{PAYMENTS_PER_USER} per user. The rounds alternate between them: {plan.rounds} rounds of "
        f"{plan.events:,} events for each step and condition, in batches of {BATCH}, for existing "
        "users, on one connection and without HTTP. *receiving* processes new deliveries; "
        "*storing* queues them; *claiming* claims the queued ones and processes them. *old "
        "snapshot*: another session holds a snapshot while as many queue rows as the history has "
        "events were inserted and deleted, so that none can be vacuumed. Each condition starts "
        f"with a checkpoint and a round that is not counted. {LEGEND}."
    )
    yield markdown_list(machine)


def draw_growth(path: Path, growths: Sequence[Growth], plan: Plan) -> None:
    """Write the picture as SVG."""
    groups = [_name(growth) for growth in growths]
    panels = [
        Panel("Microseconds per event", groups, _series(growths, plan, "us")),
        Panel("Bytes of WAL per event", groups, _series(growths, plan, "wal_bytes")),
    ]
    draw_panels(path, panels)


def _series(growths: Sequence[Growth], plan: Plan, figure: str) -> list[Series]:
    small = [getattr(growth.small, figure) for growth in growths]
    large = [getattr(growth.large, figure) for growth in growths]
    return [
        Series(f"{rows:,} events", colour, values)
        for rows, colour, values in zip(plan.sizes, COLOURS, (small, large), strict=True)
    ]


def _name(growth: Growth) -> str:
    return f"{growth.step},\nold snapshot" if growth.with_old_snapshot else f"{growth.step}"


def _rows(growth: Growth, plan: Plan) -> Iterator[list[str]]:
    """The small database, then the large one with the ratios."""
    condition = [growth.step.value, "yes" if growth.with_old_snapshot else "no"]
    ratios = (growth.time_ratio, growth.cpu_ratio, growth.record_ratio)
    yield [*condition, f"{plan.small:,}", *_cells(growth.small), *("" for _ in ratios)]
    yield [
        *condition,
        f"{plan.large:,}",
        *_cells(growth.large),
        *(f"{ratio:.2f}" for ratio in ratios),
    ]


def _cells(figures: Figures) -> list[str]:
    values = (figures.us, figures.app_us, figures.db_us)
    return [f"{value:,.0f}" for value in (*values, figures.record_bytes, figures.page_bytes)]
