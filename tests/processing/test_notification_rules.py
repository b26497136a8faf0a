"""Which facts become notices, once each, with what made them true."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.core.events import (
    Code,
    EventId,
    EventStatus,
    EventType,
    Outcome,
    PaymentEvent,
    PaymentId,
)
from paidonce.core.money import Money
from paidonce.core.notifications import NotificationKind
from paidonce.core.retry import RetryPolicy
from paidonce.db.pool import Database
from paidonce.errors import (
    InvalidSignatureError,
    MalformedError,
    RejectedError,
    TimestampExpiredError,
)
from paidonce.linking.linker import Linker
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification
from paidonce.processing.items import Incoming, Rejected
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from paidonce.replay.reprocess import Reprocessor
from tests.support.batches import Stage, stage
from tests.support.till import PRICE, Till

ALL: Final = dict.fromkeys(NotificationKind, ("ops",))
NOW: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest_asyncio.fixture(loop_scope="session")
async def shop(database: Database) -> Stage:
    """A shop that has a channel for everything, and tries nothing twice."""
    made = await stage(database, RetryPolicy(attempts=1))
    return replace(made, rules=replace(made.rules, routes=ALL))


@pytest.fixture
def till(shop: Stage) -> Till:
    return Till(shop, Linker(shop.database, shop.rules))


async def process(shop: Stage, *items: Incoming | Rejected) -> None:
    processor = Processor(shop.database, shop.rules)
    await processor.process(items)
    await processor.close()


async def told(shop: Stage) -> list[dict[str, Any]]:
    """What people are told, without money that still has time."""
    return [row for row in await written(shop) if row["kind"] != "unapplied"]


async def written(shop: Stage) -> list[dict[str, Any]]:
    rows = await shop.rows("SELECT * FROM notifications ORDER BY id")
    return [row | {"details": orjson.loads(row["details"])} for row in rows]


async def kinds(shop: Stage) -> list[str]:
    return [row["kind"] for row in await told(shop)]


async def test_a_mismatch_is_notified_once_with_details(shop: Stage) -> None:
    """OBS-5 PAY-4 SEC-7: neither again when it comes again, nor by a sibling."""
    wrong = shop.paid("p-1", amount_minor=1_050, email="buyer@example.com")
    await shop.user("buyer@example.com")
    await process(shop, wrong)
    await process(shop, shop.paid("p-1", amount_minor=1_050, email="buyer@example.com"))
    await process(
        shop, shop.paid("p-1", amount_minor=1_050, email="buyer@example.com", key="other")
    )
    (notice,) = await told(shop)
    payment = await shop.payment("p-1")
    assert (notice["kind"], notice["source"], notice["channel"]) == ("mismatch", "plain", "ops")
    assert (notice["event_id"], notice["payment_id"]) == (wrong.event_id, payment["id"])
    assert notice["details"] == {
        "code": "AMOUNT_MISMATCH",
        "message": "paid 10.50 RUB, but the price is 990.00 RUB",
        "payment": "p-1",
        "amount": "10.50",
        "currency": "RUB",
        "email": "b***@example.com",
    }


async def test_a_dispute_is_notified_when_it_is_opened(shop: Stage) -> None:
    """PAY-12 OBS-5: once, and again when one is opened after it was won."""
    await shop.user("p@example.com")
    await process(shop, shop.paid("p"))

    async def hears(event_type: EventType, day: int) -> None:
        item = shop.event(event_type, "p", key=f"{event_type} {day}")
        assert isinstance(item.event, PaymentEvent)
        at = NOW + timedelta(days=day)
        event = replace(item.event, occurred_at=at, answer_by=at + timedelta(days=7))
        await process(shop, replace(item, event=event))

    await hears(EventType.DISPUTED, 1)
    await hears(EventType.DISPUTED, 2)
    (notice,) = await told(shop)
    assert (notice["kind"], notice["payment_id"]) == ("dispute", (await shop.payment("p"))["id"])
    assert notice["details"]["payment"] == "p"
    assert notice["details"]["answer_by"].startswith("2026-11-23")
    await hears(EventType.DISPUTE_WON, 3)
    assert await kinds(shop) == ["dispute"]
    await hears(EventType.DISPUTED, 4)
    assert await kinds(shop) == ["dispute", "dispute"]


async def test_a_mismatching_event_of_a_correct_payment_is_notified(
    shop: Stage,
) -> None:
    """OBS-5 PAY-4: the payment stands, and no list shows it."""
    await shop.user("p-1@example.com")
    await process(shop, shop.paid("p-1"))
    await process(shop, shop.paid("p-1", amount_minor=5, key="less"))
    (notice,) = await told(shop)
    assert notice["kind"] == "mismatch"
    assert "990.00" in notice["details"]["message"]


async def test_the_same_failure_is_not_notified_again(shop: Stage) -> None:
    """OBS-5 OPS-4: whoever processes it again is answered; nobody else has news."""
    await shop.user("p-1@example.com")
    await process(shop, shop.paid("p-1"))
    wrong = shop.paid("p-1", amount_minor=5, key="less")
    await process(shop, wrong)
    before = await told(shop)
    again = await Reprocessor(shop.database, shop.rules).reprocess(wrong.event_id, "somebody")
    assert again.code == Code.AMOUNT_MISMATCH
    assert await told(shop) == before != []


async def test_success_and_retries_are_not_notified(shop: Stage) -> None:
    """OBS-5: a customer who registers a minute later needs nobody."""
    await shop.user("p-1@example.com")
    await process(shop, shop.paid("p-1"), shop.paid("p-2"), shop.paid("p-3", email=None))
    await process(shop, shop.paid("p-1"), shop.event(EventType.FAILED, "p-1"))
    assert await told(shop) == []


async def test_an_event_that_is_given_up_is_a_dead_letter(shop: Stage) -> None:
    """OBS-5 RET-3: on its arrival, or later by a worker."""
    fault = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, "broken")
    item = shop.event(EventType.PAID, "p-1", forced_outcome=fault, amount_minor=1, currency="RUB")
    await process(shop, item)
    (notice,) = await told(shop)
    assert (notice["kind"], notice["event_id"]) == ("dead_letter", item.event_id)
    assert notice["details"] == {
        "code": "INTERNAL",
        "message": "broken",
        "payment": "p-1",
        "amount": "0.01",
        "currency": "RUB",
    }


async def test_a_dead_letter_is_notified_with_its_attempt(
    database: Database,
) -> None:
    """OBS-5 RET-3: not by the attempts before it."""
    made = await stage(database, RetryPolicy(attempts=2, initial_s=0.001))
    shop = replace(made, rules=replace(made.rules, routes=ALL))
    fault = Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, "broken")
    await process(shop, shop.event(EventType.PAID, "p-1", forced_outcome=fault))
    assert await told(shop) == []
    # What it means cannot be read any more: it fails by itself when it is tried again.
    await shop.rows("UPDATE webhook_events SET raw_body = '[]'")
    worker = Worker(shop.database, shop.rules)
    async with asyncio.timeout(120):
        while not await told(shop):
            await worker.run_once()
    await worker.close()
    assert await kinds(shop) == ["dead_letter"]


async def test_a_conflict_is_notified_with_its_evidence(shop: Stage) -> None:
    """OBS-5 INB-2"""
    await process(shop, shop.paid("p-1", key="k"))
    other = shop.paid("p-1", key="k", amount_minor=7)
    await process(shop, other)
    (notice,) = await told(shop)
    assert (notice["kind"], notice["event_id"]) == ("conflict", other.event_id)
    assert notice["details"]["code"] == "PAYLOAD_CONFLICT"


async def test_money_that_an_order_does_not_accept_is_notified(till: Till) -> None:
    """OBS-5 PAY-7 FUL-3: paid twice; closed; and of the wrong sum, known when the order comes."""
    await till.order("o-1")
    await till.processed(till.paid("p-1", "o-1"))
    await till.processed(till.paid("p-2", "o-1"))
    await till.order("o-2")
    assert await till.closed("o-2")
    await till.processed(till.paid("p-3", "o-2"))
    await till.processed(till.paid("p-4", "o-3", amount_minor=PRICE - 500))
    assert await kinds(till.stage) == ["duplicate_payment", "order_closed"]
    await till.order("o-3")
    *_, last = await told(till.stage)
    assert (last["kind"], last["details"]["order"]) == ("mismatch", "o-3")
    assert last["payment_id"] == (await till.stage.payment("p-4"))["id"]
    assert len(await told(till.stage)) == 3, "not by payment and event each"


async def test_an_uncovered_debit_is_notified_with_its_receivable(till: Till) -> None:
    """OBS-5 FUL-4"""
    wallet_id = await till.order("o-1")
    await till.processed(till.paid("p-1", "o-1"))
    spent = "UPDATE wallets SET balance_minor = 40000, receivable_minor = 0 WHERE id = $1"
    await till.stage.rows(spent, wallet_id)
    await till.processed(till.refunded("p-1"))
    (notice,) = await told(till.stage)
    assert (notice["kind"], notice["details"]["amount"]) == ("receivable", "590.00")


async def test_link_conflicts_are_notified(till: Till) -> None:
    """OBS-5 PAY-5"""
    await till.order("o-1")
    await till.order("o-2")
    await till.processed(till.paid("p-1", "o-1"))
    await till.processed(till.paid("p-1", "o-2", key="other"))
    assert await kinds(till.stage) == ["link_conflict"]


def refused(shop: Stage, error: RejectedError, *, is_valid: bool) -> Rejected:
    item = shop.paid("p-1")
    return Rejected(
        EventId(uuid7()), shop.source, item.request, item.delivery, error, signature_valid=is_valid
    )


async def test_refused_authentic_deliveries_are_notified_and_forged_ones_are_not(
    shop: Stage,
) -> None:
    """OBS-5 PRV-8 REC-6: whoever forges deliveries must not be able to wake people up."""
    await process(
        shop,
        refused(shop, TimestampExpiredError("it is old"), is_valid=True),
        refused(shop, MalformedError("what of me@example.com"), is_valid=True),
        refused(shop, MalformedError("no JSON"), is_valid=False),
        refused(shop, InvalidSignatureError("forged"), is_valid=False),
    )
    found = await told(shop)
    assert [row["kind"] for row in found] == ["expired", "failed"]
    assert found[1]["details"]["message"] == "what of m***@example.com"


async def test_without_channels_nothing_is_written(shop: Stage) -> None:
    """OBS-5: and only those that want a kind are told of it."""
    some: dict[NotificationKind, Sequence[str]] = {NotificationKind.CONFLICT: ("one", "two")}
    for telling, expected in (({}, []), (some, ["one", "two"])):
        quiet = replace(shop, rules=replace(shop.rules, routes=telling))
        key = f"k-{len(expected)}"
        await process(quiet, quiet.paid(key, key=key, amount_minor=1), quiet.paid(key, key=key))
        assert [row["channel"] for row in await told(shop)] == expected


async def test_a_refund_ahead_of_its_payment_is_notified_after_a_day(shop: Stage) -> None:
    """OBS-5 PAY-6: unless the payment has come by then."""
    for name in ("late", "lost"):
        back = shop.event(EventType.REFUNDED, name, amount_minor=99_000, currency="RUB")
        await process(shop, back)
    await process(shop, shop.paid("late"))

    async def taken() -> list[str]:
        async with shop.database.transaction() as connection:
            return [
                one.details["payment"]
                for one in await notifications_store.assign(connection, "ops", uuid7())
            ]

    assert await taken() == []
    await shop.rows("UPDATE notifications SET not_before = not_before - interval '1 day'")
    assert await taken() == ["lost"]
    assert await kinds(shop) == ["payment_missing"]


async def test_a_resolved_notification_keeps_the_count_of_suppressed_ones(shop: Stage) -> None:
    """OBS-5 SEC-8"""
    back = shop.event(EventType.REFUNDED, "late", amount_minor=99_000, currency="RUB")
    await process(shop, back)
    await process(shop, shop.paid("late"))
    await shop.rows("UPDATE notifications SET not_before = now(), suppressed = 3")
    async with shop.database.transaction() as connection:
        assert [
            one.suppressed for one in await notifications_store.assign(connection, "ops", uuid7())
        ] == [3]


async def test_a_flood_of_notifications_is_counted_and_not_stored(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5 SEC-8: of each kind and source by itself, however many write at once."""
    monkeypatch.setattr(notifications_store, "MAX_PENDING", 10)

    async def flood(
        number: int, kind: NotificationKind = NotificationKind.CONFLICT, source: str = "a"
    ) -> None:
        async with shop.database.transaction() as connection:
            await notifications_store.add(
                connection, ALL, *[Notification(kind, NOW, source)] * number
            )

    await flood(7)
    await flood(7)
    for _ in range(20):
        await asyncio.gather(*(flood(5) for _ in range(4)))
    await flood(3, NotificationKind.BAN)
    await flood(4, source="b")
    rows = await shop.rows(
        "SELECT kind, source, count(*) AS kept, sum(1 + suppressed) AS number FROM notifications"
        " GROUP BY 1, 2 ORDER BY 1, 2"
    )
    found = {(row["kind"], row["source"]): (row["kept"], row["number"]) for row in rows}
    assert found["ban", "a"] == (3, 3)
    assert found["conflict", "b"] == (4, 4)
    kept, number = found["conflict", "a"]
    assert number == 14 + 400
    assert 10 <= kept <= 40, "those that met at the limit may pass it together"


