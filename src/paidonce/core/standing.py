"""How much of an applied payment stands (FUL-4, PAY-7, PAY-10).

The applied amount is the largest captured sum that matches the price or was accepted. What remains
of it is the smaller of that amount and the money that is held. A wallet holds what remains;
everything else stands while anything remains. `reversed_minor` is the part that does not stand. It
follows from the facts alone, so the order of arrival does not matter: each change of it is an
effect of its own, `Reversed` or `Reinstated`. If another payment of the order has money when this
one has none left, the order stays paid by that payment.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from paidonce.core.events import PROCESSED, Code, SubscriptionId
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order, mark_paid, mark_unpaid
from paidonce.core.payments import Payment
from paidonce.core.plans import Duration
from paidonce.core.state import (
    Applied,
    Decision,
    Effect,
    Movement,
    Reinstated,
    Reversed,
    State,
)
from paidonce.core.subscriptions import (
    Grant,
    Subscription,
    reschedule_subscription,
    schedule,
)
from paidonce.core.wallets import credit, debit


def update_standing(
    state: State, decision: Decision, payable: Money | None, now: datetime
) -> Decision:
    """Add to the decision what changes because of the facts so far.

    `payable` is the captured sum that fits what the payment was applied to.
    """
    before, order = decision.payment, decision.order
    assert before is not None
    kind = order.kind if order else Kind.SUBSCRIPTION
    after = _with_standing(before, kind, payable)
    if order is not None and not before.is_in_effect and _is_taken(order, before):
        after = replace(after, reversed_minor=after.applied_minor)
    decision = replace(decision, payment=after)
    more_minor = after.standing_minor - before.standing_minor
    if more_minor == 0:
        return decision
    effect_kept = kind in state.kept_on_refund
    effect: Effect = (
        Reinstated(after, more_minor)
        if more_minor > 0
        else Reversed(after, -more_minor, effect_kept)
    )
    decision = replace(decision, effects=(*decision.effects, effect))
    if order is not None and kind is Kind.WALLET:
        kept_minor = before.reversed_minor - after.reversed_minor if effect_kept else 0
        decision = move_money(state, decision, order, after, more_minor - kept_minor)
    if before.is_in_effect and not after.is_in_effect:
        return _take_back(state, decision, order, after, effect_kept, now)
    if after.is_in_effect and not before.is_in_effect:
        return _give_again(state, decision, order, after, effect_kept, now)
    return decision


def _with_standing(payment: Payment, kind: Kind, payable: Money | None) -> Payment:
    """The payment with the amounts that follow from its facts."""
    applied_minor = max(payment.applied_minor, payable.amount_minor if payable else 0)
    remaining_minor = min(applied_minor, payment.facts.held_minor)
    if kind is not Kind.WALLET and remaining_minor > 0:
        remaining_minor = applied_minor
    return replace(
        payment, applied_minor=applied_minor, reversed_minor=applied_minor - remaining_minor
    )


def _is_taken(order: Order, payment: Payment) -> bool:
    """Whether the order accepts no money of this payment: another one pays it, or it is closed."""
    return order.closed_at is not None or order.applied_payment_id not in (None, payment.id)


def _take_back(
    state: State,
    decision: Decision,
    order: Order | None,
    payment: Payment,
    effect_kept: bool,
    now: datetime,
) -> Decision:
    """Nothing of the payment stands any more."""
    if order is None:
        return decision if effect_kept else _reschedule(state, decision, payment, now)
    if order.applied_payment_id != payment.id:
        return decision
    return _unpay_order(state, decision, order, payment, effect_kept, now)


def _give_again(
    state: State,
    decision: Decision,
    order: Order | None,
    payment: Payment,
    effect_kept: bool,
    now: datetime,
) -> Decision:
    """The payment stands again, because a larger capture became known."""
    if order is not None:
        decision = replace(decision, order=mark_paid(order, payment, now))
    return decision if effect_kept else _reschedule(state, decision, payment, now)


def _unpay_order(
    state: State,
    decision: Decision,
    order: Order,
    payment: Payment,
    effect_kept: bool,
    now: datetime,
) -> Decision:
    """Let another payment of the order take over, or reverse the effect of the order."""
    others = [one for one in state.payments_of(order) if one.id != payment.id]
    successors = [one for one in others if _can_pay(one, order)]
    if successors:
        chosen = min(successors, key=lambda one: (one.facts.paid_at, one.id))
        return _pay_with_other(state, decision, order, payment, chosen, now)
    order = mark_unpaid(order, [*others, payment])
    if effect_kept:
        return replace(decision, order=order)
    decision = replace(decision, order=replace(order, reversed_at=now))
    return _reschedule(state, decision, payment, now)


def _can_pay(payment: Payment, order: Order) -> bool:
    is_free = not payment.is_in_effect and payment.has_funds
    is_barred = payment.is_contested or payment.is_for_refund or payment.facts.is_expired
    return is_free and not is_barred and order.is_payable_by(payment)


def _pay_with_other(
    state: State,
    decision: Decision,
    order: Order,
    payment: Payment,
    chosen: Payment,
    now: datetime,
) -> Decision:
    """The order stays paid, by another payment, and is not fulfilled twice."""
    was_applied = chosen.applied_at is not None
    applied = replace(
        with_period_of(chosen, payment),
        user_id=payment.user_id,
        plan_id=payment.plan_id or chosen.plan_id,
        applied_at=chosen.applied_at or now,
    )
    applied = _with_standing(applied, order.kind, order.payable_sum(applied))
    applied = replace(applied, review=review_money(applied, order.amount))
    effect_kept = order.kind in state.kept_on_refund
    if order.kind is Kind.WALLET and not effect_kept:
        decision = move_money(state, decision, order, applied, applied.standing_minor)
    effects: tuple[Effect, ...] = (Reinstated(applied, applied.standing_minor),)
    if not was_applied:
        effects = (Applied(replace(applied, reversed_minor=0)),)
        if applied.reversed_minor:
            effects = (*effects, Reversed(applied, applied.reversed_minor, effect_kept))
    return replace(
        decision,
        payment=without_period(payment),
        order=mark_paid(order, applied, now),
        others=(*decision.others, applied),
        effects=(*decision.effects, *effects),
    )


def review_money(payment: Payment, price: Money | None) -> Code | None:
    """Why a person should look at the money of an applied payment, if at all."""
    captured = payment.facts.captured
    if price is not None and captured is not None and captured.currency != price.currency:
        return Code.CURRENCY_MISMATCH
    if payment.excess_minor > 0 and not payment.facts.has_foreign_refund:
        return Code.EXCESS
    return review_refunds(payment)


def review_refunds(payment: Payment) -> Code | None:
    """Whether a refund is in another currency, or more was refunded than captured.

    More is refunded when a payment that was refunded is disputed and lost as well.
    """
    facts = payment.facts
    if facts.captured_minor > 0 and facts.has_foreign_refund:
        return Code.REFUND_CURRENCY_MISMATCH
    return Code.REFUND_EXCESS if 0 < facts.captured_minor < facts.refunded_minor else None


def reschedule(state: State, subscription_id: SubscriptionId, now: datetime) -> Decision:
    """The periods of a subscription computed anew, as after two users became one."""
    before = _subscription(state, subscription_id)
    moved, after = _schedule(state, before, state.grants_of(subscription_id), now)
    return Decision(PROCESSED, others=moved, subscription_before=before, subscription=after)


def _reschedule(state: State, decision: Decision, payment: Payment, now: datetime) -> Decision:
    """Compute the periods of the subscription anew, if the payment granted one."""
    if payment.subscription_id is None:
        return decision
    others = [one for one in state.grants_of(payment.subscription_id) if one.id != payment.id]
    before = decision.subscription or _subscription(state, payment.subscription_id)
    moved, after = _schedule(state, before, [*others, payment], now)
    return replace(
        decision,
        payment=next((one for one in moved if one.id == payment.id), payment),
        others=(*decision.others, *(one for one in moved if one.id != payment.id)),
        subscription_before=before,
        subscription=after,
    )


def _schedule(
    state: State, subscription: Subscription, payments: Sequence[Payment], now: datetime
) -> tuple[tuple[Payment, ...], Subscription]:
    """The payments whose periods move, and the subscription with the last period."""
    grants = [_grant(state, one) for one in payments] + state.free_grants_of(subscription)
    if not grants:
        return (), subscription
    periods = schedule(grants, takes_back_used=state.takes_back_used)
    moved = tuple(
        replace(one, period_start=period.start, period_end=period.end)
        for one in payments
        if (period := periods.periods[one.id])
        and (one.period_start, one.period_end) != (period.start, period.end)
    )
    return moved, reschedule_subscription(subscription, periods.last, now)


def _grant(state: State, payment: Payment) -> Grant:
    """The grant of a payment, of the length that its plan had."""
    facts = payment.facts
    assert payment.applied_at is not None
    assert payment.period_start is not None
    assert payment.period_end is not None
    plan = state.plans.find(payment.plan_id, facts.paid_at) if facts.paid_at else None
    duration = plan.duration if plan else Duration(0, payment.period_end - payment.period_start)
    returned_at = facts.returned_at or facts.canceled_at or facts.refunded_at
    is_kept = payment.is_in_effect or Kind.SUBSCRIPTION in state.kept_on_refund
    return Grant(
        payment.id,
        payment.granted_at or payment.applied_at,
        duration,
        None if is_kept else returned_at,
    )


def _subscription(state: State, subscription_id: SubscriptionId) -> Subscription:
    found = next((one for one in state.subscriptions.values() if one.id == subscription_id), None)
    assert found is not None, "a payment is loaded with its subscription"
    return found


def without_period(payment: Payment) -> Payment:
    """The payment after its period went to another one of the same order."""
    return replace(
        payment, subscription_id=None, period_start=None, period_end=None, granted_at=None
    )


def with_period_of(payment: Payment, other: Payment) -> Payment:
    """The payment with the period that was granted to another one of the same order."""
    return replace(
        payment,
        subscription_id=other.subscription_id,
        period_start=other.period_start,
        period_end=other.period_end,
        granted_at=other.granted_at or other.applied_at if other.subscription_id else None,
    )


def move_money(
    state: State, decision: Decision, order: Order, payment: Payment, more_minor: int
) -> Decision:
    """Credit the wallet of the order, or debit it if the amount is negative."""
    if more_minor == 0:
        return decision
    assert order.wallet_id is not None, "an order for a top-up names its wallet"
    wallet = decision.wallet or state.wallets[order.wallet_id]
    move = credit if more_minor > 0 else debit
    after, entries = move(wallet, abs(more_minor), payment.source_id)
    movement = Movement(payment.id, wallet.currency, entries)
    return replace(decision, wallet=after, movements=(*decision.movements, movement))
