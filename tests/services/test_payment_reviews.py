"""Payments out of a wallet that a person has to look at, and what he can do."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from paidonce.domain.money import Money
from paidonce.domain.wallet_payments import Pauses, Word
from paidonce.errors import PaymentRefusedError
from paidonce.operations import Operations
from paidonce.operations.desk import HOST
from paidonce.services.gateway import Answer, Declined
from paidonce.settings import WalletSettings
from paidonce.store.db import Database
from tests.services.office import Office, initiated, opened_office
from tests.store.batches import NO_RULES

ASKED = Money(1_000, "RUB")
LESS = Money(500, "RUB")


@pytest_asyncio.fixture(loop_scope="session")
async def office(database: Database) -> AsyncIterator[Office]:
    opened = await opened_office(database)
    yield opened
    await opened.caller.close()


@pytest_asyncio.fixture(loop_scope="session")
async def verbs(database: Database) -> AsyncIterator[Operations]:
    made = Operations(database, NO_RULES, None, WalletSettings())
    yield made
    await made.wallets.stop()


async def standing(office: Office, payment_id: str) -> tuple[str, str | None]:
    payment = await office.payment(payment_id)
    return payment["status"], payment["review"]


@pytest.mark.parametrize(
    ("paid", "review"),
    [(LESS, "AMOUNT_MISMATCH"), (Money(1_000, "KZT"), "CURRENCY_MISMATCH")],
    ids=["amount", "currency"],
)
async def test_success_of_another_sum_completes_nothing(
    office: Office, paid: Money, review: str
) -> None:
    """SVC-1 PAY-4: whatever the gateway says then, until a person has looked."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet))
    await office.caller.save("p", Answer("tx", Word.PENDING))
    await office.take(*await office.told("tx", "succeeded", paid=paid))
    assert await standing(office, "p") == ("PROCESSING", review)
    assert (await office.payment("p"))["ask_at"] is None
    await office.caller.save("p", Answer("tx", Word.SUCCEEDED))
    await office.caller.save("p", None)
    await office.caller.save("p", Declined(422))
    await office.take(*await office.told("tx", "failed"))
    assert await standing(office, "p") == ("PROCESSING", review)
    assert await office.balance(wallet) == (10_000, 1_000)
    (notice,) = await office.rows("SELECT kind, details FROM notices")
    assert notice["kind"] == "wallet_payment"
    assert review in notice["details"]


async def test_an_answer_with_another_sum_completes_nothing(office: Office) -> None:
    """SVC-1 PAY-4"""
    await office.take(initiated("p", await office.wallet()))
    await office.caller.save("p", Answer("tx", Word.SUCCEEDED, LESS))
    assert await standing(office, "p") == ("PROCESSING", "AMOUNT_MISMATCH")


