"""What happens to an applied payment whose money goes back (FUL-4, PAY-7).

Reversal follows the refunds by a watermark, `reversed_minor`, so that each unit is taken back once.
A wallet is debited each increase; everything else is taken back only with the last of the money. If
another payment of the order holds money then, the order stays paid by that one.
"""

from dataclasses import replace
from datetime import datetime

from paidonce.domain.orders import Kind, Order, paid_by, unpaid
from paidonce.domain.payments import Payment
from paidonce.domain.state import Applied, Decision, Movement, Reversed, State
from paidonce.domain.subscriptions import shortened
from paidonce.domain.wallets import credited, debited


def with_reversal(state: State, decision: Decision, now: datetime) -> Decision:
    """The decision, and what it takes back because of what was refunded so far."""
    payment, order = decision.payment, decision.order
    assert payment is not None
    kind = order.kind if order else Kind.SUBSCRIPTION
    more_minor = _to_reverse_minor(payment, kind) - payment.reversed_minor
    if more_minor <= 0:
        return decision
    is_kept = kind in state.kept
    after = replace(payment, reversed_minor=payment.reversed_minor + more_minor)
    done = (*decision.done, Reversed(after, more_minor, is_kept))
    decision = replace(decision, payment=after, done=done)
    if kind is Kind.WALLET and not is_kept:
        decision = _debited(state, decision, after, more_minor)
    if not after.facts.is_returned:
        return decision
    if order is None:
        return decision if is_kept else _shortened(state, decision, after, now)
    if order.applied_payment_id != after.id:
        return decision
    return _without_money(state, decision, order, after, is_kept, now)


def _to_reverse_minor(payment: Payment, kind: Kind) -> int:
    """How much of what was applied has no money behind it any more."""
    if payment.facts.is_returned:
        return payment.applied_minor
    if kind is Kind.WALLET:
        return min(payment.facts.refunded_minor, payment.applied_minor)
    return 0


def _without_money(
    state: State, decision: Decision, order: Order, payment: Payment, is_kept: bool, now: datetime
) -> Decision:
    """The order's payment is no more: another one takes its place, or its effect is taken back."""
    others = [one for one in state.payments_of(order) if one.id != payment.id]
    successors = [one for one in others if _can_pay(one, order)]
    if successors:
        chosen = min(successors, key=lambda one: (one.facts.paid_at, one.id))
        return _passed_on(state, decision, order, payment, chosen, now)
    order = unpaid(order, [*others, payment])
    if is_kept:
        return replace(decision, order=order)
    decision = replace(decision, order=replace(order, reversed_at=now))
    return _shortened(state, decision, payment, now)


def _can_pay(payment: Payment, order: Order) -> bool:
    is_free = payment.applied_at is None and payment.holds_money
    is_barred = payment.is_contested or payment.is_for_refund or payment.facts.is_stale
    return is_free and not is_barred and order.is_payable_by(payment)


def _passed_on(
    state: State,
    decision: Decision,
    order: Order,
    payment: Payment,
    chosen: Payment,
    now: datetime,
) -> Decision:
    """The order stays paid, by another payment; what it is for is not given twice."""
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
    if order.kind is Kind.WALLET and Kind.WALLET not in state.kept:
        decision = _credited(state, decision, order, chosen)
    refunded_minor = chosen.facts.refunded_minor if order.kind is Kind.WALLET else 0
    done = (*decision.done, Applied(chosen))
    if refunded_minor:
        chosen = replace(chosen, reversed_minor=refunded_minor)
        done = (*done, Reversed(chosen, refunded_minor, Kind.WALLET in state.kept))
    return replace(
        decision, order=paid_by(order, chosen, now), others=(*decision.others, chosen), done=done
    )


def _shortened(state: State, decision: Decision, payment: Payment, now: datetime) -> Decision:
    """The subscription without what the payment granted, if that was one."""
    if payment.subscription_id is None:
        return decision
    known = (one for one in state.subscriptions.values() if one.id == payment.subscription_id)
    before = decision.subscription or next(known, None)
    assert before is not None, "whoever loads a payment loads what it granted"
    assert payment.period_start is not None
    assert payment.period_end is not None
    after = shortened(before, payment.period_end - payment.period_start, now)
    return replace(decision, subscription_before=before, subscription=after)


def _debited(state: State, decision: Decision, payment: Payment, amount_minor: int) -> Decision:
    order = decision.order
    assert order is not None
    assert order.wallet_id is not None
    wallet = decision.wallet or state.wallets[order.wallet_id]
    after, entries = debited(wallet, amount_minor, payment.source_id)
    movement = Movement(payment.id, wallet.currency, entries)
    return replace(decision, wallet=after, movements=(*decision.movements, movement))


def _credited(state: State, decision: Decision, order: Order, payment: Payment) -> Decision:
    """The wallet with what is left of the payment that takes over."""
    assert order.wallet_id is not None
    wallet = decision.wallet or state.wallets[order.wallet_id]
    left_minor = payment.facts.captured_minor - payment.facts.refunded_minor
    after, entries = credited(wallet, left_minor, payment.source_id)
    movement = Movement(payment.id, wallet.currency, entries)
    return replace(decision, wallet=after, movements=(*decision.movements, movement))
