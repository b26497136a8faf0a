"""`paidonce reconcile` and the calls for it: real processes, a real gateway, and one that dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.providers.cases.standard import whsec
from tests.support.portone_server import (
    LIST,
    V1_KEY,
    V1_SECRET,
    V2_SECRET,
    Payment,
    PortOneGateway,
    served,
)
from tests.support.servers import StartService
from tests.support.service import BASIC, Service
from tests.support.shop import Shop
from tests.support.tools import is_problem, items, paidonce, rows, until

CONFIG: Final = f"""{BASIC}
[sources.kr]
provider = "portone"
secrets = ["{whsec("what PortOne and the shop know")}"]
api_url = "URL"
api_secret = "{V2_SECRET}"
lookup_rate = 200
TIMER
[sources.kr_old]
provider = "portone"
version = "v1"
api_url = "URL"
api_key = "{V1_KEY}"
api_secret = "{V1_SECRET}"
lookup_rate = 200
"""
SINCE: Final = "2026-11-15"
UNTIL: Final = "2026-11-16T00:00:00Z"
WINDOW: Final = ("--since", SINCE, "--until", UNTIL)


@dataclass(frozen=True)
class Korea:
    """A shop that knows its orders, and a gateway whose webhooks were never sent."""

    shop: Shop
    gateway: PortOneGateway
    service: Service

    def unheard(self, *names: str) -> None:
        for name in names:
            self.shop.order(name, amount="10000", currency="KRW")
            self.gateway.add(Payment(name, order=name, transaction_id=f"tx-{name}"))

    def reconcile(self, **fields: Any) -> Any:
        request = {"source": "kr", "since": SINCE, "until": UNTIL} | fields
        reply = self.service.api("POST", "/reconciliations", request)
        assert (reply.http, reply.json["status"]) == (201, "PENDING"), reply.body
        return self.finished(reply.json["id"])

    def finished(self, run_id: str) -> Any:
        path = f"/reconciliations/{run_id}"
        assert until(lambda: self.service.api("GET", path).json["finished_at"])
        return self.service.api("GET", path).json

    def statuses(self, *names: str) -> set[str]:
        return {self.shop.status(name) for name in names}

    def commanded(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return paidonce(self.service.folder, "reconcile", *WINDOW, *arguments, timeout_s=60)


@pytest.fixture
def gateway() -> Iterator[PortOneGateway]:
    with served() as gateway:
        yield gateway


def opened(
    start_service: StartService, gateway: PortOneGateway, *roles: str, timer: str = ""
) -> Korea:
    config = CONFIG.replace("URL", gateway.url).replace("TIMER", timer)
    service = start_service(config, arguments=("--roles", ",".join(roles)) if roles else ())
    return Korea(Shop(service), gateway, service)


def test_a_worker_runs_a_requested_reconciliation(
    start_service: StartService, gateway: PortOneGateway
) -> None:
    """PAY-9 OPS-7 OBS-2: found, repaired, reported, counted; a second time there is nothing."""
    korea = opened(start_service, gateway)
    korea.unheard("a", "b")
    report = korea.reconcile()
    assert (report["status"], report["repaired"], report["new_findings"]) == ("DONE", 2, 2)
    assert {one["external_payment_id"] for one in report["findings"]} == {"a", "b"}
    (money,) = report["explained"]
    assert (money["explained"], money["explained_percent"]) == ("20000", 100.0)
    assert korea.statuses("a", "b") == {"PAID"}
    gateway.payments.pop("a")
    report = korea.reconcile(since="2026-11-15T00:00:00+09:00")
    assert (report["repaired"], report["missing_there"], report["new_findings"]) == (0, 1, 1)
    service = korea.service
    found = service.metric("reconciliation_findings", source="kr", kind="missing_there")
    assert found == 1
    assert 0 < service.metric("reconciliation_last_success_seconds", source="kr") < 600
    assert [one["id"] for one in items(service, "/reconciliations", source="kr", limit=1)] == [
        report["id"]
    ]
    assert len(items(service, "/reconciliations")) == 2


def test_an_invalid_request_is_rejected(
    start_service: StartService, gateway: PortOneGateway
) -> None:
    """PAY-9 SEC-6"""
    service = opened(start_service, gateway).service
    request = {"source": "kr", "since": SINCE}
    reader = paidonce(service.folder, "keys", "create", "--name", "r", "--scope", "read").stdout
    refused = [(service.api("POST", "/reconciliations", request, key=reader.strip()), 403)]
    for fields, http in (
        ({"source": "payments"}, 400),
        ({"source": "nowhere"}, 404),
        ({"since": "2999-01-01"}, 400),
        ({"since": "yesterday"}, 400),
    ):
        refused.append((service.api("POST", "/reconciliations", request | fields), http))
    nobody = service.api("GET", "/reconciliations/01890000-0000-7000-8000-000000000000")
    for reply, http in [*refused, (nobody, 404)]:
        assert is_problem(reply, http)


@pytest.mark.parametrize("source", ["kr", "kr_old"])
def test_the_command_works_without_a_worker_and_has_exit_codes(
    start_service: StartService, gateway: PortOneGateway, source: str
) -> None:
    """PAY-9 USE-2: 0 nothing left to do, 1 a person has to look, 2 the settings are wrong."""
    korea = opened(start_service, gateway, "web")
    korea.unheard("a", "b", "c")
    done = korea.commanded("--source", source, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["repaired"] == 3
    assert korea.statuses("a", "b", "c") == {"PAID"}
    gateway.payments.pop("a")
    again = korea.commanded("--source", source)
    assert again.returncode == 1, again.stderr
    assert "missing there" in again.stdout
    assert "20000 of 20000 KRW explained (100.00 %)" in again.stdout
    for wrong in (("--source", "payments"), ("--source", "nowhere")):
        assert korea.commanded(*wrong).returncode == 2
    odd = paidonce(korea.service.folder, "reconcile", "--source", source, "--since", "soon")
    assert (odd.returncode, "--since soon" in odd.stderr) == (2, True)


def test_a_killed_run_is_repeated_with_the_same_result(
    start_service: StartService, gateway: PortOneGateway, database_url: str
) -> None:
    """PAY-9 REL-1: killed between the repairs, each of which happens once."""
    korea = opened(start_service, gateway, "web")
    names = [f"p{number}" for number in range(6)]
    korea.unheard(*names)
    for name in names[3:]:
        gateway.delay(name, 60)
    process = begun(korea.service.folder)
    assert until(lambda: korea.statuses(*names[:3]) == {"PAID"})
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    for name in names[3:]:
        gateway.delay(name, 0)
    done = korea.commanded("--source", "kr", "--json")
    assert done.returncode == 0, done.stderr
    (first, second) = reversed(items(korea.service, "/reconciliations"))
    assert (first["status"], first["compared"], first["repaired"]) == ("DONE", 6, 6)
    assert (second["repaired"], second["agreed"], second["new_findings"]) == (0, 6, 0)
    assert korea.statuses(*names) == {"PAID"}
    (applied,) = rows(
        database_url, "SELECT count(*) AS n FROM outbox WHERE type = 'payment.applied'"
    )
    assert applied["n"] == len(names)


def begun(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "paidonce", "reconcile", "--source", "kr", *WINDOW],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_source_with_a_timer_is_reconciled(
    start_service: StartService, gateway: PortOneGateway
) -> None:
    """PAY-9: by a worker, once, and one without is not."""
    timer = "reconcile_every_h = 24\nreconcile_days = 60"
    korea = opened(start_service, gateway, timer=timer)
    assert until(lambda: items(korea.service, "/reconciliations"))
    (run,) = items(korea.service, "/reconciliations")
    assert (run["source"], run["actor"]) == ("kr", "timer")
    assert korea.finished(run["id"])["status"] == "DONE"
    assert gateway.calls[LIST] == 60


def test_a_timer_for_a_gateway_without_statements_is_rejected_at_start(tmp_path: Path) -> None:
    """PAY-9 USE-3"""
    text = BASIC.replace('provider = "tilda"', 'provider = "tilda"\nreconcile_every_h = 24')
    (tmp_path / "paidonce.toml").write_text(text, encoding="utf-8")
    done = paidonce(tmp_path, "serve", "--port", "0")
    assert done.returncode == 2
    assert "sources.payments.reconcile_every_h = 24" in done.stderr
