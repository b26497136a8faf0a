"""Applies a payment once, if it has money and everything matches (PAY-3, PAY-4, PAY-7, FUL-4)."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from paidonce.core.email import email_key
from paidonce.core.events import (
    PROCESSED,
    Code,
    EventProblem,
    Reason,
    SubscriptionId,
    UserId,
)
from paidonce.core.money import Money, matches
from paidonce.core.orders import Kind, Order, mark_free, mark_paid, mark_unpaid
from paidonce.core.payments import Payment, order_target, payable_sum, plan_target
from paidonce.core.plans import Plan
from paidonce.core.problems import (
    Price,
    blocked_on_order,
    find_blocker,
    order_mismatch,
    order_not_payable,
    plan_unknown,
    price_mismatch,
    subscription_canceled,
    unlinked_problem,
    unpaid_review,
    user_missing,
    wrong_amount,
)
from paidonce.core.standing import (
    move_money,
    review_money,
    update_standing,
    with_period_of,
    without_period,
)
from paidonce.core.state import Applied, Decision, State
from paidonce.core.subscriptions import Subscription, SubscriptionStatus, extend_subscription
from paidonce.errors import ConflictError

_OUTRANKING: Final = (Code.LINK_CONFLICT, Code.REFUND_WANTED, Code.TIMESTAMP_EXPIRED)
"""An event that fails for one of these does not fail for its amount."""


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """What `apply` needs besides the payment.

    `reported` is the captured amount that the event reports, if any: an event whose own amount does
    not fit fails, although its payment may be applied. With `blocked_by` the payment is neither
    applied nor reversed.
    """

    reported: Money | None
    link_by_email: bool
    blocked_by: EventProblem | None = None


def apply(
    state: State, before: Payment | None, payment: Payment, context: ApplyContext, now: datetime
) -> Decision:
    """Apply the payment if it has money, was not applied yet, and matches a plan or an order.

    If it was applied already, update what stands. `before` is the payment as it was loaded.
    """
    if payment.order is not None:
        return _apply_to_order(state, before, payment, context, now)
    plan = _find_plan(state, payment.plan_id, payment)
    price = _price_of_plan(plan, payment)
    if payment.applied_at is not None:
        payable = price.payable if price else None
        decision = update_standing(state, Decision(PROCESSED, before, payment), payable, now)
        if decision.effects and context.blocked_by is not None:
            return _leave_unapplied(Decision(PROCESSED, before, payment), context.blocked_by)
        return _with_reported(_with_review(decision, price), payment, context, price)
    if not _has_money(payment) or (plan is not None and _is_nothing(payment, plan.price)):
        return Decision(PROCESSED, before, replace(payment, review=unpaid_review(payment)))
    user_id = _find_user(state, payment, context.link_by_email)
    unlinked = unlinked_problem(payment, context.link_by_email) if user_id is None else None
    if unlinked is not None and unlinked.code is Code.UNLINKED_PAYMENT and payment.plan_id is None:
        # Nothing says what it is for: a later event, or an operator, may still name it.
        unknown = Decision(PROCESSED, before, payment)
        return _leave_unapplied(unknown, find_blocker(payment) or unlinked)
    problem = (
        find_blocker(payment)
        or price_mismatch(payment, price)
        or unlinked
        or subscription_canceled(state, user_id, plan)
        or context.blocked_by
    )
    if problem is not None:
        owned = Decision(PROCESSED, before, replace(payment, user_id=user_id))
        if problem.code is Code.SUBSCRIPTION_CANCELED:
            owned = _with_canceled(state, owned, user_id, plan)
        return _with_reported(_leave_unapplied(owned, problem), payment, context, price)
    assert plan is not None
    assert user_id is not None
    assert price is not None
    assert price.payable is not None
    return _apply_plan(state, before, payment, price, plan, user_id, now)


def _apply_to_order(
    state: State, before: Payment | None, payment: Payment, context: ApplyContext, now: datetime
) -> Decision:
    assert payment.order is not None
    order = state.orders.get(payment.order)
    decision = Decision(PROCESSED, before, payment, order=order)
    if order is None:
        if not _has_money(payment):
            return replace(decision, payment=replace(payment, review=unpaid_review(payment)))
        name = blocked_on_order(payment.order)
        missing = EventProblem(Code.ORDER_MISSING, "there is no such order yet", False, name)
        return _leave_unapplied(decision, find_blocker(payment) or missing)
    price = Price(order.amount, order.payable_sum(payment))
    if payment.applied_at is not None:
        after = update_standing(state, decision, price.payable, now)
        if after.effects and context.blocked_by is not None:
            return _leave_unapplied(decision, context.blocked_by)
        after = _with_order_status(state, after)
        return _with_reported(_with_review(after, price), payment, context, price)
    if not _has_money(payment) or _is_nothing(payment, order.amount):
        reviewed = replace(payment, review=unpaid_review(payment))
        return _with_order_status(state, replace(decision, payment=reviewed))
    problem = (
        find_blocker(payment)
        or order_mismatch(order, payment, price)
        or order_not_payable(order, payment)
    )
    if problem is not None:
        return _with_reported(_leave_unapplied(decision, problem), payment, context, price)
    return _fulfill(state, decision, price, context, now)


def _has_money(payment: Payment) -> bool:
    return payment.facts.captured is not None and not payment.facts.is_returned


def _is_nothing(payment: Payment, price: Money) -> bool:
    """Whether nothing was paid, as a gateway reports it for what is free."""
    return price.amount_minor == 0 and payment.facts.captured_minor == 0


def _with_order_status(state: State, decision: Decision) -> Decision:
    """Compute the status of the order from its payments."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    assert order is not None
    if order.applied_payment_id is None:
        others = (one for one in state.payments_of(order) if one.id != payment.id)
        return replace(decision, order=mark_unpaid(order, [*others, payment]))
    if order.applied_payment_id == payment.id:
        return replace(decision, order=replace(order, paid_at=payment.facts.paid_at))
    return decision


