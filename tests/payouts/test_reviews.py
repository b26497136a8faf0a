"""Payments out of a wallet that a person has to look at, and what he can do."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from paidonce.bootstrap.services import Services
from paidonce.core.actors import HOST
from paidonce.core.callbacks import GatewayStatus
from paidonce.core.money import Money
from paidonce.db.pool import Database
from paidonce.errors import ConflictError
from paidonce.payouts.gateway import GatewayAnswer, GatewayRefusal
from paidonce.settings.sections import WalletSettings
from tests.payouts.harness import PayoutHarness, initiated, open_harness
from tests.support.batches import NO_RULES

ASKED = Money(1_000, "RUB")
LESS = Money(500, "RUB")


@pytest_asyncio.fixture(loop_scope="session")
async def payouts(database: Database) -> AsyncIterator[PayoutHarness]:
    opened = await open_harness(database)
    yield opened
    await opened.caller.close()


@pytest_asyncio.fixture(loop_scope="session")
async def verbs(database: Database) -> AsyncIterator[Services]:
    made = Services(database, NO_RULES, None, WalletSettings())
    yield made
    await made.wallet_commands.stop()


async def standing(payouts: PayoutHarness, payment_id: str) -> tuple[str, str | None]:
    payment = await payouts.payment(payment_id)
    return payment["status"], payment["review"]


@pytest.mark.parametrize(
    ("paid", "review"),
    [(LESS, "AMOUNT_MISMATCH"), (Money(1_000, "KZT"), "CURRENCY_MISMATCH")],
    ids=["amount", "currency"],
)
async def test_success_with_another_amount_completes_nothing(
    payouts: PayoutHarness, paid: Money, review: str
) -> None:
    """SVC-1 PAY-4: whatever the gateway says then, until a person has looked."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet))
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    await payouts.consume(*await payouts.told("tx", "succeeded", paid=paid))
    assert await standing(payouts, "p") == ("PROCESSING", review)
    assert (await payouts.payment("p"))["next_attempt_at"] is None
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.SUCCEEDED))
    await payouts.caller.save("p", None)
    await payouts.caller.save("p", GatewayRefusal(422))
    await payouts.consume(*await payouts.told("tx", "failed"))
    assert await standing(payouts, "p") == ("PROCESSING", review)
    assert await payouts.balance(wallet) == (10_000, 1_000)
    (notice,) = await payouts.rows("SELECT kind, details FROM notifications")
    assert notice["kind"] == "wallet_payment"
    assert review in notice["details"]


async def test_an_answer_with_another_amount_completes_nothing(payouts: PayoutHarness) -> None:
    """SVC-1 PAY-4"""
    await payouts.consume(initiated("p", await payouts.wallet()))
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.SUCCEEDED, LESS))
    assert await standing(payouts, "p") == ("PROCESSING", "AMOUNT_MISMATCH")


