"""Payments that become one, and what a person says of a payment, on PostgreSQL."""

from typing import Any

import pytest

from paidonce.core.accept import AcceptRequest
from paidonce.core.events import EventType, PaymentId
from paidonce.core.orders import Kind
from paidonce.errors import ConflictError
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, Link, Reapply, ResultKind
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from tests.support.batches import Stage
from tests.support.till import PRICE, Till

ACCEPT = Link(accept=AcceptRequest("ann", "agreed"))

LOST_IDS = (
    "SELECT 1 FROM payment_ids AS i"
    " WHERE NOT EXISTS (SELECT 1 FROM payments AS p WHERE p.id = i.payment_id)"
)


@pytest.fixture
def till(shop: Stage) -> Till:
    return Till(shop, Linker(shop.database, shop.rules))


async def linked(till: Till, payment: str, link: Link) -> None:
    payment_id = PaymentId((await till.stage.payment(payment))["id"])
    await till.linker.link(payment_id, link, "somebody", "payment_linked")


async def codes(processor: Processor, *items: Incoming) -> list[str | None]:
    results = (await processor.process(items)).results
    return [one.outcome.code if one.outcome else None for one in results]


async def test_a_chain_of_merges_in_one_batch_ends_in_one_payment(
    till: Till, processor: Processor
) -> None:
    """PAY-1: every id leads to the one that is left, so that nothing is applied again under it."""
    shop = till.stage
    await till.order("o")
    await till.processed(till.paid("invoice", "o"))
    await till.processed(shop.event(EventType.PENDING, "intent"))
    await till.processed(shop.event(EventType.PENDING, "charge"))
    joining = [
        shop.event(EventType.PENDING, "intent", "charge"),
        shop.event(EventType.PENDING, "invoice", "intent"),
    ]
    await processor.process(joining)
    assert await shop.rows(LOST_IDS) == []
    await till.processed(shop.paid("charge", key="again", email="somebody@example.com"))
    assert (await shop.number("payments"), await shop.number("payment_ids")) == (1, 3)
    await till.processed(till.refunded("charge"))
    assert (await till.check("o"))["status"] == "REFUNDED"


async def test_a_successor_that_merges_with_the_first_payment_is_returned(
    till: Till,
) -> None:
    """PAY-1 PAY-7: the refund of one name is the refund of all."""
    await till.order("o")
    for item in (till.paid("session", "o"), till.paid("intent", "o"), till.refunded("session")):
        await till.processed(item)
    assert (await till.check("o"))["status"] == "PAID"
    await till.processed(till.stage.event(EventType.PENDING, "session", "intent"))
    assert await till.stage.number("payments") == 1
    order = await till.stage.one("SELECT * FROM orders")
    assert (order["status"], order["applied_payment_id"]) == ("REFUNDED", None)
    assert (await till.stage.one("SELECT * FROM wallets"))["balance_minor"] == 0


async def test_merged_payments_of_two_users_need_review(shop: Stage, processor: Processor) -> None:
    """PAY-1 PAY-5"""
    await processor.process(
        [shop.paid("s", email="a@x.example"), shop.paid("i", email="b@x.example")]
    )
    assert await codes(processor, shop.event(EventType.PENDING, "s", "i")) == ["LINK_CONFLICT"]
    payment = await shop.payment("s")
    assert (payment["review"], await shop.number("payments")) == ("LINK_CONFLICT", 1)
    await shop.user("a@x.example")
    again = shop.event(EventType.PROCESSING, "s")
    await processor.process([again])
    assert (await shop.payment("s"))["applied_at"] is None


async def test_events_do_not_undo_a_link(till: Till, worker: Worker) -> None:
    """PAY-8: the reference that they name was wrong, which is why a person was needed."""
    await till.processed(till.paid("p", "mistyped"))
    await till.order("o")
    await linked(till, "p", Link(order="o"))
    assert (await till.check("o"))["status"] == "PAID"
    await worker.run_once()
    await till.processed(till.paid("p", "mistyped", key="sibling"))
    assert (await till.check("o"))["status"] == "PAID"
    events = await till.stage.rows("SELECT status FROM webhook_events")
    assert {one["status"] for one in events} == {"PROCESSED"}


async def test_a_linked_payment_takes_over_like_any_other(till: Till) -> None:
    """PAY-7 PAY-8"""
    await till.order("o")
    await till.processed(till.paid("first", "o"))
    await till.processed(till.paid("second", "mistyped"))
    await linked(till, "second", Link(order="o"))
    await till.processed(till.paid("second", "mistyped", key="sibling"))
    await till.processed(till.refunded("first"))
    assert (await till.check("o"))["status"] == "PAID"


async def test_accepted_money_of_another_currency_never_gets_into_a_wallet(till: Till) -> None:
    """FUL-4 PAY-4: a person can overlook a sum, not what it is counted in."""
    await till.order("o")
    await till.processed(till.paid("rubles", "o"))
    await till.processed(till.paid("dollars", "o", currency="USD"))
    with pytest.raises(ConflictError, match="another currency"):
        await linked(till, "dollars", ACCEPT)
    await till.processed(till.refunded("rubles"))
    assert (await till.stage.one("SELECT * FROM orders"))["status"] == "REFUNDED"
    assert (await till.stage.one("SELECT * FROM wallets"))["balance_minor"] == 0
    assert (await till.stage.payment("dollars"))["review"] == "CURRENCY_MISMATCH"


async def test_an_accepted_sum_is_applied_as_it_is(till: Till) -> None:
    """PAY-8: and what is left to look at is settled with it."""
    await till.order("o")
    await till.processed(till.paid("p", "o", amount_minor=PRICE - 5_000))
    await linked(till, "p", ACCEPT)
    payment = await till.stage.payment("p")
    assert (payment["applied_minor"], payment["review"]) == (PRICE - 5_000, None)
    assert (await till.check("o"))["status"] == "PAID"


