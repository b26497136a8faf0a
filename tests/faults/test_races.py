"""Many deliveries at the same instant, in several processes, with workers beside them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import pytest
import pytest_asyncio

from tests.faults.ledger import Found, Ledger, processed
from tests.faults.load import deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import COPIES, RACES, SAME_USER
from tests.support.postgres import fresh_database
from tests.support.service import BASIC, Service, started_service, started_worker

EMAIL: Final = "raced@example.com"
WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Raced:
    """Two processes that serve, two that work, and what was delivered to them."""

    mode: str
    service: Service
    database_url: str
    ledger: Ledger

    async def finish(self) -> Found:
        assert not self.ledger.refused, f"some were turned away: {self.ledger.refused}"
        await processed(self.database_url)
        return await self.ledger.check(self.database_url, finished=True)


@pytest_asyncio.fixture(params=["inline", "queued"], scope="module", loop_scope="session")
async def raced(
    request: pytest.FixtureRequest, postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Raced]:
    config = f'{BASIC}\n[server]\nmode = "{request.param}"\n'
    folders = [tmp_path_factory.mktemp("raced") for _ in range(WORKERS + 1)]
    async with fresh_database(postgres) as url:
        service = started_service(folders[0], url, config, arguments=("--processes", "2"))
        workers = [started_worker(folder, url, config) for folder in folders[1:]]
        service.user(EMAIL)
        yield Raced(request.param, service, url, Ledger("raced", [EMAIL]))
        for one in (service, *workers):
            one.end()


async def test_copies_of_one_webhook_over_all_processes_are_one_event(
    raced: Raced, full: bool, findings: Findings
) -> None:
    """REL-1 PAY-3 REC-7 INB-1 OBS-2: one effect, and each process's counts are counted."""
    copies, races = COPIES.at(full), RACES.at(full)
    first = "success" if raced.mode == "inline" else "accepted"
    before = await asyncio.to_thread(_counted, raced)
    for _ in range(races):
        said = raced.ledger.new(email=EMAIL)
        await deliver_all(raced.service.port, raced.ledger, [said] * copies)
        assert raced.ledger.told[said.event].words == {first: 1, "duplicate": copies - 1}
    found = await raced.finish()
    assert (len(found.events), found.applied) == (len(raced.ledger.said),) * 2
    counted = await asyncio.to_thread(_counted, raced)
    duplicates = races * (copies - 1)
    assert counted - before == {
        "requests": races * copies,
        "received": races * copies,
        "duplicate": duplicates,
        "deduped": duplicates,
        **({"processed": races} if raced.mode == "inline" else {}),
    }
    findings.add(
        Experiment.COPIES_RACED,
        f"{races} × {copies} copies, 2 processes and {WORKERS} workers, {raced.mode}",
        f"each time 1 {first} and {copies - 1} duplicates, one effect; the metrics agree",
    )


def _counted(raced: Raced) -> Counter[str]:
    """Workers beside the server count for themselves: what they process is not asked for."""
    names = ["received", "duplicate", "deduped", "failed", "conflict"]
    if raced.mode == "inline":
        names.append("processed")
    counted = Counter(
        {
            name: int(raced.service.metric(f"webhook_{name}_total", provider="tilda"))
            for name in names
        }
    )
    counted["requests"] = int(
        raced.service.metric("webhook_requests_total", provider="tilda", http_code="200")
    )
    return counted


async def test_payments_of_one_user_over_all_processes_extend_once_each(
    raced: Raced, full: bool, findings: Findings
) -> None:
    """REL-1 PAY-3 FUL-1: no extension is lost and none is granted twice."""
    payments, races = SAME_USER.at(full), RACES.at(full)
    before = len(raced.ledger.said)
    for _ in range(races):
        said = [raced.ledger.new(email=EMAIL) for _ in range(payments)]
        await deliver_all(raced.service.port, raced.ledger, said)
    found = await raced.finish()
    assert found.applied == before + payments * races
    findings.add(
        Experiment.PAYMENTS_RACED,
        f"{races} × {payments} payments, 2 processes and {WORKERS} workers, {raced.mode}",
        f"extended exactly {payments * races:,} times",
    )
