"""When a payment gets its effect, and when it loses it: each once (PAY-3, PAY-4, PAY-7, FUL-4)."""

from dataclasses import dataclass, replace
from datetime import datetime

from paidonce.domain.email import email_key
from paidonce.domain.events import (
    PROCESSED,
    Code,
    EventStatus,
    Outcome,
    Problem,
    Reason,
    SubscriptionId,
    UserId,
)
from paidonce.domain.money import Money, matches
from paidonce.domain.orders import Kind, Order, paid_by, unpaid
from paidonce.domain.payments import Payment
from paidonce.domain.plans import Plan
from paidonce.domain.reversing import with_reversal
from paidonce.domain.state import Applied, Decision, Movement, State
from paidonce.domain.subscriptions import Subscription, SubscriptionStatus, extended
from paidonce.domain.wallets import credited


@dataclass(frozen=True, slots=True)
class Terms:
    """How a payment is looked at.

    `paid` is the amount to be priced: an event's own, so that a right amount is applied whatever
    wrong one came before it, or else all that was captured. What is `held` gets no effect and loses
    none, and that is its problem.
    """

    paid: Money | None
    link_by_email: bool
    held: Problem | None = None


def apply(
    state: State, before: Payment | None, payment: Payment, terms: Terms, now: datetime
) -> Decision:
    """Give what was paid for, if there is money, nobody got anything for it yet, and all agrees.

    If it was given already, take back what no money is left for. `before` is the payment as it was.
    """
    if payment.order is not None:
        return _apply_to_order(state, before, payment, terms, now)
    plan = _plan_of(state, payment)
    price = plan.price if plan else None
    if payment.applied_at is not None:
        decision = with_reversal(state, Decision(PROCESSED, before, payment), now)
        if decision.done and terms.held is not None:
            return _not_applied(Decision(PROCESSED, before, payment), price, terms.held)
        return _reviewed(decision, price, _mispriced(payment, terms.paid, price))
    if not _has_money(payment, terms):
        return Decision(PROCESSED, before, replace(payment, review=_missing(payment)))
    user_id = _owner(state, payment, terms.link_by_email)
    unlinked = _unlinked(payment, terms.link_by_email) if user_id is None else None
    if unlinked is not None and _is_for_nothing_known(payment, unlinked):
        unknown = Decision(PROCESSED, before, payment)
        return _not_applied(unknown, None, _barred(payment) or unlinked)
    problem = _barred(payment) or _mispriced(payment, terms.paid, price) or unlinked or terms.held
    if problem is not None:
        owned = Decision(PROCESSED, before, replace(payment, user_id=user_id))
        return _not_applied(owned, price, problem, unlinked if price else None)
    assert plan is not None
    assert user_id is not None
    assert terms.paid is not None
    return _extend(state, before, payment, terms.paid.amount_minor, plan, user_id, now)


def waits_for_email(key: str) -> str:
    """The name under which events wait for a user with this e-mail key."""
    return f"email:{key}"


def waits_for_order(reference: str) -> str:
    """The name under which events wait for an order."""
    return f"order:{reference}"


def waits_for_payment(payment: Payment) -> str:
    """The name under which events wait for a payment to be linked."""
    return f"payment:{payment.id}"


def _apply_to_order(
    state: State, before: Payment | None, payment: Payment, terms: Terms, now: datetime
) -> Decision:
    assert payment.order is not None
    order = state.orders.get(payment.order)
    decision = Decision(PROCESSED, before, payment, order=order)
    if order is None:
        if not _has_money(payment, terms):
            return replace(decision, payment=replace(payment, review=_missing(payment)))
        waits = waits_for_order(payment.order)
        missing = Problem(Code.ORDER_MISSING, "there is no such order yet", False, waits)
        return _not_applied(decision, None, _barred(payment) or missing)
    if payment.applied_at is not None:
        after = with_reversal(state, decision, now)
        if after.done and terms.held is not None:
            return _not_applied(decision, order.amount, terms.held)
        after = _with_status(state, after)
        return _reviewed(after, order.amount, _unfit(order, payment, terms.paid))
    if not _has_money(payment, terms):
        unpaid_one = replace(payment, review=_missing(payment))
        return _with_status(state, replace(decision, payment=unpaid_one))
    problem = _barred(payment) or _unfit(order, payment, terms.paid) or _taken(order)
    return (
        _granted(state, decision, terms, now)
        if problem is None
        else _not_applied(decision, order.amount, problem)
    )


def _has_money(payment: Payment, terms: Terms) -> bool:
    return terms.paid is not None and not payment.facts.is_returned


