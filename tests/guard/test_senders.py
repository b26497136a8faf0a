"""Bans and known addresses, shared by processes through their tables."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
import structlog

from paidonce.core.actors import HOST
from paidonce.core.events import SourceId
from paidonce.db.pool import Database, open_database
from paidonce.errors import NotFoundError
from paidonce.guard.bans import BanPolicy, Suspicion
from paidonce.guard.model import BanQuery
from paidonce.guard.security_log import SecurityLog
from paidonce.guard.senders import SenderRecords
from paidonce.guard.service import BanService
from paidonce.runtime.service import Supervisor
from tests.support.postgres import SCHEMA

POLICY = BanPolicy(threshold=3.0, half_life_s=600.0, first_s=600.0, longest_s=2_400.0)
SOURCE, OTHER = SourceId(1), SourceId(2)
FORGER = "192.0.2.66"
BAD = Suspicion.BAD_SIGNATURE

Process = Callable[[], SenderRecords]


@pytest.fixture
def process(database: Database) -> Process:
    """Makes what each process has."""
    return lambda: SenderRecords(database, POLICY, SecurityLog())


@pytest.fixture
def verbs(database: Database) -> BanService:
    """What an operator can do; bans need no rules."""
    return BanService(database)


def forge(here: SenderRecords, address: str = FORGER, times: int = 4) -> None:
    for _ in range(times):
        here.suspect(address, BAD)


async def test_a_ban_counts_at_once_here_and_then_everywhere(process: Process) -> None:
    """SEC-4: also for a process that starts later."""
    here, there = process(), process()
    await there.run_once()
    forge(here, times=2)
    assert not here.is_banned(FORGER)
    forge(here, times=2)
    assert here.is_banned(FORGER)
    assert not there.is_banned(FORGER)
    await here.run_once()
    await there.run_once()
    assert there.is_banned(FORGER)
    assert not there.is_banned("192.0.2.67")
    later = process()
    await later.run_once()
    assert later.is_banned(FORGER)
    assert 590 < later.bans.left_s(FORGER) <= 600


async def test_bans_grow_when_they_are_repeated_and_only_then(
    process: Process, verbs: BanService, database: Database
) -> None:
    """SEC-4: a ban that ended a week ago, or that was lifted, makes none longer."""

    async def banned_again(ended_ago: timedelta) -> tuple[int, timedelta]:
        async with database.connection() as connection:
            await connection.execute(
                "UPDATE bans SET banned_at = now() - $1::interval - interval '1 hour',"
                " until = now() - $1::interval",
                ended_ago,
            )
        here = process()
        forge(here)
        await here.run_once()
        (ban,) = (await verbs.search(BanQuery(limit=10))).items
        return ban.times, ban.until - ban.banned_at

    moment, minutes = timedelta(seconds=1), timedelta(minutes=10)
    assert await banned_again(moment) == (1, minutes)
    assert await banned_again(moment) == (2, 2 * minutes)
    assert await banned_again(moment) == (3, 4 * minutes)
    assert await banned_again(moment) == (4, 4 * minutes)
    assert await banned_again(timedelta(days=8)) == (1, minutes)
    await verbs.lift(FORGER, HOST)
    assert await banned_again(moment) == (1, minutes)


async def test_an_address_of_verified_deliveries_is_never_banned(
    process: Process, verbs: BanService
) -> None:
    """SEC-4: whichever process has seen them, before or after the ban."""
    here, there = process(), process()
    assert here.verified(FORGER, SOURCE)
    assert not here.verified(FORGER, SOURCE), "once a day is enough"
    assert here.has_sent_to(FORGER, SOURCE)
    assert not here.has_sent_to(FORGER, OTHER), "it is known for one source"
    forge(here, times=100)
    assert not here.is_banned(FORGER)
    await here.run_once()
    forge(there, times=100)
    assert there.is_banned(FORGER), "it has not heard of it yet"
    await there.run_once()
    assert there.is_verified_sender(FORGER)
    assert not there.is_banned(FORGER)
    assert (await verbs.search(BanQuery(limit=10))).items == []
    later = process()
    await later.run_once()
    assert later.is_verified_sender(FORGER)


async def test_lifting_a_ban_forgets_everything_everywhere(
    process: Process, verbs: BanService, database: Database
) -> None:
    """SEC-4 OPS-5 OBS-4"""
    here, there = process(), process()
    forgotten: list[str] = []
    here.bans.on_lifted = there.bans.on_lifted = forgotten.append
    forge(here)
    forge(there, times=2)
    await here.run_once()
    await there.run_once()
    with pytest.raises(NotFoundError):
        await verbs.lift("192.0.2.67", HOST)
    await verbs.lift(FORGER, HOST)
    with pytest.raises(NotFoundError):
        await verbs.lift(FORGER, HOST)
    for _ in range(2):
        await here.run_once()
        await there.run_once()
    assert forgotten == [FORGER, FORGER]
    forge(there, times=2)
    assert not there.is_banned(FORGER), "its score was forgotten as well"
    assert not here.is_banned(FORGER)
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT actor, action FROM audit_log ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("paidonce", "address_banned"),
        ("host", "ban_lifted"),
    ]


async def test_bans_are_listed_page_by_page(process: Process, verbs: BanService) -> None:
    """OPS-5"""
    here = process()
    for number in range(3):
        forge(here, f"192.0.2.{number}")
    await here.run_once()
    first = await verbs.search(BanQuery(limit=2))
    second = await verbs.search(BanQuery(limit=2, cursor=first.next_cursor))
    assert [ban.address for ban in first.items + second.items] == [
        "192.0.2.0",
        "192.0.2.1",
        "192.0.2.2",
    ]
    assert {ban.reason for ban in first.items} == {"bad_signature"}
    assert await verbs.count() == 3


async def test_without_the_database_bans_and_known_addresses_count_here(database_url: str) -> None:
    """SEC-4: and nothing is raised into whoever asks."""
    away = await open_database(database_url, SCHEMA)
    await away.close()
    here = SenderRecords(away, POLICY, SecurityLog())
    forge(here)
    here.verified("192.0.2.1", SOURCE)
    with structlog.testing.capture_logs() as lines:
        async with Supervisor(here).running() as supervisor, asyncio.timeout(60):
            while not supervisor.degraded:
                await asyncio.sleep(0.01)
            assert here.is_banned(FORGER)
            assert here.is_verified_sender("192.0.2.1")
    assert lines[0]["event"] == "service_interrupted"
