"""The measured steps, each through Paidonce's own code, without HTTP."""

import gc
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import perf_counter, process_time
from typing import assert_never

from benchmarks.contender import BenchmarkError
from benchmarks.cpu import tree_cpu_s
from benchmarks.databases import Databases
from benchmarks.floor import read_event
from benchmarks.growth.shop import BATCH, Shop
from benchmarks.workload import distinct_events
from paidonce.core.events import DEFERRED, Outcome
from paidonce.processing.items import ResultKind


class Step(StrEnum):
    """The steps. Events that are stored in one step are claimed in the next."""

    RECEIVING = "receiving"
    STORING = "storing"
    CLAIMING = "claiming"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a number of events."""

    events: int
    seconds: float
    app_cpu_s: float
    postgres_cpu_s: float
    wal_bytes: int
    page_bytes: int  # the part of it that is images of whole pages


async def measure_step(step: Step, shop: Shop, events: int) -> Cost:
    """Run this many events through a step. Raises BenchmarkError if one was not processed."""
    match step:
        case Step.RECEIVING:
            return await _processed(shop, events, None, ResultKind.PROCESSED)
        case Step.STORING:
            return await _processed(shop, events, DEFERRED, ResultKind.ACCEPTED)
        case Step.CLAIMING:
            return await _measured(shop, events, lambda: _claim(shop, events))
        case _:
            assert_never(step)


async def _processed(
    shop: Shop, events: int, forced_outcome: Outcome | None, expected: ResultKind
) -> Cost:
    signed = distinct_events(users=shop.users, count=events)
    ready = [read_event(one, shop.source, forced_outcome) for one in signed]

    async def process() -> None:
        for first in range(0, events, BATCH):
            processed = await shop.processor.process(ready[first : first + BATCH])
            if any(result.kind is not expected for result in processed.results):
                raise BenchmarkError(f"not all of a batch were {expected}")

    return await _measured(shop, events, process)


async def _claim(shop: Shop, events: int) -> None:
    claimed = 0
    # The worker logs what it did, and that is part of the cost; nobody wants to read it here.
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        while claimed < events and (number := await shop.worker.run_once()) > 0:
            claimed += number
    if claimed != events:
        raise BenchmarkError(f"{events} events were queued, {claimed} were claimed")


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment."""

    clock_s: float
    app_cpu_s: float
    postgres_cpu_s: float
    wal_bytes: int


async def _read(databases: Databases) -> Reading:
    postgres_cpu_s = tree_cpu_s(await databases.server_pid())
    wal_bytes = await databases.wal_bytes()
    return Reading(perf_counter(), process_time(), postgres_cpu_s, wal_bytes)


async def _measured(shop: Shop, events: int, work: Callable[[], Awaitable[None]]) -> Cost:
    with _no_garbage_collected():
        begin = await _read(shop.databases)
        await work()
        end_s, end_cpu_s = perf_counter(), process_time()
    end = await _read(shop.databases)
    return Cost(
        events=events,
        seconds=end_s - begin.clock_s,
        app_cpu_s=end_cpu_s - begin.app_cpu_s,
        postgres_cpu_s=end.postgres_cpu_s - begin.postgres_cpu_s,
        wal_bytes=end.wal_bytes - begin.wal_bytes,
        page_bytes=await shop.databases.full_page_bytes(begin.wal_bytes, end.wal_bytes),
    )


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Disable garbage collection: it costs as much as several batches."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