def _fulfill(
    state: State, decision: Decision, price: Price, context: ApplyContext, now: datetime
) -> Decision:
    """Pay the order and fulfill it, unless it is still fulfilled by an earlier payment."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    assert order is not None
    match order.kind:
        case Kind.SUBSCRIPTION:
            granted = _fulfill_subscription(state, decision, payment, order, now)
        case Kind.WALLET:
            granted = _fulfill_wallet(state, decision, payment, order, price)
        case Kind.ORDER | Kind.BOOKING:
            granted = replace(decision, payment=replace(payment, user_id=order.user_id))
    if isinstance(granted, EventProblem) or context.blocked_by is not None:
        problem = granted if isinstance(granted, EventProblem) else context.blocked_by
        assert problem is not None
        if problem.code is Code.SUBSCRIPTION_CANCELED:
            user_id = _find_subscriber(state, order)
            plan = _find_plan(state, order.plan_id, payment)
            decision = _with_canceled(state, decision, user_id, plan)
        return _with_reported(_leave_unapplied(decision, problem), payment, context, price)
    paid = granted.payment
    assert paid is not None
    assert price.payable is not None
    applied = replace(paid, applied_at=now, applied_minor=price.payable.amount_minor)
    decision = replace(
        granted, payment=applied, order=mark_paid(order, applied, now), effects=(Applied(applied),)
    )
    return _with_review(update_standing(state, decision, price.payable, now), price)


def _fulfill_subscription(
    state: State, decision: Decision, payment: Payment, order: Order, now: datetime
) -> Decision | EventProblem:
    user_id = _find_subscriber(state, order)
    if user_id is None:
        assert order.email is not None, "an order for a subscription names its user"
        return user_missing(order.email)
    owned = replace(payment, user_id=user_id)
    earlier = next((one for one in state.payments_of(order) if one.subscription_id), None)
    if order.is_fulfilled and earlier is not None:
        others = (*decision.others, without_period(earlier))
        return replace(decision, payment=with_period_of(owned, earlier), others=others)
    plan = _find_plan(state, order.plan_id, payment)
    if plan is None:
        return plan_unknown(order.plan_id)
    canceled = subscription_canceled(state, user_id, plan)
    if canceled is not None:
        return canceled
    before, after, start = _extend_subscription(state, user_id, plan, now)
    granted = replace(
        owned,
        plan_id=plan.id,
        subscription_id=after.id,
        period_start=start,
        period_end=after.current_period_end,
    )
    return replace(decision, payment=granted, subscription_before=before, subscription=after)


def _find_subscriber(state: State, order: Order) -> UserId | None:
    """Whom an order for a subscription is for."""
    if order.user_id is None and order.email is not None:
        return state.users.get(email_key(order.email))
    return order.user_id


def _with_canceled(
    state: State, decision: Decision, user_id: UserId | None, plan: Plan | None
) -> Decision:
    """The decision that also writes the canceled subscription, as it is.

    So its version is checked: who resumes it at this moment either finds the payment, or the
    transaction of the payment fails and decides again.
    """
    assert user_id is not None
    assert plan is not None
    canceled = state.subscriptions[user_id, plan.product]
    return replace(decision, subscription_before=canceled, subscription=replace(canceled))


def _fulfill_wallet(
    state: State, decision: Decision, payment: Payment, order: Order, price: Price
) -> Decision:
    """Credit the wallet. An order has the currency of its wallet."""
    assert price.payable is not None
    decision = replace(decision, payment=replace(payment, user_id=order.user_id))
    if order.is_fulfilled:
        return decision
    return move_money(state, decision, order, payment, price.payable.amount_minor)


def _apply_plan(
    state: State,
    before: Payment | None,
    payment: Payment,
    price: Price,
    plan: Plan,
    user_id: UserId,
    now: datetime,
) -> Decision:
    assert price.payable is not None
    subscription_before, longer, start = _extend_subscription(state, user_id, plan, now)
    applied = Payment(  # not `replace`: it is slower, and every payment comes here
        id=payment.id,
        source_id=payment.source_id,
        ids=payment.ids,
        facts=payment.facts,
        order=None,
        email=payment.email,
        user_id=user_id,
        plan_id=plan.id,
        applied_at=now,
        applied_minor=price.payable.amount_minor,
        reversed_minor=0,
        subscription_id=longer.id,
        period_start=start,
        period_end=longer.current_period_end,
        is_linked=payment.is_linked,
        is_contested=False,
        is_for_refund=False,
        is_test=payment.is_test,
        review=None,
        acceptance=payment.acceptance,
        version=payment.version,
    )
    effects = (Applied(applied),)
    decision = Decision(PROCESSED, before, applied, subscription_before, longer, effects=effects)
    is_plain = payment.facts.captured == price.amount and not payment.facts.refund_times
    return decision if is_plain else _with_review(decision, price)


def _extend_subscription(
    state: State, user_id: UserId, plan: Plan, now: datetime
) -> tuple[Subscription | None, Subscription, datetime]:
    """The user's subscription to the product before and after, and the start of the new period."""
    before = state.subscriptions.get((user_id, plan.product))
    subscription = before or Subscription(
        SubscriptionId(state.new_id()), user_id, plan.product, SubscriptionStatus.INACTIVE, None
    )
    longer, start = extend_subscription(subscription, plan, now)
    return before, longer, start


