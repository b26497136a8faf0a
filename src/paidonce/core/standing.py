"""Reverses an applied payment whose money went back (FUL-4, PAY-7).

`reversed_minor` is a watermark: each minor unit is reversed once. A wallet is debited at each
refund; everything else is reversed when all of the money is back. If another payment of the order
has money then, the order stays paid by that payment.
"""

from dataclasses import replace
from datetime import datetime

from paidonce.core.orders import Kind, Order, mark_paid, mark_unpaid
from paidonce.core.payments import Payment
from paidonce.core.state import Applied, Decision, Movement, Reversed, State
from paidonce.core.subscriptions import shorten_subscription
from paidonce.core.wallets import Move, credit, debit


def reverse_refunded(state: State, decision: Decision, now: datetime) -> Decision:
    """Add to the decision what has to be reversed because of the refunds so far."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    kind = order.kind if order else Kind.SUBSCRIPTION
    more_minor = _reversible_minor(payment, kind) - payment.reversed_minor
    if more_minor <= 0:
        return decision
    effect_kept = kind in state.kept_on_refund
    after = replace(payment, reversed_minor=payment.reversed_minor + more_minor)
    effects = (*decision.effects, Reversed(after, more_minor, effect_kept))
    decision = replace(decision, payment=after, effects=effects)
    if order is not None and kind is Kind.WALLET and not effect_kept:
        decision = move_money(state, decision, order, after, debit, more_minor)
    if not after.facts.is_returned:
        return decision
    if order is None:
        return decision if effect_kept else _shorten_subscription(state, decision, after, now)
    if order.applied_payment_id != after.id:
        return decision
    return _unpay_order(state, decision, order, after, effect_kept, now)


def _reversible_minor(payment: Payment, kind: Kind) -> int:
    """How much of the applied amount is refunded by now."""
    if payment.facts.is_returned:
        return payment.applied_minor
    if kind is Kind.WALLET:
        return min(payment.facts.refunded_minor, payment.applied_minor)
    return 0


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
    return _shorten_subscription(state, decision, payment, now)


def _can_pay(payment: Payment, order: Order) -> bool:
    is_free = payment.applied_at is None and payment.has_funds
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
    captured = chosen.facts.captured
    assert captured is not None
    chosen = replace(
        chosen,
        user_id=payment.user_id,
        plan_id=payment.plan_id or chosen.plan_id,
        applied_at=now,
        applied_minor=captured.amount_minor,
        subscription_id=payment.subscription_id,
        period_start=payment.period_start,
        period_end=payment.period_end,
        review=None,
    )
    if order.kind is Kind.WALLET and Kind.WALLET not in state.kept_on_refund:
        left_minor = chosen.facts.captured_minor - chosen.facts.refunded_minor
        decision = move_money(state, decision, order, chosen, credit, left_minor)
    refunded_minor = chosen.facts.refunded_minor if order.kind is Kind.WALLET else 0
    effects = (*decision.effects, Applied(chosen))
    if refunded_minor:
        chosen = replace(chosen, reversed_minor=refunded_minor)
        effects = (*effects, Reversed(chosen, refunded_minor, Kind.WALLET in state.kept_on_refund))
    return replace(
        decision,
        order=mark_paid(order, chosen, now),
        others=(*decision.others, chosen),
        effects=effects,
    )


def _shorten_subscription(
    state: State, decision: Decision, payment: Payment, now: datetime
) -> Decision:
    """Take back the period that the payment granted, if any."""
    if payment.subscription_id is None:
        return decision
    found = (one for one in state.subscriptions.values() if one.id == payment.subscription_id)
    before = decision.subscription or next(found, None)
    assert before is not None, "a payment is loaded with its subscription"
    assert payment.period_start is not None
    assert payment.period_end is not None
    after = shorten_subscription(before, payment.period_end - payment.period_start, now)
    return replace(decision, subscription_before=before, subscription=after)


def move_money(
    state: State, decision: Decision, order: Order, payment: Payment, move: Move, amount_minor: int
) -> Decision:
    """Credit or debit the wallet of the order."""
    assert order.wallet_id is not None, "an order for a top-up names its wallet"
    wallet = decision.wallet or state.wallets[order.wallet_id]
    after, entries = move(wallet, amount_minor, payment.source_id)
    movement = Movement(payment.id, wallet.currency, entries)
    return replace(decision, wallet=after, movements=(*decision.movements, movement))
