"""PortOne's statements: every payment of a period, as its newest webhook would report it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import aiohttp
import pytest
import pytest_asyncio
from portone_server_sdk._generated.payment.client import PaymentClient

from paidonce.core.events import EventType, ExternalId, PaymentEvent
from paidonce.core.money import Money
from paidonce.providers.contract import (
    Delivery,
    GatewayQuery,
    GatewayResponse,
    LookupRequired,
    Provider,
    ProviderConfig,
    StatementApi,
    StatementPage,
)
from paidonce.providers.portone import v2 as portone
from paidonce.providers.portone.payments import MAX_READINGS, PAGE_SIZE
from tests.providers.cases.standard import whsec
from tests.support.portone_server import (
    LIST,
    PAID_AT,
    V1_KEY,
    V1_SECRET,
    V2_SECRET,
    Cancellation,
    Payment,
    PortOneGateway,
)

T = TypeVar("T")

SINCE: Final = datetime.fromtimestamp(PAID_AT, UTC)
ALL_DAY: Final = SINCE + timedelta(days=1)
V2: Final = {"api_secret": V2_SECRET}
V1: Final = {"version": "v1", "api_key": V1_KEY, "api_secret": V1_SECRET}
both = pytest.mark.parametrize("options", [V2, V1], ids=["v2", "v1"])


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[PortOneGateway]:
    async with PortOneGateway() as running:
        yield running


def source(gateway: PortOneGateway, options: dict[str, Any], **said: Any) -> Provider:
    secrets = () if "version" in options else (whsec("a secret"),)
    return portone.configure(
        ProviderConfig("sources.kr", secrets, {**options, "api_url": gateway.url}, **said)
    )


def statement_api(provider: Provider) -> StatementApi:
    api = provider.statement_api()
    assert api is not None
    return api


async def run_query(session: aiohttp.ClientSession, query: GatewayQuery[T]) -> T:
    try:
        call = next(query)
        while True:
            sent = session.request(call.method, call.url, headers=call.headers, json=call.json)
            async with sent as response:
                reply = GatewayResponse(response.status, await response.read())
            call = query.send(reply)
    except StopIteration as end:
        found: T = end.value
        return found


async def read(api: StatementApi, until: datetime = ALL_DAY) -> tuple[list[PaymentEvent], int]:
    """All entries of a statement, and how many cannot be read."""
    entries: list[PaymentEvent] = []
    unreadable = 0
    next_page: Callable[[], GatewayQuery[StatementPage]] | None
    next_page = partial(api.statement, SINCE, until)
    async with aiohttp.ClientSession() as session:
        while next_page is not None:
            page = await run_query(session, next_page())
            entries += page.entries
            unreadable += page.unreadable
            next_page = page.next_page
    return entries, unreadable


def names(entries: list[PaymentEvent]) -> list[str]:
    return [one.ids[0].value for one in entries]


def many(number: int, apart_s: int = 60) -> list[Payment]:
    return [
        Payment(f"p_{one:03}", transaction_id=f"t_{one}", paid_at_s=PAID_AT + one * apart_s)
        for one in range(number)
    ]


@both
async def test_a_statement_lists_every_payment_with_money(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9 PRV-3: over pages and days."""
    payments = many(2 * PAGE_SIZE + 10, apart_s=800)
    part = replace(payments[3], status="PARTIAL_CANCELLED", cancellations=(Cancellation("c", 100),))
    whole = replace(payments[4], status="CANCELLED", cancellations=(Cancellation("d", 10_000),))
    gateway.add(*payments, part, whole)
    gateway.add(Payment("failed", status="FAILED"), Payment("new", status="READY"))
    entries, _ = await read(statement_api(source(gateway, options)), SINCE + timedelta(days=3))
    assert set(names(entries)) == {one.id for one in payments}
    said = {one.ids[0].value: (one.event_type, one.amount, one.refunded) for one in entries}
    money = Money(10_000, "KRW")
    assert said["p_000"] == (EventType.PAID, money, None)
    assert said["p_003"] == (EventType.REFUNDED, money, Money(100, "KRW"))
    assert said["p_004"] == (EventType.CANCELED, money, money)


