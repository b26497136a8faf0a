"""What the merchant expects to be paid for, and what of it was done (FUL-2, FUL-3).

An order's status is computed from what its payments amount to, as a payment's is from its facts: no
order of arrival gives another one. Only closing an order is an act of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from paidonce.domain.events import OrderId, PaymentId, SourceId, UserId, WalletId
from paidonce.domain.money import Money, matches
from paidonce.domain.payments import Facts, Payment, PaymentStatus

MAX_REFERENCE: Final = 255
"""The longest reference that is accepted: an event cannot carry a longer one."""


class Kind(StrEnum):
    """What an order fulfils when it is paid."""

    ORDER = "order"  # nothing more
    SUBSCRIPTION = "subscription"
    BOOKING = "booking"
    WALLET = "wallet"


class OrderStatus(StrEnum):
    """Where an order stands. Failed and voided attempts leave it pending."""

    PENDING = "PENDING"
    PAID = "PAID"
    CANCELED = "CANCELED"
    REFUNDED = "REFUNDED"


class BookingStatus(StrEnum):
    """Where a booking stands, which is an order of its own kind."""

    PENDING = "PENDING"
    CONFIRMED = "CONFIRMED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class Order:
    """An order, and which of its payments counts."""

    id: OrderId
    reference: str
    kind: Kind
    amount: Money
    user_id: UserId | None = None
    email: str | None = None
    plan_id: str | None = None
    wallet_id: WalletId | None = None
    sources: frozenset[SourceId] | None = None  # None: any may pay it
    status: OrderStatus = OrderStatus.PENDING
    applied_payment_id: PaymentId | None = None
    paid_at: datetime | None = None
    canceled_at: datetime | None = None
    refunded_at: datetime | None = None
    closed_at: datetime | None = None
    fulfilled_at: datetime | None = None  # what it is for was given
    reversed_at: datetime | None = None  # and taken back
    version: int = 1

    @property
    def is_fulfilled(self) -> bool:
        """Whether what it is for is given now."""
        return self.fulfilled_at is not None and self.reversed_at is None

    def is_payable_by(self, payment: Payment) -> bool:
        """Whether the payment's money could pay this order, by its source and its sum."""
        captured = payment.facts.captured
        if captured is None or captured.currency != self.amount.currency:
            return False
        if not self.admits(payment.source_id):
            return False
        was_taken = payment.applied_at is not None or payment.is_accepted
        return was_taken or matches(captured, self.amount)

    def admits(self, source_id: SourceId) -> bool:
        """Whether this source may pay it."""
        return self.sources is None or source_id in self.sources


def paid_by(order: Order, payment: Payment, now: datetime) -> Order:
    """The order with this payment as the one that counts."""
    return replace(
        order,
        status=OrderStatus.PAID,
        applied_payment_id=payment.id,
        paid_at=payment.facts.paid_at,
        canceled_at=None,
        refunded_at=None,
        fulfilled_at=order.fulfilled_at if order.is_fulfilled else now,
        reversed_at=None,
    )


def unpaid(order: Order, payments: Iterable[Payment]) -> Order:
    """The order when none of its payments holds money that counts: what became of them?"""
    if order.closed_at is not None:
        return order
    returned = [one for one in payments if one.facts.is_returned and order.is_payable_by(one)]
    facts = min(returned, key=_weight).facts if returned else Facts()
    status = _ENDS.get(facts.status, OrderStatus.PENDING)
    return replace(
        order,
        status=status,
        applied_payment_id=None,
        paid_at=facts.paid_at,
        canceled_at=facts.canceled_at if status is OrderStatus.CANCELED else None,
        refunded_at=facts.refunded_at if status is OrderStatus.REFUNDED else None,
    )


def booking_status(*, is_fulfilled: bool, status: OrderStatus) -> BookingStatus:
    """Where the booking stands that such an order is for."""
    if is_fulfilled:
        return BookingStatus.CONFIRMED
    if status in (OrderStatus.CANCELED, OrderStatus.REFUNDED):
        return BookingStatus.CANCELED
    return BookingStatus.PENDING


_ENDS: Final = {
    PaymentStatus.REFUNDED: OrderStatus.REFUNDED,
    PaymentStatus.CANCELED: OrderStatus.CANCELED,
}


def _weight(payment: Payment) -> tuple[bool, datetime | None, PaymentId]:
    """A refund says more of an order than a cancellation; then the earliest payment counts."""
    return (payment.facts.status is not PaymentStatus.REFUNDED, payment.facts.paid_at, payment.id)
