"""A payment is a set of facts that only grows; its status is computed from the facts (PAY-2).

Merging is commutative, associative and idempotent: events may arrive in any order, any number of
times, and end in the same payment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeVar, assert_never

from paidonce.core.events import (
    EventType,
    PaymentEvent,
)
from paidonce.core.money import Money
from paidonce.core.refunds import (
    SINGLE,
    TOTAL,
    OwnRefunds,
    has_foreign,
    in_currency,
    merge_times,
    refunded_sum,
    settle,
)

T = TypeVar("T", Money, str, datetime)
MAX_CAPTURES: Final = 16
"""How many different captured sums of a payment are remembered: the largest ones."""


class PaymentStatus(StrEnum):
    """What the gateway did with the money. It does not say whether the payment was applied."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    FAILED = "FAILED"
    SUCCEEDED = "SUCCEEDED"
    PARTIALLY_REFUNDED = "PARTIALLY_REFUNDED"
    REFUNDED = "REFUNDED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about a payment. Each field is merged by a rule that only lets it grow."""

    captured: Money | None = None  # the largest seen in time; if there is none, the largest expired
    refund_total_minor: int = 0  # the largest cumulative total seen
    refunds: Mapping[str, int] = field(default_factory=dict)  # distinct refunds by id
    refund_currency: str | None = None  # of refunds that came before the capture
    paid_at: datetime | None = None  # times: the earliest seen
    failed_at: datetime | None = None
    voided_at: datetime | None = None
    canceled_at: datetime | None = None
    refunded_at: datetime | None = None
    processing_at: datetime | None = None
    disputed_at: datetime | None = None  # of disputes: the latest seen
    dispute_won_at: datetime | None = None
    dispute_answer_by: datetime | None = None
    unreadable_at: datetime | None = None  # reported as paid, unreadably; None once it is captured
    is_expired: bool = False  # the capture is known only from expired deliveries
    other_captures: frozenset[Money] = frozenset()  # smaller sums that were reported as captured
    refund_times: Mapping[str, datetime] = field(default_factory=dict)  # see `refunds.py`

    @property
    def has_timely_capture(self) -> bool:
        """Whether a delivery in time reported the capture."""
        return self.captured is not None and not self.is_expired

    @property
    def captured_minor(self) -> int:
        return self.captured.amount_minor if self.captured else 0

    @property
    def refunded_minor(self) -> int:
        if not self.refunds:
            return self.refund_total_minor
        return refunded_sum(self.refund_total_minor, self.refunds)

    @property
    def has_foreign_refund(self) -> bool:
        """Whether there is a refund in another currency that no operator has dealt with."""
        return bool(self.refund_times) and has_foreign(self.refund_times)

    @property
    def returned_at(self) -> datetime | None:
        """When all of the money was back: the time of the refund that completed it."""
        if not self.is_returned:
            return None
        times = sorted(set(self.refund_times.values()))
        complete = (at for at in times if self._refunded_by(at) >= self.captured_minor)
        return _earlier(self.canceled_at, next(complete, None)) or self.refunded_at

    def _refunded_by(self, at: datetime) -> int:
        """What was refunded until then."""
        known = {key for key, reported_at in self.refund_times.items() if reported_at <= at}
        totals = (int(key.removeprefix(TOTAL)) for key in known if key.startswith(TOTAL))
        single = {name: one for name, one in self.refunds.items() if SINGLE + name in known}
        return refunded_sum(max(totals, default=0), single)

    @property
    def currency(self) -> str | None:
        return self.captured.currency if self.captured else self.refund_currency

    @property
    def is_disputed(self) -> bool:
        """Whether there is a dispute that was not won since."""
        if self.disputed_at is None:
            return False
        return self.dispute_won_at is None or self.dispute_won_at < self.disputed_at

    @property
    def held_minor(self) -> int:
        """What was captured and did not go back."""
        if self.canceled_at is not None:
            return 0
        return max(self.captured_minor - self.refunded_minor, 0)

    @property
    def is_returned(self) -> bool:
        """Whether money was captured and all of it went back."""
        return self.captured_minor > 0 and self.held_minor == 0

    @property
    def status(self) -> PaymentStatus:
        """Computed. The generated column `payments.status` is the same rule."""
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


