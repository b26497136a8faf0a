"""The server is killed again and again while it is being delivered to."""

import asyncio
import random
from collections.abc import Iterator
from typing import Final

import pytest

from tests.faults.ledger import Ledger, processed
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import SERVER_KILLS
from tests.support.servers import StartService
from tests.support.service import Service, started_service

USERS: Final = [f"killed-{number}@example.com" for number in range(4)]
EVENTS_A_ROUND: Final = 150


class Killable:
    """A server that is started again on its port after each kill."""

    def __init__(self, service: Service, database_url: str) -> None:
        self.service = service
        self._database_url = database_url

    async def kill(self) -> None:
        self.service.process.kill()
        await asyncio.to_thread(self.service.process.wait, 10)

    async def start_again(self) -> None:
        self.service = await asyncio.to_thread(
            started_service, self.service.folder, self._database_url, port=self.service.port
        )


@pytest.fixture
def killable(start_service: StartService, database_url: str) -> Iterator[Killable]:
    killable = Killable(start_service(), database_url)
    yield killable
    killable.service.end()


async def test_a_server_killed_under_load_loses_nothing_and_applies_nothing_twice(
    killable: Killable, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 REC-2 PAY-3"""
    ledger, dice = Ledger("kill", USERS), random.Random(1)
    for email in USERS:
        killable.service.user(email)
    kills, kept, gone = SERVER_KILLS.at(full), 0, 0
    for kill in range(kills):
        target = dice.randrange(10, EVENTS_A_ROUND // 2)
        async with Load(killable.service.port, ledger, EVENTS_A_ROUND, seed=kill) as load:
            await load.until_acknowledged(target)
            await killable.kill()
            unanswered = ledger.told.keys() - ledger.acknowledged
            found = await ledger.check(database_url, finished=False)
            kept += len(unanswered & found.stored)
            gone += len(unanswered - found.stored)
            await killable.start_again()
            await load.finish()
    await deliver_all(killable.service.port, ledger)
    await processed(database_url)
    found = await ledger.check(database_url, finished=True)
    assert gone + kept > 0, "nothing was in progress when the server was killed"
    findings.add(
        Experiment.SERVER_KILLED,
        f"{kills} times, {ledger.deliveries:,} deliveries of {len(ledger.said):,} events",
        f"{found.applied:,} payments applied once each; of {gone + kept:,} events in "
        f"progress {kept:,} were stored completely, {gone:,} not at all",
    )
