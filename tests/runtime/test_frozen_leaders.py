"""A process that is frozen loses its leader roles, and does nothing in them when it continues."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from paidonce.bootstrap.services import Services
from paidonce.bus import outbox
from paidonce.bus.model import NewMessage
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.events.model import EventFilter
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification
from paidonce.processing.transactions import Processor
from paidonce.reconciliation.model import ReconciliationRequest
from paidonce.replay.model import ReplayRequest
from tests.lookup.test_lookup import look
from tests.reconciliation.test_reconciliation import ME, SINCE
from tests.runtime.roles_process import CHANNEL, EFFECTS, rules_of
from tests.support.batches import Stage, stage
from tests.support.lookup_gateway import Gateway, gateway_running
from tests.support.portone_server import LIST, PortOneGateway

ROOT: Final = Path(__file__).parents[2]
DEADLINE_S: Final = 120.0
PAYMENTS: Final = 400
ROLES: Final = ("relay", "notifier", "replay", "reconciliation", "lookup")
BY_PROCESS: Final = "SELECT process, min(id) AS first, max(id) AS last FROM effects GROUP BY 1"


@dataclass(frozen=True)
class RolesProcess:
    """A process in all roles, and the lines that it has written."""

    path: Path
    process: subprocess.Popen[bytes]

    @property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").split() if self.path.exists() else []

    def has_worked(self, since: int = 0) -> bool:
        """Whether it has done something in each role."""
        return set(ROLES) <= set(self.lines[since:])

    @property
    def log(self) -> str:
        return self.path.with_suffix(".log").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Takeover:
    """What two processes did, of which the first was frozen and continued."""

    frozen: RolesProcess
    other: RolesProcess
    lines_frozen: int
    """How many lines the first one had written when it was frozen."""
    rows: dict[str, tuple[int, int]]
    """The first and last row that the janitor of each process wrote."""


@contextmanager
def started(name: str, folder: Path, database: Database, *urls: str) -> Iterator[RolesProcess]:
    path = folder / name
    arguments = [sys.executable, "-u", "-m", "tests.runtime.roles_process", name, str(folder)]
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*arguments, database.url, *urls], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield RolesProcess(path, process)
    finally:
        process.kill()
        process.wait()


async def prepare(database: Database, gateway: Gateway, korea: PortOneGateway) -> Services:
    """Work for hours: a slow replay, and gateways that do not answer."""
    rules = await rules_of(database, gateway.api, korea.url)
    shop = await stage(database)
    async with database.connection() as connection:
        await connection.execute(EFFECTS)
    await shop.user("p@example.com")
    processor = Processor(database, rules)
    for first in range(0, PAYMENTS, 100):
        numbers = range(first, first + 100)
        await processor.process([shop.paid(f"p-{n}", email="p@example.com") for n in numbers])
    source = next(one for one in rules.sources.values() if one.name == "looking")
    gateway.scripts["asked"] = gateway.hang
    await processor.process([look(Stage(database, rules, source), "asked")])
    await processor.close()
    korea.delay(LIST, DEADLINE_S * 10)
    services = Services(database, rules)
    replay = ReplayRequest(filter=EventFilter(source="plain"), dry_run=False, rate=3)
    await services.replays.create(replay, ME, wait_s=0)
    await services.reconciliations.start(ReconciliationRequest(source="kr", since=SINCE), ME)
    return services


async def notify_often(database: Database) -> None:
    """Write a notification, and a message for the bus, now and then."""
    notification = Notification(NotificationKind.CONFLICT, datetime.now(UTC))
    while True:
        async with database.transaction() as connection:
            routes = {NotificationKind.CONFLICT: [CHANNEL]}
            await notifications_store.add(connection, routes, notification)
            now = datetime.now(UTC)
            await outbox.add(connection, [NewMessage("thing", "key", "Changed", 1, {}, now)])
        await asyncio.sleep(0.2)


@asynccontextmanager
async def busy(database: Database) -> AsyncIterator[None]:
    writing = asyncio.create_task(notify_often(database))
    yield
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def until(condition: str, database: Database, process: RolesProcess, since: int = 0) -> None:
    """Wait until a process has worked in every role, the janitor included."""
    try:
        async with asyncio.timeout(DEADLINE_S), database.connection() as connection:
            while not process.has_worked(since) or process.path.name not in {
                row["process"] for row in await connection.fetch(BY_PROCESS)
            }:
                assert process.process.poll() is None, process.log
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{condition}: {process.lines} {process.log[-3000:]}") from None


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def takeover(
    module_database: Database, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Takeover]:
    """Freeze a process that leads in every role, until another one leads, and continue it."""
    database, folder = module_database, tmp_path_factory.mktemp("roles")
    async with gateway_running() as gateway, PortOneGateway() as korea, busy(database):
        await prepare(database, gateway, korea)
        with started("first", folder, database, gateway.api, korea.url) as first:
            await until("the first one leads", database, first)
            os.kill(first.process.pid, signal.SIGSTOP)
            lines = len(first.lines)
            with started("second", folder, database, gateway.api, korea.url) as second:
                await until("the second one takes over", database, second)
                os.kill(first.process.pid, signal.SIGCONT)
                async with asyncio.timeout(DEADLINE_S):
                    while first.log.count("leadership_lost") < len(ROLES) + 1:
                        await asyncio.sleep(0.1)
                await asyncio.sleep(1.0)  # time in which it could do what it must not
                async with database.connection() as connection:
                    found = await connection.fetch(BY_PROCESS)
                rows = {row["process"]: (row["first"], row["last"]) for row in found}
                yield Takeover(first, second, lines, rows)
        gateway.silent.set()


@pytest.mark.parametrize("role", ROLES)
def test_another_process_takes_over_from_a_frozen_leader(takeover: Takeover, role: str) -> None:
    """RET-4 BUS-1: although nobody hears of its end."""
    assert role in takeover.frozen.lines[: takeover.lines_frozen]
    assert role in takeover.other.lines


@pytest.mark.parametrize("role", ROLES)
def test_a_leader_that_was_frozen_does_nothing_more(takeover: Takeover, role: str) -> None:
    """RET-4 BUS-1: unless it was elected again."""
    lines = takeover.frozen.lines[takeover.lines_frozen :]
    again = lines.index(f"elected:{role}") if f"elected:{role}" in lines else len(lines)
    assert role not in lines[:again]


def test_a_janitor_that_was_frozen_writes_nothing_more(takeover: Takeover) -> None:
    """DAT-3: what it had begun was rolled back before another one began."""
    assert takeover.rows["first"][1] < takeover.rows["second"][0]
