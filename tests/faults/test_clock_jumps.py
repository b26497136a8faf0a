"""The clock jumps, of the service alone or of its whole machine, and comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from paidonce.db.embedded import installation
from tests.faults.clusters import own_cluster, own_folder
from tests.faults.ledger import Ledger, processed
from tests.faults.load import Load, deliver_all
from tests.faults.report import Experiment, Findings
from tests.faults.sizes import CLOCK_EVENTS
from tests.providers.cases.standard import whsec
from tests.support.false_clock import DAY_S, HOUR_S, FalseClock, false_clock
from tests.support.gateways import standard_signed
from tests.support.service import BASIC, Service, started_service
from tests.support.tools import items, rows, until

JUMPS: Final = {
    "+1 h": HOUR_S,
    "-1 h": -HOUR_S,
    "+10 d": 10 * DAY_S,
    "+45 d": 45 * DAY_S,
    "-40 d": -40 * DAY_S,
    "+400 d": 400 * DAY_S,
    "+3 y": 3 * 365 * DAY_S,
}
FAR: Final = {"year 2176": 150 * 365 * DAY_S, "year 1975": -51 * 365 * DAY_S}
"""Only of the service: the database creates no partitions for these."""
SIGNING_KEY: Final = "the key of a sender with the right time"
SIGNED: Final = f"""{BASIC}
[sources.signed]
provider = "standard"
secrets = ["{whsec(SIGNING_KEY)}"]
"""
FEW: Final = ("+400 d", "-40 d")
USERS: Final = [f"clock-{number}@example.com" for number in range(4)]
CLOSE: Final = timedelta(seconds=30)
DEADLINE_S: Final = 60.0


@asynccontextmanager
async def with_clock(
    folder: Path, database_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Service, FalseClock, str]]:
    """A service with a clock that can be set; its database has the same, if none is given."""
    async with AsyncExitStack() as stack:
        clock = stack.enter_context(false_clock(stack.enter_context(own_folder())))
        if database_url is None:
            for name, value in clock.environment.items():
                monkeypatch.setitem(installation._ENVIRONMENT, name, value)
            database_url = (await stack.enter_async_context(own_cluster())).url
        service = await asyncio.to_thread(
            started_service, folder, database_url, SIGNED, clock.environment
        )
        stack.callback(service.end)
        stack.callback(clock.set, 0)
        yield service, clock, database_url


@pytest.mark.parametrize("whose", ["the service's", "the machine's"])
async def test_a_clock_that_jumps_and_comes_back_stops_and_misplaces_nothing(
    whose: str,
    tmp_path: Path,
    database_url: str,
    full: bool,
    findings: Findings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REC-2 INB-4 OPS-2 OPS-3: also the months that had no partition."""
    is_own = whose == "the service's"
    jumps = JUMPS | (FAR if is_own else {}) if full else {name: JUMPS[name] for name in FEW}
    async with with_clock(tmp_path, database_url if is_own else None, monkeypatch) as running:
        service, clock, url = running
        for email in USERS:
            service.user(email)
        ledger, number = Ledger("clock", USERS), CLOCK_EVENTS.at(full)
        for name, offset_s in jumps.items():
            for set_s in (offset_s, 0):
                clock.set(set_s)
                right = datetime.now(UTC) + timedelta(seconds=0 if is_own else set_s)
                async with Load(service.port, ledger, number) as load:
                    await load.finish()
                assert ledger.refused == {}, f"after {name} of {whose} clock: {ledger.refused}"
                _expect_right_times(service, ledger, number, right)
                if is_own:  # nothing is refused as expired by a wrong clock
                    _deliver_signed_now(service, f"signed-{name}-{set_s}")
                readiness = service.request("GET", "/readyz")
                assert (readiness.http, readiness.json["status"]) == (200, "ready")
                assert await asyncio.to_thread(
                    until, lambda is_wrong=is_own and set_s != 0: _is_wrong(service) is is_wrong
                )
        await deliver_all(service.port, ledger)
        await processed(url)
        await ledger.check(url, finished=True, in_time=is_own)
        months = rows(url, "SELECT count(*) AS n FROM pg_inherits WHERE inhparent = $1::regclass",
                      "webhook_events")  # fmt: skip
    findings.add(
        Experiment.CLOCK_JUMPED,
        f"{whose} clock, {', '.join(jumps)}, each time with a return, {ledger.deliveries:,} "
        f"deliveries of {len(ledger.said):,} events",
        f"no answer 503; every event stored at the right time, in one of {months[0]['n']} months",
    )


def _expect_right_times(service: Service, ledger: Ledger, number: int, right: datetime) -> None:
    """The newest events are found by time, and have ids of that time."""
    newest = {one.event for one in ledger.said[-number:]}
    since, until_ = right - CLOSE, right + CLOSE + timedelta(minutes=5)
    found = items(service, "/events", since=since.isoformat(), until=until_.isoformat(), limit=200)
    ids = {UUID(one) for told in (ledger.told[name] for name in newest) for one in told.event_ids}
    assert ids <= {UUID(one["id"]) for one in found}
    for one in ids:
        at = datetime.fromtimestamp((one.int >> 80) / 1000, UTC)
        assert abs(at - right) < CLOSE + timedelta(minutes=5)


def _deliver_signed_now(service: Service, payment: str) -> None:
    body = json.dumps({"type": "of.no.concern", "data": {"payment_id": payment}}).encode()
    signed = standard_signed(body, payment, SIGNING_KEY, datetime.now(UTC))
    reply = service.request("POST", "/webhooks/signed", signed.body, signed.headers)
    assert reply.http == 200, reply


def _is_wrong(service: Service) -> bool:
    return "clock" in service.request("GET", "/readyz").json["degraded"]
