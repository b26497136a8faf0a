"""Many deliveries at the same instant, in several processes, with workers beside them."""

import asyncio
from typing import Final

import pytest

from tests.conftest import StartService
from tests.faults.ledger import Ledger, settled
from tests.faults.load import deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import COPIES, RACES, SAME_USER
from tests.service import BASIC, Service

EMAIL: Final = "raced@example.com"
WORKERS: Final = 2
MODES: Final = ("inline", "queued")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def service(mode: str, start_service: StartService, start_worker: StartService) -> Service:
    """Two processes that serve, and two that work."""
    config = f'{BASIC}\n[server]\nmode = "{mode}"\n'
    service = start_service(config, arguments=("--processes", "2"))
    for _ in range(WORKERS):
        start_worker(config)
    service.user(EMAIL)
    return service


async def test_copies_of_one_webhook_over_all_processes_are_one_event(
    service: Service, mode: str, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 PAY-3 REC-7 INB-1 OBS-2: one effect, and each process's counts are counted."""
    copies, races = COPIES.at(full), RACES.at(full)
    first = "success" if mode == "inline" else "accepted"
    ledger = Ledger("copies", [EMAIL])
    for _ in range(races):
        said = ledger.new(email=EMAIL)
        await deliver_all(service.port, ledger, [said] * copies)
        assert ledger.told[said.event].words == {first: 1, "duplicate": copies - 1}
    assert not ledger.refused, f"some were turned away: {ledger.refused}"
    await settled(database_url)
    found = await ledger.check(database_url, finished=True)
    assert (len(found.events), found.applied) == (races, races)
    await asyncio.to_thread(_assert_counted, service, mode, copies, races)
    findings.add(
        Experiment.COPIES_RACED,
        f"{races} × {copies} copies, 2 processes and {WORKERS} workers, {mode}",
        f"each time 1 {first} and {copies - 1} duplicates, one effect; the metrics say so too",
    )


def _assert_counted(service: Service, mode: str, copies: int, races: int) -> None:
    requests = service.metric("webhook_requests_total", provider="tilda", http_code="200")
    counted = {
        name: service.metric(f"webhook_{name}_total", provider="tilda")
        for name in ("received", "duplicate", "deduped", "processed", "failed")
    }
    assert requests == races * copies
    duplicates = races * (copies - 1)
    # In queued mode the workers beside the server, which count for themselves, may be faster.
    processed = races if mode == "inline" else counted["processed"]
    assert counted == {
        "received": races * copies,
        "duplicate": duplicates,
        "deduped": duplicates,
        "processed": processed,
        "failed": 0,
    }


async def test_payments_of_one_user_over_all_processes_extend_once_each(
    service: Service, mode: str, database_url: str, full: bool, findings: Findings
) -> None:
    """REL-1 PAY-3 FUL-1: no extension is lost and none is granted twice."""
    payments, races = SAME_USER.at(full), RACES.at(full)
    ledger = Ledger("user", [EMAIL])
    for _ in range(races):
        said = [ledger.new(email=EMAIL) for _ in range(payments)]
        await deliver_all(service.port, ledger, said)
    assert not ledger.refused, f"some were turned away: {ledger.refused}"
    await settled(database_url)
    found = await ledger.check(database_url, finished=True)
    assert found.applied == payments * races
    findings.add(
        Experiment.PAYMENTS_RACED,
        f"{races} × {payments} payments, 2 processes and {WORKERS} workers, {mode}",
        f"extended exactly {payments * races:,} times",
    )
