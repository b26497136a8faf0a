"""A process that works in every leader role: `python -m tests.runtime.roles_process …`.

It appends a line to its file for each effect in a role, and for each role that it begins to lead.
"""

import asyncio
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from paidonce.bootstrap.registration import register_source
from paidonce.bus.relay import Relay
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database, open_database
from paidonce.db.queries import Connection
from paidonce.lookup.http_client import HttpClient, HttpTimeouts
from paidonce.lookup.worker import LookupWorker
from paidonce.maintenance import janitor as janitor_module
from paidonce.maintenance.janitor import Janitor
from paidonce.notifications.channels import Channel
from paidonce.notifications.notifier import Notifier
from paidonce.processing.items import Rules, Source
from paidonce.providers.contract import GatewayRequest, GatewayResponse, ProviderConfig
from paidonce.providers.portone import v2 as portone
from paidonce.reconciliation.worker import ReconciliationWorker
from paidonce.replay.worker import ReplayRun, ReplayWorker
from paidonce.runtime.leader import Leader, Leadership
from paidonce.runtime.service import Supervisor
from paidonce.runtime.wakeup import Wakeup
from tests.bus.traffic import OtherBus
from tests.providers.cases.standard import whsec
from tests.support.batches import stage
from tests.support.lookup_gateway import Looking
from tests.support.portone_server import V2_SECRET
from tests.support.postgres import SCHEMA

CHANNEL: Final = "people"
HANGS_S: Final = 600.0
EFFECTS: Final = "CREATE TABLE effects (id bigserial, process text)"


async def rules_of(database: Database, looking: str, portone_url: str) -> Rules:
    """The rules of all processes: a source for each kind of work."""
    shop = await stage(database)
    async with database.transaction() as connection:
        looking_id = await register_source(connection, "looking", "looking")
        korea_id = await register_source(connection, "kr", "portone")
    config = ProviderConfig(
        "sources.kr",
        (whsec("a secret"),),
        {"api_secret": V2_SECRET, "api_url": portone_url},
        accepts_test=False,
    )
    sources = {
        **shop.rules.sources,
        looking_id: Source(looking_id, "looking", Looking(looking), True, lookup_rate=1_000),
        korea_id: Source(korea_id, "kr", portone.configure(config), False, lookup_rate=1_000),
    }
    return replace(shop.rules, sources=sources)


class Recorder:
    """Writes down what this process does."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def record(self, line: str) -> None:
        self._file.write(f"{line}\n")

    def watch(self, looking: str) -> None:
        """Record elections, replayed chunks and calls to gateways."""
        acquire, call, chunk = Leader.acquire, HttpClient.call, ReplayRun._chunk

        async def acquiring(leader: Leader, roles: Collection[str]) -> dict[str, Leadership]:
            acquired = await acquire(leader, roles)
            for role in acquired:
                self.record(f"elected:{role.split()[0]}")
            return acquired

        async def replaying(run: ReplayRun, *given: Any) -> Any:
            self.record("replay")
            return await chunk(run, *given)

        async def calling(client: HttpClient, request: GatewayRequest) -> GatewayResponse:
            self.record("lookup" if request.url.startswith(looking) else "reconciliation")
            return await call(client, request)

        patch.object(Leader, "acquire", acquiring).start()
        patch.object(ReplayRun, "_chunk", replaying).start()
        patch.object(HttpClient, "call", calling).start()


class RecordingBus(OtherBus):
    """A bus that takes everything."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def publish(self, messages: Sequence[Any]) -> None:
        self._recorder.record("relay")


class RecordingChannel:
    """A way to people that always works."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def send(self, message: Any) -> str:
        self._recorder.record("notifier")
        return "accepted"


class EndlessTask:
    """A task of the janitor's that takes hours."""

    name = "endless"
    period_s = 0.1

    def __init__(self, process: str) -> None:
        self._process = process

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        while True:
            await connection.execute("INSERT INTO effects (process) VALUES ($1)", self._process)
            await asyncio.sleep(0.05)


async def main(name: str, folder: str, url: str, looking: str, portone_url: str) -> None:
    recorder = Recorder(Path(folder) / name)
    recorder.watch(looking)
    patch.object(janitor_module, "FIRST_PAUSE_S", 0.0).start()
    database = await open_database(url, SCHEMA)
    rules = await rules_of(database, looking, portone_url)
    leader, wakeup = Leader(database), Wakeup()
    about = frozenset(NotificationKind)
    channel = Channel(CHANNEL, "test", RecordingChannel(recorder), about, every_s=0.0)
    patient = HttpTimeouts(call_s=HANGS_S)
    supervisor = Supervisor(
        Relay(RecordingBus(recorder), leader),
        Notifier({CHANNEL: channel}, leader),
        ReplayWorker(database, rules, wakeup, leader=leader),
        ReconciliationWorker(database, rules, wakeup, leader=leader),
        LookupWorker(database, rules, wakeup, timeouts=patient, leader=leader),
        Janitor([EndlessTask(name)], leader),
    )
    async with supervisor.running():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