async def test_a_payment_of_nothing_cannot_be_accepted(till: Till) -> None:
    """PAY-4"""
    await till.order("o")
    await till.processed(till.paid("p", "o", amount_minor=0))
    with pytest.raises(ConflictError, match="holds no money"):
        await linked(till, "p", ACCEPT)
    assert (await till.stage.payment("p"))["applied_at"] is None


async def test_an_applied_payment_cannot_be_marked_for_refund(till: Till) -> None:
    """PAY-8: then the refund itself will be heard of."""
    await till.order("o")
    await till.processed(till.paid("p", "o"))
    with pytest.raises(ConflictError):
        await linked(till, "p", Link(is_for_refund=True))
    assert await till.stage.rows("SELECT 1 FROM audit_log WHERE payment_id IS NOT NULL") == []


async def test_a_payment_marked_for_refund_is_never_applied(till: Till) -> None:
    """PAY-8"""
    await till.processed(till.paid("p", "o"))
    await linked(till, "p", Link(is_for_refund=True))
    await till.order("o")
    payment = await till.stage.payment("p")
    assert (payment["applied_at"], payment["review"]) == (None, "REFUND_WANTED")
    with pytest.raises(ConflictError, match="unmark-for-refund"):
        await linked(till, "p", ACCEPT)
    await linked(till, "p", Link(is_for_refund=False))
    assert (await till.check("o"))["status"] == "PAID"


@pytest.mark.parametrize("is_first", [True, False], ids=["refund first", "payment first"])
@pytest.mark.parametrize("refund_id", [None, "re-1"], ids=["total", "single"])
async def test_a_refund_in_another_currency_takes_nothing_back(
    till: Till, is_first: bool, refund_id: str | None
) -> None:
    """PAY-12 PAY-2: a person looks at it, and ends the review by linking the payment again."""
    await till.order("o")

    def refunded_in_yen(key: str) -> Incoming:
        said: dict[str, Any] = {"amount_minor": PRICE, "currency": "JPY", "refund_id": refund_id}
        return till.stage.event(EventType.REFUNDED, "p", key=key, **said)

    foreign = refunded_in_yen("back")
    items = [till.paid("p", "o"), foreign]
    for item in reversed(items) if is_first else items:
        await till.processed(item)
    for _ in range(2):
        payment = await till.stage.payment("p")
        assert payment["review"] == "REFUND_CURRENCY_MISMATCH"
        assert (payment["currency"], payment["refunded_minor"]) == ("RUB", 0)
        assert payment["applied_at"] is not None
        assert payment["reversed_minor"] == 0
        await till.processed(till.stage.event(EventType.PENDING, "p", key="again"))
    with pytest.raises(ConflictError, match="in another currency"):
        await linked(till, "p", ACCEPT)
    await linked(till, "p", Link(order="o"))
    await till.processed(refunded_in_yen("the same"))
    assert (await till.check("o"))["status"] == "PAID"
    code = (await till.stage.event_row(foreign))["error_code"]
    assert code == (None if is_first else "REFUND_CURRENCY_MISMATCH")
    await till.processed(till.refunded("p"))
    assert (await till.check("o"))["status"] == "REFUNDED"


async def test_a_refund_that_came_first_is_shown_in_its_currency(
    till: Till,
) -> None:
    """PAY-6"""
    await till.processed(till.refunded("p"))
    payment = await till.stage.payment("p")
    assert (payment["currency"], payment["refunded_minor"]) == ("RUB", PRICE)
    assert (payment["review"], payment["captured_minor"]) == ("PAYMENT_MISSING", 0)


async def test_each_message_of_a_payment_has_a_version_of_its_own(
    till: Till, processor: Processor
) -> None:
    """FUL-6 BUS-1: also of what happened in one batch, so that the newest is known."""
    await till.order("o")
    half = till.stage.event(EventType.REFUNDED, "p", amount_minor=5, currency="RUB", key="half")
    await processor.process([till.paid("p", "o"), half])
    await till.processed(till.refunded("p"))
    told = await till.stage.rows("SELECT type, version FROM outbox ORDER BY seq")
    assert [one["type"] for one in told] == ["payment.applied", *["payment.reversed"] * 2]
    assert [one["version"] for one in told] == [1, 2, 3]
    assert (await till.stage.payment("p"))["version"] == 3


async def test_an_order_with_very_many_payments_is_processed_without_loading_all(
    till: Till, processor: Processor
) -> None:
    """PAY-7 SEC-8: one that holds money still takes over."""
    await till.order("o")
    await till.processed(till.paid("first", "o"))
    await till.processed(*(till.paid(f"more-{number}", "o") for number in range(100)))
    await till.processed(till.refunded("first"))
    order = await till.stage.one("SELECT * FROM orders")
    assert (order["status"], order["kind"]) == ("PAID", Kind.WALLET)
    assert (await till.stage.one("SELECT * FROM wallets"))["balance_minor"] == PRICE


async def test_a_merged_payment_is_found_by_a_concurrent_reapply(
    till: Till, processor: Processor
) -> None:
    """PAY-1: whoever had found it looks at nothing, and the heir was looked at too."""
    await processor.process([till.paid("s", "o"), till.paid("i", "o")])
    gone = PaymentId((await till.stage.payment("i"))["id"])
    await processor.process([till.stage.event(EventType.PENDING, "s", "i")])
    (result,) = (await processor.process([Reapply(gone)])).results
    assert result.kind is ResultKind.IGNORED