async def test_writing_a_notification_waits_for_no_lock(
    shop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBS-5: also while another transaction holds the rows that the surplus is counted on."""
    monkeypatch.setattr(notifications_store, "MAX_PENDING", 1)
    conflict = Notification(NotificationKind.CONFLICT, NOW, "a")
    async with shop.database.transaction() as connection:
        await notifications_store.add(connection, ALL, conflict)
    async with shop.database.transaction() as holder, shop.database.transaction() as other:
        await notifications_store.add(holder, ALL, conflict)
        await other.execute("SET LOCAL lock_timeout = '50ms'")
        await notifications_store.add(other, ALL, conflict)
    rows = await shop.rows("SELECT suppressed FROM notifications ORDER BY id")
    assert [row["suppressed"] for row in rows] == [1, 0]


async def test_a_notification_is_rolled_back_with_its_transaction(shop: Stage) -> None:
    """OBS-5: in one transaction."""
    ban = Notification(NotificationKind.BAN, NOW, details={"address": "192.0.2.1"})
    async with shop.database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await notifications_store.add(connection, ALL, ban)
        await transaction.rollback()
    assert await told(shop) == []


def test_notifications_contain_only_storable_text() -> None:
    """OBS-5"""
    finding = Notification(
        NotificationKind.FINDING,
        NOW,
        payment_id=PaymentId(uuid7()),
        details={"amount": Money(1, "RUB")},
    )
    assert list(finding.rows({})) == []
    ((*_, details, _),) = finding.rows(ALL)
    assert details == '{"amount":"0.01 RUB"}'


async def test_money_that_waits_is_told_later_and_once(shop: Stage) -> None:
    """OBS-5 PAY-5: however its reason changes while it waits."""
    await process(shop, shop.paid("w-1", email="nobody@example.com"))
    await process(shop, shop.paid("w-1", email="nobody@example.com"))
    (notice,) = await written(shop)
    payment = await shop.payment("w-1")
    assert (notice["kind"], notice["payment_id"]) == ("unapplied", payment["id"])
    assert notice["not_before"] - notice["at"] == shop.rules.unapplied_after
    assert notice["details"]["code"] == "USER_MISSING"
    assert notice["details"]["amount"] == "990.00"
    await process(shop, shop.paid("w-1", order="no-such-order", key="names an order"))
    assert (await shop.payment("w-1"))["review"] == "ORDER_MISSING"
    assert [one["id"] for one in await written(shop)] == [notice["id"]]


async def test_money_is_told_only_if_it_still_waits(shop: Stage) -> None:
    """OBS-5: also for something else than at first; not if it was applied meanwhile."""
    await process(shop, shop.paid("w-2", email="nobody@example.com"))
    await process(shop, shop.paid("w-3", email="late@example.com"))
    await process(shop, shop.paid("w-2", order="no-such-order", key="names an order"))
    await Linker(shop.database, shop.rules).create_user("late@example.com", "cli:test")
    await shop.rows("UPDATE notifications SET not_before = now() RETURNING id")
    async with shop.database.transaction() as connection:
        pending = await notifications_store.assign(connection, "ops", uuid7())
    assert [one.details["payment"] for one in pending] == ["w-2"]
