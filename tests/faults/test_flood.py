"""A flood of forgeries beside honest traffic, from other addresses (SEC-1, SEC-4, SEC-5)."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import asyncpg

from tests.faults.report import Experiment, Findings
from tests.faults.sizes import FORGERIES
from tests.support.servers import StartService
from tests.support.service import BASIC, SECRET, Service, paid, signature

CONFIG: Final = f"""{BASIC}
[limits]
unverified = "30/second"
verified_senders = "30/second"
[security]
ban_threshold = 100
[sources.noise]
provider = "tilda"
secrets = ["{SECRET}"]
"""
MAX_KEPT: Final = 60
"""How much evidence one address leaves in a minute."""
CONNECTIONS: Final = 16
PATIENCE_S: Final = 120.0


@dataclass(slots=True)
class Sender:
    """Somebody at an address of his own."""

    session: aiohttp.ClientSession
    url: str
    secret: str
    answers: Counter[int] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)

    async def send(self, name: str) -> int:
        body = json.dumps(paid(name)).encode()
        headers = {"content-type": "application/json", "x-signature": signature(body, self.secret)}
        async with self.session.post(self.url, data=body, headers=headers) as answer:
            await answer.read()
        if answer.status not in self.answers:
            self.order.append(answer.status)
        self.answers[answer.status] += 1
        return answer.status

    async def flood(self, name: str, number: int) -> None:
        """As fast as it goes."""
        left = iter(range(number))

        async def one_by_one() -> None:
            for one in left:
                await self.send(f"{name}-{one}")

        await asyncio.gather(*(one_by_one() for _ in range(CONNECTIONS)))

    async def send_until(self, status: int) -> None:
        """Go on until it is answered so. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.send("on and on") != status:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def sender(
    service: Service, address: str, secret: str = SECRET, source: str = "payments"
) -> AsyncIterator[Sender]:
    """Somebody who sends from this address, and connects anew when he is refused."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0), limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Sender(session, f"http://127.0.0.1:{service.port}/webhooks/{source}", secret)


async def test_a_flood_of_forgeries_is_limited_and_then_banned_and_costs_the_honest_nothing(
    start_service: StartService, database_url: str, full: bool, findings: Findings
) -> None:
    """SEC-1 SEC-4 SEC-5 SEC-8 REL-1"""
    number = FORGERIES.at(full)
    service = start_service(CONFIG)
    async with (
        sender(service, "127.0.0.2", "a guess") as forger,
        sender(service, "127.0.0.3") as gateway,
        sender(service, "127.0.0.4") as neighbour,
        sender(service, "127.0.0.4", "rotated", "noise") as mistaken,
    ):
        await neighbour.send("first")
        flood = asyncio.create_task(forger.flood("forged", number))
        trouble = asyncio.create_task(mistaken.flood("mistaken", number // 4))
        sent = 0
        while not (flood.done() and trouble.done()):
            await gateway.send(f"honest-{sent}")
            sent += 1
        await asyncio.gather(flood, trouble)
        await forger.send_until(403)
        await gateway.send("last")
    assert forger.order == [401, 429, 403]
    assert gateway.answers == {200: sent + 1}, "an honest delivery failed"
    assert set(mistaken.answers) == {401, 429}, "who has sent verified ones is never banned"
    kept = await _rows(
        database_url,
        "SELECT remote_address, count(*) AS number FROM webhook_events"
        " WHERE NOT signature_valid GROUP BY remote_address",
    )
    assert all(row["number"] <= 2 * MAX_KEPT for row in kept), kept  # in two minutes at most
    assert [row["address"] for row in await _rows(database_url, "SELECT * FROM bans")] == [
        "127.0.0.2"
    ]
    lines = service.log_lines(event="security")
    assert len(lines) < 30, "the log is not flooded either"
    findings.add(
        Experiment.FORGED,
        f"{forger.answers.total() + mistaken.answers.total():,} forgeries as fast as possible",
        f"answered {dict(sorted(forger.answers.items()))}; {sent + 1:,} honest deliveries "
        f"meanwhile, all answered 200",
    )


async def test_a_ban_made_by_one_process_is_enforced_by_all(
    start_service: StartService, database_url: str
) -> None:
    """SEC-4: and lifted by all."""
    service = start_service(CONFIG, arguments=("--processes", "2"))
    async with sender(service, "127.0.0.2", "a guess") as forger:
        await forger.send_until(403)
        await _until_all(forger, {403})
        lifted = await asyncio.to_thread(service.api, "DELETE", "/bans/127.0.0.2")
        assert lifted.http == 204
        await _until_all(forger, {401, 429})


async def _until_all(forger: Sender, expected: set[int]) -> None:
    """Wait until new connections, which the processes share, are all answered so."""
    async with asyncio.timeout(PATIENCE_S):
        while {await forger.send("again") for _ in range(24)} - expected:
            await asyncio.sleep(0.1)


async def _rows(url: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(sql))
    finally:
        await connection.close()
