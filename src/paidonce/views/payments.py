"""Payments, and what is paid for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from paidonce.domain.money import format_minor
from paidonce.domain.orders import BookingStatus, Kind, OrderStatus, booking_status
from paidonce.domain.payments import PaymentStatus


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    id: UUID
    user_id: UUID
    product: str
    status: str
    current_period_end: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ExternalIdView:
    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class PaymentView:
    """A payment. `review` is the code for which a person should look, or null.

    `unapplied_s` is for how long there has been money in it that nobody has got anything for.
    """

    id: UUID
    source: str
    external_payment_id: str | None
    ids: list[ExternalIdView]
    order: str | None
    user_id: UUID | None
    email: str | None
    plan_id: str | None
    status: PaymentStatus
    amount: str
    captured: str
    refunded: str
    reversed: str
    currency: str | None
    paid_at: datetime | None
    failed_at: datetime | None
    canceled_at: datetime | None
    refunded_at: datetime | None
    disputed_at: datetime | None
    applied_at: datetime | None
    subscription_id: UUID | None
    review: str | None
    unapplied_s: int | None
    transaction_id: str | None
    created_at: datetime
    test: bool


@dataclass(frozen=True, slots=True)
class OrderPaymentView:
    """A payment as its order shows it."""

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
    """An order, and all that was paid for it."""

    payments: list[OrderPaymentView]


@dataclass(frozen=True, slots=True)
class BookingView:
    """A booking: what an order of its kind is for."""

    reference: str
    status: BookingStatus
    order_status: OrderStatus
    paid_at: datetime | None
    confirmed_at: datetime | None
    canceled_at: datetime | None
    user_id: UUID | None
    created_at: datetime


def payment_view(row: Mapping[str, Any]) -> PaymentView:
    ids = [ExternalIdView(kind, external_id) for kind, external_id in row["ids"]]
    captured = _amount(row["captured_minor"], row["currency"])
    return PaymentView(
        id=row["id"],
        source=row["source"],
        external_payment_id=next((one.id for one in ids if one.kind == "payment"), None),
        ids=ids,
        order=row["order_reference"],
        user_id=row["user_id"],
        email=row["email"],
        plan_id=row["plan_id"],
        status=PaymentStatus(row["status"]),
        amount=captured,
        captured=captured,
        refunded=_amount(row["refunded_minor"], row["currency"]),
        reversed=_amount(row["reversed_minor"], row["currency"]),
        currency=row["currency"],
        paid_at=row["paid_at"],
        failed_at=row["failed_at"],
        canceled_at=row["canceled_at"] or row["voided_at"],
        refunded_at=row["refunded_at"],
        disputed_at=row["disputed_at"],
        applied_at=row["applied_at"],
        subscription_id=row["subscription_id"],
        review=row["review"],
        unapplied_s=row["unapplied_s"],
        transaction_id=row["transaction_id"],
        created_at=row["created_at"],
        test=row["is_test"],
    )


def order_view(row: Mapping[str, Any], payments: Iterable[PaymentView]) -> OrderView:
    return OrderView(**_order_fields(row), payments=[_order_payment(one) for one in payments])


def order_summary(row: Mapping[str, Any]) -> OrderSummary:
    return OrderSummary(**_order_fields(row))


def _order_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: row[name] for name in row.keys() & OrderSummary.__slots__}
    fields["amount"] = format_minor(row["amount_minor"], row["currency"])
    fields["kind"], fields["status"] = Kind(row["kind"]), OrderStatus(row["status"])
    return fields


def _order_payment(payment: PaymentView) -> OrderPaymentView:
    return OrderPaymentView(**{name: getattr(payment, name) for name in OrderPaymentView.__slots__})


def booking_view(order: OrderView) -> BookingView:
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


def _amount(amount_minor: int, currency: str | None) -> str:
    return format_minor(amount_minor, currency) if currency else str(amount_minor)
