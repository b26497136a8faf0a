"""What the payment service does with messages, answers and callbacks, on a real database."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from paidonce.bus import outbox
from paidonce.core.callbacks import GatewayStatus
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.errors import InvalidMessageError
from paidonce.payouts import store
from paidonce.payouts.gateway import GatewayAnswer, GatewayRefusal
from paidonce.wallet.commands import execute
from paidonce.wallet.reservations import Reserve
from tests.payouts.harness import PayoutHarness, at_once, initiated, message, open_harness


@pytest_asyncio.fixture(loop_scope="session")
async def payouts(database: Database) -> AsyncIterator[PayoutHarness]:
    opened = await open_harness(database, callback_attempts=3)
    yield opened
    await opened.caller.close()


async def test_a_message_starts_a_payment_once(payouts: PayoutHarness) -> None:
    """SVC-1 S1: its id is the primary key; a second message does nothing."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet), initiated("p", wallet))
    await payouts.consume(initiated("p", wallet))
    payment = await payouts.payment("p")
    assert (payment["status"], payment["version"]) == ("PROCESSING", 2)
    assert await payouts.balance(wallet) == (10_000, 1_000)
    assert await payouts.types_of("p") == ["PaymentProcessing"]


async def test_another_payment_under_the_same_id_is_refused(payouts: PayoutHarness) -> None:
    """SVC-1: and the first stays as it was."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet))
    before = await payouts.payment("p")
    for other in (initiated("p", wallet, "10.01"), initiated("p", await payouts.wallet())):
        with pytest.raises(InvalidMessageError, match="another payment"):
            await payouts.consume(other)
    with pytest.raises(InvalidMessageError, match="another payment"):
        await payouts.consume(initiated("q", wallet), initiated("q", wallet, "5.00"))
    assert await payouts.payment("p") == before
    assert await payouts.rows("SELECT * FROM wallet_payments WHERE payment_id = 'q'") == []


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
async def test_an_invalid_message_is_rejected(
    payouts: PayoutHarness, wrong: dict[str, Any]
) -> None:
    """SVC-1: anybody may write to a topic; nothing is started."""
    wallet = await payouts.wallet()
    usual = {"payment_id": "p", "wallet_id": str(wallet), "amount": "1.00", "currency": "RUB"}
    with pytest.raises(InvalidMessageError):
        await payouts.consume(message("PaymentInitiated", "p", usual | wrong))
    assert await payouts.rows("SELECT * FROM wallet_payments") == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"a": 1, "a": 2}', b'{"payment_id": NaN}'], ids=repr
)
async def test_a_body_that_is_no_json_object_is_rejected(
    payouts: PayoutHarness, body: bytes
) -> None:
    """SVC-1"""
    for kind in ("PaymentInitiated", "ProviderCallbackReceived"):
        with pytest.raises(InvalidMessageError):
            await payouts.consume(message(kind, "p", body))


async def test_a_start_far_ahead_or_with_another_version_is_rejected(
    payouts: PayoutHarness,
) -> None:
    """QRY-1: all that follows is not before it, and version 1 starts a payment."""
    said = {"payment_id": "p", "wallet_id": str(await payouts.wallet())}
    said |= {"amount": "1.00", "currency": "RUB"}
    ahead = datetime.now(UTC) + timedelta(days=2)
    with pytest.raises(InvalidMessageError, match="ahead"):
        await payouts.consume(message("PaymentInitiated", "p", said, time=ahead))
    with pytest.raises(InvalidMessageError, match="version 1"):
        await payouts.consume(message("PaymentInitiated", "p", said, version=2))
    hours = datetime.now(UTC) + timedelta(hours=2)
    await payouts.consume(message("PaymentInitiated", "p", said, time=hours))
    assert (await payouts.payment("p"))["updated_at"] == hours


async def test_a_missing_wallet_or_another_currency_fails_the_payment(
    payouts: PayoutHarness,
) -> None:
    """SVC-1: it is told why, and nothing is set aside."""
    dollars = await payouts.wallet(currency="USD")
    await payouts.consume(initiated("no", uuid4()), initiated("usd", dollars))
    assert (await payouts.payment("no"))["failure"] == "WALLET_MISSING"
    assert (await payouts.payment("usd"))["failure"] == "CURRENCY_MISMATCH"
    assert await payouts.balance(dollars) == (10_000, 0)


async def test_a_reservation_does_not_expire_while_its_payment_is_processing(
    payouts: PayoutHarness,
) -> None:
    """SVC-1 WAL-2: it would be spent before the gateway has said what became of it."""
    wallet = await payouts.wallet()
    soon = timedelta(hours=1)
    async with payouts.database.transaction() as connection:
        await execute(connection, [Reserve(name, wallet, 1_000, soon) for name in ("p", "late")])
        await connection.execute(
            "UPDATE reservations SET expires_at = now() - interval '1 second'"
            " WHERE payment_id = 'late'"
        )
    await payouts.consume(initiated("p", wallet), initiated("late", wallet))
    found = await payouts.rows(
        "SELECT payment_id, expires_at FROM reservations WHERE payment_id = 'p'"
    )
    assert found == [{"payment_id": "p", "expires_at": None}]
    late = await payouts.payment("late")
    assert (late["status"], late["failure"]) == ("FAILED", "EXPIRED")


async def test_a_batch_never_overdraws_a_wallet(payouts: PayoutHarness) -> None:
    """SVC-1 WAL-2: twenty payments in one batch, money for ten."""
    wallet = await payouts.wallet()
    await payouts.consume(*(initiated(f"p-{one}", wallet) for one in range(20)))
    found = await payouts.rows("SELECT status, count(*) AS n FROM wallet_payments GROUP BY 1")
    assert {row["status"]: row["n"] for row in found} == {"PROCESSING": 10, "FAILED": 10}
    assert await payouts.balance(wallet) == (10_000, 10_000)


async def test_an_early_callback_is_applied_with_the_transaction_id(
    payouts: PayoutHarness,
) -> None:
    """SVC-1 RET-5: nobody waits for a timer."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet))
    await payouts.consume(*await payouts.told("tx", "pending", "succeeded"))
    assert (await payouts.payment("p"))["status"] == "PROCESSING"
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    assert (await payouts.payment("p"))["status"] == "COMPLETED"
    found = await payouts.rows("SELECT status, payment_id FROM gateway_callbacks")
    assert found == [{"status": "DONE", "payment_id": "p"}] * 2
    assert await payouts.balance(wallet) == (9_000, 0)


