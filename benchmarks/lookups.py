"""Paidonce while it also makes lookups at a slow gateway: does that slow its other sources?

The load is the same, on the same source. At the same time a second source receives a steady stream
of PortOne webhooks for existing orders. Each needs a lookup, which the gateway answers slowly.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

from benchmarks.contender import LOAD_GRACE_S, HttpServer, Load, Running
from benchmarks.contenders import Paidonce
from benchmarks.load import LoadResult
from benchmarks.meter import Marks
from benchmarks.portone_orders import (
    API_SECRET,
    ORDERS_PER_S,
    SECRET,
    Stream,
    create_orders,
    orders_paid,
    wait_until_paid,
)
from benchmarks.slow_gateway import slow_gateway

SOURCE = "portone"


class WithLookups(Paidonce):
    """`paidonce serve` with a second source that needs lookups."""

    name = "lookups"
    title = "Paidonce, with lookups at a slow gateway"
    once = True
    # The load's own payments name no order.
    applied_query = f"{Paidonce.applied_query} AND order_reference IS NULL"

    async def prepare(self, url: str, *, users: int, work_dir: Path) -> None:
        """Prepare as Paidonce alone, without the second source."""
        await Paidonce().prepare(url, users=users, work_dir=work_dir)

    @asynccontextmanager
    async def running(  # type: ignore[override]
        self, url: str, *, work_dir: Path
    ) -> AsyncIterator[Running]:
        """Run the server and the gateway."""
        async with (
            slow_gateway() as gateway_url,
            self.serving(url, work_dir=work_dir, settings=_source(gateway_url)) as server,
        ):
            yield LookupsServer(server.pid, server, url)


@dataclass(frozen=True, slots=True)
class LookupsServer(Running):
    """A server that also receives webhooks that need a lookup."""

    pid: int
    server: HttpServer
    url: str

    async def drive(self, load: Load, meter: Marks | None) -> LoadResult:
        """Send the load and the stream, and wait until all orders are paid."""
        longest_s = load.warmup_s + load.seconds + LOAD_GRACE_S
        references = await create_orders(self.url, longest_s)
        stream = Stream(port=self.server.port, path=f"/webhooks/{SOURCE}", references=references)
        measured = Measured(meter, stream)
        async with stream.flowing():
            result = await self.server.drive(load, measured)
        paid_at = await wait_until_paid(self.url, stream)
        return replace(
            result,
            client_cpu_s=result.client_cpu_s + measured.cpu_s,
            orders=orders_paid(stream.sent_at, paid_at, measured.references),
        )


class Measured:
    """The orders sent in the measured time, and the CPU time of the stream and the gateway."""

    def __init__(self, meter: Marks | None, stream: Stream) -> None:
        self._meter = meter
        self._stream = stream
        self._sent_before = 0
        self.references: list[str] = []
        self.cpu_s = 0.0

    async def begin(self) -> None:
        """The measured time begins."""
        self._sent_before = len(self._stream.sent_at)
        self.cpu_s = -process_time()
        if self._meter is not None:
            await self._meter.begin()

    async def end(self) -> None:
        """The measured time is over."""
        if self._meter is not None:
            await self._meter.end()
        self.cpu_s += process_time()
        self.references = list(self._stream.sent_at)[self._sent_before :]


def _source(gateway_url: str) -> str:
    """The settings of the second source. Its rate does not limit the stream."""
    return f"""\
[sources.{SOURCE}]
provider = "portone"
secrets = ["{SECRET}"]
api_secret = "{API_SECRET}"
api_url = "{gateway_url}"
lookup_rate = {5 * ORDERS_PER_S}
"""