async def test_the_official_sdk_lists_the_same(gateway: PortOneGateway) -> None:
    """PRV-9: the official SDK reads the same list, and sends what we send."""
    gateway.add(*(replace(one, shown={"disputes": []}) for one in many(5)))
    client = PaymentClient(secret=V2_SECRET, base_url=gateway.url)
    chosen: dict[str, Any] = {
        "timestampType": "STATUS_CHANGED_AT",
        "from": SINCE.isoformat(),
        "until": ALL_DAY.isoformat(),
        "status": ["PAID"],
    }
    page: Any = {"number": 0, "size": 10}
    async with client._async_client:
        found = await client.get_payments_async(page=page, filter=chosen)  # type: ignore[arg-type]
    entries, _ = await read(statement_api(source(gateway, V2)))
    assert [one.id for one in found.items] == names(entries)  # type: ignore[union-attr]
    assert found.page.total_count == 5


@both
async def test_payments_that_do_not_count_are_left_out(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-4 PAY-9: test channels in production, and V1's payments in V2's list."""
    gateway.add(Payment("real"), Payment("test", is_test=True))
    strict = statement_api(source(gateway, options, accepts_test=False))
    assert names((await read(strict))[0]) == ["real"]
    assert set(names((await read(statement_api(source(gateway, options))))[0])) == {"real", "test"}
    if options is V2:
        gateway.add(Payment("old", version="V1"))
        assert names((await read(strict))[0]) == ["real"]


@both
async def test_an_unreadable_payment_does_not_hide_the_others(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9"""
    gateway.add(Payment("odd", shown={"currency": "???"}), Payment("p"))
    entries, unreadable = await read(statement_api(source(gateway, options)))
    assert (names(entries), unreadable) == (["p"], 1)


@both
async def test_a_list_that_changes_while_it_is_read_is_read_again(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9: one that leaves its page makes another one slip through."""
    payments = many(2 * PAGE_SIZE)
    gateway.add(*payments)
    late = replace(payments[0], status="CANCELLED", cancellations=(Cancellation("c", 10_000),))

    async def leaves() -> None:
        gateway.add(replace(late, changed_at_s=PAID_AT + 10**6))

    gateway.then = [leaves]
    entries, _ = await read(statement_api(source(gateway, options)))
    assert {one.id for one in payments[1:]} <= set(names(entries))


async def test_a_list_that_keeps_changing_is_not_read_forever(gateway: PortOneGateway) -> None:
    """PAY-9"""
    gateway.add(*many(PAGE_SIZE + 1))

    def added(number: int) -> Callable[[], Awaitable[None]]:
        async def add() -> None:
            gateway.add(Payment(f"new_{number}", transaction_id=f"n_{number}"))

        return add

    gateway.then = [added(number) for number in range(100)]
    await read(statement_api(source(gateway, V2)))
    assert gateway.calls[LIST] == 2 * MAX_READINGS


@both
async def test_a_payment_is_looked_up_by_its_id(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9: one that the gateway does not know is None, and no error."""
    gateway.add(Payment("p"))
    api = statement_api(source(gateway, options))
    async with aiohttp.ClientSession() as session:
        found = await run_query(session, api.look_up([ExternalId("payment", "p")]))
        unknown = await run_query(session, api.look_up([ExternalId("payment", "q")]))
    assert found is not None
    assert (found.event_type, unknown) == (EventType.PAID, None)


@both
@pytest.mark.parametrize("event_type", EventType)
async def test_a_built_webhook_can_be_read_and_requires_a_lookup(
    gateway: PortOneGateway, options: dict[str, Any], event_type: EventType
) -> None:
    """PAY-9: whatever the books say, and it is not signed."""
    provider = source(gateway, options)
    entry = PaymentEvent(event_type, (ExternalId("payment", "p"),), Money(1, "KRW"), order="p")
    headers, body = statement_api(provider).build_webhook(entry)
    delivery = Delivery(provider.evidence_headers(headers), body, SINCE)
    assert provider.identify(delivery).payment_id == "p"
    assert isinstance(provider.translate(delivery), LookupRequired)