async def test_a_callback_without_a_payment_becomes_a_dead_letter(
    payouts: PayoutHarness,
) -> None:
    """RET-5: after so many attempts it is dead, and never dropped."""
    await payouts.consume(*await payouts.told("tx", "succeeded"))
    for attempt in range(3):
        assert await payouts.retries.run_once() == 0, "it waits for its time"
        await payouts.make_due()
        assert await payouts.retries.run_once() == 1
        (found,) = await payouts.rows("SELECT status, attempts FROM gateway_callbacks")
        status = "DEAD_LETTER" if attempt == 2 else "PENDING"
        assert found == {"status": status, "attempts": attempt + 1}
    assert await payouts.retries.run_once() == 0
    (notice,) = await payouts.rows("SELECT kind, details FROM notifications")
    assert notice["kind"] == "callback"
    assert "tx" in notice["details"]


async def test_a_dead_callback_is_applied_when_its_payment_turns_up(payouts: PayoutHarness) -> None:
    """RET-5: the gateway's answer was late by days."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet), *await payouts.told("tx", "succeeded"))
    for _ in range(3):
        await payouts.make_due()
        await payouts.retries.run_once()
    assert (await payouts.rows("SELECT status FROM gateway_callbacks")) == [
        {"status": "DEAD_LETTER"}
    ]
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    assert (await payouts.payment("p"))["status"] == "COMPLETED"


async def test_a_failing_callback_does_not_delay_others(payouts: PayoutHarness) -> None:
    """RET-5: it is put off again and again, and then left to a person."""
    wallet = await payouts.wallet()
    for name in ("bad", "good"):
        await payouts.consume(initiated(name, wallet))
        await payouts.caller.save(name, GatewayAnswer(f"tx-{name}", GatewayStatus.PENDING))
        await payouts.told(f"tx-{name}", "succeeded")
    async with payouts.database.connection() as connection:
        await connection.execute(
            "ALTER TABLE wallet_payments ADD CHECK (payment_id <> 'bad' OR status = 'PROCESSING')"
        )
    for _ in range(3):
        await payouts.make_due()
        while await payouts.retries.run_once():
            pass
    assert (await payouts.payment("good"))["status"] == "COMPLETED"
    found = await payouts.rows("SELECT transaction_id, status FROM gateway_callbacks ORDER BY 1")
    assert [tuple(one.values()) for one in found] == [
        ("tx-bad", "DEAD_LETTER"),
        ("tx-good", "DONE"),
    ]


async def test_concurrent_callback_answer_and_retry_move_the_money_once(
    payouts: PayoutHarness,
) -> None:
    """SVC-1: whoever comes first ends it; the others find it ended."""
    for turn in range(10):
        wallet = await payouts.wallet()
        name, transaction = f"p-{turn}", f"tx-{turn}"
        await payouts.consume(initiated(name, wallet))
        told = await payouts.told(transaction, "succeeded", "failed")
        await payouts.make_due()
        answer = GatewayAnswer(transaction, GatewayStatus.SUCCEEDED)
        await at_once(
            payouts.caller.save(name, answer),
            payouts.consume(*told),
            payouts.retries.run_once(),
            payouts.consume(*told),
            payouts.caller.save(name, answer),
        )
        await payouts.caller.save(name, answer)
        assert (await payouts.payment(name))["status"] == "COMPLETED"
        assert await payouts.balance(wallet) == (9_000, 0)
        entries = await payouts.rows("SELECT * FROM ledger_entries WHERE reservation = $1", name)
        assert len(entries) == 2
        assert len(await payouts.types_of(name)) == 2


async def test_a_changed_payment_is_not_overwritten(payouts: PayoutHarness) -> None:
    """SVC-1 S1: by the number of rows that were changed, and not by the absence of an error."""
    await payouts.consume(initiated("p", await payouts.wallet()))
    async with payouts.database.transaction() as connection:
        seen = (await store.lock(connection, ["p"])).payments["p"]
    await payouts.caller.save("p", GatewayRefusal(422))
    with pytest.raises(Exception, match="another transaction was first") as caught:
        async with payouts.database.transaction() as connection:
            await store.save(connection, [(seen, seen)])
    assert trouble(caught.value) is Trouble.RERUN


async def test_a_second_report_changes_nothing(payouts: PayoutHarness) -> None:
    """SVC-1 S1: COMPLETED stays, and so does FAILED unless it was made after all."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("done", wallet), initiated("failed", wallet))
    await payouts.caller.save("done", GatewayAnswer("tx-1", GatewayStatus.SUCCEEDED))
    await payouts.caller.save("failed", GatewayAnswer("tx-2", GatewayStatus.FAILED))
    before = [await payouts.payment("done"), await payouts.payment("failed")]
    await payouts.consume(*await payouts.told("tx-1", "failed", "pending", "succeeded"))
    await payouts.consume(*await payouts.told("tx-2", "failed", "pending"))
    assert [await payouts.payment("done"), await payouts.payment("failed")] == before
    assert await payouts.rows("SELECT 1 FROM gateway_callbacks WHERE status <> 'DONE'") == []


