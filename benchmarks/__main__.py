"""Compare Paidonce with its peers: `python -m benchmarks`, or `make bench`."""

import argparse
import asyncio
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.bus.run import Plan as BusPlan
from benchmarks.bus.run import measure_buses
from benchmarks.contender import ROOT, BenchmarkError
from benchmarks.contenders import Paidonce, Peer, TunedPeer, TwoProcesses
from benchmarks.databases import Databases, open_databases
from benchmarks.flooded import Flooded
from benchmarks.floor import Floor
from benchmarks.growth.rounds import Plan as GrowthPlan
from benchmarks.growth.run import grow
from benchmarks.lookups import WithLookups
from benchmarks.machine import describe_machine
from benchmarks.markdown import write_section
from benchmarks.queued import Queued
from benchmarks.report import (
    OURS,
    PEER,
    PICTURE,
    draw_results,
    flood_table,
    orders_table,
    results_parts,
    results_table,
    summarise,
)
from benchmarks.rounds import Measurement, Plan, measure, prepare
from benchmarks.search.run import Plan as SearchPlan
from benchmarks.search.run import search
from benchmarks.terminal import open_console
from benchmarks.wallet.run import Plan as WalletPlan
from benchmarks.wallet.run import wallet

CONTENDERS = (
    Peer(),
    TunedPeer(),
    Paidonce(),
    WithLookups(),
    Flooded(),
    TwoProcesses(),
    Queued(),
    Floor(),
)
DOCS = ROOT / "docs"
MAX_ROUNDS = 100
ROUNDS = 3
GROWTH_ROUNDS = 9
SEARCH_ROUNDS = 20
BUS_EVENTS = 50_000
BUS_ONE_BY_ONE = 2_000
SMALL_ROWS = 10_000
GROWTH_EVENTS = 1024
MAX_SECONDS = 600.0


def main() -> None:
    """Parse the arguments and run. A failure is one message and exit code 1."""
    options = parse_arguments()
    try:
        uvloop.run(run(options))
    except BenchmarkError as error:
        sys.exit("\n".join([f"benchmark: {error}", *getattr(error, "__notes__", [])]))
    except asyncio.CancelledError:
        sys.exit("benchmark: stopped")


async def run(options: argparse.Namespace) -> None:
    """Run the benchmark that the options select."""
    _cancel_on_sigterm()
    # What the engine has to say, if anything, goes beside the tables.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    command = shlex.join(["make", "bench", *_make_arguments()])
    if options.grow:
        plan = GrowthPlan(SMALL_ROWS, options.rows, options.rounds or GROWTH_ROUNDS, GROWTH_EVENTS)
        await grow(plan, open_console(), docs=DOCS if options.write else None, command=command)
    elif options.bus:
        buses = BusPlan(BUS_EVENTS, BUS_ONE_BY_ONE, options.seconds, options.kafka)
        docs = DOCS if options.write else None
        await measure_buses(buses, open_console(), docs=docs, command=command)
    elif options.search:
        asked = SearchPlan(options.rows, options.rounds or SEARCH_ROUNDS)
        await search(asked, open_console(), docs=DOCS if options.write else None, command=command)
    elif options.wallet:
        tried = WalletPlan(options.connections, options.seconds, options.rounds or ROUNDS)
        await wallet(tried, open_console(), docs=DOCS if options.write else None, command=command)
    else:
        await compare(options, open_console(), command)


async def compare(options: argparse.Namespace, console: Console, command: str) -> None:
    """Prepare the databases, measure, and report."""
    plan = plan_of(options)
    async with open_databases(options.postgres_url) as databases:
        with TemporaryDirectory(prefix="paidonce-bench-") as work_dir:
            measurements = await measure_all(plan, databases, Path(work_dir), console)
        machine = describe_machine(await databases.settings())
    lines = summarise(plan, measurements)
    console.print(results_table(lines))
    if any(line.orders for line in lines):
        console.print(orders_table(lines))
    if any(line.flood for line in lines):
        console.print(flood_table(lines))
    if options.write and {PEER, OURS} <= {line.contender for line in lines}:
        draw_results(DOCS / PICTURE, lines)
        parts = results_parts(lines, plan=plan, machine=machine, command=command)
        write_section(DOCS / "benchmarks.md", "results", parts)
        console.print(f"written: {DOCS / 'benchmarks.md'} and {PICTURE} beside it")


async def measure_all(
    plan: Plan, databases: Databases, work_dir: Path, console: Console
) -> list[Measurement]:
    """Run every trial of the plan, with a progress bar."""
    trials, done = list(plan.trials()), []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("preparing the databases", total=len(trials))
        await prepare(plan, databases, work_dir)
        for trial in trials:
            name = f"{trial.contender.title} at {trial.connections} connections"
            progress.update(task, description=name)
            done.append(await measure(plan, trial, databases, work_dir))
            console.print(f"round {trial.round + 1}: {name}: {_in_short(done[-1])}")
            progress.advance(task)
    return done


def _in_short(measurement: Measurement) -> str:
    figures = measurement.figures
    return (
        f"{figures.applied_per_s:,.0f} events/s, p50 {figures.p50_ms:,.1f} ms, "
        f"p99 {figures.p99_ms:,.1f} ms, {figures.errors} errors, "
        f"{figures.foreign_cpu_share:.0%} CPU of other processes"
    )


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the arguments describe."""
    return Plan(
        contenders=[each for each in CONTENDERS if each.name in options.only],
        connections=options.connections,
        rounds=options.rounds or ROUNDS,
        users=options.users,
        warmup_s=options.warmup,
        seconds=options.seconds,
        patience_s=options.patience,
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    names = [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--warmup", type=float, default=1.5, help="warm-up before each measurement")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds to wait for an idle machine"
    )
    parser.add_argument("--connections", type=_numbers, default=[8, 64, 256])
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, or {GROWTH_ROUNDS} with --grow")
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    parser.add_argument("--postgres-url", help="a server to use instead of an embedded one")
    parser.add_argument(
        "--grow", action="store_true", help="measure how costs grow with the tables instead"
    )
    parser.add_argument(
        "--search", action="store_true", help="measure searches and statistics instead"
    )
    parser.add_argument("--bus", action="store_true", help="measure relay and consumers instead")
    parser.add_argument(
        "--kafka", metavar="HOST:PORT", help="a broker for --bus to measure as well"
    )
    parser.add_argument(
        "--wallet", action="store_true", help="measure reserve and commit of wallets instead"
    )
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="events in the large database, or for --search"
    )
    parser.add_argument(
        "--no-write", dest="write", action="store_false", help="do not change docs/"
    )
    options = parser.parse_args()
    options.only = options.only or names
    if not (0 <= (options.rounds or 0) <= MAX_ROUNDS and 0 < options.seconds <= MAX_SECONDS):
        parser.error(f"at most {MAX_ROUNDS} rounds of at most {MAX_SECONDS:g} seconds")
    if options.rows <= SMALL_ROWS:
        parser.error(f"more than {SMALL_ROWS} rows, which is what they are compared with")
    return options


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _make_arguments() -> list[str]:
    """The arguments in the form that `make bench` takes."""
    return [f"ARGS={shlex.join(sys.argv[1:])}"] if sys.argv[1:] else []


def _cancel_on_sigterm() -> None:
    """Stop as for Ctrl-C, so that every server that was started is stopped too."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


if __name__ == "__main__":
    main()
