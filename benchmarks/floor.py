"""The floor: the same rows by the same SQL from a bare loop, without HTTP.

As many loops as Paidonce has flushers process batches of events that were parsed before the clock
started. No two loops have events of the same user, as no two flushers do. What Paidonce needs
beyond this is the cost of HTTP, parsing and answering. Prints the same three lines as the load
generator.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import quantiles
from time import monotonic, perf_counter
from zlib import crc32

import orjson
import structlog
import uvloop

from benchmarks.contender import ROOT, BenchmarkError, Load, Running, follow, stop
from benchmarks.contenders import Paidonce
from benchmarks.load import LoadResult
from benchmarks.meter import Marks
from benchmarks.workload import SignedEvent, random_events
from paidonce.bootstrap.rules import load_rules
from paidonce.core.events import EventId, Outcome, PaymentEvent
from paidonce.db.pool import open_database
from paidonce.ids import new_id
from paidonce.processing.items import Incoming, Request, Result, ResultKind, Source
from paidonce.processing.transactions import Processor
from paidonce.providers.contract import Delivery, key_digest
from paidonce.runtime.group_commit import FLUSHERS
from paidonce.settings.reading import load_settings

TIMEOUT_S = 180.0


class Floor(Paidonce):
    """The processing code without HTTP."""

    name = "floor"
    title = "Floor: the same SQL, no HTTP"
    once = True

    async def prepare(self, url: str, *, users: int, work_dir: Path) -> None:
        """Prepare over HTTP, as Paidonce."""
        await Paidonce().prepare(url, users=users, work_dir=work_dir)

    def running(self, url: str, *, work_dir: Path) -> AbstractAsyncContextManager[Running]:  # type: ignore[override]
        """Start a process that waits for its load."""
        return self._running(self.write_config(url, work_dir, port=1))

    @asynccontextmanager
    async def _running(self, config: Path) -> AsyncIterator[Running]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.floor", f"--config={config}"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield BareLoop(process.pid, process)
        finally:
            await stop(process)


@dataclass(frozen=True, slots=True)
class BareLoop(Running):
    """A started process of this module."""

    pid: int
    process: asyncio.subprocess.Process

    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Send the load to the process, and read the result."""
        assert self.process.stdin is not None
        self.process.stdin.write(orjson.dumps(asdict(load)) + b"\n")
        async with asyncio.timeout(load.warmup_s + load.seconds + TIMEOUT_S):
            return await follow(self.process, meter)


def main() -> None:
    """Wait for the load on standard input, and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = parser.parse_args().config
    # Standard output is for the three lines alone; what the engine has to say goes beside it.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    load = Load(**orjson.loads(sys.stdin.readline()))
    uvloop.run(run(config, load))


async def run(config: Path, load: Load) -> None:
    """Process batches until the time is over, and print the result."""
    settings = load_settings(config)
    database = await open_database(settings.database.url)
    rules, sources = await load_rules(settings, database)
    assert load.events is not None
    supply = random_events(users=load.users, count=load.events)
    shares = _deal([read_event(one, sources["bench"]) for one in supply])
    size = max(load.connections // FLUSHERS, 1)
    processors = [Processor(database, rules) for _ in range(FLUSHERS)]
    clock = Clock(perf_counter() + load.warmup_s, load.seconds)
    loops = (_process(one, own, size, clock) for one, own in zip(processors, shares, strict=True))
    await asyncio.gather(_mark(clock), *loops)
    print(orjson.dumps(asdict(clock.result())).decode(), flush=True)
    for processor in processors:
        await processor.close()
    await database.close()


class Clock:
    """The measured time, and what was processed in it."""

    def __init__(self, begins_at: float, seconds: float) -> None:
        self.begins_at = begins_at
        self.ends_at = begins_at + seconds
        self.answers: Counter[str] = Counter()
        self.latencies_s: list[float] = []

    def note(self, results: Sequence[Result], latency_s: float) -> None:
        """Record a processed batch. Events that were not applied count as refused."""
        applied = sum(result.kind is ResultKind.PROCESSED for result in results)
        self.answers.update(
            f"{200 if result.kind is ResultKind.PROCESSED else 'not'} {result.kind}"
            for result in results
        )
        if self.begins_at <= perf_counter() < self.ends_at:
            self.latencies_s += [latency_s] * applied

    def result(self) -> LoadResult:
        """The same figures as the load generator's."""
        cuts = quantiles(self.latencies_s, n=100)
        return LoadResult(
            seconds=self.ends_at - self.begins_at,
            events=len(self.latencies_s),
            p50_ms=cuts[49] * 1000,
            p99_ms=cuts[98] * 1000,
            max_ms=max(self.latencies_s) * 1000,
            client_cpu_s=0.0,
            answers=dict(self.answers),
            lost=0,
        )


async def _mark(clock: Clock) -> None:
    for moment in (clock.begins_at, clock.ends_at):
        await asyncio.sleep(max(moment - perf_counter(), 0))
        print("{}", flush=True)


async def _process(
    processor: Processor, ready: Iterator[Incoming], size: int, clock: Clock
) -> None:
    while perf_counter() < clock.ends_at:
        batch = list(islice(ready, size))
        if not batch:
            raise BenchmarkError("the floor is faster than its supply: raise MAX_EVENTS_PER_S")
        started = perf_counter()
        processed = await processor.process(batch)
        clock.note(processed.results, perf_counter() - started)


def _deal(events: Sequence[Incoming]) -> list[Iterator[Incoming]]:
    """Divide the events by user, so that the loops do not wait for each other."""
    shares: list[list[Incoming]] = [[] for _ in range(FLUSHERS)]
    for one in events:
        assert isinstance(one.event, PaymentEvent)
        assert one.event.email is not None
        shares[crc32(one.event.email.encode()) % FLUSHERS].append(one)
    return [iter(share) for share in shares]


def read_event(
    signed: SignedEvent, source: Source, forced_outcome: Outcome | None = None
) -> Incoming:
    """Parse a delivery as the inbox does. `forced_outcome` is what the queued mode adds."""
    delivery = Delivery({"content-type": "application/json"}, signed.body, datetime.now(UTC))
    identity = source.provider.identify(delivery)
    event = source.provider.translate(delivery)
    assert isinstance(event, PaymentEvent)
    return Incoming(
        event_id=EventId(new_id()),
        source=source,
        request=Request("floor", "127.0.0.1", monotonic()),
        delivery=delivery,
        identity=identity,
        key=(source.id, key_digest(identity.key)),
        event=event,
        forced_outcome=forced_outcome,
    )


if __name__ == "__main__":
    main()
