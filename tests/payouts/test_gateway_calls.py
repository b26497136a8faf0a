"""What the gateway is told and asked, over real HTTP, without a process of ours."""

from collections.abc import AsyncIterator

import pytest_asyncio

from paidonce.db.pool import Database
from tests.payouts.harness import PayoutHarness, initiated, open_harness
from tests.support.payout_gateway import KEY, Manners, PayingGateway, running


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[PayingGateway]:
    with running(PayingGateway(lambda payment_id: Manners(calls_back=()))) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def payouts(database: Database, gateway: PayingGateway) -> AsyncIterator[PayoutHarness]:
    opened = await open_harness(database, gateway.url, KEY, timeout_s=2.0, rate=1_000.0)
    yield opened
    await opened.caller.close()


async def test_a_payment_that_the_gateway_has_lost_is_not_sent_again(
    payouts: PayoutHarness, gateway: PayingGateway
) -> None:
    """SVC-1: with the payment it may have forgotten its key, and pay a second time."""
    await payouts.consume(initiated("p", await payouts.wallet()))
    assert await payouts.caller.run_once() == 1
    known = (await payouts.payment("p"))["transaction_id"]
    gateway.charges.clear()
    await payouts.make_due()
    assert await payouts.caller.run_once() == 1
    assert (gateway.told["p"], gateway.asked["p"], gateway.charges) == (1, 1, {})
    payment = await payouts.payment("p")
    assert (payment["status"], payment["transaction_id"]) == ("PROCESSING", known)


async def test_payment_ids_that_differ_by_a_space_are_two_payments(
    payouts: PayoutHarness, gateway: PayingGateway
) -> None:
    """SVC-1: a blank at the end of a header is lost, and with it the second payment."""
    wallet = await payouts.wallet()
    await payouts.consume(*(initiated(name, wallet) for name in ("p", "p ", " p")))
    assert await payouts.caller.run_once() == 3
    assert len(gateway.charges) == 3
    found = await payouts.rows("SELECT review FROM wallet_payments WHERE review IS NOT NULL")
    assert found == []
