"""Applies a payment once, if it has money and everything matches (PAY-3, PAY-4, PAY-7, FUL-4)."""

from dataclasses import dataclass, replace
from datetime import datetime

from paidonce.core.email import email_key
from paidonce.core.events import (
    PROCESSED,
    Code,
    EventProblem,
    EventStatus,
    Outcome,
    Reason,
    SubscriptionId,
    UserId,
)
from paidonce.core.money import Money, matches
from paidonce.core.orders import Kind, Order, mark_paid, mark_unpaid
from paidonce.core.payments import Payment
from paidonce.core.plans import Plan
from paidonce.core.reverse import move_money, reverse_refunded
from paidonce.core.state import Applied, Decision, State
from paidonce.core.subscriptions import Subscription, SubscriptionStatus, extend_subscription
from paidonce.core.wallets import credit


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """What `apply` needs besides the payment.

    `paid` is the amount that is compared with the price: the amount of the event, so that a right
    amount is applied whatever wrong amount came before it; otherwise all that was captured. With
    `blocked_by` the payment is neither applied nor reversed.
    """

    paid: Money | None
    link_by_email: bool
    blocked_by: EventProblem | None = None


def apply(
    state: State, before: Payment | None, payment: Payment, context: ApplyContext, now: datetime
) -> Decision:
    """Apply the payment if it has money, was not applied yet, and matches a plan or an order.

    If it was applied already, reverse what was refunded. `before` is the payment as it was loaded.
    """
    if payment.order is not None:
        return _apply_to_order(state, before, payment, context, now)
    plan = _find_plan(state, payment.plan_id, payment)
    price = plan.price if plan else None
    if payment.applied_at is not None:
        decision = reverse_refunded(state, Decision(PROCESSED, before, payment), now)
        if decision.effects and context.blocked_by is not None:
            return _leave_unapplied(Decision(PROCESSED, before, payment), price, context.blocked_by)
        return _with_review(decision, price, _price_mismatch(payment, context.paid, price))
    if not _has_money(payment, context):
        return Decision(PROCESSED, before, replace(payment, review=_unpaid_review(payment)))
    user_id = _find_user(state, payment, context.link_by_email)
    unlinked = _unlinked_problem(payment, context.link_by_email) if user_id is None else None
    if unlinked is not None and unlinked.code is Code.UNLINKED_PAYMENT and payment.plan_id is None:
        # Nothing says what it is for: a later event, or an operator, may still name it.
        unknown = Decision(PROCESSED, before, payment)
        return _leave_unapplied(unknown, None, _find_blocker(payment) or unlinked)
    problem = (
        _find_blocker(payment)
        or _price_mismatch(payment, context.paid, price)
        or unlinked
        or context.blocked_by
    )
    if problem is not None:
        owned = Decision(PROCESSED, before, replace(payment, user_id=user_id))
        return _leave_unapplied(owned, price, problem, unlinked if price else None)
    assert plan is not None
    assert user_id is not None
    assert context.paid is not None
    return _apply_plan(state, before, payment, context.paid.amount_minor, plan, user_id, now)


def blocked_on_email(key: str) -> str:
    """The name of a missing user. Events are blocked on it in the queue."""
    return f"email:{key}"


def blocked_on_order(reference: str) -> str:
    """The name of a missing order."""
    return f"order:{reference}"


def blocked_on_payment(payment: Payment) -> str:
    """The name of a payment that is not linked."""
    return f"payment:{payment.id}"


def _apply_to_order(
    state: State, before: Payment | None, payment: Payment, context: ApplyContext, now: datetime
) -> Decision:
    assert payment.order is not None
    order = state.orders.get(payment.order)
    decision = Decision(PROCESSED, before, payment, order=order)
    if order is None:
        if not _has_money(payment, context):
            return replace(decision, payment=replace(payment, review=_unpaid_review(payment)))
        name = blocked_on_order(payment.order)
        missing = EventProblem(Code.ORDER_MISSING, "there is no such order yet", False, name)
        return _leave_unapplied(decision, None, _find_blocker(payment) or missing)
    if payment.applied_at is not None:
        after = reverse_refunded(state, decision, now)
        if after.effects and context.blocked_by is not None:
            return _leave_unapplied(decision, order.amount, context.blocked_by)
        after = _with_order_status(state, after)
        return _with_review(after, order.amount, _order_mismatch(order, payment, context.paid))
    if not _has_money(payment, context):
        reviewed = replace(payment, review=_unpaid_review(payment))
        return _with_order_status(state, replace(decision, payment=reviewed))
    problem = (
        _find_blocker(payment)
        or _order_mismatch(order, payment, context.paid)
        or _order_not_payable(order)
    )
    return (
        _fulfill(state, decision, context, now)
        if problem is None
        else _leave_unapplied(decision, order.amount, problem)
    )


