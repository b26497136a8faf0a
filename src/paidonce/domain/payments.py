"""A payment is a set of facts that only grow; its status is computed from them (PAY-2).

Merging two sets of facts is commutative, associative and idempotent, so that events may arrive in
any order, any number of times, and end in the same payment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from paidonce.domain.email import email_key
from paidonce.domain.events import (
    LOST_DISPUTE,
    ExternalId,
    PaymentEvent,
    PaymentId,
    Reason,
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

    captured: Money | None = None  # the largest seen in time, or if there is none, too late
    refund_total_minor: int = 0  # the largest cumulative total seen
    refunds: Mapping[str, int] = field(default_factory=dict)  # distinct refunds by their ids
    refund_currency: str | None = None  # of what was refunded before it was known to be paid
    paid_at: datetime | None = None  # times: the earliest seen
    failed_at: datetime | None = None
    voided_at: datetime | None = None
    canceled_at: datetime | None = None
    refunded_at: datetime | None = None
    processing_at: datetime | None = None
    disputed_at: datetime | None = None  # of disputes: the latest seen
    dispute_won_at: datetime | None = None
    is_stale: bool = False  # what was captured is known only from deliveries that came too late

    @property
    def is_told_in_time(self) -> bool:
        """Whether a delivery that came in time has told of money."""
        return self.captured is not None and not self.is_stale

    @property
    def captured_minor(self) -> int:
        return self.captured.amount_minor if self.captured else 0

    @property
    def refunded_minor(self) -> int:
        if not self.refunds:
            return self.refund_total_minor
        lost = sum(one for name, one in self.refunds.items() if name.startswith(LOST_DISPUTE))
        return max(self.refund_total_minor, sum(self.refunds.values()) - lost) + lost

    @property
    def currency(self) -> str | None:
        return self.captured.currency if self.captured else self.refund_currency

    @property
    def is_returned(self) -> bool:
        """Whether there was money and all of it went back."""
        is_back = self.refunded_minor >= self.captured_minor or self.canceled_at is not None
        return self.captured_minor > 0 and is_back

    @property
    def is_disputed(self) -> bool:
        """Whether there is a dispute that was not won since."""
        if self.disputed_at is None:
            return False
        return self.dispute_won_at is None or self.dispute_won_at < self.disputed_at

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
    order: str | None = None  # the reference of the order it is for
    email: str | None = None
    user_id: UserId | None = None
    plan_id: str | None = None
    applied_at: datetime | None = None
    applied_minor: int = 0  # how much of it counted when it was applied
    reversed_minor: int = 0  # and how much of that was taken back since
    subscription_id: SubscriptionId | None = None
    period_start: datetime | None = None  # what this payment granted: from, and until
    period_end: datetime | None = None
    is_linked: bool = False  # a person said what it is for, whatever its events say
    is_contested: bool = False  # its events disagree on what it is for
    is_accepted: bool = False  # a person takes it although the sum is another
    is_for_refund: bool = False  # a person wants it returned: it is never applied
    is_test: bool = False  # every event of it was made for a test
    review: Reason | None = None
    version: int = 0  # 0: not in the database yet

    @property
    def is_new(self) -> bool:
        return self.version == 0

    @property
    def holds_money(self) -> bool:
        """Whether there is something to apply: more captured than refunded, and not returned."""
        return self.facts.captured_minor > 0 and not self.facts.is_returned

    @property
    def stands(self) -> bool:
        """Whether it was applied, and not all of that was taken back since."""
        return self.applied_at is not None and self.reversed_minor < self.applied_minor


def facts_of(event: PaymentEvent, received_at: datetime, is_stale: bool = False) -> Facts:
    """What one event adds to what is known. An event without a time happened when it arrived."""
    at = event.occurred_at or received_at
    if event.says is Says.PAID and event.refunded is None and event.refund is None:
        return Facts(captured=event.amount, paid_at=_paid_at(event, at), is_stale=is_stale)
    assert not is_stale, "of what comes too late, only that it was paid is remembered"
    facts = _facts_of_money(event, at)
    match event.says:
        case Says.PENDING | Says.PAID | Says.REFUNDED:
            return facts
        case Says.PROCESSING:
            return replace(facts, processing_at=at)
        case Says.FAILED:
            return replace(facts, failed_at=at)
        case Says.VOIDED:
            return replace(facts, voided_at=at)
        case Says.CANCELED:
            return replace(facts, canceled_at=at)
        case Says.DISPUTED:
            return replace(facts, disputed_at=at)
        case Says.DISPUTE_WON:
            return replace(facts, dispute_won_at=at)
        case _:
            assert_never(event.says)


def merge(one: Facts, other: Facts) -> Facts:
    """Both together. Commutative, associative, idempotent.

    Of money, what was told in time outweighs what came too late, and then the larger sum the less.
    """
    if one.is_stale != other.is_stale:
        one, other = _outweighed(one, other), _outweighed(other, one)
    captured = _larger(one.captured, other.captured)
    refund_currency = _larger_text(one.refund_currency, other.refund_currency)
    return Facts(
        captured=captured,
        refund_total_minor=max(one.refund_total_minor, other.refund_total_minor),
        refunds=_united(one.refunds, other.refunds),
        refund_currency=None if captured else refund_currency,
        paid_at=_earlier(one.paid_at, other.paid_at),
        failed_at=_earlier(one.failed_at, other.failed_at),
        voided_at=_earlier(one.voided_at, other.voided_at),
        canceled_at=_earlier(one.canceled_at, other.canceled_at),
        refunded_at=_earlier(one.refunded_at, other.refunded_at),
        processing_at=_earlier(one.processing_at, other.processing_at),
        disputed_at=_later(one.disputed_at, other.disputed_at),
        dispute_won_at=_later(one.dispute_won_at, other.dispute_won_at),
        is_stale=one.is_stale or other.is_stale,
    )


def says_less(known: Facts, event: PaymentEvent) -> bool:
    """Whether the event is behind what is known already, as a `failed` that comes after `paid`."""
    if known.captured_minor > 0:
        return event.says in _BEFORE_MONEY
    reached = _STEPS.get(known.status, 0)
    return _STEP_OF_EVENT.get(event.says, reached) < reached


def first_heard(
    payment_id: PaymentId,
    source_id: SourceId,
    event: PaymentEvent,
    received_at: datetime,
    is_test: bool = False,
    is_stale: bool = False,
) -> Payment:
    """A payment of which this event is the first word."""
    return Payment(
        id=payment_id,
        source_id=source_id,
        ids=event.ids,
        facts=facts_of(event, received_at, is_stale),
        order=event.order,
        email=event.email,
        plan_id=event.plan_id,
        is_test=is_test,
    )


def with_event(
    payment: Payment,
    ids: tuple[ExternalId, ...],
    event: PaymentEvent,
    received_at: datetime,
    link_by_email: bool,
    is_stale: bool = False,
) -> Payment:
    """The payment after it has heard of the event, under these ids.

    What it is for, the first event decides. One that names something else contests it, and so does
    a refund in another currency, which is none of this payment's.
    """
    is_foreign = _is_of_two_currencies(payment.facts, event)
    told = event
    if is_foreign and payment.facts.captured is not None:
        told = replace(event, refunded=None, refund=None)
    return replace(
        payment,
        ids=payment.ids + tuple(one for one in ids if one not in payment.ids),
        facts=merge(payment.facts, facts_of(told, received_at, is_stale)),
        order=payment.order if _is_bound(payment) else payment.order or event.order,
        email=payment.email or event.email,
        plan_id=payment.plan_id or event.plan_id,
        is_contested=(
            payment.is_contested or contests(payment, event, link_by_email) or is_foreign
        ),
    )


def contests(payment: Payment, event: PaymentEvent, link_by_email: bool) -> bool:
    """Whether the event says that the payment is for something else than what is known (PAY-5)."""
    if payment.is_linked:
        return False
    if event.order is not None:
        return _is_bound(payment) and event.order != payment.order
    if payment.order is not None or not link_by_email:
        return False
    return _is_another(event.email, payment.email)


def joined(one: Payment, other: Payment, link_by_email: bool) -> Payment:
    """One payment of two that turned out to be the same (PAY-1).

    Of the other one nothing stands: it was not applied, or all of that was taken back.
    """
    assert not other.stands
    is_of_two_orders = _is_bound(one) and other.order not in (None, one.order)
    is_of_two_users = None not in (one.user_id, other.user_id) and one.user_id != other.user_id
    is_of_two_people = is_of_two_users or (link_by_email and _is_another(one.email, other.email))
    return replace(
        one,
        ids=one.ids + tuple(each for each in other.ids if each not in one.ids),
        facts=merge(one.facts, other.facts),
        order=one.order if _is_bound(one) else one.order or other.order,
        email=one.email or other.email,
        user_id=one.user_id or other.user_id,
        plan_id=one.plan_id or other.plan_id,
        is_linked=one.is_linked or other.is_linked,
        is_contested=(
            one.is_contested
            or other.is_contested
            or is_of_two_orders
            or (one.order is None and other.order is None and is_of_two_people)
        ),
        is_accepted=one.is_accepted or other.is_accepted,
        is_for_refund=one.is_for_refund or other.is_for_refund,
        is_test=one.is_test and other.is_test,
    )


def _is_bound(payment: Payment) -> bool:
    """Whether no event changes what it is for: it names an order, or was applied, or linked."""
    return payment.order is not None or payment.applied_at is not None or payment.is_linked


def _is_another(one: str | None, other: str | None) -> bool:
    """Whether these are two addresses."""
    return one is not None and other is not None and email_key(one) != email_key(other)


def _is_of_two_currencies(known: Facts, event: PaymentEvent) -> bool:
    """Whether the event tells of a refund in another currency than was paid, or the reverse."""
    refunded = event.refunded or (event.refund.amount if event.refund else None)
    paid = event.amount or known.captured
    if paid is not None and refunded is not None and paid.currency != refunded.currency:
        return True
    return event.amount is not None and known.refund_currency not in (None, event.amount.currency)


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


def _facts_of_money(event: PaymentEvent, at: datetime) -> Facts:
    """What the event tells of money captured and returned, whatever it is about."""
    total, single = event.refunded, event.refund
    told = total or (single.amount if single else None)
    is_refund = total is not None or single is not None or event.says is Says.REFUNDED
    return Facts(
        captured=event.amount,
        paid_at=_paid_at(event, at),
        refund_total_minor=total.amount_minor if total else 0,
        refunds={single.id: single.amount.amount_minor} if single else {},
        refund_currency=told.currency if told and not event.amount else None,
        refunded_at=at if is_refund else None,
    )


def _outweighed(one: Facts, other: Facts) -> Facts:
    """The one without the money that it knows of too late, if the other knows of it in time."""
    if not (one.is_stale and other.is_told_in_time):
        return one
    return replace(one, captured=None, paid_at=None, is_stale=False)


def _paid_at(event: PaymentEvent, at: datetime) -> datetime | None:
    """When it was paid, as far as the event knows that it was."""
    return (event.paid_at or at) if event.amount else None


def _larger(one: Money | None, other: Money | None) -> Money | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def _larger_text(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return max(one, other)


def _united(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    if not other:
        return one
    if not one:
        return other
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in one.keys() | other.keys()}