def _with_status(state: State, decision: Decision) -> Decision:
    """The decision, and the order as all that is known of its payments now leaves it."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    assert order is not None
    if order.applied_payment_id is None:
        others = (one for one in state.payments_of(order) if one.id != payment.id)
        return replace(decision, order=unpaid(order, [*others, payment]))
    if order.applied_payment_id == payment.id:
        return replace(decision, order=replace(order, paid_at=payment.facts.paid_at))
    return decision


def _granted(state: State, decision: Decision, terms: Terms, now: datetime) -> Decision:
    """The order is paid: what it is for is given, unless it still stands from an earlier time."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    assert order is not None
    match order.kind:
        case Kind.SUBSCRIPTION:
            granted = _with_subscription(state, decision, payment, order, now)
        case Kind.WALLET:
            granted = _with_credit(state, decision, payment, order, terms)
        case Kind.ORDER | Kind.BOOKING:
            granted = replace(decision, payment=replace(payment, user_id=order.user_id))
    if isinstance(granted, Problem) or terms.held is not None:
        problem = granted if isinstance(granted, Problem) else terms.held
        assert problem is not None
        return _not_applied(decision, order.amount, problem)
    paid = granted.payment
    assert paid is not None
    assert terms.paid is not None
    applied = replace(
        paid,
        applied_at=now,
        applied_minor=terms.paid.amount_minor,
        review=_wrong_sum(paid, order.amount),
    )
    done = replace(
        granted, payment=applied, order=paid_by(order, applied, now), done=(Applied(applied),)
    )
    return with_reversal(state, done, now)


def _with_subscription(
    state: State, decision: Decision, payment: Payment, order: Order, now: datetime
) -> Decision | Problem:
    user_id = order.user_id
    if user_id is None and order.email is not None:
        user_id = state.users.get(email_key(order.email))
    if user_id is None:
        assert order.email is not None, "an order of a subscription names its user"
        return _no_user(order.email)
    standing = next((one for one in state.payments_of(order) if one.subscription_id), None)
    if order.is_fulfilled and standing is not None:
        period = (standing.subscription_id, standing.period_start, standing.period_end)
        return replace(decision, payment=_with_period(payment, user_id, *period))
    paid_at = payment.facts.paid_at
    plan = state.plans.find(order.plan_id, paid_at) if paid_at else None
    if plan is None:
        return _no_plan(order.plan_id)
    before, after, start = _longer(state, user_id, plan, now)
    owned = _with_period(payment, user_id, after.id, start, after.current_period_end)
    return replace(
        decision,
        payment=replace(owned, plan_id=plan.id),
        subscription_before=before,
        subscription=after,
    )


def _with_credit(
    state: State, decision: Decision, payment: Payment, order: Order, terms: Terms
) -> Decision:
    """The wallet with what was paid. An order's currency is that of its wallet."""
    assert order.wallet_id is not None, "an order of a top-up names its wallet"
    assert terms.paid is not None
    owned = replace(payment, user_id=order.user_id)
    if order.is_fulfilled:
        return replace(decision, payment=owned)
    wallet = state.wallets[order.wallet_id]
    after, entries = credited(wallet, terms.paid.amount_minor, payment.source_id)
    movement = Movement(payment.id, wallet.currency, entries)
    return replace(decision, payment=owned, wallet=after, movements=(movement,))


def _with_period(
    payment: Payment,
    user_id: UserId,
    subscription_id: SubscriptionId | None,
    start: datetime | None,
    end: datetime | None,
) -> Payment:
    return replace(
        payment,
        user_id=user_id,
        subscription_id=subscription_id,
        period_start=start,
        period_end=end,
    )


def _extend(
    state: State,
    before: Payment | None,
    payment: Payment,
    paid_minor: int,
    plan: Plan,
    user_id: UserId,
    now: datetime,
) -> Decision:
    subscription_before, longer, start = _longer(state, user_id, plan, now)
    applied = Payment(  # spelt out: on the path of every payment, `replace` is not cheap
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
        review=_wrong_sum(payment, plan.price),
        version=payment.version,
    )
    done = (Applied(applied),)
    return Decision(PROCESSED, before, applied, subscription_before, longer, done=done)


def _longer(
    state: State, user_id: UserId, plan: Plan, now: datetime
) -> tuple[Subscription | None, Subscription, datetime]:
    """The user's subscription to the plan's product, before and after, and where they meet."""
    before = state.subscriptions.get((user_id, plan.product))
    subscription = before or Subscription(
        SubscriptionId(state.new_id()), user_id, plan.product, SubscriptionStatus.INACTIVE, None
    )
    longer, start = extended(subscription, plan, now)
    return before, longer, start


def _not_applied(
    decision: Decision, price: Money | None, problem: Problem, unlinked: Problem | None = None
) -> Decision:
    """Kept, listed, and of an event that may succeed later, tried again."""
    payment = decision.payment
    assert payment is not None
    wrong = _wrong_sum(payment, price) if price else None
    review = _marked(payment) or wrong or (unlinked or problem).code
    return replace(
        decision,
        outcome=problem.outcome,
        payment=replace(payment, review=review),
        awaits=problem.awaits,
    )


