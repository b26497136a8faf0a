"""PortOne's statements: every payment of a time, each as its newest webhook would tell of it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import aiohttp
import pytest
import pytest_asyncio
from portone_server_sdk._generated.payment.client import PaymentClient

from paidonce.domain.events import ExternalId, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.providers import portone
from paidonce.providers.contract import (
    Books,
    Call,
    Delivery,
    PageTurn,
    Provider,
    Reply,
    Setup,
    Thin,
)
from paidonce.providers.portone_statement import MAX_READINGS, PAGE_SIZE
from tests.gateways.portone import (
    LIST,
    PAID_AT,
    V1_KEY,
    V1_SECRET,
    V2_SECRET,
    Cancellation,
    Payment,
    PortOneGateway,
)
from tests.providers.cases.standard import whsec

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
        Setup("sources.kr", secrets, {**options, "api_url": gateway.url}, **said)
    )


def books_of(provider: Provider) -> Books:
    books = provider.books()
    assert books is not None
    return books


async def answered(session: aiohttp.ClientSession, turn: Generator[Call, Reply, T]) -> T:
    try:
        call = next(turn)
        while True:
            sent = session.request(call.method, call.url, headers=call.headers, json=call.json)
            async with sent as response:
                reply = Reply(response.status, await response.read())
            call = turn.send(reply)
    except StopIteration as end:
        known: T = end.value
        return known


async def read(books: Books, until: datetime = ALL_DAY) -> tuple[list[PaymentEvent], int]:
    """All entries of a statement, and how many cannot be read."""
    entries: list[PaymentEvent] = []
    unreadable = 0
    follows: Callable[[], PageTurn] | None = lambda: books.statement(SINCE, until)  # noqa: E731
    async with aiohttp.ClientSession() as session:
        while follows is not None:
            page = await answered(session, follows())
            entries += page.entries
            unreadable += page.unreadable
            follows = page.follows
    return entries, unreadable


def names(entries: list[PaymentEvent]) -> list[str]:
    return [one.ids[0].value for one in entries]


def many(number: int, apart_s: int = 60) -> list[Payment]:
    return [
        Payment(f"p_{one:03}", transaction_id=f"t_{one}", paid_at_s=PAID_AT + one * apart_s)
        for one in range(number)
    ]


@both
async def test_a_statement_names_every_payment_that_has_or_had_money(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9 PRV-3: over pages and days."""
    payments = many(2 * PAGE_SIZE + 10, apart_s=800)
    part = replace(payments[3], status="PARTIAL_CANCELLED", cancellations=(Cancellation("c", 100),))
    whole = replace(payments[4], status="CANCELLED", cancellations=(Cancellation("d", 10_000),))
    gateway.add(*payments, part, whole)
    gateway.add(Payment("failed", status="FAILED"), Payment("new", status="READY"))
    entries, _ = await read(books_of(source(gateway, options)), SINCE + timedelta(days=3))
    assert set(names(entries)) == {one.id for one in payments}
    said = {one.ids[0].value: (one.says, one.amount, one.refunded) for one in entries}
    money = Money(10_000, "KRW")
    assert said["p_000"] == (Says.PAID, money, None)
    assert said["p_003"] == (Says.REFUNDED, money, Money(100, "KRW"))
    assert said["p_004"] == (Says.CANCELED, money, money)


async def test_the_sdk_is_told_the_same(gateway: PortOneGateway) -> None:
    """PRV-9: the official SDK reads the same list, and sends what we send."""
    gateway.add(*(replace(one, shown={"disputes": []}) for one in many(5)))
    client = PaymentClient(secret=V2_SECRET, base_url=gateway.url)
    asked: dict[str, Any] = {
        "timestampType": "STATUS_CHANGED_AT",
        "from": SINCE.isoformat(),
        "until": ALL_DAY.isoformat(),
        "status": ["PAID"],
    }
    page: Any = {"number": 0, "size": 10}
    async with client._async_client:
        found = await client.get_payments_async(page=page, filter=asked)  # type: ignore[arg-type]
    entries, _ = await read(books_of(source(gateway, V2)))
    assert [one.id for one in found.items] == names(entries)  # type: ignore[union-attr]
    assert found.page.total_count == 5


@both
async def test_what_does_not_count_here_is_left_out(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-4 PAY-9: test channels in production, and V1's payments in V2's list."""
    gateway.add(Payment("real"), Payment("test", is_test=True))
    strict = books_of(source(gateway, options, accepts_test=False))
    assert names((await read(strict))[0]) == ["real"]
    assert set(names((await read(books_of(source(gateway, options))))[0])) == {"real", "test"}
    if options is V2:
        gateway.add(Payment("old", version="V1"))
        assert names((await read(strict))[0]) == ["real"]


@both
async def test_one_that_cannot_be_read_does_not_hide_the_others(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9"""
    gateway.add(Payment("odd", shown={"currency": "???"}), Payment("p"))
    entries, unreadable = await read(books_of(source(gateway, options)))
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
    entries, _ = await read(books_of(source(gateway, options)))
    assert {one.id for one in payments[1:]} <= set(names(entries))


async def test_a_list_that_never_rests_is_not_read_for_ever(gateway: PortOneGateway) -> None:
    """PAY-9"""
    gateway.add(*many(PAGE_SIZE + 1))

    def added(number: int) -> Callable[[], Awaitable[None]]:
        async def add() -> None:
            gateway.add(Payment(f"new_{number}", transaction_id=f"n_{number}"))

        return add

    gateway.then = [added(number) for number in range(100)]
    await read(books_of(source(gateway, V2)))
    assert gateway.calls[LIST] == 2 * MAX_READINGS


@both
async def test_a_payment_is_looked_up_by_its_id(
    gateway: PortOneGateway, options: dict[str, Any]
) -> None:
    """PAY-9: one that the gateway does not know is None, and no error."""
    gateway.add(Payment("p"))
    books = books_of(source(gateway, options))
    async with aiohttp.ClientSession() as session:
        known = await answered(session, books.look_up([ExternalId("payment", "p")]))
        unknown = await answered(session, books.look_up([ExternalId("payment", "q")]))
    assert known is not None
    assert (known.says, unknown) == (Says.PAID, None)


@both
@pytest.mark.parametrize("says", Says)
async def test_a_notice_can_be_read_and_says_look(
    gateway: PortOneGateway, options: dict[str, Any], says: Says
) -> None:
    """PAY-9: whatever the books say, and it is not signed."""
    provider = source(gateway, options)
    entry = PaymentEvent(says, (ExternalId("payment", "p"),), Money(1, "KRW"), order="p")
    headers, body = books_of(provider).notice_of(entry)
    delivery = Delivery(provider.evidence(headers), body, SINCE)
    assert provider.identify(delivery).payment_id == "p"
    assert isinstance(provider.translate(delivery), Thin)
