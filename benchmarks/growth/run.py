"""Compare a small and a large database: fill, measure, report."""

from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.growth.report import PICTURE, draw_growth, growth_parts, growth_table
from benchmarks.growth.rounds import Plan, measure_growth, summarise
from benchmarks.machine import describe_machine
from benchmarks.markdown import write_section

SECTION = "growth"


async def grow(plan: Plan, console: Console, *, docs: Path | None, command: str) -> None:
    """Measure and print. Write the section and the plot into docs, if given."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        TemporaryDirectory(prefix="paidonce-bench-") as work_dir,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        observations, settings = await measure_growth(plan, Path(work_dir), progress)
    growths = summarise(plan, observations)
    console.print(growth_table(growths, plan))
    if docs is not None:
        machine = describe_machine(settings)
        draw_growth(docs / PICTURE, growths, plan)
        parts = growth_parts(growths, plan, machine=machine, command=command)
        write_section(docs / "benchmarks.md", SECTION, parts)
        console.print(f"written: {docs / 'benchmarks.md'} and {PICTURE} beside it")
