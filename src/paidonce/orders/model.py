"""Orders and bookings as operators see them, and how they are searched."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import orjson
from pydantic import Field

from paidonce.audit.model import TrailItem
from paidonce.core.email import email_key
from paidonce.core.input import Input, Reference, Text
from paidonce.core.money import Money, format_minor
from paidonce.core.orders import BookingStatus, Kind, OrderStatus, booking_status
from paidonce.core.payments import PaymentStatus
from paidonce.db.paging import ListQuery
from paidonce.db.queries import Row, from_row
from paidonce.payments.model import PaymentView


class OrderRequest(Input):
    """What a merchant expects to be paid for.

    A `subscription` needs `user_id` or `email`, and the `plan_id` of its period unless there is a
    default plan; a `wallet` top-up needs `wallet_id`, or `user_id` for the user's own wallet.
    `sources`, if given, are the only ones that may pay it.
    """

    reference: Reference
    amount: Text
    currency: Text
    kind: Kind = Kind.ORDER
    user_id: UUID | None = None
    email: Text | None = None
    plan_id: Text | None = None
    wallet_id: UUID | None = None
    sources: Annotated[tuple[Text, ...], Field(max_length=100)] | None = None

    def digest(self, amount: Money) -> bytes:
        """A hash of the content; two requests with one reference and digest are the same order."""
        email = None if self.email is None else email_key(self.email)
        owner = (self.user_id, email, self.plan_id, self.wallet_id)
        sources = None if self.sources is None else sorted(self.sources)
        content = (self.kind, amount.amount_minor, amount.currency, *owner, sources)
        return hashlib.sha256(orjson.dumps(content, default=str)).digest()


class OrderQuery(ListQuery):
    """Which orders."""

    user_id: UUID | None = Field(None, description="Of this user.")
    email: Text | None = Field(None, description="For this e-mail address.")
    status: OrderStatus | None = Field(None, description="With this status.")
    kind: Kind | None = Field(None, description="Of this kind.")


@dataclass(frozen=True, slots=True)
class OrderPaymentView:
    """A payment of an order."""

    id: UUID
    source: str
    external_payment_id: str | None
    status: PaymentStatus
    captured: str
    refunded: str
    currency: str | None
    applied_at: datetime | None
    review: str | None
    test: bool


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """An order."""

    id: UUID
    reference: str
    kind: Kind
    status: OrderStatus
    amount: str
    currency: str
    user_id: UUID | None
    email: str | None
    plan_id: str | None
    wallet_id: UUID | None
    sources: list[str] | None  # null: any may pay it
    paid_at: datetime | None
    canceled_at: datetime | None
    refunded_at: datetime | None
    closed_at: datetime | None
    fulfilled_at: datetime | None
    reversed_at: datetime | None
    transaction_id: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class OrderView(OrderSummary):
    """An order with its payments, and its trail: what operators did with them."""

    payments: list[OrderPaymentView]
    trail: list[TrailItem]


@dataclass(frozen=True, slots=True)
class BookingView:
    """A booking: an order of kind `booking`."""

    reference: str
    status: BookingStatus
    order_status: OrderStatus
    paid_at: datetime | None
    confirmed_at: datetime | None
    canceled_at: datetime | None
    user_id: UUID | None
    created_at: datetime


def order_view(row: Row, payments: Iterable[PaymentView], trail: list[TrailItem]) -> OrderView:
    """From a row, the payments of the order and its trail."""
    paid = [_order_payment(one) for one in payments]
    return from_row(OrderView, row, **_changed(row), payments=paid, trail=trail)


def order_summary(row: Row) -> OrderSummary:
    """From a row of the search."""
    return from_row(OrderSummary, row, **_changed(row))


def booking_view(order: OrderView) -> BookingView:
    """The booking that an order is for."""
    status = booking_status(
        is_fulfilled=order.fulfilled_at is not None and order.reversed_at is None,
        status=order.status,
    )
    is_canceled = status is BookingStatus.CANCELED
    return BookingView(
        reference=order.reference,
        status=status,
        order_status=order.status,
        paid_at=order.paid_at,
        confirmed_at=order.fulfilled_at,
        canceled_at=(order.reversed_at or order.canceled_at or order.refunded_at)
        if is_canceled
        else None,
        user_id=order.user_id,
        created_at=order.created_at,
    )


def _changed(row: Row) -> dict[str, Any]:
    """The fields that are not as in the row."""
    amount = format_minor(row["amount_minor"], row["currency"])
    return {"amount": amount, "kind": Kind(row["kind"]), "status": OrderStatus(row["status"])}


def _order_payment(payment: PaymentView) -> OrderPaymentView:
    return OrderPaymentView(**{name: getattr(payment, name) for name in OrderPaymentView.__slots__})
