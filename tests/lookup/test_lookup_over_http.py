"""Lookups by real processes that may end at any moment."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.lookup.test_lookup import replying
from tests.support.lookup_gateway import SIGNED, Gateway, gateway_running, installed, looks
from tests.support.servers import StartService
from tests.support.service import Reply, Service
from tests.support.tools import Row, is_problem, rows, until

CONFIG: Final = """
environment = "development"
[sources.looking]
provider = "looking"
api = "{api}"
[plans.monthly]
price = "990.00"
currency = "RUB"
days = 30
default = true
"""
ORDER: Final = """
INSERT INTO orders (id, reference, kind, status, amount_minor, currency, request_hash, version)
VALUES (gen_random_uuid(), 'o-1', 'order', 'PENDING', 500, 'RUB', '', 1)
RETURNING reference
"""


class Shop:
    """Services whose source has to be asked, the gateway, and the database behind them."""

    def __init__(
        self, start: StartService, gateway: Gateway, variables: dict[str, str], database_url: str
    ) -> None:
        self._start = start
        self._variables = variables
        self._database_url = database_url
        self.gateway = gateway

    async def start(self, **environment: str) -> Service:
        config = CONFIG.format(api=self.gateway.api)
        return await asyncio.to_thread(self._start, config, **self._variables, **environment)

    async def rows(self, sql: str) -> list[Row]:
        return await asyncio.to_thread(rows, self._database_url, sql)

    async def until_applied(self, number: int) -> bool:
        """Whether so many payments are applied within seconds."""

        def are_applied() -> bool:
            (row,) = rows(
                self._database_url,
                "SELECT count(*) AS n FROM payments WHERE applied_at IS NOT NULL",
            )
            return bool(row["n"] == number)

        return await asyncio.to_thread(until, are_applied)


@pytest_asyncio.fixture(loop_scope="session")
async def shop(
    start_service: StartService, tmp_path: Path, database_url: str
) -> AsyncIterator[Shop]:
    async with gateway_running() as gateway:
        yield Shop(start_service, gateway, installed(tmp_path), database_url)


async def deliver(service: Service, payment: str, **said: Any) -> Reply:
    body = looks(payment, **said)
    return await asyncio.to_thread(service.request, "POST", "/webhooks/looking", body, SIGNED)


async def create(service: Service, *payments: str) -> None:
    for payment in payments:
        await asyncio.to_thread(service.user, f"{payment}@example.com")


async def test_the_service_applies_looked_up_payments(shop: Shop) -> None:
    """REC-4 PRV-3: the sender is answered before anybody asks."""
    shop.gateway.scripts["p"] = shop.gateway.hang
    service = await shop.start()
    await create(service, "p")
    reply = await deliver(service, "p")
    assert (reply.http, reply.json["status"]) == (200, "accepted")
    await asyncio.wait_for(shop.gateway.someone_asks.wait(), 120)
    shop.gateway.silent.set()
    assert await shop.until_applied(1)
    again = await deliver(service, "p")
    assert (again.http, again.json["status"]) == (200, "duplicate")
    assert again.json["event_id"] == reply.json["event_id"]


async def test_another_process_takes_over_after_a_kill(shop: Shop) -> None:
    """REL-1 RET-4: another process asks again, and it is applied once."""
    first = await shop.start(PAIDONCE_CRASH_AT="looked_up:1")
    await create(first, "p")
    assert (await deliver(first, "p")).http == 200
    assert await asyncio.to_thread(first.process.wait, 10) == -signal.SIGKILL
    assert shop.gateway.asked == {"p": 1}
    assert not await shop.rows("SELECT 1 FROM payments")
    await shop.start()
    assert await shop.until_applied(1)
    assert shop.gateway.asked == {"p": 2}
    assert len(await shop.rows("SELECT 1 FROM outbox")) == 1
    assert not await shop.rows("SELECT 1 FROM event_queue")


async def test_of_two_services_one_looks_up_and_the_other_takes_over(shop: Shop) -> None:
    """RET-4: the one that asks is killed in the middle."""
    shop.gateway.scripts["p"] = shop.gateway.hang
    first = await shop.start()
    await create(first, "p")
    assert (await deliver(first, "p")).http == 200
    await asyncio.wait_for(shop.gateway.someone_asks.wait(), 120)
    await shop.start()
    assert shop.gateway.asked == {"p": 1}
    del shop.gateway.scripts["p"]
    first.process.kill()
    started_s = time.monotonic()
    assert await shop.until_applied(1)
    assert time.monotonic() - started_s < 3
    assert shop.gateway.asked == {"p": 2}


async def test_a_slow_gateway_does_not_delay_the_shutdown(shop: Shop) -> None:
    """§15 Commands: what it was asked for is asked again by the next one."""
    shop.gateway.scripts["p"] = shop.gateway.hang
    service = await shop.start()
    await create(service, "p")
    await deliver(service, "p")
    await asyncio.wait_for(shop.gateway.someone_asks.wait(), 120)
    started_s = time.monotonic()
    assert await asyncio.to_thread(service.end) == 0
    assert time.monotonic() - started_s < 5
    (row,) = await shop.rows("SELECT status, attempts FROM webhook_events")
    assert tuple(row.values()) == ("VALIDATED", 0)
    assert len(await shop.rows("SELECT 1 FROM event_queue WHERE queue_name = 1")) == 1


async def test_an_expired_delivery_is_rejected_and_applied_when_confirmed(
    shop: Shop,
) -> None:
    """PRV-8"""
    service = await shop.start()
    await create(service, "p")
    reply = await deliver(service, "p", stale=True)
    assert is_problem(reply, 401)
    assert reply.json["code"] == "TIMESTAMP_EXPIRED"
    assert await shop.until_applied(1)


async def test_a_confirmation_request_is_answered_by_the_order(shop: Shop) -> None:
    """PRV-3: 200 approves, and nothing else does."""
    service = await shop.start()
    refused = await deliver(service, "o-1", confirm=500)
    assert is_problem(refused, 409)
    assert refused.json["code"] == "NOT_APPROVED"
    await shop.rows(ORDER)
    assert (await deliver(service, "o-1", confirm=500)).http == 200
    assert (await deliver(service, "o-1", confirm=501, key="k")).http == 409
    statuses = await shop.rows("SELECT status, error_code FROM webhook_events ORDER BY id")
    assert [tuple(row.values()) for row in statuses] == [
        ("FAILED_FINAL", "NOT_APPROVED"),
        ("IGNORED", "NON_SUCCESS_STATUS"),
        ("FAILED_FINAL", "NOT_APPROVED"),
    ]


async def test_a_replayed_nonce_is_answered_401(shop: Shop) -> None:
    """SEC-3"""
    service = await shop.start()
    assert (await deliver(service, "p", nonce="n")).http == 200
    reply = await deliver(service, "q", nonce="n")
    assert is_problem(reply, 401)
    assert reply.json["code"] == "REPLAYED_NONCE"
    assert (await deliver(service, "p", nonce="n")).json["status"] == "duplicate"


async def test_the_rate_of_a_source_is_a_setting(shop: Shop) -> None:
    """RET-1"""
    shop.gateway.api += '"\nlookup_rate = "fast'
    with pytest.raises(AssertionError, match=r"sources\.looking\.lookup_rate"):
        await shop.start()


async def test_a_pause_of_a_gateway_is_logged_once(shop: Shop) -> None:
    """RET-1 OBS-1: an operator sees why events wait."""
    shop.gateway.scripts["p"] = replying(503)
    service = await shop.start()
    await create(service, "p")
    await deliver(service, "p")
    assert await asyncio.to_thread(until, lambda: shop.gateway.asked["p"] == 3)
    assert await asyncio.to_thread(until, lambda: service.log_lines(event="gateway_paused"))
    (paused,) = service.log_lines(event="gateway_paused")
    assert (paused["source"], paused["detail"]) == ("looking", "the gateway answers 503")


def said_of(service: Service, payment: str) -> list[dict[str, Any]]:
    """What the log says of a payment."""
    return service.log_lines(external_payment_id=payment)


async def test_the_log_has_each_attempt_and_no_secret(shop: Shop) -> None:
    """OBS-1 SEC-1"""
    service = await shop.start()
    await create(service, "p")
    await deliver(service, "p")
    assert await shop.until_applied(1)
    assert await asyncio.to_thread(until, lambda: len(said_of(service, "p")) == 2)
    assert [line["result"] for line in said_of(service, "p")] == ["accepted", "processed"]
    told = (service.folder / "stdout").read_text()
    assert "only the gateway knows" not in told
    assert json.dumps(shop.gateway.api) not in told
