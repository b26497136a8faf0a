"""What the payment service does with messages, answers and callbacks, on a real database."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from paidonce.domain.reservations import Reserve
from paidonce.domain.wallet_payments import Pauses, Word
from paidonce.errors import MessageRefusedError
from paidonce.services.gateway import Answer, Declined
from paidonce.services.wallet import obey
from paidonce.store import outbox, wallet_payments
from paidonce.store.db import Database, Trouble, trouble
from tests.services.office import Office, at_once, initiated, message, opened_office


@pytest_asyncio.fixture(loop_scope="session")
async def office(database: Database) -> AsyncIterator[Office]:
    opened = await opened_office(database, callback_attempts=3)
    yield opened
    await opened.caller.close()


async def test_a_message_of_anybody_starts_a_payment_once(office: Office) -> None:
    """SVC-1 S1: its id is the primary key; a second message does nothing."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet), initiated("p", wallet))
    await office.take(initiated("p", wallet))
    payment = await office.payment("p")
    assert (payment["status"], payment["version"]) == ("PROCESSING", 2)
    assert await office.balance(wallet) == (10_000, 1_000)
    assert await office.types_of("p") == ["PaymentProcessing"]


async def test_another_payment_under_the_same_id_is_refused(office: Office) -> None:
    """SVC-1: and the first stays as it was."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet))
    before = await office.payment("p")
    for other in (initiated("p", wallet, "10.01"), initiated("p", await office.wallet())):
        with pytest.raises(MessageRefusedError, match="another payment"):
            await office.take(other)
    with pytest.raises(MessageRefusedError, match="another payment"):
        await office.take(initiated("q", wallet), initiated("q", wallet, "5.00"))
    assert await office.payment("p") == before
    assert await office.rows("SELECT * FROM wallet_payments WHERE payment_id = 'q'") == []


BAD: list[dict[str, Any]] = [
    {"payment_id": "other"},
    {"payment_id": 5},
    {"payment_id": ""},
    {"wallet_id": "w"},
    {"wallet_id": None},
    {"wallet_id": {}},
    {"amount": 10},
    {"amount": 10.5},
    {"amount": "0.00"},
    {"amount": "-1.00"},
    {"amount": "1.001"},
    {"amount": "1e400"},
    {"amount": None},
    {"currency": "XXX"},
    {"currency": None},
    {"source": "elsewhere"},
    {"source": 1},
]


@pytest.mark.parametrize("wrong", BAD, ids=str)
async def test_a_message_that_cannot_be_believed_is_refused(
    office: Office, wrong: dict[str, Any]
) -> None:
    """SVC-1: anybody may write to a topic; nothing is started."""
    wallet = await office.wallet()
    usual = {"payment_id": "p", "wallet_id": str(wallet), "amount": "1.00", "currency": "RUB"}
    with pytest.raises(MessageRefusedError):
        await office.take(message("PaymentInitiated", "p", usual | wrong))
    assert await office.rows("SELECT * FROM wallet_payments") == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"a": 1, "a": 2}', b'{"payment_id": NaN}'], ids=repr
)
async def test_what_is_no_json_object_is_refused(office: Office, body: bytes) -> None:
    """SVC-1"""
    for kind in ("PaymentInitiated", "ProviderCallbackReceived"):
        with pytest.raises(MessageRefusedError):
            await office.take(message(kind, "p", body))


async def test_a_start_in_the_far_future_or_of_another_version_is_refused(office: Office) -> None:
    """QRY-1: all that follows is not before it, and version 1 starts a payment."""
    said = {"payment_id": "p", "wallet_id": str(await office.wallet())}
    said |= {"amount": "1.00", "currency": "RUB"}
    ahead = datetime.now(UTC) + timedelta(days=2)
    with pytest.raises(MessageRefusedError, match="ahead"):
        await office.take(message("PaymentInitiated", "p", said, time=ahead))
    with pytest.raises(MessageRefusedError, match="version 1"):
        await office.take(message("PaymentInitiated", "p", said, version=2))
    hours = datetime.now(UTC) + timedelta(hours=2)
    await office.take(message("PaymentInitiated", "p", said, time=hours))
    assert (await office.payment("p"))["updated_at"] == hours


async def test_a_wallet_that_is_not_there_or_of_another_currency_fails_the_payment(
    office: Office,
) -> None:
    """SVC-1: it is told why, and nothing is set aside."""
    dollars = await office.wallet(currency="USD")
    await office.take(initiated("no", uuid4()), initiated("usd", dollars))
    assert (await office.payment("no"))["failure"] == "WALLET_MISSING"
    assert (await office.payment("usd"))["failure"] == "CURRENCY_MISMATCH"
    assert await office.balance(dollars) == (10_000, 0)


async def test_money_that_was_set_aside_for_a_while_stays_while_the_payment_is_under_way(
    office: Office,
) -> None:
    """SVC-1 WAL-2: it would be spent before the gateway has said what became of it."""
    wallet = await office.wallet()
    soon = timedelta(hours=1)
    async with office.database.transaction() as connection:
        await obey(connection, [Reserve(name, wallet, 1_000, soon) for name in ("p", "late")])
        await connection.execute(
            "UPDATE reservations SET expires_at = now() - interval '1 second'"
            " WHERE payment_id = 'late'"
        )
    await office.take(initiated("p", wallet), initiated("late", wallet))
    found = await office.rows(
        "SELECT payment_id, expires_at FROM reservations WHERE payment_id = 'p'"
    )
    assert found == [{"payment_id": "p", "expires_at": None}]
    late = await office.payment("late")
    assert (late["status"], late["failure"]) == ("FAILED", "EXPIRED")


async def test_a_batch_spends_no_more_than_there_is(office: Office) -> None:
    """SVC-1 WAL-2: twenty payments in one batch, money for ten."""
    wallet = await office.wallet()
    await office.take(*(initiated(f"p-{one}", wallet) for one in range(20)))
    found = await office.rows("SELECT status, count(*) AS n FROM wallet_payments GROUP BY 1")
    assert {row["status"]: row["n"] for row in found} == {"PROCESSING": 10, "FAILED": 10}
    assert await office.balance(wallet) == (10_000, 10_000)


async def test_a_callback_that_comes_first_waits_and_is_applied_with_the_id(
    office: Office,
) -> None:
    """SVC-1 RET-5: nobody waits for a timer."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet))
    await office.take(*await office.told("tx", "pending", "succeeded"))
    assert (await office.payment("p"))["status"] == "PROCESSING"
    await office.caller.save("p", Answer("tx", Word.PENDING))
    assert (await office.payment("p"))["status"] == "COMPLETED"
    found = await office.rows("SELECT status, payment_id FROM gateway_callbacks")
    assert found == [{"status": "DONE", "payment_id": "p"}] * 2
    assert await office.balance(wallet) == (9_000, 0)