def _has_money(payment: Payment, context: ApplyContext) -> bool:
    return context.paid is not None and not payment.facts.is_returned


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


def _fulfill(state: State, decision: Decision, context: ApplyContext, now: datetime) -> Decision:
    """Pay the order and fulfill it, unless it is still fulfilled by an earlier payment."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    assert order is not None
    match order.kind:
        case Kind.SUBSCRIPTION:
            granted = _fulfill_subscription(state, decision, payment, order, now)
        case Kind.WALLET:
            granted = _fulfill_wallet(state, decision, payment, order, context)
        case Kind.ORDER | Kind.BOOKING:
            granted = replace(decision, payment=replace(payment, user_id=order.user_id))
    if isinstance(granted, EventProblem) or context.blocked_by is not None:
        problem = granted if isinstance(granted, EventProblem) else context.blocked_by
        assert problem is not None
        return _leave_unapplied(decision, order.amount, problem)
    paid = granted.payment
    assert paid is not None
    assert context.paid is not None
    applied = replace(
        paid,
        applied_at=now,
        applied_minor=context.paid.amount_minor,
        review=_price_review(paid, order.amount),
    )
    decision = replace(
        granted, payment=applied, order=mark_paid(order, applied, now), effects=(Applied(applied),)
    )
    return reverse_refunded(state, decision, now)


def _fulfill_subscription(
    state: State, decision: Decision, payment: Payment, order: Order, now: datetime
) -> Decision | EventProblem:
    user_id = order.user_id
    if user_id is None and order.email is not None:
        user_id = state.users.get(email_key(order.email))
    if user_id is None:
        assert order.email is not None, "an order for a subscription names its user"
        return _user_missing(order.email)
    owned = replace(payment, user_id=user_id)
    earlier = next((one for one in state.payments_of(order) if one.subscription_id), None)
    if order.is_fulfilled and earlier is not None:
        granted = replace(
            owned,
            subscription_id=earlier.subscription_id,
            period_start=earlier.period_start,
            period_end=earlier.period_end,
        )
        return replace(decision, payment=granted)
    plan = _find_plan(state, order.plan_id, payment)
    if plan is None:
        return _plan_unknown(order.plan_id)
    before, after, start = _extend_subscription(state, user_id, plan, now)
    granted = replace(
        owned,
        plan_id=plan.id,
        subscription_id=after.id,
        period_start=start,
        period_end=after.current_period_end,
    )
    return replace(decision, payment=granted, subscription_before=before, subscription=after)


def _fulfill_wallet(
    state: State, decision: Decision, payment: Payment, order: Order, context: ApplyContext
) -> Decision:
    """Credit the wallet. An order has the currency of its wallet."""
    assert context.paid is not None
    decision = replace(decision, payment=replace(payment, user_id=order.user_id))
    if order.is_fulfilled:
        return decision
    return move_money(state, decision, order, payment, credit, context.paid.amount_minor)


def _apply_plan(
    state: State,
    before: Payment | None,
    payment: Payment,
    paid_minor: int,
    plan: Plan,
    user_id: UserId,
    now: datetime,
) -> Decision:
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
        applied_minor=paid_minor,
        reversed_minor=0,
        subscription_id=longer.id,
        period_start=start,
        period_end=longer.current_period_end,
        is_linked=payment.is_linked,
        is_contested=False,
        is_accepted=payment.is_accepted,
        is_for_refund=False,
        is_test=payment.is_test,
        review=_price_review(payment, plan.price),
        version=payment.version,
    )
    effects = (Applied(applied),)
    return Decision(PROCESSED, before, applied, subscription_before, longer, effects=effects)


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


def _leave_unapplied(
    decision: Decision,
    price: Money | None,
    problem: EventProblem,
    unlinked: EventProblem | None = None,
) -> Decision:
    """Store the payment unapplied, with the reason for review."""
    payment = decision.payment
    assert payment is not None
    wrong = _price_review(payment, price) if price else None
    review = _blocker_code(payment) or wrong or (unlinked or problem).code
    return replace(
        decision,
        outcome=problem.outcome,
        payment=replace(payment, review=review),
        blocked_on=problem.blocked_on,
    )


def _with_review(decision: Decision, price: Money | None, wrong: EventProblem | None) -> Decision:
    """The payment stays applied. An event with another amount fails; the payment needs review."""
    payment = decision.payment
    assert payment is not None
    review = _blocker_code(payment) or (_price_review(payment, price) if price else None)
    payment = replace(payment, review=review)
    if wrong is None or price is None:
        return replace(decision, payment=payment)
    outcome = Outcome(EventStatus.FAILED_FINAL, wrong.code, wrong.message)
    return replace(decision, payment=payment, outcome=outcome)


def _unpaid_review(payment: Payment) -> Code | None:
    """Why a payment without money needs review: a refund without a capture, or a conflict."""
    if payment.is_contested:
        return Code.LINK_CONFLICT
    facts = payment.facts
    is_back = facts.refunded_minor > 0 or facts.canceled_at is not None
    return Code.PAYMENT_MISSING if facts.captured_minor == 0 and is_back else None


def _blocker_code(payment: Payment) -> Reason | None:
    """The reason for review that outranks all others."""
    barred = _find_blocker(payment)
    return barred.code if barred else None


def _price_review(payment: Payment, price: Money) -> Reason | None:
    """Why the captured amount needs review, whatever the order of arrival."""
    captured = payment.facts.captured
    if captured is None or captured == price:
        return None
    wrong = _price_mismatch(payment, captured, price)
    return wrong.code if wrong else None


def _find_blocker(payment: Payment) -> EventProblem | None:
    """Why the payment cannot be applied to anything."""
    if payment.is_contested:
        return EventProblem(Code.LINK_CONFLICT, "its events name different orders or users")
    if payment.is_for_refund:
        return EventProblem(Code.REFUND_WANTED, "it is marked for refund")
    if payment.facts.is_expired:
        return EventProblem(
            Code.TIMESTAMP_EXPIRED, "the capture is known only from expired deliveries"
        )
    return None


def _order_mismatch(order: Order, payment: Payment, paid: Money | None) -> EventProblem | None:
    """Why this payment does not fit this order."""
    if not order.accepts_source(payment.source_id):
        return EventProblem(Code.LINK_CONFLICT, "payments of this source do not pay that order")
    return _price_mismatch(payment, paid, order.amount)


def _order_not_payable(order: Order) -> EventProblem | None:
    """Why the order accepts no payment."""
    if order.applied_payment_id is not None:
        return EventProblem(Code.DUPLICATE_PAYMENT, "the order is paid by another payment already")
    if order.closed_at is not None:
        return EventProblem(Code.ORDER_CLOSED, "the order was closed before it was paid")
    return None


def _price_mismatch(
    payment: Payment, paid: Money | None, price: Money | None
) -> EventProblem | None:
    if price is None:
        return _plan_unknown(payment.plan_id)
    if paid is None or paid == price:
        return None
    if paid.amount_minor > 0 and matches(paid, price):
        return None
    if payment.is_accepted and paid.amount_minor > 0 and paid.currency == price.currency:
        return None
    if paid.currency != price.currency:
        message = f"paid {paid}, but the price is in {price.currency}"
        return EventProblem(Code.CURRENCY_MISMATCH, message)
    return EventProblem(Code.AMOUNT_MISMATCH, f"paid {paid}, but the price is {price}")


def _find_plan(state: State, plan_id: str | None, payment: Payment) -> Plan | None:
    """The plan as it was when the payment was made."""
    paid_at = payment.facts.paid_at
    return state.plans.find(plan_id, paid_at) if paid_at else None


def _plan_unknown(plan_id: str | None) -> EventProblem:
    message = "there is no such plan" if plan_id else "there is no default plan"
    return EventProblem(Code.PLAN_UNKNOWN, message)


def _find_user(state: State, payment: Payment, link_by_email: bool) -> UserId | None:
    """The user of the payment, if there is one."""
    if payment.user_id is not None or payment.email is None or not link_by_email:
        return payment.user_id
    return state.users.get(email_key(payment.email))


def _unlinked_problem(payment: Payment, link_by_email: bool) -> EventProblem:
    if payment.email is not None and link_by_email:
        return _user_missing(payment.email)
    message = "the payment names no order and no known user"
    return EventProblem(Code.UNLINKED_PAYMENT, message, False, blocked_on_payment(payment))


def _user_missing(email: str) -> EventProblem:
    name = blocked_on_email(email_key(email))
    return EventProblem(Code.USER_MISSING, "no user has this e-mail address yet", False, name)
