"""PostgreSQL dies under load, or lets go of its clients; the service outlives it."""

import asyncio
import random
import signal
import statistics
import time
from pathlib import Path
from typing import Final

import asyncpg

from paidonce.db.embedded import files
from tests.faults.clusters import kill_postmaster, own_cluster, own_folder
from tests.faults.ledger import Ledger, processed
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import CONNECTION_CUTS, DATABASE_KILLS, SUPERVISED_KILLS
from tests.support.servers import StartService
from tests.support.service import Service, started_service

USERS: Final = [f"away-{number}@example.com" for number in range(4)]
EVENTS_A_ROUND: Final = 150
TURNED_AWAY: Final = 20  # so many answers 503 are waited for before the database comes back
RETURN_TIMEOUT_S: Final = 120.0
EVENTS_A_CUT: Final = 200  # more than can be sent at this pace
PAUSE_S: Final = 0.1
CUT_EVERY_S: Final = 0.2
EVENTS_AFTERWARDS: Final = 100


async def test_a_database_stopped_under_load_costs_nothing_that_was_acknowledged(
    tmp_path: Path, full: bool, findings: Findings
) -> None:
    """REL-1 REC-2 REC-5: 503 while it is away, and back by itself when it returns."""
    kills, away_s = DATABASE_KILLS.at(full), list[float]()
    async with own_cluster() as cluster:
        service = await asyncio.to_thread(started_service, tmp_path, cluster.url)
        try:
            ledger, dice = _ledger("away", service), random.Random(2)
            for kill in range(kills):
                async with Load(service.port, ledger, EVENTS_A_ROUND, seed=kill) as load:
                    await load.until_acknowledged(dice.randrange(10, EVENTS_A_ROUND // 2))
                    await cluster.stop_immediately()
                    await _turned_away(load)
                    await cluster.start()
                    away_s.append(await _time_to_return(load))
                    await ledger.check(cluster.url, finished=False)
                    await load.finish()
            await _finish(service, ledger, cluster.url)
        finally:
            service.end()
    findings.add(
        Experiment.DATABASE_KILLED,
        f"{kills} times, {ledger.deliveries:,} deliveries of {len(ledger.said):,} events",
        f"nothing lost, nothing applied twice; {ledger.refused['503']:,} answers 503; first "
        f"answer 200 {statistics.median(away_s):.2f} s after its return (median; at most "
        f"{max(away_s):.2f} s)",
    )


async def test_the_embedded_database_is_started_again_when_it_dies(
    full: bool, findings: Findings
) -> None:
    """REL-1 §15: the embedded database is supervised."""
    kills, away_s = SUPERVISED_KILLS.at(full), list[float]()
    with own_folder() as folder:
        service = await asyncio.to_thread(started_service, folder, "embedded")
        try:
            ledger = _ledger("supervised", service)
            for kill in range(kills):
                async with Load(service.port, ledger, EVENTS_A_ROUND, seed=kill) as load:
                    await load.until_acknowledged(EVENTS_A_ROUND // 3)
                    await kill_postmaster(folder / ".paidonce", signal.SIGKILL)
                    away_s.append(await _time_to_return(load))
                    await load.finish()
            await _finish(service, ledger, files.locate(folder / ".paidonce").dsn)
        finally:
            service.end()
    findings.add(
        Experiment.SUPERVISED_KILLED,
        f"{kills} times, {ledger.deliveries:,} deliveries of {len(ledger.said):,} events",
        f"nothing lost, nothing applied twice; first answer 200 "
        f"{statistics.median(away_s):.2f} s after its death (median; at most {max(away_s):.2f} s)",
    )


async def test_an_embedded_database_that_could_not_be_started_is_tried_again() -> None:
    """REL-1 §15: what kept it from starting may pass, such as a full disk."""
    with own_folder() as folder:
        service = await asyncio.to_thread(started_service, folder, "embedded")
        try:
            ledger = _ledger("again", service)
            settings = folder / ".paidonce" / "postgres" / "cluster" / "postgresql.conf"
            right = settings.read_text()
            settings.write_text(right + "no_such_setting = 1\n")
            await kill_postmaster(folder / ".paidonce", signal.SIGKILL)
            async with Load(service.port, ledger, EVENTS_A_ROUND) as load:
                failed = {"event": "service_interrupted", "service": "embedded database"}
                await load.until(lambda: bool(service.log_lines(**failed)))
                settings.write_text(right)
                await load.finish()
            await _finish(service, ledger, files.locate(folder / ".paidonce").dsn)
        finally:
            service.end()


async def test_connections_cut_at_random_are_replaced_and_cost_nothing(
    start_service: StartService, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 REC-2 REC-5: afterwards nobody is turned away any more."""
    service = await asyncio.to_thread(start_service)
    ledger, cuts = _ledger("cut", service), CONNECTION_CUTS.at(full)
    async with Load(service.port, ledger, cuts * EVENTS_A_CUT, pause_s=PAUSE_S) as load:
        cut = await _cut_connections(database_url, cuts)
        await load.finish(early=True)
    turned_away = ledger.refused["503"]
    async with Load(service.port, ledger, EVENTS_AFTERWARDS) as load:
        await load.finish()
    assert ledger.refused["503"] == turned_away, "still 503 when nothing was cut any more"
    await _finish(service, ledger, database_url)
    assert service.request("GET", "/readyz").http == 200
    findings.add(
        Experiment.CONNECTIONS_CUT,
        f"{cut} connections, one every {CUT_EVERY_S * 1000:.0f} ms, {ledger.deliveries:,} "
        f"deliveries of {len(ledger.said):,} events",
        f"nothing lost, nothing applied twice; {turned_away:,} answers 503, none afterwards",
    )


def _ledger(name: str, service: Service) -> Ledger:
    for email in USERS:
        service.user(email)
    return Ledger(name, USERS)


async def _turned_away(load: Load) -> None:
    before = load.ledger.refused["503"]
    await load.until(lambda: load.ledger.refused["503"] >= before + TURNED_AWAY)


async def _time_to_return(load: Load) -> float:
    """How long it takes until something is acknowledged again."""
    before, began_s = load.acknowledged, time.monotonic()
    async with asyncio.timeout(RETURN_TIMEOUT_S):
        await load.until_acknowledged(before + 1)
    return time.monotonic() - began_s


async def _cut_connections(database_url: str, cuts: int) -> int:
    """Cut one of the service's connections at a time; returns how many there were to cut."""
    dice, done = random.Random(3), 0
    connection = await asyncpg.connect(database_url)
    service = """SELECT pid FROM pg_stat_activity
                  WHERE datname = current_database() AND pid <> pg_backend_pid()
                    AND backend_type = 'client backend' ORDER BY pid"""
    for _ in range(cuts):
        pids = [row["pid"] for row in await connection.fetch(service)]
        if pids:
            done += await connection.fetchval("SELECT pg_terminate_backend($1)", dice.choice(pids))
        await asyncio.sleep(CUT_EVERY_S)
    await connection.close()
    return done


async def _finish(service: Service, ledger: Ledger, database_url: str) -> None:
    await deliver_all(service.port, ledger)
    await processed(database_url)
    await ledger.check(database_url, finished=True)
