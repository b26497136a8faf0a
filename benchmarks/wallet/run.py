"""Measure pairs of reserve and commit by many callers, compared with a hand-written wallet."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Protocol
from uuid import UUID, uuid4

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.contender import BenchmarkError
from benchmarks.databases import Databases, connected, count_in, open_databases
from benchmarks.machine import describe_machine
from benchmarks.markdown import markdown_list, markdown_table, write_section
from benchmarks.terminal import terminal_table
from benchmarks.wallet.by_hand import POOL_SIZE, by_hand
from benchmarks.wallet.ours import ours
from paidonce.db.pool import open_database
from paidonce.db.queries import SCHEMA
from paidonce.db.schema import migrate

SECTION = "wallet"
TEMPLATE = "bench_wallet_template"
NAME = "bench_wallet"
MANY_WALLETS = 1_000
COLUMNS = ("callers", "wallets", "Paidonce pairs/s", "by hand pairs/s", "ratio")
AMOUNT_MINOR = 100
FULL_MINOR = 10**15
FILL = """
INSERT INTO paidonce.wallets (id, owner, currency, balance_minor)
SELECT gen_random_uuid(), 'owner-' || n, 'EUR', $2 FROM generate_series(1, $1::int) AS n
RETURNING id
"""
UNEXPLAINED = f"""
SELECT count(*)
  FROM paidonce.wallets AS w
 WHERE reserved_minor <> 0
    OR balance_minor <> {FULL_MINOR} + (SELECT coalesce(sum(e.amount_minor), 0)
                                          FROM paidonce.ledger_entries AS e
                                         WHERE e.account = 'wallet:' || w.id)
"""


class Till(Protocol):
    """Reserves and commits."""

    async def reserve(self, payment_id: str, wallet_id: UUID, amount_minor: int) -> None: ...

    async def commit(self, payment_id: str) -> None: ...

    async def close(self) -> None: ...


Open = Callable[[str], Awaitable[Till]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many callers, for how long, and how many rounds."""

    callers: Sequence[int]
    seconds: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Line:
    """The figures for a number of callers and wallets."""

    callers: int
    wallets: int
    ours: list[float]
    by_hand: list[float]

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        here, there = median(self.ours), median(self.by_hand)
        return [
            str(self.callers), f"{self.wallets:,}", f"{here:,.0f}", f"{there:,.0f}",
            f"{here / there:.1f}",
        ]  # fmt: skip


async def wallet(plan: Plan, console: Console, *, docs: Path | None, command: str) -> None:
    """Measure and print. Write the section into docs, if given."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    async with open_databases(None) as databases:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            lines = await _measure_all(plan, databases, progress)
        machine = describe_machine(await databases.settings())
    caption = f"median of {plan.rounds} rounds of {plan.seconds:g} s"
    table = terminal_table(COLUMNS, texts=(), caption=caption)
    for line in lines:
        table.add_row(*line.cells)
    console.print(table)
    if docs is not None:
        parts = _parts(plan, lines, machine=machine, command=command)
        write_section(docs / "benchmarks.md", SECTION, parts)
        console.print(f"written: {docs / 'benchmarks.md'}")


async def _measure_all(plan: Plan, databases: Databases, progress: Progress) -> list[Line]:
    template = await open_database(await databases.create(TEMPLATE), SCHEMA)
    await migrate(template)
    await template.close()
    cases = [(callers, wallets) for wallets in (MANY_WALLETS, 1) for callers in plan.callers]
    task = progress.add_task("", total=len(cases) * plan.rounds * 2)
    lines = [Line(callers, wallets, [], []) for callers, wallets in cases]
    for number in range(plan.rounds):
        for line in lines:
            pairs: list[tuple[Open, list[float]]] = [(ours, line.ours), (by_hand, line.by_hand)]
            for opened, figures in pairs if number % 2 else reversed(pairs):
                progress.update(task, description=f"{line.callers} callers")
                figures.append(await _measure(plan, databases, line, opened))
                progress.advance(task)
    return lines


async def _measure(plan: Plan, databases: Databases, line: Line, opened: Open) -> float:
    """Pairs per second on a fresh database, whose ledger is verified afterwards."""
    url = await databases.create(NAME, template=TEMPLATE)
    async with connected(url) as connection:
        rows = await connection.fetch(FILL, line.wallets, FULL_MINOR)
    await databases.checkpoint()
    till = await opened(url)
    try:
        ids = [row["id"] for row in rows]
        await _call(till, ids, line.callers, plan.seconds / 5)
        figure = await _call(till, ids, line.callers, plan.seconds)
    finally:
        await till.close()
    if await count_in(url, UNEXPLAINED):
        raise BenchmarkError("the ledger does not explain the wallets")
    return figure


async def _call(till: Till, wallets: Sequence[UUID], callers: int, seconds: float) -> float:
    """Pairs per second of this many concurrent callers."""
    done = 0
    end_s = time.perf_counter() + seconds

    async def caller(seed: int) -> None:
        nonlocal done
        random = Random(seed)
        while time.perf_counter() < end_s:
            payment_id = str(uuid4())
            await till.reserve(payment_id, random.choice(wallets), AMOUNT_MINOR)
            await till.commit(payment_id)
            done += 1

    began_s = time.perf_counter()
    await asyncio.gather(*(caller(seed) for seed in range(callers)))
    return done / (time.perf_counter() - began_s)


def _parts(
    plan: Plan, lines: Sequence[Line], *, machine: dict[str, str], command: str
) -> Iterator[str]:
    yield f"`{command}`"
    yield markdown_table(COLUMNS, [line.cells for line in lines], texts=())
    yield (
        "Each caller repeatedly reserves an amount in a random wallet and commits it. Median of "
        f"{plan.rounds} rounds of {plan.seconds:g} s, each on a fresh database whose ledger "
        "explained its wallets afterwards. *By hand* is one transaction per call, with guarded "
        f"updates that count rows, over {POOL_SIZE} connections, on the same tables, in the same "
        "run, process and event loop."
    )
    yield markdown_list(machine)