async def test_a_callback_without_a_payment_is_tried_and_then_a_person_is_told(
    office: Office,
) -> None:
    """RET-5: after so many attempts it is dead, and never dropped."""
    await office.take(*await office.told("tx", "succeeded"))
    for attempt in range(3):
        assert await office.retries.run_once() == 0, "it waits for its time"
        await office.make_due()
        assert await office.retries.run_once() == 1
        (found,) = await office.rows("SELECT status, attempts FROM gateway_callbacks")
        status = "DEAD" if attempt == 2 else "WAITING"
        assert found == {"status": status, "attempts": attempt + 1}
    assert await office.retries.run_once() == 0
    (notice,) = await office.rows("SELECT kind, details FROM notices")
    assert notice["kind"] == "callback"
    assert "tx" in notice["details"]


async def test_a_dead_callback_counts_when_its_payment_turns_up(office: Office) -> None:
    """RET-5: the gateway's answer was late by days."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet), *await office.told("tx", "succeeded"))
    for _ in range(3):
        await office.make_due()
        await office.retries.run_once()
    assert (await office.rows("SELECT status FROM gateway_callbacks")) == [{"status": "DEAD"}]
    await office.caller.save("p", Answer("tx", Word.PENDING))
    assert (await office.payment("p"))["status"] == "COMPLETED"


async def test_a_callback_that_cannot_be_heard_holds_up_no_other(office: Office) -> None:
    """RET-5: it is put off again and again, and then left to a person."""
    wallet = await office.wallet()
    for name in ("bad", "good"):
        await office.take(initiated(name, wallet))
        await office.caller.save(name, Answer(f"tx-{name}", Word.PENDING))
        await office.told(f"tx-{name}", "succeeded")
    async with office.database.connection() as connection:
        await connection.execute(
            "ALTER TABLE wallet_payments ADD CHECK (payment_id <> 'bad' OR status = 'PROCESSING')"
        )
    for _ in range(3):
        await office.make_due()
        while await office.retries.run_once():
            pass
    assert (await office.payment("good"))["status"] == "COMPLETED"
    found = await office.rows("SELECT transaction_id, status FROM gateway_callbacks ORDER BY 1")
    assert [tuple(one.values()) for one in found] == [("tx-bad", "DEAD"), ("tx-good", "DONE")]


async def test_callback_answer_and_retry_at_once_move_the_money_once(office: Office) -> None:
    """SVC-1: whoever comes first ends it; the others find it ended."""
    for turn in range(10):
        wallet = await office.wallet()
        name, transaction = f"p-{turn}", f"tx-{turn}"
        await office.take(initiated(name, wallet))
        told = await office.told(transaction, "succeeded", "failed")
        await office.make_due()
        answer = Answer(transaction, Word.SUCCEEDED)
        await at_once(
            office.caller.save(name, answer),
            office.take(*told),
            office.retries.run_once(),
            office.take(*told),
            office.caller.save(name, answer),
        )
        await office.caller.save(name, answer)
        assert (await office.payment(name))["status"] == "COMPLETED"
        assert await office.balance(wallet) == (9_000, 0)
        entries = await office.rows("SELECT * FROM ledger_entries WHERE reservation = $1", name)
        assert len(entries) == 2
        assert len(await office.types_of(name)) == 2


async def test_a_payment_is_written_only_if_it_is_as_it_was_seen(office: Office) -> None:
    """SVC-1 S1: by the number of rows that were changed, and not by the absence of an error."""
    await office.take(initiated("p", await office.wallet()))
    async with office.database.transaction() as connection:
        seen = (await wallet_payments.lock(connection, ["p"])).payments["p"]
    await office.caller.save("p", Declined(422))
    with pytest.raises(Exception, match="another transaction was first") as caught:
        async with office.database.transaction() as connection:
            await wallet_payments.save(connection, [(seen, seen)])
    assert trouble(caught.value) is Trouble.RERUN


async def test_a_second_word_changes_nothing(office: Office) -> None:
    """SVC-1 S1: COMPLETED stays, and so does FAILED unless it was made after all."""
    wallet = await office.wallet()
    await office.take(initiated("done", wallet), initiated("failed", wallet))
    await office.caller.save("done", Answer("tx-1", Word.SUCCEEDED))
    await office.caller.save("failed", Answer("tx-2", Word.FAILED))
    before = [await office.payment("done"), await office.payment("failed")]
    await office.take(*await office.told("tx-1", "failed", "pending", "succeeded"))
    await office.take(*await office.told("tx-2", "failed", "pending"))
    assert [await office.payment("done"), await office.payment("failed")] == before
    assert await office.rows("SELECT 1 FROM gateway_callbacks WHERE status <> 'DONE'") == []


async def test_a_silent_gateway_is_told_to_people_once(office: Office) -> None:
    """SVC-1 RET-1: and asked on."""
    hurried = await opened_office(office.database, pauses=Pauses(silent_after_s=1e-6, slow_s=60.0))
    await office.take(initiated("p", await office.wallet()))
    for _ in range(3):
        await hurried.caller.save("p", None)
    payment = await office.payment("p")
    assert (payment["status"], payment["review"]) == ("PROCESSING", "GATEWAY_SILENT")
    assert payment["ask_at"] > datetime.now(UTC) + timedelta(seconds=30)
    (notice,) = await office.rows("SELECT kind, details FROM notices")
    assert notice["kind"] == "wallet_payment"
    await hurried.caller.save("p", Answer("tx", Word.PENDING))
    assert (await office.payment("p"))["review"] is None
    await hurried.caller.close()


async def test_a_gateway_that_contradicts_its_own_ids_is_not_believed(office: Office) -> None:
    """SVC-1: one transaction for two payments, or two for one."""
    wallet = await office.wallet()
    await office.take(initiated("p", wallet), initiated("q", wallet))
    await office.caller.save("p", Answer("tx", Word.PENDING))
    await office.caller.save("q", Answer("tx", Word.SUCCEEDED))
    await office.caller.save("p", Answer("tx-other", Word.SUCCEEDED))
    for name in ("p", "q"):
        payment = await office.payment(name)
        assert (payment["status"], payment["review"]) == ("PROCESSING", "TRANSACTION_CONFLICT")
    assert await office.balance(wallet) == (10_000, 2_000)


async def test_a_payment_is_asked_about_by_one_at_a_time_until_the_lease_is_over(
    office: Office,
) -> None:
    """SVC-1: and by another one then, if the first has died."""
    await office.take(initiated("p", await office.wallet()))
    async with office.database.connection() as connection:
        (first,) = await wallet_payments.claim(connection, limit=10, lease_s=0.0)
        (second,) = await wallet_payments.claim(connection, limit=10, lease_s=60.0)
        assert (first.asked, second.asked) == (1, 2)
        assert await wallet_payments.claim(connection, limit=10, lease_s=60.0) == []


async def test_a_message_that_was_just_written_is_not_old(office: Office) -> None:
    """OBS-2 BUS-1: what it tells of may have happened long ago, such as a webhook given again."""
    await office.told("tx-old", "succeeded")
    await office.rows("UPDATE outbox SET occurred_at = now() - interval '5 days'")
    async with office.database.connection() as connection:
        assert (await outbox.backlog(connection)).oldest_s < 3_600
        await connection.execute("UPDATE outbox SET id = gen_random_uuid()")
        assert (await outbox.backlog(connection)).oldest_s > 3_600
