"""Translation of responses of PortOne's V2 API."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import GatewayError, GatewayMismatchError, GatewayUnreachableError
from paidonce.providers.contract import GatewayResponse
from tests.providers.portone_lookups import event, look_up, source, webhook
from tests.support.portone_server import (
    CHANGED_AT,
    ODD_VALUES,
    PAID_AT,
    V2_SECRET,
    Cancellation,
    Payment,
)

PAID = datetime.fromtimestamp(PAID_AT, UTC)
CHANGED = datetime.fromtimestamp(CHANGED_AT, UTC)
TOTAL = Money(10_000, "KRW")
HALF = (Cancellation("c-1", 5_000),)
WHOLE = (*HALF, Cancellation("c-2", 5_000))
UNPAID = ("READY", "VIRTUAL_ACCOUNT_ISSUED", "PAY_PENDING")
STATUSES = (*UNPAID, "FAILED", "PAID", "PARTIAL_CANCELLED", "CANCELLED")


def test_a_payment_is_read_with_all_fields() -> None:
    """PRV-3 PAY-1"""
    assert event(webhook(), Payment("p-1")) == PaymentEvent(
        event_type=EventType.PAID,
        ids=(ExternalId("payment", "p-1"), ExternalId("transaction", "tx-1")),
        amount=TOTAL,
        order="p-1",
        email="buyer@example.com",
        occurred_at=PAID,
        paid_at=PAID,
    )


@pytest.mark.parametrize(
    ("payment", "event_type", "amount", "refunded", "at"),
    [
        (Payment("p-1", "READY"), EventType.PENDING, None, None, CHANGED),
        (Payment("p-1", "VIRTUAL_ACCOUNT_ISSUED"), EventType.PENDING, None, None, CHANGED),
        (Payment("p-1", "PAY_PENDING"), EventType.PROCESSING, None, None, CHANGED),
        (Payment("p-1", "FAILED"), EventType.FAILED, None, None, CHANGED),
        (Payment("p-1", "PAID"), EventType.PAID, TOTAL, None, PAID),
        (
            Payment("p-1", "PARTIAL_CANCELLED", cancellations=HALF),
            EventType.REFUNDED, TOTAL, Money(5_000, "KRW"), CHANGED,
        ),
        (
            Payment("p-1", "CANCELLED", cancellations=WHOLE),
            EventType.CANCELED, TOTAL, TOTAL, CHANGED,
        ),
        (Payment("p-1", "CANCELLED", was_paid=False), EventType.VOIDED, None, None, CHANGED),
        (
            Payment("p-1", "CANCELLED", cancellations=WHOLE, was_paid=False),
            EventType.CANCELED, TOTAL, TOTAL, CHANGED,
        ),
    ],
)  # fmt: skip
def test_the_status_of_the_api_decides(
    payment: Payment,
    event_type: EventType,
    amount: Money | None,
    refunded: Money | None,
    at: datetime,
) -> None:
    """PRV-3 PAY-2: refunds are told as their sum; what was returned had been paid."""
    known = event(webhook("Ready"), payment)
    assert (known.event_type, known.amount, known.refunded) == (event_type, amount, refunded)
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
def test_the_api_may_be_ahead_but_not_behind_or_contradicting(
    kind: str, behind: tuple[str, ...], contradicted: tuple[str, ...]
) -> None:
    """PRV-3: of one attempt. A cancellation counts only when the API confirms it."""
    for status in STATUSES:
        payment = Payment("p-1", status, cancellations=HALF if "CANCELLED" in status else ())
        if status in behind:
            with pytest.raises(GatewayUnreachableError, match="caught up"):
                look_up(webhook(kind), payment)
        elif status in contradicted:
            with pytest.raises(GatewayMismatchError):
                look_up(webhook(kind), payment)
        else:
            assert event(webhook(kind), payment).order == "p-1"


@pytest.mark.parametrize("status", ["READY", "VIRTUAL_ACCOUNT_ISSUED", "PAY_PENDING"])
def test_a_new_attempt_may_follow_a_failed_one(status: str) -> None:
    """PRV-3: one payment has many attempts, and the API speaks of the last one."""
    payment = Payment("p-1", status, transaction_id="tx-2")
    assert event(webhook("Failed"), payment).event_type in (
        EventType.PENDING,
        EventType.PROCESSING,
    )
    with pytest.raises(GatewayUnreachableError):
        look_up(webhook("Failed", transactionId="tx-2"), payment)


def test_the_failure_of_one_attempt_does_not_contradict_another() -> None:
    """PRV-3: the API still speaks of the attempt before."""
    failed = Payment("p-1", "FAILED", transaction_id="tx-1")
    with pytest.raises(GatewayUnreachableError, match="caught up"):
        look_up(webhook("Paid", transactionId="tx-2"), failed)
    with pytest.raises(GatewayMismatchError) as caught:
        look_up(webhook("Paid", transactionId="tx-1"), failed)
    assert caught.value.may_pass


def test_a_second_cancellation_waits_until_the_total_includes_it() -> None:
    """PRV-3: the status alone would not tell that it is behind."""
    second = webhook("PartialCancelled", cancellationId="c-2")
    asked_for = (*HALF, Cancellation("c-2", 2_000, "REQUESTED"))
    for known in (HALF, asked_for):
        with pytest.raises(GatewayUnreachableError, match="caught up"):
            look_up(second, Payment("p-1", "PARTIAL_CANCELLED", cancellations=known))
    done = Payment("p-1", "PARTIAL_CANCELLED", cancellations=(*HALF, Cancellation("c-2", 2_000)))
    assert event(second, done).refunded == Money(7_000, "KRW")
    assert event(webhook("PartialCancelled"), done).refunded == Money(7_000, "KRW")


@pytest.mark.parametrize(
    ("kind", "disputes", "event_type"),
    [
        ("DisputeCreated", ("UNRESOLVED",), EventType.DISPUTED),
        ("DisputeCreated", ("RESOLVED",), EventType.DISPUTE_WON),
        ("DisputeCreated", ("RESOLVED", "UNRESOLVED"), EventType.DISPUTED),
        ("DisputeCreated", ("NEVER_HEARD_OF",), EventType.DISPUTED),
        ("DisputeResolved", ("RESOLVED",), EventType.DISPUTE_WON),
        ("DisputeResolved", ("RESOLVED", "UNRESOLVED"), EventType.DISPUTED),
        ("DisputeResolved", ("UNRESOLVED",), None),
        ("Paid", ("UNRESOLVED",), EventType.PAID),
    ],
)
def test_disputes_are_those_that_the_api_lists(
    kind: str, disputes: tuple[str, ...], event_type: EventType | None
) -> None:
    """PAY-2"""
    payment = Payment("p-1", disputes=disputes)
    if event_type is None:
        with pytest.raises(GatewayUnreachableError, match="caught up"):
            look_up(webhook(kind), payment)
        return
    known = event(webhook(kind), payment)
    assert (known.event_type, known.amount) == (event_type, TOTAL)


def test_a_dispute_that_ended_in_a_refund_is_a_refund() -> None:
    """PAY-2"""
    lost = Payment("p-1", "CANCELLED", cancellations=WHOLE)
    assert event(webhook("DisputeResolved"), lost).refunded == TOTAL


@pytest.mark.parametrize("shown", [{"id": "p-2"}, {"storeId": "store-2"}, {"storeId": ...}])
def test_another_payment_than_the_requested_one_is_a_mismatch(shown: dict[str, Any]) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="another"):
        look_up(webhook(), Payment("p-1", shown=shown))


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "api_secret"), (403, "api_secret"), (404, "store_id"), (400, "400"), (204, "204")],
)
def test_an_error_response_is_retried(status: int, told: str) -> None:
    """PRV-3 RET-1 SEC-7: and what to check is told, without the secret."""
    with pytest.raises(GatewayUnreachableError, match=told) as caught:
        look_up(webhook(), GatewayResponse(status, b'{"type": "ERROR"}'))
    assert V2_SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "shown",
    [
        {"currency": ...}, {"currency": "WON"}, {"amount": ...}, {"amount": {"total": 10_000}},
        {"amount": {"total": "10000", "cancelled": 0}}, {"amount": {"total": True, "cancelled": 0}},
        {"amount": {"total": -1, "cancelled": 0}}, {"amount": {"total": 1.5, "cancelled": 0}},
        {"amount": {"total": 10**13, "cancelled": 0}}, {"id": ...},
        {"status": ...}, {"status": {}},
    ],
    ids=str,
)  # fmt: skip
def test_an_unreadable_response_is_retried(shown: dict[str, Any]) -> None:
    """PRV-3 PAY-1"""
    with pytest.raises(GatewayUnreachableError, match="cannot be read"):
        look_up(webhook(), Payment("p-1", shown=shown))


@pytest.mark.parametrize("status", ["REFUNDED", "paid", 5])
def test_an_unknown_status_is_a_mismatch(status: object) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="status"):
        look_up(webhook(), Payment("p-1", shown={"status": status}))


def test_a_test_channel_does_not_count_in_production() -> None:
    """PAY-4"""
    payment = Payment("p-1", is_test=True)
    ignored = look_up(webhook(), payment, source(accepts_test=False))
    assert isinstance(ignored, Ignored)
    assert ignored.code is Code.TEST_PAYMENT
    assert event(webhook(), payment).event_type is EventType.PAID
    assert event(webhook(), Payment("p-1"), source(accepts_test=False)).event_type is EventType.PAID


NAMES = sorted(Payment("p-1").v2() | {"cancellations": [], "disputes": []})
FIELDS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(ODD_VALUES) | st.text())


@given(fields=FIELDS, kind=st.sampled_from(["Paid", "Cancelled", "DisputeCreated"]))
def test_any_response_is_read_or_a_gateway_error(fields: dict[str, Any], kind: str) -> None:
    """PRV-3: and no fault of ours."""
    with contextlib.suppress(GatewayError):
        look_up(webhook(kind), Payment("p-1", shown=fields))


@given(body=st.binary())
def test_any_response_bytes_are_retried(body: bytes) -> None:
    """PRV-3"""
    with pytest.raises(GatewayUnreachableError):
        look_up(webhook(), GatewayResponse(200, body))
