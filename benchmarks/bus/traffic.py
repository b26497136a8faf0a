"""Events that are written, relayed and taken, by the parts that a service uses."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import quantiles
from uuid import uuid4

from benchmarks.databases import STATEMENT_TIMEOUT_S
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus
from paidonce.bus.messages import Message
from paidonce.bus.opening import open_bus
from paidonce.bus.relay import MAX_BATCH, Relay
from paidonce.bus.ring import Ring
from paidonce.settings import BusSettings
from paidonce.store import outbox
from paidonce.store.db import Database
from paidonce.store.outbox import Fact
from paidonce.store.queries import Connection

KEYS = 1_000
WARM_EVENTS = 2_000
WRITTEN_AT_ONCE = 1_000
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Lags:
    """How late events were published, and taken."""

    published_p99_ms: float
    taken_p50_ms: float
    taken_p99_ms: float


@dataclass(slots=True)
class Traffic:
    """One topic, one relay, and one group that takes what comes."""

    database: Database
    bus: Bus
    about: str
    number: int = 0
    taken: int = 0
    late_ms: list[float] = field(default_factory=list)

    async def warm_up(self) -> None:
        """Let plans, topics and groups be made."""
        await self.write(WARM_EVENTS)
        await self.relay_and_take(WARM_EVENTS)

    async def write(self, events: int) -> None:
        """Let so many events wait in the outbox."""
        for first in range(0, events, WRITTEN_AT_ONCE):
            async with self.database.transaction() as connection:
                await outbox.add(
                    connection, [self._fact() for _ in range(min(WRITTEN_AT_ONCE, events - first))]
                )

    async def relay(self, max_batch: int) -> None:
        """Publish all that waits."""
        relay = Relay(self.database, self.bus, max_batch=max_batch)
        connection = await self.database.dedicated()
        try:
            while await relay.run_once(connection):
                pass
        finally:
            connection.terminate()

    async def take_what_is_left(self) -> None:
        """Let the group catch up, uncounted."""
        await self.relay_and_take(self.number - self.taken)

    async def relay_and_take(self, events: int) -> None:
        """Relay and consumer side by side, until so many more are taken."""
        wanted = self.taken + events
        async with self._running(), asyncio.timeout(STATEMENT_TIMEOUT_S):
            while self.taken < wanted:
                await asyncio.sleep(LOOK_S)

    async def lags(self, *, per_s: int, seconds: float) -> Lags:
        """A steady pace of small transactions."""
        began_number = self.number
        async with self._running():
            await asyncio.sleep(1)  # let the group join
            self.late_ms = []
            began_s = time.perf_counter()
            for number in range(int(per_s * seconds)):
                await asyncio.sleep(max(began_s + number / per_s - time.perf_counter(), 0))
                async with self.database.transaction() as connection:
                    await outbox.add(connection, [self._fact()])
            async with asyncio.timeout(STATEMENT_TIMEOUT_S):
                while self.taken < self.number:
                    await asyncio.sleep(LOOK_S)
        by_hundredths = quantiles(self.late_ms, n=100)
        published_ms = await self._published_p99_ms(self.number - began_number)
        return Lags(published_ms, by_hundredths[49], by_hundredths[98])

    async def _published_p99_ms(self, last: int) -> float:
        async with self.database.connection() as connection:
            late_s = await connection.fetchval(
                "SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY "
                "extract(epoch FROM published_at - occurred_at)) FROM (SELECT * FROM outbox "
                "WHERE aggregate_type = $1 ORDER BY seq DESC LIMIT $2) AS m",
                self.about,
                last,
            )
        return float(late_s) * 1000

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        ring = Ring()
        loops: list[Relay | Consumer] = [
            Relay(self.database, self.bus, ring=ring, max_batch=MAX_BATCH),
            Consumer(
                self.bus,
                self.database,
                name=f"{self.about}-group",
                about=[self.about],
                take=self._take,
                ring=ring,
            ),
        ]
        tasks = [asyncio.create_task(loop.run()) for loop in loops]
        try:
            yield
        finally:
            for loop in loops:
                loop.finish()
            await asyncio.wait(tasks)

    async def _take(self, _: Connection, messages: Sequence[Message]) -> None:
        now = datetime.now(UTC)
        self.late_ms += [(now - one.time).total_seconds() * 1000 for one in messages]
        self.taken += len(messages)

    def _fact(self) -> Fact:
        self.number += 1
        said = {
            "payment_id": f"payment-{self.number % KEYS}",
            "wallet_id": "01900000-0000-7000-8000-000000000000",
            "amount": "990.00",
            "currency": "RUB",
        }
        key = f"payment-{self.number % KEYS}"
        return Fact(self.about, key, "PaymentProcessing", self.number, said, datetime.now(UTC))


@asynccontextmanager
async def traffic_on(database: Database, url: str) -> AsyncIterator[Traffic]:
    """Traffic on a bus, in a topic of its own."""
    bus = open_bus(BusSettings(url=url))
    try:
        yield Traffic(database, bus, f"bench-{uuid4().hex[:8]}")
    finally:
        await bus.close()
