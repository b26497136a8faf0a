"""Orders: what the merchant expects to be paid for (FUL-2, FUL-3).

The status of an order is computed from its payments: it does not depend on the order of arrival.
Only closing an order is an action of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from paidonce.core.events import OrderId, PaymentId, SourceId, UserId, WalletId
from paidonce.core.facts import Facts, PaymentStatus
from paidonce.core.money import Money
from paidonce.core.payments import Payment, order_target, payable_sum

MAX_REFERENCE: Final = 255
"""The longest accepted reference: an event cannot carry a longer one."""


class Kind(StrEnum):
    """What a paid order fulfills."""

    ORDER = "order"  # nothing more
    SUBSCRIPTION = "subscription"
    BOOKING = "booking"
    WALLET = "wallet"


class OrderStatus(StrEnum):
    """The status of an order. Failed and voided attempts leave it pending."""

    PENDING = "PENDING"
    PAID = "PAID"
    CANCELED = "CANCELED"
    REFUNDED = "REFUNDED"


class BookingStatus(StrEnum):
    """The status of a booking, which is a kind of order."""

    PENDING = "PENDING"
    CONFIRMED = "CONFIRMED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class Order:
    """An order, and the payment that pays it."""

    id: OrderId
    reference: str
    kind: Kind
    amount: Money
    user_id: UserId | None = None
    email: str | None = None
    plan_id: str | None = None
    wallet_id: WalletId | None = None
    sources: tuple[SourceId, ...] | None = None  # None: any may pay it
    status: OrderStatus = OrderStatus.PENDING
    applied_payment_id: PaymentId | None = None
    paid_at: datetime | None = None
    canceled_at: datetime | None = None
    refunded_at: datetime | None = None
    closed_at: datetime | None = None
    fulfilled_at: datetime | None = None
    reversed_at: datetime | None = None  # the fulfillment was reversed
    expires_at: datetime | None = None  # what is paid later is not for it
    version: int = 1

    @property
    def is_fulfilled(self) -> bool:
        return self.fulfilled_at is not None and self.reversed_at is None

    @property
    def is_free(self) -> bool:
        """Whether nothing is to be paid for it."""
        return self.amount.amount_minor == 0

    def is_payable_by(self, payment: Payment) -> bool:
        """Whether the payment fits the order, or did when it was applied."""
        if payment.facts.captured is None or not self.accepts_source(payment.source_id):
            return False
        if payment.applied_at is not None:
            return True
        return self.payable_sum(payment) is not None and not self.had_expired(payment)

    def had_expired(self, payment: Payment) -> bool:
        """Whether the payment was made after the order had expired."""
        paid_at = payment.facts.paid_at
        return self.expires_at is not None and paid_at is not None and paid_at > self.expires_at

    def payable_sum(self, payment: Payment) -> Money | None:
        """The captured sum of the payment that pays the order, if any does."""
        return payable_sum(payment, self.amount, order_target(self.reference))

    def accepts_source(self, source_id: SourceId) -> bool:
        return self.sources is None or source_id in self.sources


def mark_paid(order: Order, payment: Payment, now: datetime) -> Order:
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


def mark_free(order: Order, now: datetime) -> Order:
    """The order of which nothing is to be paid: it is paid and fulfilled at once."""
    return replace(order, status=OrderStatus.PAID, paid_at=now, fulfilled_at=now)


def mark_unpaid(order: Order, payments: Iterable[Payment]) -> Order:
    """The order when no payment pays it. Its status follows from the returned payments."""
    if order.closed_at is not None or order.is_free:
        return order
    returned = [one for one in payments if one.facts.is_returned and order.is_payable_by(one)]
    facts = min(returned, key=_rank).facts if returned else Facts()
    status = _RETURNED_STATUS.get(facts.status, OrderStatus.PENDING)
    return replace(
        order,
        status=status,
        applied_payment_id=None,
        paid_at=facts.paid_at,
        canceled_at=facts.canceled_at if status is OrderStatus.CANCELED else None,
        refunded_at=facts.refunded_at if status is OrderStatus.REFUNDED else None,
    )


def booking_status(*, is_fulfilled: bool, status: OrderStatus) -> BookingStatus:
    """The status of the booking of such an order."""
    if is_fulfilled:
        return BookingStatus.CONFIRMED
    if status in (OrderStatus.CANCELED, OrderStatus.REFUNDED):
        return BookingStatus.CANCELED
    return BookingStatus.PENDING


_RETURNED_STATUS: Final = {
    PaymentStatus.REFUNDED: OrderStatus.REFUNDED,
    PaymentStatus.CANCELED: OrderStatus.CANCELED,
}


def _rank(payment: Payment) -> tuple[bool, datetime | None, PaymentId]:
    """Refunded payments come before canceled ones, then the earliest payment."""
    return (payment.facts.status is not PaymentStatus.REFUNDED, payment.facts.paid_at, payment.id)
