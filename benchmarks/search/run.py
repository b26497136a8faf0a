"""One run: a history of so many events, each question some times, and the table of it."""

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
from paidonce.configured import load_rules
from paidonce.opening import opened_database
from paidonce.operations import Operations
from paidonce.settings import load_settings
from paidonce.store.searching import BUDGET

SECTION = "search"
NAME = "bench_search"
COLUMNS = ("question", "median ms", "slowest ms")
TEXTS = ("question",)


@dataclass(frozen=True, slots=True)
class Plan:
    """How many events there are, and how often each question is asked."""

    rows: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one question took, each time."""

    question: Question
    milliseconds: Sequence[float]

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        values = (median(self.milliseconds), max(self.milliseconds))
        return [self.question.name, *(f"{value:,.1f}" for value in values)]


async def search(plan: Plan, console: Console, *, docs: Path | None, command: str) -> None:
    """Measure and print; into docs, if given, goes the section."""
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
            async with opened_database(settings) as database:
                task = progress.add_task("filling", total=plan.rows)
                async with connected(url) as connection:
                    await fill(connection, plan.rows, partial(progress.advance, task))
                await databases.checkpoint()
                rules, _ = await load_rules(settings, database)
                timings = await _ask_all(Operations(database, rules), plan, progress)
        return timings, describe_machine(await databases.settings())


async def _ask_all(verbs: Operations, plan: Plan, progress: Progress) -> list[Timing]:
    asked = questions()
    task = progress.add_task("asking", total=len(asked))
    timings = []
    for question in asked:
        await question.ask(verbs)  # to warm up
        timings.append(Timing(question, [await _time(question, verbs) for _ in range(plan.rounds)]))
        progress.advance(task)
    return timings


async def _time(question: Question, verbs: Operations) -> float:
    began_s = time.perf_counter()
    await question.ask(verbs)
    return (time.perf_counter() - began_s) * 1000


def _parts(
    plan: Plan, timings: Sequence[Timing], *, machine: dict[str, str], command: str
) -> Iterator[str]:
    yield f"`{command}`"
    yield markdown_table(COLUMNS, [timing.cells for timing in timings], texts=TEXTS)
    yield (
        f"{plan.rows:,} events over {SPAN.days} days, with a payment and an order for each. A "
        "third of them has the same payment, a third the same order; the oldest third was refused, "
        f"and nothing since. Each question is for a page of {LIMIT} and was asked {plan.rounds} "
        "times after a first time, by the verbs that HTTP and the command line call. *Nothing in "
        f"its budget*: {BUDGET:,} rows were looked at, none of them matches, and the page says "
        "where to go on."
    )
    yield markdown_list(machine)
