"""A payment is a set of facts that only grow; its status is computed from them (PAY-2).

Merging two sets of facts is commutative, associative and idempotent, so that events may arrive in
any order, any number of times, and end in the same payment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from paidonce.domain.events import (
    Code,
    ExternalId,
    PaymentEvent,
    PaymentId,
    Says,
    SourceId,
    SubscriptionId,
    UserId,
)
from paidonce.domain.money import Money


class PaymentStatus(StrEnum):
    """What the gateway has done with the money. Whether it was applied is another fact."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    FAILED = "FAILED"
    SUCCEEDED = "SUCCEEDED"
    PARTIALLY_REFUNDED = "PARTIALLY_REFUNDED"
    REFUNDED = "REFUNDED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of a payment. Each field is merged by a rule that only lets it grow."""

    captured: Money | None = None  # the largest seen
    refund_total_minor: int = 0  # the largest cumulative total seen
    refunds: Mapping[str, int] = field(default_factory=dict)  # distinct refunds by their ids
    paid_at: datetime | None = None  # times: the earliest seen
    failed_at: datetime | None = None
    voided_at: datetime | None = None
    canceled_at: datetime | None = None
    refunded_at: datetime | None = None
    processing_at: datetime | None = None

    @property
    def captured_minor(self) -> int:
        return self.captured.amount_minor if self.captured else 0

    @property
    def refunded_minor(self) -> int:
        return max(self.refund_total_minor, sum(self.refunds.values()))

    @property
    def status(self) -> PaymentStatus:
        """What these facts amount to. `payments.status` in the schema is the same rule."""
        if self.captured_minor == 0:
            return self._status_unpaid()
        if self.refunded_minor >= self.captured_minor:
            return PaymentStatus.REFUNDED
        if self.canceled_at:
            return PaymentStatus.CANCELED
        if self.refunded_minor > 0:
            return PaymentStatus.PARTIALLY_REFUNDED
        return PaymentStatus.SUCCEEDED

    def _status_unpaid(self) -> PaymentStatus:
        if self.voided_at:
            return PaymentStatus.CANCELED
        if self.failed_at:
            return PaymentStatus.FAILED
        if self.processing_at:
            return PaymentStatus.PROCESSING
        return PaymentStatus.PENDING


@dataclass(frozen=True, slots=True)
class Payment:
    """Money at a gateway: its facts, whose it is, and whether it was applied."""

    id: PaymentId
    source_id: SourceId
    ids: tuple[ExternalId, ...]
    facts: Facts
    email: str | None = None
    user_id: UserId | None = None
    plan_id: str | None = None
    applied_at: datetime | None = None
    subscription_id: SubscriptionId | None = None
    period_start: datetime | None = None  # what this payment granted: from, and until
    period_end: datetime | None = None
    review: Code | None = None
    version: int = 0  # 0: not in the database yet

    @property
    def is_new(self) -> bool:
        return self.version == 0

    @property
    def holds_money(self) -> bool:
        """Whether there is something to apply: more captured than refunded, and not returned."""
        captured = self.facts.captured_minor
        return captured > self.facts.refunded_minor and self.facts.canceled_at is None


def facts_of(event: PaymentEvent, received_at: datetime) -> Facts:
    """What one event adds to what is known. An event without a time happened when it arrived."""
    at = event.occurred_at or received_at
    match event.says:
        case Says.PENDING:
            return Facts()
        case Says.PROCESSING:
            return Facts(processing_at=at)
        case Says.PAID:
            return Facts(captured=event.amount, paid_at=_paid_at(event, at))
        case Says.FAILED:
            return Facts(failed_at=at)
        case Says.VOIDED:
            return Facts(voided_at=at)
        case Says.CANCELED:
            return Facts(canceled_at=at)
        case Says.REFUNDED:
            return _refund_of(event, at)
        case Says.DISPUTED | Says.DISPUTE_WON:
            return Facts(captured=event.amount, paid_at=_paid_at(event, at))
        case _:
            assert_never(event.says)


def merge(one: Facts, other: Facts) -> Facts:
    """Both together. Commutative, associative, idempotent."""
    return Facts(
        captured=_larger(one.captured, other.captured),
        refund_total_minor=max(one.refund_total_minor, other.refund_total_minor),
        refunds=_united(one.refunds, other.refunds),
        paid_at=_earlier(one.paid_at, other.paid_at),
        failed_at=_earlier(one.failed_at, other.failed_at),
        voided_at=_earlier(one.voided_at, other.voided_at),
        canceled_at=_earlier(one.canceled_at, other.canceled_at),
        refunded_at=_earlier(one.refunded_at, other.refunded_at),
        processing_at=_earlier(one.processing_at, other.processing_at),
    )


def says_less(known: Facts, event: PaymentEvent) -> bool:
    """Whether the event is behind what is known already, as a `failed` that comes after `paid`."""
    if known.captured_minor > 0:
        return event.says in _BEFORE_MONEY
    reached = _STEPS.get(known.status, 0)
    return _STEP_OF_EVENT.get(event.says, reached) < reached


def first_heard(
    payment_id: PaymentId, source_id: SourceId, event: PaymentEvent, received_at: datetime
) -> Payment:
    """A payment of which this event is the first word."""
    return Payment(
        id=payment_id,
        source_id=source_id,
        ids=event.ids,
        facts=facts_of(event, received_at),
        email=event.email,
        plan_id=event.plan_id,
    )


def with_event(
    payment: Payment, ids: tuple[ExternalId, ...], event: PaymentEvent, received_at: datetime
) -> Payment:
    """The payment after it has heard of the event, under these ids."""
    return replace(
        payment,
        ids=payment.ids + tuple(one for one in ids if one not in payment.ids),
        facts=merge(payment.facts, facts_of(event, received_at)),
        email=payment.email or event.email,
        plan_id=payment.plan_id or event.plan_id,
    )


_BEFORE_MONEY: Final = frozenset({Says.PENDING, Says.PROCESSING, Says.FAILED, Says.VOIDED})
_STEPS: Final = {
    PaymentStatus.PENDING: 0,
    PaymentStatus.PROCESSING: 1,
    PaymentStatus.FAILED: 2,
    PaymentStatus.CANCELED: 3,
}
_STEP_OF_EVENT: Final = {
    Says.PENDING: 0,
    Says.PROCESSING: 1,
    Says.FAILED: 2,
    Says.VOIDED: 3,
}


def _refund_of(event: PaymentEvent, at: datetime) -> Facts:
    total, single = event.refunded, event.refund
    return Facts(
        captured=event.amount,
        paid_at=_paid_at(event, at),
        refund_total_minor=total.amount_minor if total else 0,
        refunds={single.id: single.amount.amount_minor} if single else {},
        refunded_at=at,
    )


def _paid_at(event: PaymentEvent, at: datetime) -> datetime | None:
    """When it was paid, as far as the event knows that it was."""
    return (event.paid_at or at) if event.amount else None


def _larger(one: Money | None, other: Money | None) -> Money | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


def _united(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    if not other:
        return one
    if not one:
        return other
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in one.keys() | other.keys()}
