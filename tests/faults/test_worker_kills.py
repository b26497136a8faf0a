"""Workers are killed while they settle; the others go on with what they had in hand."""

import asyncio
import random
import statistics
import time
from typing import Final

import asyncpg

from tests.conftest import StartService
from tests.faults.ledger import Ledger, settled
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import WORKER_KILLS
from tests.service import BASIC

USERS: Final = [f"worked-{number}@example.com" for number in range(4)]
CONFIG: Final = f'{BASIC}\n[server]\nmode = "queued"\n'
EVENTS_A_ROUND: Final = 300


async def test_what_a_killed_worker_had_in_hand_is_settled_by_the_others(
    start_service: StartService,
    start_worker: StartService,
    database_url: str,
    full: bool,
    findings: Findings,
) -> None:
    """REL-1 RET-4 PAY-3: there is no lease to wait for."""
    service = start_service(CONFIG, arguments=("--roles", "web"))
    workers = [start_worker(CONFIG) for _ in range(2)]
    for email in USERS:
        service.user(email)
    ledger, dice = Ledger("worked", USERS), random.Random(5)
    kills, left, took_s = WORKER_KILLS.at(full), list[int](), list[float]()
    for kill in range(kills):
        async with Load(service.port, ledger, EVENTS_A_ROUND, seed=kill) as load:
            target = dice.randrange(EVENTS_A_ROUND // 3, EVENTS_A_ROUND)
            await load.until_acknowledged(target)
            victim = workers.pop(dice.randrange(len(workers)))
            victim.process.kill()
            left.append(await _waiting(database_url))
            await load.finish()
            began_s = time.monotonic()
            await settled(database_url)
            took_s.append(time.monotonic() - began_s)
        await ledger.check(database_url, finished=True)
        workers.append(await asyncio.to_thread(start_worker, CONFIG))
    await deliver_all(service.port, ledger)
    found = await ledger.check(database_url, finished=True)
    assert sum(left) > 0, "no worker had anything to do when it was killed"
    findings.add(
        Experiment.WORKERS_KILLED,
        f"{kills} times, {ledger.deliveries:,} deliveries of {len(ledger.said):,} events, queued",
        f"{found.applied:,} payments applied once each; {statistics.mean(left):.0f} events waited "
        f"at the kill (mean), all were settled {max(took_s):.2f} s after the last delivery at most",
    )


async def _waiting(database_url: str) -> int:
    connection = await asyncpg.connect(database_url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM due"))
    finally:
        await connection.close()