async def test_another_sum_that_is_told_after_the_end_is_for_a_person(office: Office) -> None:
    """SVC-1 PAY-4: the answer had told none. The right one is nothing to look at."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet), initiated("q", wallet))
    for name in ("p", "q"):
        await office.caller.save(name, Answer(f"tx-{name}", Word.SUCCEEDED))
    await office.take(*await office.told("tx-p", "succeeded", paid=LESS))
    await office.take(*await office.told("tx-q", "succeeded", paid=ASKED))
    assert await standing(office, "p") == ("COMPLETED", "AMOUNT_MISMATCH")
    assert await standing(office, "q") == ("COMPLETED", None)
    assert await office.balance(wallet) == (8_000, 0)


async def test_a_person_decides_what_becomes_of_another_sum(
    office: Office, verbs: Operations
) -> None:
    """SVC-1 PAY-8: the money is taken, or let go; each once, and audited."""
    wallet = await office.wallet()
    names = ("taken", "let go", "seen")
    await office.take(*(initiated(name, wallet) for name in names))
    await office.caller.save("seen", Answer("tx-seen", Word.SUCCEEDED))
    for name in names:
        await office.caller.save(name, Answer(f"tx-{name}", Word.SUCCEEDED, LESS))
    assert (await verbs.recover_wallet_payment("taken", HOST)).review is None
    assert (await verbs.give_up_wallet_payment("let go", HOST)).failure == "GIVEN_UP"
    assert (await verbs.recover_wallet_payment("seen", HOST)).review is None
    assert await standing(office, "taken") == ("COMPLETED", None)
    assert await standing(office, "let go") == ("FAILED", None)
    assert await standing(office, "seen") == ("COMPLETED", None)
    assert await office.balance(wallet) == (8_000, 0)
    for name in names:
        with pytest.raises(PaymentRefusedError):
            await verbs.give_up_wallet_payment(name, HOST)
        with pytest.raises(PaymentRefusedError):
            await verbs.recover_wallet_payment(name, HOST)
    found = await office.rows("SELECT action FROM audit_log ORDER BY id")
    assert [row["action"] for row in found] == [
        "wallet_payment_recovered",
        "wallet_payment_given_up",
        "wallet_payment_recovered",
    ]


async def test_a_payment_that_was_given_up_and_made_after_all_is_paid_for(
    office: Office, verbs: Operations
) -> None:
    """SVC-1: success after FAILED takes the money, whoever had let go of it."""
    hurried = await opened_office(office.database, pauses=Pauses(pending_after_s=1e-6))
    wallet = await office.wallet()
    await office.take(initiated("p", wallet))
    await hurried.caller.save("p", Answer("tx", Word.PENDING))
    await verbs.give_up_wallet_payment("p", HOST)
    assert await office.balance(wallet) == (10_000, 0)
    await office.take(*await office.told("tx", "succeeded", paid=ASKED))
    assert await standing(office, "p") == ("COMPLETED", None)
    assert await office.balance(wallet) == (9_000, 0)
    await hurried.caller.close()


async def test_a_payment_that_stays_pending_is_told_to_people_once(office: Office) -> None:
    """SVC-1 RET-1: and asked about on, slowly; also when the gateway is silent in between."""
    pauses = Pauses(silent_after_s=1e-6, pending_after_s=1e-6, slow_s=60.0)
    hurried = await opened_office(office.database, pauses=pauses)
    await office.take(initiated("p", await office.wallet()))
    for answer in (Answer("tx", Word.PENDING), None, Answer("tx", Word.PENDING)):
        await hurried.caller.save("p", answer)
        assert await standing(office, "p") == ("PROCESSING", "GATEWAY_PENDING")
        asked_at = (await office.payment("p"))["ask_at"]
        assert asked_at > datetime.now(UTC) + timedelta(seconds=30)
    assert len(await office.rows("SELECT kind FROM notices")) == 1
    await hurried.caller.save("p", Answer("tx", Word.SUCCEEDED))
    assert await standing(office, "p") == ("COMPLETED", None)
    await hurried.caller.close()


async def test_an_answer_that_comes_after_a_refusal_is_heard(office: Office) -> None:
    """SVC-1: two had asked, and the slower one was told that the gateway has paid."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet))
    await office.caller.save("p", Declined(422))
    assert await standing(office, "p") == ("FAILED", None)
    await office.caller.save("p", Answer("tx", Word.SUCCEEDED))
    assert await standing(office, "p") == ("COMPLETED", None)
    assert await office.balance(wallet) == (9_000, 0)
    assert (await office.types_of("p"))[-1] == "PaymentRecovered"


async def test_a_second_transaction_of_what_is_done_is_for_a_person(office: Office) -> None:
    """SVC-1: the gateway may have paid twice."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet))
    await office.caller.save("p", Answer("tx", Word.SUCCEEDED))
    await office.caller.save("p", Answer("tx-2", Word.SUCCEEDED))
    assert await standing(office, "p") == ("COMPLETED", "TRANSACTION_CONFLICT")
    assert await office.balance(wallet) == (9_000, 0)
