"""What operators are shown of payments, events and keys, whoever shows it."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

from paidonce.domain.events import Code, EventStatus
from paidonce.domain.masking import MAX_SHOWN, Masker
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


@dataclass(frozen=True, slots=True)
class WalletView:
    """What somebody has in one currency. `receivable`: what a refund could not take back."""

    id: UUID
    owner: str
    currency: str
    balance: str
    reserved: str
    available: str
    receivable: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class EventView:
    """A delivery that was kept, and what became of it."""

    id: UUID
    source: str
    provider: str
    key: str | None
    type: str | None
    status: EventStatus
    error_code: str | None
    error_message: str | None
    payment: str | None
    order: str | None
    attempts: int
    next_attempt_at: datetime | None
    received_at: datetime
    processed_at: datetime | None
    occurred_at: datetime | None
    signature_valid: bool
    signature_method: str
    conflicts_with: UUID | None
    remote_address: str | None
    request_id: str
    transaction_id: str | None
    test: bool


@dataclass(frozen=True, slots=True)
class TrailItem:
    at: datetime
    action: str
    success: bool
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """A delivery as it arrived, with card numbers and secrets masked.

    `size` is that of the whole body, in bytes, of which only the beginning is shown if it is large.
    Bytes that are no text are in base64.
    """

    headers: dict[str, str]
    body: str
    encoding: Literal["text", "base64"]
    size: int
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class EventDetail(EventView):
    """An event with all that happened to it. `evidence` is for keys of scope `operate` and up."""

    trail: list[TrailItem]
    evidence: EvidenceView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many deliveries were received, duplicates and refused ones too, and what became of them.

    `succeeded` are events that ended PROCESSED or IGNORED, `failed` those that ended FAILED_FINAL
    or DEAD_LETTER, with conflicts and refused deliveries; `waiting` are neither yet. `success_rate`
    is succeeded / (succeeded + failed), and 1 while nothing has ended.
    """

    received: int
    duplicates: int
    waiting: int
    succeeded: int
    failed: int
    success_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsOfSource(Counts):
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsOfMethod(Counts):
    signature_method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsOfDay(Counts):
    day: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(Counts):
    """The counts of some days, and of each group of them. A day is one of UTC, that of arrival."""

    days: int
    by_source: list[CountsOfSource]
    by_signature_method: list[CountsOfMethod]
    by_day: list[CountsOfDay]


@dataclass(frozen=True, slots=True)
class ReprocessedView:
    """What became of an event that was processed again.

    `event_id` is its own, or that of the event which refused evidence has become, or repeats.
    """

    result: str
    was: EventStatus
    was_error_code: str | None
    event_id: UUID
    signature: str | None
    applied: bool  # whether a payment was applied by it now


@dataclass(frozen=True, slots=True)
class ReprocessedEvent(EventDetail):
    """An event after it was processed again, and what became of it."""

    reprocessed: ReprocessedView


@dataclass(frozen=True, slots=True)
class KeyView:
    id: UUID
    name: str
    hint: str
    scope: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewKeyView:
    id: UUID
    name: str
    scope: str
    key: str


@dataclass(frozen=True, slots=True)
class BanView:
    address: str
    reason: str
    score: float  # of its risk, when it was banned
    times: int
    banned_at: datetime
    until: datetime


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


def wallet_view(row: Mapping[str, Any]) -> WalletView:
    currency = row["currency"]
    balance, reserved = row["balance_minor"], row["reserved_minor"]
    return WalletView(
        id=row["id"],
        owner=row["owner"],
        currency=currency,
        balance=format_minor(balance, currency),
        reserved=format_minor(reserved, currency),
        available=format_minor(balance - reserved, currency),
        receivable=format_minor(row["receivable_minor"], currency),
        created_at=row["created_at"],
    )


def _amount(amount_minor: int, currency: str | None) -> str:
    return format_minor(amount_minor, currency) if currency else str(amount_minor)


def event_view(row: Mapping[str, Any]) -> EventView:
    return EventView(**event_fields(row))


def event_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row under the names that the outside knows."""
    fields = dict(row)
    fields["status"] = EventStatus(fields["status"])
    fields["payment"] = fields.pop("external_payment_id")
    fields["order"] = fields.pop("order_reference")
    is_sandbox = fields["error_code"] == Code.TEST_PAYMENT
    fields["test"] = fields.pop("is_test") or is_sandbox
    return fields


def evidence_view(row: Mapping[str, Any], masker: Masker) -> EvidenceView:
    shown = masker.body(row["body"])
    is_text = isinstance(shown, str)
    return EvidenceView(
        headers={name: masker.field(name, value) for name, value in row["headers"].items()},
        body=shown if isinstance(shown, str) else b64encode(shown).decode(),
        encoding="text" if is_text else "base64",
        size=row["size"],
        is_truncated=row["size"] > MAX_SHOWN,
    )


def reprocessed_event(event: EventDetail, reprocessed: ReprocessedView) -> ReprocessedEvent:
    fields = {one.name: getattr(event, one.name) for one in dataclass_fields(event)}
    return ReprocessedEvent(**fields, reprocessed=reprocessed)


def happy_trail(event: EventView) -> Iterator[TrailItem]:
    """What every event of its kind goes through, read off its own columns."""
    received: dict[str, Any] = {
        "remote_address": event.remote_address,
        "request_id": event.request_id,
        "signature_valid": event.signature_valid,
    }
    if event.test:
        received["test"] = True
    is_evidence = event.key is None or event.conflicts_with is not None
    if not is_evidence:
        yield TrailItem(event.received_at, "event_received", True, received)
        yield TrailItem(event.received_at, "event_inserted", True, {"key": event.key})
    elif event.conflicts_with is None:
        refused = {**received, "error_code": event.error_code}
        yield TrailItem(event.received_at, "event_received", False, refused)
    else:
        yield TrailItem(event.received_at, "event_received", True, received)
        first = {"first_event_id": str(event.conflicts_with)}
        yield TrailItem(event.received_at, "conflict_detected", False, first)
    if event.attempts == 1 and event.processed_at and event.status in ("PROCESSED", "IGNORED"):
        attempt = {"attempt": 1}
        reason = {"reason": event.error_code} if event.error_code else {}
        yield TrailItem(event.processed_at, "processing_attempt_started", True, attempt)
        yield TrailItem(event.processed_at, "processing_succeeded", True, attempt | reason)