def _reviewed(decision: Decision, price: Money | None, wrong: Problem | None) -> Decision:
    """The effect stands. A sibling that names another sum is kept, and a person has to look."""
    payment = decision.payment
    assert payment is not None
    review = _marked(payment) or (_wrong_sum(payment, price) if price else None)
    payment = replace(payment, review=review)
    if wrong is None or price is None:
        return replace(decision, payment=payment)
    outcome = Outcome(EventStatus.FAILED_FINAL, wrong.code, wrong.message)
    return replace(decision, payment=payment, outcome=outcome)


def _missing(payment: Payment) -> Code | None:
    """Whether money went back of which nobody knows that it came, or that is not sure."""
    if payment.is_contested:
        return Code.LINK_CONFLICT
    facts = payment.facts
    is_back = facts.refunded_minor > 0 or facts.canceled_at is not None
    return Code.PAYMENT_MISSING if facts.captured_minor == 0 and is_back else None


def _marked(payment: Payment) -> Reason | None:
    """What a person should look at whatever else is the matter."""
    barred = _barred(payment)
    return barred.code if barred else None


def _wrong_sum(payment: Payment, price: Money) -> Reason | None:
    """Why a person should look at what was captured, whatever order it became known in."""
    captured = payment.facts.captured
    if captured is None or captured == price:
        return None
    wrong = _mispriced(payment, captured, price)
    return wrong.code if wrong else None


def _barred(payment: Payment) -> Problem | None:
    """Why it is not for us to apply it, whatever it is for."""
    if payment.is_contested:
        return Problem(Code.LINK_CONFLICT, "its events disagree on what it is for")
    if payment.is_for_refund:
        return Problem(Code.REFUND_WANTED, "it is to be returned")
    if payment.facts.is_stale:
        return Problem(Code.TIMESTAMP_EXPIRED, "all that told of the money came too late")
    return None


def _unfit(order: Order, payment: Payment, paid: Money | None) -> Problem | None:
    """Why this money cannot pay this order."""
    if not order.admits(payment.source_id):
        return Problem(Code.LINK_CONFLICT, "payments of this source do not pay that order")
    return _mispriced(payment, paid, order.amount)


def _taken(order: Order) -> Problem | None:
    """Why the order takes no money any more."""
    if order.applied_payment_id is not None:
        return Problem(Code.DUPLICATE_PAYMENT, "the order is paid by another payment already")
    if order.closed_at is not None:
        return Problem(Code.ORDER_CLOSED, "the order was closed before it was paid")
    return None


def _mispriced(payment: Payment, paid: Money | None, price: Money | None) -> Problem | None:
    if price is None:
        return _no_plan(payment.plan_id)
    if paid is None or paid == price:
        return None
    if paid.amount_minor > 0 and matches(paid, price):
        return None
    if payment.is_accepted and paid.amount_minor > 0 and paid.currency == price.currency:
        return None
    if paid.currency != price.currency:
        message = f"paid {paid}, but the price is in {price.currency}"
        return Problem(Code.CURRENCY_MISMATCH, message)
    return Problem(Code.AMOUNT_MISMATCH, f"paid {paid}, but the price is {price}")


def _plan_of(state: State, payment: Payment) -> Plan | None:
    paid_at = payment.facts.paid_at
    return state.plans.find(payment.plan_id, paid_at) if paid_at else None


def _no_plan(plan_id: str | None) -> Problem:
    named = "there is no such plan" if plan_id else "there is no default plan"
    return Problem(Code.PLAN_UNKNOWN, named)


def _owner(state: State, payment: Payment, link_by_email: bool) -> UserId | None:
    """Whose payment it is, if that is known."""
    if payment.user_id is not None or payment.email is None or not link_by_email:
        return payment.user_id
    return state.users.get(email_key(payment.email))


def _unlinked(payment: Payment, link_by_email: bool) -> Problem:
    if payment.email is not None and link_by_email:
        return _no_user(payment.email)
    message = "nothing says whose payment this is"
    return Problem(Code.UNLINKED_PAYMENT, message, False, waits_for_payment(payment))


def _is_for_nothing_known(payment: Payment, unlinked: Problem) -> bool:
    """Whether no price can be wrong yet: a later event may still name an order, or a person."""
    return unlinked.code is Code.UNLINKED_PAYMENT and payment.plan_id is None


def _no_user(email: str) -> Problem:
    waits = waits_for_email(email_key(email))
    return Problem(Code.USER_MISSING, "no user has this e-mail address yet", False, waits)
