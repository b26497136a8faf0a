"""The process dies at each named moment, at a time and under a load drawn from a seed."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from paidonce.runtime.crashpoints import CrashPoint
from tests.faults.ledger import Ledger, processed
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import CRASH_SEEDS
from tests.support.service import BASIC, Service, started_service

USERS: Final = [f"crash-{number}@example.com" for number in range(4)]
EVENTS_OF_LATE_USERS: Final = 50
EVENTS: Final = 3_000  # more than are needed to reach the moment
DEATH_TIMEOUT_S: Final = 120.0
MODES: Final = ("inline", "queued")
ELSEWHERE: Final = (
    CrashPoint.CREATED,
    CrashPoint.LOOKED_UP,
    CrashPoint.HOOKS_CALLED,
    CrashPoint.REPLAYED,
    CrashPoint.RESERVED,
    CrashPoint.CALLING,
    CrashPoint.CALLED,
    CrashPoint.CALLBACK_APPLIED,
    CrashPoint.ANSWER_SAVED,
    CrashPoint.NOTIFIED,
    CrashPoint.RELAY_READ,
    CrashPoint.FETCHED,
    CrashPoint.CONSUMED,
    CrashPoint.CONSUMED_COMMITTED,
    CrashPoint.ARCHIVE_WRITTEN,
    CrashPoint.ARCHIVE_NAMED,
    CrashPoint.ARCHIVED,
)  # where no delivery of this load comes
POINTS: Final = [point for point in CrashPoint if point not in ELSEWHERE]
ONLY_QUEUED: Final = (CrashPoint.CLAIMED, CrashPoint.WORKER_COMMITTED)
PASSED_OFTEN: Final = (
    CrashPoint.VERIFIED,
    CrashPoint.ANSWERED,
)  # by each delivery, not by each batch
GUARDED_EVENTS: Final = 128
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


async def test_nothing_is_lost_or_done_twice_when_the_process_dies(
    mortal: Mortal, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 REC-2 PAY-3: each moment in turn, each start going on where the last one died."""
    ledger, seeds = Ledger("crash", USERS), CRASH_SEEDS.at(full)
    kept, gone = Counter[CrashPoint](), Counter[CrashPoint]()
    for seed, point in product(range(seeds), POINTS):
        dice = random.Random(f"{point} {seed}")
        mode = "queued" if point in ONLY_QUEUED else dice.choice(MODES)
        number = _passing(point, seed, dice)
        service = await mortal.start(mode, f"{point}:{number}")
        if not ledger.said:
            await _create(service, USERS)
        async with Load(service.port, ledger, EVENTS, seed=seed):
            await mortal.die()
        unanswered = ledger.told.keys() - ledger.acknowledged
        after = f"{point}:{number}, {mode}, seed {seed}"
        found = await ledger.check(database_url, finished=False, after=after)
        kept[point] += len(unanswered & found.stored)
        gone[point] += len(unanswered - found.stored)
    service = await mortal.start("inline")
    await deliver_all(service.port, ledger)
    await processed(database_url)
    found = await ledger.check(database_url, finished=True)
    for point in POINTS:
        findings.add(
            Experiment.CRASH_POINTS,
            f"`{point}`, {seeds} times",
            f"of {kept[point] + gone[point]:,} events in progress {kept[point]:,} were stored "
            f"completely, {gone[point]:,} not at all",
        )
    findings.add(
        Experiment.CRASH_POINTS,
        f"all of these, {ledger.deliveries:,} deliveries of {len(ledger.said):,} events",
        f"{found.applied:,} payments applied once each",
    )


async def test_a_user_that_was_not_created_whole_is_not_created(
    mortal: Mortal, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 PAY-5: the payments of that user wait, and are applied when it is created again."""
    ledger, seeds = Ledger("created", []), CRASH_SEEDS.at(full)
    late = [[f"late-{seed}-{one}@example.com" for one in range(4)] for seed in range(seeds)]
    for seed, users in enumerate(late):
        ledger.emails = users
        number = random.Random(f"created {seed}").randrange(1, len(users) + 1)
        service = await mortal.start("inline", f"{CrashPoint.CREATED}:{number}")
        async with Load(service.port, ledger, EVENTS_OF_LATE_USERS, seed=seed) as load:
            await load.finish()
            with suppress(OSError):
                await _create(service, users)
            await mortal.die()
    service = await mortal.start("inline")
    for users in late:
        await _create(service, users)
    await deliver_all(service.port, ledger)
    await processed(database_url)
    found = await ledger.check(database_url, finished=True)
    findings.add(
        Experiment.CRASH_POINTS,
        f"`{CrashPoint.CREATED}`, {seeds} times, {len(ledger.said):,} events",
        f"{found.applied:,} payments applied once each",
    )


def _passing(point: CrashPoint, seed: int, dice: random.Random) -> int:
    """Which passing of the moment is the last."""
    if point in PASSED_OFTEN:
        return dice.randrange(1, 200)
    # A worker settles what it finds at its start one by one, and only then in batches.
    first = GUARDED_EVENTS if point in ONLY_QUEUED and seed % 2 else 0
    return first + dice.randrange(2, 12)


async def _create(service: Service, emails: Sequence[str]) -> None:
    for email in emails:
        await asyncio.to_thread(service.user, email)
