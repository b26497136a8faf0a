"""What the gateway is told and asked, over real HTTP, without a process of ours."""

from collections.abc import AsyncIterator

import pytest_asyncio

from paidonce.services.gateway import Access
from paidonce.store.db import Database
from tests.gateways.paying import KEY, Manners, PayingGateway, running
from tests.services.office import Office, initiated, opened_office


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[PayingGateway]:
    with running(PayingGateway(lambda payment_id: Manners(calls_back=()))) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def office(database: Database, gateway: PayingGateway) -> AsyncIterator[Office]:
    access = Access(url=gateway.url, key=KEY, timeout_s=2.0, rate=1_000.0, max_calls=4)
    opened = await opened_office(database, access)
    yield opened
    await opened.caller.close()


async def test_a_gateway_that_has_forgotten_a_payment_is_not_told_of_it_again(
    office: Office, gateway: PayingGateway
) -> None:
    """SVC-1: with the payment it may have forgotten its key, and pay a second time."""
    await office.take(initiated("p", await office.wallet()))
    assert await office.caller.run_once() == 1
    known = (await office.payment("p"))["transaction_id"]
    gateway.charges.clear()
    await office.make_due()
    assert await office.caller.run_once() == 1
    assert (gateway.told["p"], gateway.asked["p"], gateway.charges) == (1, 1, {})
    payment = await office.payment("p")
    assert (payment["status"], payment["transaction_id"]) == ("PROCESSING", known)


async def test_payments_whose_ids_differ_by_a_blank_are_two(
    office: Office, gateway: PayingGateway
) -> None:
    """SVC-1: a blank at the end of a header is lost, and with it the second payment."""
    wallet = await office.wallet()
    await office.take(*(initiated(name, wallet) for name in ("p", "p ", " p")))
    assert await office.caller.run_once() == 3
    assert len(gateway.charges) == 3
    found = await office.rows("SELECT review FROM wallet_payments WHERE review IS NOT NULL")
    assert found == []