async def test_another_amount_after_completion_needs_a_review(
    payouts: PayoutHarness,
) -> None:
    """SVC-1 PAY-4: the answer had told none. The right one is nothing to look at."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet), initiated("q", wallet))
    for name in ("p", "q"):
        await payouts.caller.save(name, GatewayAnswer(f"tx-{name}", GatewayStatus.SUCCEEDED))
    await payouts.consume(*await payouts.told("tx-p", "succeeded", paid=LESS))
    await payouts.consume(*await payouts.told("tx-q", "succeeded", paid=ASKED))
    assert await standing(payouts, "p") == ("COMPLETED", "AMOUNT_MISMATCH")
    assert await standing(payouts, "q") == ("COMPLETED", None)
    assert await payouts.balance(wallet) == (8_000, 0)


async def test_an_operator_captures_or_fails_a_mismatch(
    payouts: PayoutHarness, verbs: Services
) -> None:
    """SVC-1 PAY-8: the money is taken, or let go; each once, and audited."""
    wallet = await payouts.wallet()
    names = ("taken", "let go", "seen")
    await payouts.consume(*(initiated(name, wallet) for name in names))
    await payouts.caller.save("seen", GatewayAnswer("tx-seen", GatewayStatus.SUCCEEDED))
    for name in names:
        await payouts.caller.save(name, GatewayAnswer(f"tx-{name}", GatewayStatus.SUCCEEDED, LESS))
    assert (await verbs.payouts.capture("taken", HOST)).review is None
    assert (await verbs.payouts.fail("let go", HOST)).failure == "FAILED_BY_OPERATOR"
    assert (await verbs.payouts.capture("seen", HOST)).review is None
    assert await standing(payouts, "taken") == ("COMPLETED", None)
    assert await standing(payouts, "let go") == ("FAILED", None)
    assert await standing(payouts, "seen") == ("COMPLETED", None)
    assert await payouts.balance(wallet) == (8_000, 0)
    for name in names:
        with pytest.raises(ConflictError, match="cannot be failed"):
            await verbs.payouts.fail(name, HOST)
        with pytest.raises(ConflictError, match="nothing to capture"):
            await verbs.payouts.capture(name, HOST)
    found = await payouts.rows("SELECT action FROM audit_log ORDER BY id")
    assert [row["action"] for row in found] == [
        "wallet_payment_captured",
        "wallet_payment_failed",
        "wallet_payment_captured",
    ]


async def test_success_after_an_operator_failed_it_captures_the_amount(
    payouts: PayoutHarness, verbs: Services
) -> None:
    """SVC-1: success after FAILED takes the money, whoever had let go of it."""
    hurried = await open_harness(payouts.database, pending_after_s=1e-6)
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet))
    await hurried.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    await verbs.payouts.fail("p", HOST)
    assert await payouts.balance(wallet) == (10_000, 0)
    await payouts.consume(*await payouts.told("tx", "succeeded", paid=ASKED))
    assert await standing(payouts, "p") == ("COMPLETED", None)
    assert await payouts.balance(wallet) == (9_000, 0)
    await hurried.caller.close()


async def test_a_payment_that_stays_pending_is_notified_once(payouts: PayoutHarness) -> None:
    """SVC-1 RET-1: and asked about on, slowly; also when the gateway is silent in between."""
    hurried = await open_harness(
        payouts.database, silent_after_s=1e-6, pending_after_s=1e-6, slow_pause_s=60.0
    )
    await payouts.consume(initiated("p", await payouts.wallet()))
    for answer in (
        GatewayAnswer("tx", GatewayStatus.PENDING),
        None,
        GatewayAnswer("tx", GatewayStatus.PENDING),
    ):
        await hurried.caller.save("p", answer)
        assert await standing(payouts, "p") == ("PROCESSING", "GATEWAY_PENDING")
        asked_at = (await payouts.payment("p"))["next_attempt_at"]
        assert asked_at > datetime.now(UTC) + timedelta(seconds=30)
    assert len(await payouts.rows("SELECT kind FROM notifications")) == 1
    await hurried.caller.save("p", GatewayAnswer("tx", GatewayStatus.SUCCEEDED))
    assert await standing(payouts, "p") == ("COMPLETED", None)
    await hurried.caller.close()


async def test_an_answer_after_a_refusal_is_applied(payouts: PayoutHarness) -> None:
    """SVC-1: two had asked, and the slower one was told that the gateway has paid."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet))
    await payouts.caller.save("p", GatewayRefusal(422))
    assert await standing(payouts, "p") == ("FAILED", None)
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.SUCCEEDED))
    assert await standing(payouts, "p") == ("COMPLETED", None)
    assert await payouts.balance(wallet) == (9_000, 0)
    assert (await payouts.types_of("p"))[-1] == "PaymentRecovered"


async def test_a_second_transaction_of_a_completed_payment_needs_a_review(
    payouts: PayoutHarness,
) -> None:
    """SVC-1: the gateway may have paid twice."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet))
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.SUCCEEDED))
    await payouts.caller.save("p", GatewayAnswer("tx-2", GatewayStatus.SUCCEEDED))
    assert await standing(payouts, "p") == ("COMPLETED", "TRANSACTION_CONFLICT")
    assert await payouts.balance(wallet) == (9_000, 0)
