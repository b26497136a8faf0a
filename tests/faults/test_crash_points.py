"""The process dies at each named moment, at a time and under a load drawn from a seed."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from paidonce.crashpoints import Point
from tests.faults.ledger import Ledger, settled
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import CRASH_SEEDS
from tests.service import BASIC, Service, started_service

USERS: Final = [f"crash-{number}@example.com" for number in range(4)]
LATE_USERS: Final = [f"late-{number}@example.com" for number in range(4)]
EVENTS: Final = 3_000  # more than are needed to reach the moment
DEATH_TIMEOUT_S: Final = 30.0
MODES: Final = ("inline", "queued")
ONLY_QUEUED: Final = (Point.CLAIMED, Point.WORKED)
PASSED_OFTEN: Final = (Point.VERIFIED, Point.ANSWERED)  # by each delivery, not by each batch
SIGKILLED: Final = -9


class Mortal:
    """A service that is started with a moment to die at, or without."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self._database_url = database_url
        self._service: Service | None = None

    async def start(self, mode: str, crash_at: str | None = None) -> Service:
        config = f'{BASIC}\n[server]\nmode = "{mode}"\n'
        environment = {} if crash_at is None else {"PAIDONCE_CRASH_AT": crash_at}
        port = 0 if self._service is None else self._service.port
        self._service = await asyncio.to_thread(
            started_service, self._folder, self._database_url, config, environment, port=port
        )
        return self._service

    async def die(self) -> None:
        """Wait until it has died as it was told to."""
        assert self._service is not None
        code = await asyncio.to_thread(self._service.process.wait, DEATH_TIMEOUT_S)
        assert code == SIGKILLED, f"it ended with {code}"

    def end(self) -> None:
        if self._service is not None:
            self._service.end()


@pytest.fixture
def mortal(tmp_path: Path, database_url: str) -> Iterator[Mortal]:
    mortal = Mortal(tmp_path, database_url)
    yield mortal
    mortal.end()


@pytest.mark.parametrize("point", [point for point in Point if point is not Point.CREATED])
async def test_nothing_is_lost_or_done_twice_when_the_process_dies(
    point: Point, mortal: Mortal, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 REC-2 PAY-3"""
    service = await mortal.start("inline")
    for email in USERS:
        service.user(email)
    service.end()
    ledger, seeds, kept, gone = Ledger(f"crash-{point}", USERS), CRASH_SEEDS.at(full), 0, 0
    for seed in range(seeds):
        dice = random.Random(f"{point} {seed}")
        mode = "queued" if point in ONLY_QUEUED else dice.choice(MODES)
        number = dice.randrange(1, 200) if point in PASSED_OFTEN else dice.randrange(2, 12)
        service = await mortal.start(mode, f"{point}:{number}")
        async with Load(service.port, ledger, EVENTS, seed=seed) as load:
            await mortal.die()
        unanswered = ledger.told.keys() - ledger.acknowledged
        found = await ledger.check(database_url, finished=False)
        kept += len(unanswered & found.stored)
        gone += len(unanswered - found.stored)
    service = await mortal.start("inline")
    await deliver_all(service.port, ledger)
    await settled(database_url)
    found = await ledger.check(database_url, finished=True)
    findings.add(
        Experiment.CRASH_POINTS,
        f"`{point}`, {seeds} times, {len(ledger.said):,} events",
        f"{found.applied:,} payments applied once each; of {kept + gone:,} events that were under "
        f"way {kept:,} were stored whole, {gone:,} not at all",
    )


async def test_a_user_that_was_not_created_whole_is_not_created(
    mortal: Mortal, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 PAY-5: the payments of that user wait, and are applied when it is created again."""
    ledger, seeds = Ledger("crash-created", LATE_USERS), CRASH_SEEDS.at(full)
    for seed in range(seeds):
        number = random.Random(f"created {seed}").randrange(1, len(LATE_USERS) + 1)
        service = await mortal.start("inline", f"{Point.CREATED}:{number}")
        async with Load(service.port, ledger, 50, seed=seed) as load:
            await load.finish()
            with pytest.raises(OSError):  # noqa: PT011 - refused or cut, as it happens
                for email in LATE_USERS:
                    await asyncio.to_thread(service.user, email)
            await mortal.die()
    service = await mortal.start("inline")
    for email in LATE_USERS:
        await asyncio.to_thread(service.user, email)
    await deliver_all(service.port, ledger)
    await settled(database_url)
    found = await ledger.check(database_url, finished=True)
    findings.add(
        Experiment.CRASH_POINTS,
        f"`{Point.CREATED}`, {seeds} times, {len(ledger.said):,} events",
        f"{found.applied:,} payments applied once each",
    )
