"""Measure queries on a large history, and report them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.contenders import Paidonce
from benchmarks.databases import connected, open_databases
from benchmarks.machine import describe_machine
from benchmarks.markdown import markdown_list, markdown_table, write_section
from benchmarks.search.fill import SPAN, fill
from benchmarks.search.questions import LIMIT, Question, questions
from benchmarks.terminal import terminal_table
from paidonce.bootstrap.database import open_migrated_database
from paidonce.bootstrap.rules import load_rules
from paidonce.bootstrap.services import Services
from paidonce.db.search import BUDGET
from paidonce.settings.reading import load_settings

SECTION = "search"
NAME = "bench_search"
COLUMNS = ("query", "median ms", "slowest ms")
TEXTS = ("query",)


@dataclass(frozen=True, slots=True)
class Plan:
    """How many events there are, and how often each query runs."""

    rows: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one query took, each time."""

    question: Question
    milliseconds: Sequence[float]

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        values = (median(self.milliseconds), max(self.milliseconds))
        return [self.question.name, *(f"{value:,.1f}" for value in values)]


async def search(plan: Plan, console: Console, *, docs: Path | None, command: str) -> None:
    """Measure and print. Write the section into docs, if given."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        timings, machine = await _measure(plan, progress)
    caption = f"{plan.rows:,} events; a page of {LIMIT}; {plan.rounds} times each, warm"
    table = terminal_table(COLUMNS, texts=TEXTS, caption=caption)
    for timing in timings:
        table.add_row(*timing.cells)
    console.print(table)
    if docs is not None:
        parts = _parts(plan, timings, machine=machine, command=command)
        write_section(docs / "benchmarks.md", SECTION, parts)
        console.print(f"written: {docs / 'benchmarks.md'}")


async def _measure(plan: Plan, progress: Progress) -> tuple[list[Timing], dict[str, str]]:
    async with open_databases(None) as databases:
        with TemporaryDirectory(prefix="paidonce-bench-") as folder:
            url = await databases.create(NAME)
            settings = load_settings(Paidonce().write_config(url, Path(folder), port=1))
            async with open_migrated_database(settings) as database:
                task = progress.add_task("filling", total=plan.rows)
                async with connected(url) as connection:
                    await fill(connection, plan.rows, partial(progress.advance, task))
                await databases.checkpoint()
                rules, _ = await load_rules(settings, database)
                timings = await _ask_all(Services(database, rules), plan, progress)
        return timings, describe_machine(await databases.settings())


async def _ask_all(services: Services, plan: Plan, progress: Progress) -> list[Timing]:
    asked = questions()
    task = progress.add_task("querying", total=len(asked))
    timings = []
    for question in asked:
        await question.ask(services)  # to warm up
        timings.append(
            Timing(question, [await _time(question, services) for _ in range(plan.rounds)])
        )
        progress.advance(task)
    return timings


async def _time(question: Question, services: Services) -> float:
    began_s = time.perf_counter()
    await question.ask(services)
    return (time.perf_counter() - began_s) * 1000


def _parts(
    plan: Plan, timings: Sequence[Timing], *, machine: dict[str, str], command: str
) -> Iterator[str]:
    yield f"`{command}`"
    yield markdown_table(COLUMNS, [timing.cells for timing in timings], texts=TEXTS)
    yield (
        f"{plan.rows:,} events over {SPAN.days} days, each with a payment and an order. A third of "
        "them has the same payment, a third the same order; the oldest third was refused, and "
        f"nothing since. Each query is for a page of {LIMIT} and ran {plan.rounds} times after a "
        "first time, through the services that HTTP and the command line call. *Nothing in its "
        f"budget*: {BUDGET:,} rows were read, none of them matches, and the page has a cursor to "
        "continue."
    )
    yield markdown_list(machine)
