"""A closed-loop load generator for 127.0.0.1, as cheap as Python allows, in its own process.

It keeps N HTTP/1.1 connections open, each with one request in progress. All requests are built and
signed before the clock starts. It prints one JSON line when the measured time begins, one when it
ends, and the result as the last one, after the remaining answers have arrived.
"""

import argparse
import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter, process_time
from typing import Literal

import orjson
import uvloop

from benchmarks.workload import SignedEvent, first_events, random_events

HOST = "127.0.0.1"
CONNECT_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 60.0
MAX_LOST = 1000
HEAD_END = b"\r\n\r\n"
LENGTH_FIELD = b"content-length:"


@dataclass(frozen=True, slots=True)
class OrdersPaid:
    """Orders that were paid during the load, and the time from webhook to PAID."""

    sent: int
    paid: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Flood:
    """Forged deliveries during the load: for how long, and how often they got each answer."""

    seconds: float
    answers: dict[str, int]

    @property
    def sent(self) -> int:
        """How many there were."""
        return sum(self.answers.values())


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the client saw. The first six fields are of the measured time and of 200 answers."""

    seconds: float
    events: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    client_cpu_s: float
    answers: dict[str, int]
    lost: int
    drain_s: float = 0.0  # how long after the measured time the last event was applied
    orders: OrdersPaid | None = None
    flood: Flood | None = None

    @property
    def accepted(self) -> int:
        """How many events were answered 200 in all, warm-up and last answers included."""
        return sum(count for word, count in self.answers.items() if word.startswith("200 "))

    @property
    def refused(self) -> int:
        """How many events were answered anything else."""
        return sum(self.answers.values()) - self.accepted


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in time: the clock, the CPU time of the process, the answers so far."""

    clock_s: float
    cpu_s: float
    answers: int


class Score:
    """Provides requests to all connections and counts their answers."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.latencies_s: list[float] = []
        self.answers: Counter[tuple[bytes, str]] = Counter()
        self.under_way = 0
        self.lost = 0
        self.stopped = False
        self.finished = asyncio.Event()

    def next_request(self) -> bytes | None:
        """The next request; None when the time or the requests have run out."""
        request = None if self.stopped else next(self.requests, None)
        if request is not None:
            self.under_way += 1
        elif self.under_way == 0:
            self.finished.set()
        return request

    def record(self, answer: bytes, body: bytes, latency_s: float) -> None:
        """Record a complete answer."""
        self.under_way -= 1
        code = answer[9:12]
        self.answers[code, _status_word(body)] += 1
        if code == b"200":
            self.latencies_s.append(latency_s)

    def record_loss(self) -> None:
        """Record a request whose connection broke before the answer."""
        self.under_way -= 1
        self.lost += 1
        self.stopped = self.stopped or self.lost >= MAX_LOST

    def mark(self) -> Mark:
        """The counts at this moment."""
        return Mark(perf_counter(), process_time(), len(self.latencies_s))

    def result(self, begin: Mark, end: Mark) -> LoadResult:
        """The result, with the latencies of the answers between two marks."""
        latencies_s = sorted(self.latencies_s[begin.answers : end.answers]) or [float("nan")]
        return LoadResult(
            seconds=end.clock_s - begin.clock_s,
            events=end.answers - begin.answers,
            p50_ms=percentile(latencies_s, 0.50) * 1000,
            p99_ms=percentile(latencies_s, 0.99) * 1000,
            max_ms=latencies_s[-1] * 1000,
            client_cpu_s=end.cpu_s - begin.cpu_s,
            answers={f"{code.decode()} {word}": n for (code, word), n in self.answers.items()},
            lost=self.lost + self.under_way,
        )


class Connection(asyncio.Protocol):
    """One keep-alive connection: send, wait for the whole answer, send the next."""

    def __init__(self, score: Score, port: int) -> None:
        self.score = score
        self.port = port
        self.waiting = False
        self.sent_at = 0.0
        self.received = b""

    async def open(self) -> None:
        """Connect, or connect again after a loss. Callbacks do the rest."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            self.transport, _ = await loop.create_connection(lambda: self, HOST, self.port)

    def send_next(self) -> None:
        """Send a request unless the run is over."""
        request = self.score.next_request()
        self.waiting = request is not None
        if request is not None:
            self.sent_at = perf_counter()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """When the answer is complete, record it and send the next request."""
        data = self.received + data if self.received else data
        split = data.find(HEAD_END)
        if split < 0 or len(data) < split + 4 + _body_length(data[:split]):
            self.received = data
            return
        latency_s = perf_counter() - self.sent_at
        self.received = b""
        self.score.record(data, data[split + 4 :], latency_s)
        self.send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the loss and connect again."""
        if self.waiting:
            self.score.record_loss()
            self.received = b""
            self.reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        await self.open()
        self.send_next()


async def generate_load(
    requests: Iterator[bytes], *, port: int, connections: int, warmup_s: float, seconds: float
) -> LoadResult:
    """Send until the time or the requests run out; then wait for the remaining answers."""
    score = Score(requests)
    opened = [Connection(score, port) for _ in range(connections)]
    for connection in opened:
        await connection.open()
    for connection in opened:
        connection.send_next()
    await _until_finished(score, warmup_s)
    begin = _tell("begin", score)
    await _until_finished(score, seconds)
    end = _tell("end", score)
    score.stopped = True
    await _until_finished(score, DRAIN_TIMEOUT_S)
    return score.result(begin, end)


def build_requests(events: Iterator[SignedEvent], *, path: str) -> list[bytes]:
    """Build complete HTTP requests."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return [_request(head, event) for event in events]


def _request(head: str, event: SignedEvent) -> bytes:
    own = f"X-Signature: {event.signature}\r\nContent-Length: {len(event.body)}\r\n\r\n"
    return f"{head}{own}".encode() + event.body


def percentile(ordered: list[float], share: float) -> float:
    """The value below which this share of them lies."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def _tell(moment: Literal["begin", "end"], score: Score) -> Mark:
    print(orjson.dumps({"moment": moment}).decode(), flush=True)
    return score.mark()


async def _until_finished(score: Score, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await score.finished.wait()
    except TimeoutError:
        return


def _body_length(head: bytes) -> int:
    """The Content-Length of an answer; raises ValueError if it has none."""
    start = head.lower().index(LENGTH_FIELD) + len(LENGTH_FIELD)
    return int(head[start:].split(b"\r\n", 1)[0])


def _status_word(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["status"])
    except (ValueError, KeyError, TypeError):
        return "unreadable"


def main() -> None:
    """Build the requests, run, print the result."""
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--warmup", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--events", type=int, help="at most; without it one event per user")
    options = parser.parse_args()
    events = (
        random_events(users=options.users, count=options.events)
        if options.events
        else first_events(users=options.users)
    )
    requests = build_requests(events, path=options.path)
    gc.disable()
    result = uvloop.run(
        generate_load(
            iter(requests),
            port=options.port,
            connections=options.connections,
            warmup_s=options.warmup,
            seconds=options.seconds,
        )
    )
    print(orjson.dumps(asdict(result)).decode(), flush=True)


if __name__ == "__main__":
    main()
