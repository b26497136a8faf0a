"""Workers are killed while they settle; the others go on with what they had in hand."""

import asyncio
import random
import signal
import statistics
import time
from typing import Final

from tests.faults.ledger import Ledger, processed, waiting
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import WORKER_KILLS
from tests.support.servers import StartService
from tests.support.service import BASIC, Service

USERS: Final = [f"worked-{number}@example.com" for number in range(4)]
CONFIG: Final = f'{BASIC}\n[server]\nmode = "queued"\n'
EVENTS_A_ROUND: Final = 150
MAX_ATTEMPTS: Final = 20
STABLE_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.05


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
    for _ in range(kills):
        victim = workers.pop(dice.randrange(len(workers)))
        left.append(await _stopped_with_events_in_hand(victim, service, ledger, database_url, dice))
        victim.process.kill()
        began_s = time.monotonic()
        await processed(database_url)
        took_s.append(time.monotonic() - began_s)
        await ledger.check(database_url, finished=True)
        workers.append(await asyncio.to_thread(start_worker, CONFIG))
    await deliver_all(service.port, ledger)
    found = await ledger.check(database_url, finished=True)
    findings.add(
        Experiment.WORKERS_KILLED,
        f"{kills} times, {ledger.deliveries:,} deliveries of {len(ledger.said):,} events, queued",
        f"{found.applied:,} payments applied once each; {statistics.mean(left):.0f} events (mean) "
        f"that it had claimed or locked were processed by another within "
        f"{statistics.median(took_s):.2f} s (median; at most {max(took_s):.2f} s)",
    )


async def _stopped_with_events_in_hand(
    worker: Service, service: Service, ledger: Ledger, database_url: str, dice: random.Random
) -> int:
    """Stop the worker in the middle of its work; returns how many events it holds up."""
    for attempt in range(MAX_ATTEMPTS):
        async with Load(service.port, ledger, EVENTS_A_ROUND, seed=attempt) as load:
            await load.until_acknowledged(dice.randrange(10, EVENTS_A_ROUND // 2))
            worker.process.send_signal(signal.SIGSTOP)
            await load.finish()
        held = await _held_up(database_url)
        if held:
            return held
        worker.process.send_signal(signal.SIGCONT)
    raise AssertionError(f"it had nothing in hand, {MAX_ATTEMPTS} times")


async def _held_up(database_url: str) -> int:
    """How many events nobody else settles: none are left, or none were settled for a while."""
    before, since_s = -1, time.monotonic()
    while (left := len(await waiting(database_url))) and time.monotonic() - since_s < STABLE_S:
        if left != before:
            before, since_s = left, time.monotonic()
        await asyncio.sleep(LOOK_AGAIN_S)
    return left
