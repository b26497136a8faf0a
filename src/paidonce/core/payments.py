"""A payment: its facts, what it is for, and whether it was applied.

Events are merged into it, and so are other rows of the same payment.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from paidonce.core.email import email_key
from paidonce.core.events import (
    ExternalId,
    PaymentEvent,
    PaymentId,
    Reason,
    ReceivedEvent,
    SourceId,
    SubscriptionId,
    UserId,
)
from paidonce.core.facts import Facts, facts_from_event, merge
from paidonce.core.money import Money, matches


@dataclass(frozen=True, slots=True)
class Acceptance:
    """An operator's decision about one captured sum of one payment, for one order or plan.

    It waives the comparison with the price for this sum and this target only. With `only_expiry`
    it waives nothing but the expiry of the deliveries that reported the sum.
    """

    by: str
    at: datetime
    reason: str
    amount: Money
    target: str | None  # see `order_target` and `plan_target`; None: nothing is known yet
    only_expiry: bool = False

    def waives_price(self, amount: Money, target: str) -> bool:
        return not self.only_expiry and (self.amount, self.target) == (amount, target)


def order_target(reference: str) -> str:
    """The name of an order that a payment is accepted for."""
    return f"order:{reference}"


def plan_target(plan_id: str) -> str:
    """The name of a plan that a payment is accepted for."""
    return f"plan:{plan_id}"


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment at a gateway: its facts, what it is for, and whether it was applied."""

    id: PaymentId
    source_id: SourceId
    ids: tuple[ExternalId, ...]
    facts: Facts
    order: str | None = None  # the reference of the order it is for
    email: str | None = None
    user_id: UserId | None = None
    plan_id: str | None = None
    applied_at: datetime | None = None
    applied_minor: int = 0  # the amount that was applied
    reversed_minor: int = 0  # the part of it that was reversed since
    subscription_id: SubscriptionId | None = None
    period_start: datetime | None = None  # the period that this payment granted
    period_end: datetime | None = None
    granted_at: datetime | None = None  # if its period was granted to an earlier payment: when
    is_linked: bool = False  # an operator linked it, whatever its events say
    is_contested: bool = False  # its events disagree on what it is for
    is_for_refund: bool = False  # an operator marked it for refund: it is never applied
    is_test: bool = False  # all of its events are test data
    review: Reason | None = None
    acceptance: Acceptance | None = None  # by an operator, in spite of its amount or its age
    version: int = 0  # 0: not in the database yet

    @property
    def is_new(self) -> bool:
        return self.version == 0

    @property
    def has_funds(self) -> bool:
        """Whether money was captured and not all of it went back."""
        return self.facts.held_minor > 0

    @property
    def is_in_effect(self) -> bool:
        """Whether it was applied and not completely reversed since."""
        return self.applied_at is not None and self.reversed_minor < self.applied_minor

    @property
    def standing_minor(self) -> int:
        """The part of the applied amount that was not reversed."""
        return self.applied_minor - self.reversed_minor

    @property
    def excess_minor(self) -> int:
        """Money of an applied payment that is held and has no effect."""
        if self.applied_at is None:
            return 0
        return max(self.facts.held_minor - (self.applied_minor if self.is_in_effect else 0), 0)


def payable_sum(payment: Payment, price: Money, target: str) -> Money | None:
    """The largest captured sum that matches the price, or that an operator accepted."""
    captured = payment.facts.captured
    if captured is None or captured.amount_minor == 0:
        return None
    if captured == price:
        return captured
    accepted = payment.acceptance
    if accepted is not None and accepted.waives_price(captured, target):
        return captured if captured.currency == price.currency else None
    if price.amount_minor == 0:
        return None  # what is free has no sum that matches, not even 0.01
    sums = (captured, *payment.facts.other_captures)
    return max((one for one in sums if one.amount_minor and matches(one, price)), default=None)


def new_payment(payment_id: PaymentId, event: PaymentEvent, received: ReceivedEvent) -> Payment:
    """The payment of an event that is the first about it."""
    return Payment(
        id=payment_id,
        source_id=received.source_id,
        ids=event.ids,
        facts=facts_from_event(event, received.received_at, received.is_expired),
        order=event.order,
        email=event.email,
        plan_id=event.plan_id,
        is_test=received.is_test,
    )


def merge_event(
    payment: Payment, ids: tuple[ExternalId, ...], event: PaymentEvent, received: ReceivedEvent
) -> Payment:
    """Merge an event into the payment, under these ids.

    The first event decides what the payment is for. An event that names something else contests it.
    """
    facts = facts_from_event(event, received.received_at, received.is_expired)
    contests = has_link_conflict(payment, event, received.link_by_email)
    return replace(
        payment,
        ids=payment.ids + tuple(one for one in ids if one not in payment.ids),
        facts=merge(payment.facts, facts),
        order=payment.order if _is_bound(payment) else payment.order or event.order,
        email=payment.email or event.email,
        plan_id=payment.plan_id or event.plan_id,
        is_contested=payment.is_contested or contests,
    )


def has_link_conflict(payment: Payment, event: PaymentEvent, link_by_email: bool) -> bool:
    """Whether the event names another order or user than the payment has (PAY-5)."""
    if payment.is_linked:
        return False
    if event.order is not None:
        return _is_bound(payment) and event.order != payment.order
    if payment.order is not None or not link_by_email:
        return False
    return _is_other_address(event.email, payment.email)


def merge_payments(one: Payment, other: Payment, link_by_email: bool) -> Payment:
    """Merge two rows of the same payment (PAY-1). The other one must not be in effect."""
    assert not other.is_in_effect
    has_two_orders = _is_bound(one) and other.order not in (None, one.order)
    has_two_users = None not in (one.user_id, other.user_id) and one.user_id != other.user_id
    has_two_people = has_two_users or (link_by_email and _is_other_address(one.email, other.email))
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
            or has_two_orders
            or (one.order is None and other.order is None and has_two_people)
        ),
        acceptance=one.acceptance or other.acceptance,
        is_for_refund=one.is_for_refund or other.is_for_refund,
        is_test=one.is_test and other.is_test,
    )


def _is_bound(payment: Payment) -> bool:
    """Whether events cannot change what it is for: it has an order, or was applied or linked."""
    return payment.order is not None or payment.applied_at is not None or payment.is_linked


def _is_other_address(one: str | None, other: str | None) -> bool:
    """Whether both are given and differ."""
    return one is not None and other is not None and email_key(one) != email_key(other)
