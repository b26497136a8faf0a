"""Orders and bookings as operators see them, and how they are searched."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import orjson
from pydantic import Field

from paidonce.audit.model import TrailItem
from paidonce.core.email import email_key
from paidonce.core.facts import PaymentStatus
from paidonce.core.input import Input, Reference, Text, Time
from paidonce.core.money import Money, format_minor
from paidonce.core.orders import BookingStatus, Kind, OrderStatus, booking_status
from paidonce.core.plans import PlanBook
from paidonce.db.paging import ListQuery
from paidonce.db.queries import Row, from_row
from paidonce.payments.model import PaymentView


class OrderRequest(Input):
    """What a merchant expects to be paid for.

    A `subscription` needs `user_id` or `email`, and the `plan_id` of its period unless there is a
    default plan; a `wallet` top-up needs `wallet_id`, or `user_id` for the user's own wallet.
    `sources`, if given, are the only ones that may pay it. What is paid after `expires_at` is kept
    and not applied. An order of 0 is free: it is paid when it is created.
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
    expires_at: Time | None = None

    def digest(self, amount: Money) -> bytes:
        """A hash of the content; two requests with one reference and digest are the same order."""
        email = None if self.email is None else email_key(self.email)
        owner = (self.user_id, email, self.plan_id, self.wallet_id)
        sources = None if self.sources is None else sorted(self.sources)
        content = (
            self.kind,
            amount.amount_minor,
            amount.currency,
            *owner,
            sources,
            self.expires_at,
        )
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
    expires_at: datetime | None
    transaction_id: str | None
    created_at: datetime
    updated_at: datetime


class WarningCode(StrEnum):
    """What may be wrong with an order that is valid."""

    PLAN_PRICE_DIFFERS = "PLAN_PRICE_DIFFERS"
    PLAN_CURRENCY_DIFFERS = "PLAN_CURRENCY_DIFFERS"


@dataclass(frozen=True, slots=True)
class OrderWarning:
    """What may be a mistake in the order. It is kept as it is."""

    code: WarningCode
    message: str


@dataclass(frozen=True, slots=True)
class OrderView(OrderSummary):
    """An order with its payments, what may be a mistake in it, and what operators did with it."""

    payments: list[OrderPaymentView]
    warnings: list[OrderWarning]
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


def order_view(
    row: Row, payments: Iterable[PaymentView], plans: PlanBook, trail: list[TrailItem]
) -> OrderView:
    """From a row, the payments of the order and its trail."""
    paid, warnings = [_order_payment(one) for one in payments], _warnings(row, plans)
    return from_row(OrderView, row, **_changed(row), payments=paid, warnings=warnings, trail=trail)


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


def _warnings(row: Row, plans: PlanBook) -> list[OrderWarning]:
    """Whether a subscription costs something else than its plan did when it was ordered."""
    is_subscription = Kind(row["kind"]) is Kind.SUBSCRIPTION
    plan = plans.find(row["plan_id"], row["created_at"]) if is_subscription else None
    amount = Money(row["amount_minor"], row["currency"])
    if plan is None or plan.price == amount:
        return []
    is_other_currency = plan.price.currency != amount.currency
    differs = (
        WarningCode.PLAN_CURRENCY_DIFFERS if is_other_currency else WarningCode.PLAN_PRICE_DIFFERS
    )
    message = f"the order is for {amount}, and its plan {plan.id} costs {plan.price}"
    return [OrderWarning(differs, message)]


def _changed(row: Row) -> dict[str, Any]:
    """The fields that are not as in the row."""
    amount = format_minor(row["amount_minor"], row["currency"])
    return {"amount": amount, "kind": Kind(row["kind"]), "status": OrderStatus(row["status"])}


def _order_payment(payment: PaymentView) -> OrderPaymentView:
    return OrderPaymentView(**{name: getattr(payment, name) for name in OrderPaymentView.__slots__})
