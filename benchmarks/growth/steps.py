"""The steps that are measured, each through the engine's own code, without HTTP."""

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
from paidonce.domain.events import DEFERRED, Outcome
from paidonce.engine.items import Result


class Step(StrEnum):
    """What is measured. What is stored in one step is claimed in the next."""

    RECEIVING = "receiving"
    STORING = "storing"
    CLAIMING = "claiming"


@dataclass(frozen=True, slots=True)
class Cost:
    """What so many events cost."""

    events: int
    seconds: float
    app_cpu_s: float
    postgres_cpu_s: float
    wal_bytes: int
    page_bytes: int  # the part of it that is images of whole pages


async def measure_step(step: Step, shop: Shop, events: int) -> Cost:
    """Take so many events through a step. Raises BenchmarkError unless it did its work."""
    match step:
        case Step.RECEIVING:
            return await _settled(shop, events, None, Result.PROCESSED)
        case Step.STORING:
            return await _settled(shop, events, DEFERRED, Result.ACCEPTED)
        case Step.CLAIMING:
            return await _measured(shop, events, lambda: _claim(shop, events))
        case _:
            assert_never(step)


async def _settled(shop: Shop, events: int, preset: Outcome | None, expected: Result) -> Cost:
    signed = distinct_events(users=shop.users, count=events)
    ready = [read_event(one, shop.source, preset) for one in signed]

    async def settle() -> None:
        for first in range(0, events, BATCH):
            settled = await shop.settler.settle(ready[first : first + BATCH])
            if any(verdict.result is not expected for verdict in settled.verdicts):
                raise BenchmarkError(f"not all of a batch were {expected}")

    return await _measured(shop, events, settle)


async def _claim(shop: Shop, events: int) -> None:
    claimed = 0
    # The worker logs what it did, and that is part of the cost; nobody wants to read it here.
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        while claimed < events and (number := await shop.worker.run_once()) > 0:
            claimed += number
    if claimed != events:
        raise BenchmarkError(f"{events} events were due, {claimed} were claimed")


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
    """A collection costs as much as several batches, and would hit one shop or the other."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