def _leave_unapplied(decision: Decision, problem: EventProblem) -> Decision:
    """Store the payment unapplied, with the reason for review."""
    payment = decision.payment
    assert payment is not None
    return replace(
        decision,
        outcome=problem.outcome,
        payment=replace(payment, review=problem.code),
        blocked_on=problem.blocked_on,
    )


def _with_review(decision: Decision, price: Price | None) -> Decision:
    """The applied payment, with the reason why a person should look at it, if any."""
    payment = decision.payment
    assert payment is not None
    return replace(decision, payment=replace(payment, review=_applied_review(decision, price)))


def _applied_review(decision: Decision, price: Price | None) -> Reason | None:
    payment = decision.payment
    assert payment is not None
    problem = find_blocker(payment)
    if problem is None and not payment.is_in_effect and payment.has_funds and decision.order:
        problem = order_not_payable(decision.order, payment)
    if problem is not None:
        return problem.code
    return review_money(payment, price.amount if price else None)


def _with_reported(
    decision: Decision, payment: Payment, context: ApplyContext, price: Price | None
) -> Decision:
    """Let the event fail if the amount that it reports does not fit, and it had no effect."""
    reported = context.reported
    if price is None or reported is None or decision.effects:
        return decision
    if decision.outcome.code in _OUTRANKING or _fits(reported, payment, price):
        return decision
    wrong = wrong_amount(reported, price.amount)
    return replace(decision, outcome=wrong.outcome, blocked_on=None)


def _fits(reported: Money, payment: Payment, price: Price) -> bool:
    """Whether this amount pays the price, or was applied or accepted."""
    if reported in (price.payable, Money(payment.applied_minor, price.amount.currency)):
        return True
    return reported.amount_minor > 0 and matches(reported, price.amount)


def fulfill_free(state: State, order: Order, now: datetime) -> Decision:
    """Fulfill an order for which nothing is to be paid, once. Raises ConflictError."""
    if not order.is_free or order.is_fulfilled or order.closed_at is not None:
        return Decision(PROCESSED, order=order)
    decision = Decision(PROCESSED, order=mark_free(order, now))
    if order.kind is not Kind.SUBSCRIPTION:
        return decision
    assert order.user_id is not None, "a free order for a subscription names its user"
    plan = state.plans.find(order.plan_id, now)
    problem = subscription_canceled(state, order.user_id, plan)
    if plan is None or problem is not None:
        raise ConflictError((problem or plan_unknown(order.plan_id)).message)
    before, longer, _ = _extend_subscription(state, order.user_id, plan, now)
    return replace(decision, subscription_before=before, subscription=longer)


def find_target(state: State, payment: Payment) -> str | None:
    """What the payment is for, if it is known: the order that it names, or its plan."""
    if payment.order is not None:
        return order_target(payment.order) if payment.order in state.orders else None
    plan = _find_plan(state, payment.plan_id, payment)
    return plan_target(plan.id) if plan else None


def _price_of_plan(plan: Plan | None, payment: Payment) -> Price | None:
    if plan is None:
        return None
    return Price(plan.price, payable_sum(payment, plan.price, plan_target(plan.id)))


def _find_plan(state: State, plan_id: str | None, payment: Payment) -> Plan | None:
    """The plan as it was when the payment was made."""
    paid_at = payment.facts.paid_at
    return state.plans.find(plan_id, paid_at) if paid_at else None


def _find_user(state: State, payment: Payment, link_by_email: bool) -> UserId | None:
    """The user of the payment, if there is one."""
    if payment.user_id is not None or payment.email is None or not link_by_email:
        return payment.user_id
    return state.users.get(email_key(payment.email))
