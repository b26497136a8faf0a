"""What the replies of PortOne's V2 query API mean."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.errors import GatewayError, GatewayMismatchError, GatewayUnreachableError
from paidonce.providers.contract import Reply
from tests.gateways.portone import CHANGED_AT, ODD_VALUES, PAID_AT, V2_SECRET, Cancellation, Payment
from tests.providers.portone_by_hand import asked, event, said, source

PAID = datetime.fromtimestamp(PAID_AT, UTC)
CHANGED = datetime.fromtimestamp(CHANGED_AT, UTC)
TOTAL = Money(10_000, "KRW")
HALF = (Cancellation("c-1", 5_000),)
WHOLE = (*HALF, Cancellation("c-2", 5_000))
UNPAID = ("READY", "VIRTUAL_ACCOUNT_ISSUED", "PAY_PENDING")
STATUSES = (*UNPAID, "FAILED", "PAID", "PARTIAL_CANCELLED", "CANCELLED")


def test_all_that_the_api_says_is_read() -> None:
    """PRV-3 PAY-1"""
    assert event(said(), Payment("p-1")) == PaymentEvent(
        says=Says.PAID,
        ids=(ExternalId("payment", "p-1"), ExternalId("transaction", "tx-1")),
        amount=TOTAL,
        order="p-1",
        email="buyer@example.com",
        occurred_at=PAID,
        paid_at=PAID,
    )


@pytest.mark.parametrize(
    ("payment", "says", "amount", "refunded", "at"),
    [
        (Payment("p-1", "READY"), Says.PENDING, None, None, CHANGED),
        (Payment("p-1", "VIRTUAL_ACCOUNT_ISSUED"), Says.PENDING, None, None, CHANGED),
        (Payment("p-1", "PAY_PENDING"), Says.PROCESSING, None, None, CHANGED),
        (Payment("p-1", "FAILED"), Says.FAILED, None, None, CHANGED),
        (Payment("p-1", "PAID"), Says.PAID, TOTAL, None, PAID),
        (
            Payment("p-1", "PARTIAL_CANCELLED", cancellations=HALF),
            Says.REFUNDED, TOTAL, Money(5_000, "KRW"), CHANGED,
        ),
        (Payment("p-1", "CANCELLED", cancellations=WHOLE), Says.CANCELED, TOTAL, TOTAL, CHANGED),
        (Payment("p-1", "CANCELLED", was_paid=False), Says.VOIDED, None, None, CHANGED),
        (
            Payment("p-1", "CANCELLED", cancellations=WHOLE, was_paid=False),
            Says.CANCELED, TOTAL, TOTAL, CHANGED,
        ),
    ],
)  # fmt: skip
def test_the_status_decides_and_not_the_event(
    payment: Payment, says: Says, amount: Money | None, refunded: Money | None, at: datetime
) -> None:
    """PRV-3 PAY-2: refunds are told as their sum; what was returned had been paid."""
    known = event(said("Ready"), payment)
    assert (known.says, known.amount, known.refunded) == (says, amount, refunded)
    assert (known.refund, known.occurred_at) == (None, at)
    assert known.paid_at == (PAID if amount and payment.was_paid else None)


@pytest.mark.parametrize(
    ("kind", "behind", "contradicted"),
    [
        ("Ready", (), ()),
        ("VirtualAccountIssued", ("READY",), ()),
        ("PayPending", ("READY",), ()),
        ("Failed", UNPAID, ()),
        ("Paid", UNPAID, ("FAILED",)),
        ("CancelPending", (), ()),
        ("PartialCancelled", (*UNPAID, "PAID"), ("FAILED",)),
        ("Cancelled", (*UNPAID, "PAID", "PARTIAL_CANCELLED"), ("FAILED",)),
        ("DisputeCreated", (*UNPAID, "PAID"), ("FAILED",)),
        ("DisputeResolved", (*UNPAID, "PAID"), ("FAILED",)),
    ],
)
def test_the_api_may_be_further_on_but_neither_behind_nor_against_the_event(
    kind: str, behind: tuple[str, ...], contradicted: tuple[str, ...]
) -> None:
    """PRV-3: of one attempt. A cancellation counts only when the API confirms it."""
    for status in STATUSES:
        payment = Payment("p-1", status, cancellations=HALF if "CANCELLED" in status else ())
        if status in behind:
            with pytest.raises(GatewayUnreachableError, match="caught up"):
                asked(said(kind), payment)
        elif status in contradicted:
            with pytest.raises(GatewayMismatchError):
                asked(said(kind), payment)
        else:
            assert event(said(kind), payment).order == "p-1"


@pytest.mark.parametrize("status", ["READY", "VIRTUAL_ACCOUNT_ISSUED", "PAY_PENDING"])
def test_a_failure_may_be_followed_by_another_attempt_that_is_under_way(status: str) -> None:
    """PRV-3: one payment has many attempts, and the API speaks of the last one."""
    payment = Payment("p-1", status, transaction_id="tx-2")
    assert event(said("Failed"), payment).says in (Says.PENDING, Says.PROCESSING)
    with pytest.raises(GatewayUnreachableError):
        asked(said("Failed", transactionId="tx-2"), payment)


def test_a_paid_attempt_is_not_contradicted_by_the_failure_of_another() -> None:
    """PRV-3: the API still speaks of the attempt before."""
    failed = Payment("p-1", "FAILED", transaction_id="tx-1")
    with pytest.raises(GatewayUnreachableError, match="caught up"):
        asked(said("Paid", transactionId="tx-2"), failed)
    with pytest.raises(GatewayMismatchError) as caught:
        asked(said("Paid", transactionId="tx-1"), failed)
    assert caught.value.may_pass


def test_a_second_cancellation_waits_until_the_sum_holds_it() -> None:
    """PRV-3: the status alone would not tell that it is behind."""
    second = said("PartialCancelled", cancellationId="c-2")
    asked_for = (*HALF, Cancellation("c-2", 2_000, "REQUESTED"))
    for known in (HALF, asked_for):
        with pytest.raises(GatewayUnreachableError, match="caught up"):
            asked(second, Payment("p-1", "PARTIAL_CANCELLED", cancellations=known))
    done = Payment("p-1", "PARTIAL_CANCELLED", cancellations=(*HALF, Cancellation("c-2", 2_000)))
    assert event(second, done).refunded == Money(7_000, "KRW")
    assert event(said("PartialCancelled"), done).refunded == Money(7_000, "KRW")


@pytest.mark.parametrize(
    ("kind", "disputes", "says"),
    [
        ("DisputeCreated", ("UNRESOLVED",), Says.DISPUTED),
        ("DisputeCreated", ("RESOLVED",), Says.DISPUTE_WON),
        ("DisputeCreated", ("RESOLVED", "UNRESOLVED"), Says.DISPUTED),
        ("DisputeCreated", ("NEVER_HEARD_OF",), Says.DISPUTED),
        ("DisputeResolved", ("RESOLVED",), Says.DISPUTE_WON),
        ("DisputeResolved", ("RESOLVED", "UNRESOLVED"), Says.DISPUTED),
        ("DisputeResolved", ("UNRESOLVED",), None),
        ("Paid", ("UNRESOLVED",), Says.PAID),
    ],
)
def test_disputes_are_what_the_api_lists(
    kind: str, disputes: tuple[str, ...], says: Says | None
) -> None:
    """PAY-2"""
    payment = Payment("p-1", disputes=disputes)
    if says is None:
        with pytest.raises(GatewayUnreachableError, match="caught up"):
            asked(said(kind), payment)
        return
    known = event(said(kind), payment)
    assert (known.says, known.amount) == (says, TOTAL)


def test_a_dispute_that_ended_in_a_refund_is_one() -> None:
    """PAY-2"""
    lost = Payment("p-1", "CANCELLED", cancellations=WHOLE)
    assert event(said("DisputeResolved"), lost).refunded == TOTAL


@pytest.mark.parametrize("shown", [{"id": "p-2"}, {"storeId": "store-2"}, {"storeId": ...}])
def test_a_payment_that_is_not_the_one_asked_for_is_not_believed(shown: dict[str, Any]) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="another"):
        asked(said(), Payment("p-1", shown=shown))


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "api_secret"), (403, "api_secret"), (404, "store_id"), (400, "400"), (204, "204")],
)
def test_an_answer_that_is_none_is_asked_for_again(status: int, told: str) -> None:
    """PRV-3 RET-1 SEC-7: and what to check is told, without the secret."""
    with pytest.raises(GatewayUnreachableError, match=told) as caught:
        asked(said(), Reply(status, b'{"type": "ERROR"}'))
    assert V2_SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "shown",
    [
        {"currency": ...}, {"currency": "WON"}, {"amount": ...}, {"amount": {"total": 10_000}},
        {"amount": {"total": "10000", "cancelled": 0}}, {"amount": {"total": True, "cancelled": 0}},
        {"amount": {"total": -1, "cancelled": 0}}, {"amount": {"total": 1.5, "cancelled": 0}},
        {"amount": {"total": 10**13, "cancelled": 0}}, {"id": ...}, {"paidAt": "soon"},
        {"status": ...}, {"status": {}},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_asked_for_again(shown: dict[str, Any]) -> None:
    """PRV-3 PAY-1"""
    with pytest.raises(GatewayUnreachableError, match="cannot be read"):
        asked(said(), Payment("p-1", shown=shown))


@pytest.mark.parametrize("status", ["REFUNDED", "paid", 5])
def test_a_status_that_nobody_knows_needs_a_person(status: object) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="status"):
        asked(said(), Payment("p-1", shown={"status": status}))


def test_a_test_channel_does_not_pay_where_it_must_not() -> None:
    """PAY-4"""
    payment = Payment("p-1", is_test=True)
    ignored = asked(said(), payment, source(accepts_test=False))
    assert isinstance(ignored, Ignored)
    assert ignored.code is Code.TEST_PAYMENT
    assert event(said(), payment).says is Says.PAID
    assert event(said(), Payment("p-1"), source(accepts_test=False)).says is Says.PAID


NAMES = sorted(Payment("p-1").v2() | {"cancellations": [], "disputes": []})
FIELDS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(ODD_VALUES) | st.text())


@given(fields=FIELDS, kind=st.sampled_from(["Paid", "Cancelled", "DisputeCreated"]))
def test_whatever_the_api_replies_is_read_or_told(fields: dict[str, Any], kind: str) -> None:
    """PRV-3: and no fault of ours."""
    with contextlib.suppress(GatewayError):
        asked(said(kind), Payment("p-1", shown=fields))


@given(body=st.binary())
def test_whatever_bytes_the_api_replies_are_asked_for_again(body: bytes) -> None:
    """PRV-3"""
    with pytest.raises(GatewayUnreachableError):
        asked(said(), Reply(200, body))
