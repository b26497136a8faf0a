"""Measure a bus: throughput, delay and cost of publishing and consuming."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.bus.traffic import Lags, Traffic, traffic_on
from benchmarks.contenders import Paidonce
from benchmarks.cpu import tree_cpu_s
from benchmarks.databases import Databases, open_databases
from benchmarks.machine import describe_machine
from benchmarks.markdown import markdown_list, markdown_table, write_section
from benchmarks.terminal import terminal_table
from paidonce.bootstrap.database import open_migrated_database
from paidonce.bus.relay import MAX_BATCH
from paidonce.settings.reading import load_settings

SECTION = "bus"
NAME = "bench_bus"
COLUMNS = (
    "bus",
    "events/s",
    "relayed/s",
    "one by one/s",
    "ratio",
    "CPU µs",
    "WAL bytes",
    "published p99 ms",
    "consumed p50 ms",
    "consumed p99 ms",
)
TEXTS = ("bus",)
PACE_PER_S = 500


@dataclass(frozen=True, slots=True)
class Plan:
    """How many messages, how many one by one, how long at a steady pace, and on which buses."""

    events: int
    one_by_one: int
    seconds: float
    kafka: str | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one bus."""

    bus: str
    events_per_s: float
    relayed_per_s: float
    alone_per_s: float
    cpu_us: float
    wal_bytes: float
    lags: Lags

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        ratio = self.relayed_per_s / self.alone_per_s
        rates = (self.events_per_s, self.relayed_per_s, self.alone_per_s)
        costs = (self.cpu_us, self.wal_bytes)
        late = (self.lags.published_p99_ms, self.lags.consumed_p50_ms, self.lags.consumed_p99_ms)
        return [
            self.bus,
            *(f"{value:,.0f}" for value in rates),
            f"{ratio:,.1f}",
            *(f"{value:,.0f}" for value in costs),
            *(f"{value:,.1f}" for value in late),
        ]


async def measure_buses(plan: Plan, console: Console, *, docs: Path | None, command: str) -> None:
    """Measure and print. Write the section into docs, if given."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        async with open_databases(None) as databases:
            measured = [
                await _measure(url, plan, databases, progress) for url in _buses(plan.kafka)
            ]
            machine = describe_machine(await databases.settings())
    caption = f"{plan.events:,} events; {plan.seconds:g} s at {PACE_PER_S} a second for the lags"
    table = terminal_table(COLUMNS, texts=TEXTS, caption=caption)
    for one in measured:
        table.add_row(*one.cells)
    console.print(table)
    if docs is not None:
        parts = _parts(plan, measured, machine=machine, command=command)
        write_section(docs / "benchmarks.md", SECTION, parts)
        console.print(f"written: {docs / 'benchmarks.md'}")


def _buses(kafka: str | None) -> list[str]:
    return ["postgres", *([f"kafka://{kafka}"] if kafka else [])]


async def _measure(url: str, plan: Plan, databases: Databases, progress: Progress) -> Measured:
    name = url.partition("://")[0]
    task = progress.add_task(name, total=4)
    with TemporaryDirectory(prefix="paidonce-bench-") as folder:
        place = await databases.create(NAME)
        settings = load_settings(Paidonce().write_config(place, Path(folder), port=1))
        async with (
            open_migrated_database(settings) as database,
            traffic_on(database, url) as traffic,
        ):
            await traffic.warm_up()
            progress.advance(task)
            alone_per_s = await _relayed_per_s(traffic, plan.one_by_one, max_batch=1)
            relayed_per_s = await _relayed_per_s(traffic, plan.events, max_batch=MAX_BATCH)
            progress.advance(task)
            rate, cpu_us, wal_bytes = await _taken(traffic, plan.events, databases)
            progress.advance(task)
            lags = await traffic.lags(per_s=PACE_PER_S, seconds=plan.seconds)
            progress.advance(task)
    return Measured(name, rate, relayed_per_s, alone_per_s, cpu_us, wal_bytes, lags)


async def _relayed_per_s(traffic: Traffic, events: int, *, max_batch: int) -> float:
    await traffic.write(events)
    began_s = time.perf_counter()
    await traffic.relay(max_batch)
    return events / (time.perf_counter() - began_s)


async def _taken(traffic: Traffic, events: int, databases: Databases) -> tuple[float, float, float]:
    """Messages per second from the outbox to a consumer, and the cost of each."""
    await traffic.consume_remaining()
    await traffic.write(events)
    await databases.checkpoint()
    pids = {os.getpid(), await databases.server_pid()}
    # The server is one of our own children, unless it was there before.
    began_wal, began_cpu_s = await databases.wal_bytes(), sum(map(tree_cpu_s, pids))
    began_s = time.perf_counter()
    await traffic.relay_and_consume(events)
    took_s = time.perf_counter() - began_s
    cpu_s = sum(map(tree_cpu_s, pids)) - began_cpu_s
    wal_bytes = await databases.wal_bytes() - began_wal
    return events / took_s, cpu_s / events * 1e6, wal_bytes / events


def _parts(
    plan: Plan, measured: Sequence[Measured], *, machine: dict[str, str], command: str
) -> Iterator[str]:
    yield f"`{command}`"
    yield markdown_table(COLUMNS, [one.cells for one in measured], texts=TEXTS)
    yield (
        f"*events/s*: {plan.events:,} messages are in the outbox; relay and consumer run in one "
        "process until all are consumed, with no effect but recording their ids. *CPU* and *WAL* "
        "are per message, of this process and of PostgreSQL, without the broker. *relayed/s*: the "
        f"relay alone, in batches of {MAX_BATCH:,}; *one by one*: in batches of one "
        f"({plan.one_by_one:,} messages). Last columns: {PACE_PER_S} transactions a second for "
        f"{plan.seconds:g} s, one message each; the time from the transaction until the message is "
        "published, and until it is consumed and committed."
    )
    yield markdown_list(machine)