async def test_a_silent_gateway_is_notified_once(payouts: PayoutHarness) -> None:
    """SVC-1 RET-1: and asked on."""
    hurried = await open_harness(payouts.database, silent_after_s=1e-6, slow_pause_s=60.0)
    await payouts.consume(initiated("p", await payouts.wallet()))
    for _ in range(3):
        await hurried.caller.save("p", None)
    payment = await payouts.payment("p")
    assert (payment["status"], payment["review"]) == ("PROCESSING", "GATEWAY_SILENT")
    assert payment["next_attempt_at"] > datetime.now(UTC) + timedelta(seconds=30)
    (notice,) = await payouts.rows("SELECT kind, details FROM notifications")
    assert notice["kind"] == "wallet_payment"
    await hurried.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    assert (await payouts.payment("p"))["review"] is None
    await hurried.caller.close()


async def test_contradicting_transaction_ids_need_a_review(
    payouts: PayoutHarness,
) -> None:
    """SVC-1: one transaction for two payments, or two for one."""
    wallet = await payouts.wallet()
    await payouts.consume(initiated("p", wallet), initiated("q", wallet))
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    await payouts.caller.save("q", GatewayAnswer("tx", GatewayStatus.SUCCEEDED))
    await payouts.caller.save("p", GatewayAnswer("tx-other", GatewayStatus.SUCCEEDED))
    for name in ("p", "q"):
        payment = await payouts.payment(name)
        assert (payment["status"], payment["review"]) == ("PROCESSING", "TRANSACTION_CONFLICT")
    assert await payouts.balance(wallet) == (10_000, 2_000)


async def test_a_payment_is_claimed_until_the_lease_ends(
    payouts: PayoutHarness,
) -> None:
    """SVC-1: and by another one then, if the first has died."""
    await payouts.consume(initiated("p", await payouts.wallet()))
    async with payouts.database.connection() as connection:
        (first,) = await store.claim(connection, limit=10, lease_s=0.0)
        (second,) = await store.claim(connection, limit=10, lease_s=60.0)
        assert (first.attempts, second.attempts) == (1, 2)
        assert await store.claim(connection, limit=10, lease_s=60.0) == []


async def test_the_age_of_a_message_is_that_of_its_writing(payouts: PayoutHarness) -> None:
    """OBS-2 BUS-1: what it tells of may have happened long ago, such as a webhook given again."""
    await payouts.told("tx-old", "succeeded")
    await payouts.rows("UPDATE outbox SET occurred_at = now() - interval '5 days'")
    async with payouts.database.connection() as connection:
        assert (await outbox.backlog(connection))[1] < 3_600
        await connection.execute("UPDATE outbox SET id = gen_random_uuid()")
        assert (await outbox.backlog(connection))[1] > 3_600