def facts_from_event(event: PaymentEvent, received_at: datetime, is_expired: bool = False) -> Facts:
    """The facts that one event reports. An event without a time happened when it arrived."""
    at = event.occurred_at or received_at
    if event.event_type is EventType.PAID and event.refunded is None and event.refund is None:
        return Facts(captured=event.amount, paid_at=_paid_at(event, at), is_expired=is_expired)
    assert not is_expired, "of an expired delivery only the capture counts"
    facts = _money_facts(event, at)
    match event.event_type:
        case EventType.PENDING | EventType.PAID | EventType.REFUNDED:
            return facts
        case EventType.PROCESSING:
            return replace(facts, processing_at=at)
        case EventType.FAILED:
            return replace(facts, failed_at=at)
        case EventType.VOIDED:
            return replace(facts, voided_at=at)
        case EventType.CANCELED:
            return replace(facts, canceled_at=at)
        case EventType.DISPUTED:
            return replace(facts, disputed_at=at, dispute_answer_by=event.answer_by)
        case EventType.DISPUTE_WON:
            return replace(facts, dispute_won_at=at)
        case EventType.UNREADABLE:
            return replace(facts, unreadable_at=at)
        case _:
            assert_never(event.event_type)


def merge(one: Facts, other: Facts) -> Facts:
    """Merge two sets of facts. Commutative, associative, idempotent.

    A capture reported in time outranks an expired one; then the larger amount wins.
    """
    if one.is_expired != other.is_expired:
        one, other = _without_expired_money(one, other), _without_expired_money(other, one)
    captured = _larger(one.captured, other.captured)
    refund_currency = _larger(one.refund_currency, other.refund_currency)
    currency = captured.currency if captured else refund_currency
    one, other = _with_refunds_in(one, currency), _with_refunds_in(other, currency)
    return Facts(
        captured=captured,
        refund_total_minor=max(one.refund_total_minor, other.refund_total_minor),
        refunds=_merge_refunds(one.refunds, other.refunds),
        refund_currency=None if captured else refund_currency,
        paid_at=_earlier(one.paid_at, other.paid_at),
        failed_at=_earlier(one.failed_at, other.failed_at),
        voided_at=_earlier(one.voided_at, other.voided_at),
        canceled_at=_earlier(one.canceled_at, other.canceled_at),
        refunded_at=_earlier(one.refunded_at, other.refunded_at),
        processing_at=_earlier(one.processing_at, other.processing_at),
        disputed_at=_larger(one.disputed_at, other.disputed_at),
        dispute_won_at=_larger(one.dispute_won_at, other.dispute_won_at),
        dispute_answer_by=_larger(one.dispute_answer_by, other.dispute_answer_by),
        unreadable_at=None if captured else _earlier(one.unreadable_at, other.unreadable_at),
        is_expired=one.is_expired or other.is_expired,
        other_captures=_merge_captures(one, other, captured),
        refund_times=merge_times(one.refund_times, other.refund_times),
    )


def is_out_of_order(facts: Facts, event_type: EventType) -> bool:
    """Whether the type is behind the known facts, as a `failed` that comes after `paid`."""
    if facts.captured_minor > 0:
        return event_type in _BEFORE_MONEY
    reached = _STEPS.get(facts.status, 0)
    return _STEP_OF_EVENT.get(event_type, reached) < reached


def settle_foreign_refunds(facts: Facts) -> Facts:
    """The facts after an operator has dealt with refunds in another currency."""
    return replace(facts, refund_times=settle(facts.refund_times)) if facts.refund_times else facts


