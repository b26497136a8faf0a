"""A server that is being attacked while honest traffic goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.ledger import Ledger, processed
from tests.faults.load import Load
from tests.support.service import SECRET, Service

REQUEST_TIMEOUT_S: Final = 3.0
MAX_GROWTH_MB: Final = 48.0
HONEST_LIMIT: Final = 1_000_000  # as long as the attack lasts, at this pace
HONEST_PAUSE_S: Final = 0.2
WARM_UP_EVENTS: Final = 1_000
USERS: Final = [f"honest-{number}@example.com" for number in range(4)]

CONFIG: Final = f"""
environment = "development"
[server]
request_timeout_s = {REQUEST_TIMEOUT_S}
[limits]
unverified = ""
[security]
ban_threshold = 0
[sources.payments]
provider = "tilda"
secrets = ["{SECRET}"]
[sources.noise]
provider = "tilda"
secrets = ["{SECRET}"]
[plans.monthly]
price = "990.00"
currency = "RUB"
days = 30
default = true
"""


@dataclass(slots=True)
class Besieged:
    """The server, its database, and what honest senders have delivered to it so far."""

    service: Service
    database_url: str
    ledger: Ledger

    async def warm_up(self) -> None:
        """Let caches and the allocator grow as far as ordinary traffic makes them grow."""
        for email in USERS:
            await asyncio.to_thread(self.service.user, email)
        async with Load(self.service.port, self.ledger, WARM_UP_EVENTS) as load:
            await load.finish()

    @asynccontextmanager
    async def attacked(self) -> AsyncIterator["Losses"]:
        """Honest traffic beside the body; afterwards all of it counts, and memory is as before."""
        losses = Losses(self.ledger.deliveries, self._peak_mb(reset=True))
        async with Load(
            self.service.port, self.ledger, HONEST_LIMIT, pause_s=HONEST_PAUSE_S
        ) as load:
            yield losses
            await load.until_acknowledged(1)
            await load.finish(early=True)
        assert not self.ledger.refused, f"honest deliveries were refused: {self.ledger.refused}"
        await processed(self.database_url)
        await self.ledger.check(self.database_url, finished=True)
        losses.honest_deliveries = self.ledger.deliveries - losses.honest_deliveries
        losses.growth_mb = self._peak_mb() - losses.growth_mb
        assert losses.growth_mb < MAX_GROWTH_MB, f"the server grew by {losses.growth_mb:.0f} MB"
        assert self.service.process.poll() is None

    def _peak_mb(self, *, reset: bool = False) -> float:
        """The most memory that the server has had since the last reset."""
        process = Path(f"/proc/{self.service.process.pid}")
        if reset:
            (process / "clear_refs").write_text("5")
        (line,) = (
            line
            for line in (process / "status").read_text().splitlines()
            if line.startswith("VmHWM:")
        )
        return int(line.split()[1]) / 1024


@dataclass(slots=True)
class Losses:
    """What an attack cost: filled in when it is over."""

    honest_deliveries: int
    growth_mb: float

    def __str__(self) -> str:
        return (
            f"{self.honest_deliveries:,} honest deliveries served meanwhile; "
            f"the server's memory grew by {max(self.growth_mb, 0):.0f} MB at its peak"
        )
