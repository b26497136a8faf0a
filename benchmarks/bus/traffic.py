"""Messages that are written, published and consumed by the code that the service uses."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import quantiles
from uuid import uuid4

from benchmarks.databases import STATEMENT_TIMEOUT_S
from paidonce.bus import outbox
from paidonce.bus.consumer import Consumer
from paidonce.bus.contract import Bus, open_bus
from paidonce.bus.model import Message, NewMessage
from paidonce.bus.relay import MAX_BATCH, Relay
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.runtime.leader import Leader
from paidonce.runtime.wakeup import Wakeup
from paidonce.settings.sections import BusSettings

KEYS = 1_000
WARM_EVENTS = 2_000
WRITTEN_AT_ONCE = 1_000
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Lags:
    """How late messages were published and consumed."""

    published_p99_ms: float
    consumed_p50_ms: float
    consumed_p99_ms: float


@dataclass(slots=True)
class Traffic:
    """One topic, one relay, and one consumer group."""

    database: Database
    bus: Bus
    aggregate_type: str
    number: int = 0
    consumed: int = 0
    late_ms: list[float] = field(default_factory=list)

    async def warm_up(self) -> None:
        """Let query plans, topics and groups be created."""
        await self.write(WARM_EVENTS)
        await self.relay_and_consume(WARM_EVENTS)

    async def write(self, events: int) -> None:
        """Write this many messages to the outbox."""
        for first in range(0, events, WRITTEN_AT_ONCE):
            async with self.database.transaction() as connection:
                await outbox.add(
                    connection,
                    [self._message() for _ in range(min(WRITTEN_AT_ONCE, events - first))],
                )

    async def relay(self, max_batch: int) -> None:
        """Publish everything in the outbox."""
        relay = Relay(self.bus, Leader(self.database), max_batch=max_batch)
        connection = await self.database.dedicated()
        try:
            while await relay.run_once(connection):
                pass
        finally:
            connection.terminate()

    async def consume_remaining(self) -> None:
        """Let the group catch up without counting."""
        await self.relay_and_consume(self.number - self.consumed)

    async def relay_and_consume(self, events: int) -> None:
        """Run relay and consumer until this many more messages are consumed."""
        wanted = self.consumed + events
        async with self._running(), asyncio.timeout(STATEMENT_TIMEOUT_S):
            while self.consumed < wanted:
                await asyncio.sleep(LOOK_S)

    async def lags(self, *, per_s: int, seconds: float) -> Lags:
        """Run small transactions at a steady pace, and measure the delays."""
        began_number = self.number
        async with self._running():
            await asyncio.sleep(1)  # let the group join
            self.late_ms = []
            began_s = time.perf_counter()
            for number in range(int(per_s * seconds)):
                await asyncio.sleep(max(began_s + number / per_s - time.perf_counter(), 0))
                async with self.database.transaction() as connection:
                    await outbox.add(connection, [self._message()])
            async with asyncio.timeout(STATEMENT_TIMEOUT_S):
                while self.consumed < self.number:
                    await asyncio.sleep(LOOK_S)
        by_hundredths = quantiles(self.late_ms, n=100)
        published_ms = await self._published_p99_ms(self.number - began_number)
        return Lags(published_ms, by_hundredths[49], by_hundredths[98])

    async def _published_p99_ms(self, last: int) -> float:
        async with self.database.connection() as connection:
            late_s = await connection.fetchval(
                "SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY "
                "extract(epoch FROM published_at - occurred_at)) FROM "
                "(SELECT * FROM paidonce.outbox "
                "WHERE aggregate_type = $1 ORDER BY seq DESC LIMIT $2) AS m",
                self.aggregate_type,
                last,
            )
        return float(late_s) * 1000

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        wakeup = Wakeup()
        loops: list[Relay | Consumer] = [
            Relay(self.bus, Leader(self.database), wakeup=wakeup, max_batch=MAX_BATCH),
            Consumer(
                self.bus,
                self.database,
                name=f"{self.aggregate_type}-group",
                aggregate_types=[self.aggregate_type],
                consume=self._consume,
                wakeup=wakeup,
            ),
        ]
        tasks = [asyncio.create_task(loop.run()) for loop in loops]
        try:
            yield
        finally:
            for loop in loops:
                loop.finish()
            await asyncio.wait(tasks)

    async def _consume(self, _: Connection, messages: Sequence[Message]) -> None:
        now = datetime.now(UTC)
        self.late_ms += [(now - one.time).total_seconds() * 1000 for one in messages]
        self.consumed += len(messages)

    def _message(self) -> NewMessage:
        self.number += 1
        payload = {
            "payment_id": f"payment-{self.number % KEYS}",
            "wallet_id": "01900000-0000-7000-8000-000000000000",
            "amount": "990.00",
            "currency": "RUB",
        }
        key = f"payment-{self.number % KEYS}"
        return NewMessage(
            self.aggregate_type, key, "PaymentProcessing", self.number, payload, datetime.now(UTC)
        )


@asynccontextmanager
async def traffic_on(database: Database, url: str) -> AsyncIterator[Traffic]:
    """Traffic on a bus, in its own topic."""
    bus = open_bus(BusSettings(url=url))
    try:
        yield Traffic(database, bus, f"bench-{uuid4().hex[:8]}")
    finally:
        await bus.close()