def has_foreign_refund(facts: Facts, event: PaymentEvent) -> bool:
    """Whether the event reports a refund in another currency than was captured."""
    refunded = event.refunded or (event.refund.amount if event.refund else None)
    if refunded is None or facts.captured is None:
        return False
    return refunded.currency != facts.captured.currency and facts.has_foreign_refund


_BEFORE_MONEY: Final = frozenset(
    {EventType.PENDING, EventType.PROCESSING, EventType.FAILED, EventType.VOIDED}
)
_STEPS: Final = {
    PaymentStatus.PENDING: 0,
    PaymentStatus.PROCESSING: 1,
    PaymentStatus.FAILED: 2,
    PaymentStatus.CANCELED: 3,
}
_STEP_OF_EVENT: Final = {
    EventType.PENDING: 0,
    EventType.PROCESSING: 1,
    EventType.FAILED: 2,
    EventType.VOIDED: 3,
}


def _money_facts(event: PaymentEvent, at: datetime) -> Facts:
    """The captured and refunded amounts of the event, whatever its type."""
    total, single = event.refunded, event.refund
    refunded = total or (single.amount if single else None)
    is_refund = total is not None or single is not None or event.event_type is EventType.REFUNDED
    facts = Facts(
        refund_total_minor=total.amount_minor if total else 0,
        refunds={single.id: single.amount.amount_minor} if single else {},
        refund_currency=refunded.currency if refunded else None,
        refunded_at=at if is_refund else None,
        refund_times=_refund_times(event, at),
    )
    if event.amount is None:
        return facts
    facts = _with_refunds_in(facts, event.amount.currency)
    paid_at = _paid_at(event, at)
    return replace(facts, captured=event.amount, paid_at=paid_at, refund_currency=None)


def _with_refunds_in(facts: Facts, currency: str | None) -> Facts:
    """The facts of a payment in this currency: refunds in others are foreign. Usually no change."""
    if not (facts.refund_times or facts.refunds or facts.refund_total_minor) or currency is None:
        return facts
    known = OwnRefunds(facts.refund_total_minor, facts.refunds, facts.refund_times)
    total_minor, by_id, times = in_currency(known, facts.currency, currency)
    return replace(facts, refund_total_minor=total_minor, refunds=by_id, refund_times=times)


def _without_expired_money(one: Facts, other: Facts) -> Facts:
    """Drop an expired capture from `one` if `other` has a capture in time."""
    if not (one.is_expired and other.has_timely_capture):
        return one
    return replace(
        one,
        captured=None,
        paid_at=None,
        refund_currency=one.currency if one.refund_times or one.refunded_minor else None,
        is_expired=False,
        other_captures=frozenset(),
    )


def _paid_at(event: PaymentEvent, at: datetime) -> datetime | None:
    """When it was paid, as far as the event knows that it was."""
    return (event.paid_at or at) if event.amount else None


def _larger(one: T | None, other: T | None) -> T | None:
    """The larger amount or the later time, if both are known."""
    if one is None or other is None:
        return one or other
    return max(one, other)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


def _merge_captures(one: Facts, other: Facts, captured: Money | None) -> frozenset[Money]:
    """All reported sums but the largest. Nearly always there is one sum only."""
    if one.captured is None or other.captured is None or one.captured == other.captured:
        if not other.other_captures:
            return one.other_captures
        if not one.other_captures:
            return other.other_captures
    sums = {one.captured, other.captured, *one.other_captures, *other.other_captures}
    known = sorted((each for each in sums - {captured} if each is not None), reverse=True)
    return frozenset(known[: MAX_CAPTURES - 1])


def _refund_times(event: PaymentEvent, at: datetime) -> Mapping[str, datetime]:
    times: dict[str, datetime] = {}
    if event.refunded is not None:
        times[f"{TOTAL}{event.refunded.amount_minor}"] = at
    if event.refund is not None:
        times[f"{SINGLE}{event.refund.id}"] = at
    return times


def _merge_refunds(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    if not other:
        return one
    if not one:
        return other
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in one.keys() | other.keys()}
