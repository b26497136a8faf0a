"""`decide(state, received, now)`: what an event does. All business rules, no I/O.

The facts of an event are always merged into its payment. Then the payment is applied if it holds
money that was not applied yet, once (`apply.py`). What stands of an applied payment follows its
facts (`standing.py`).
"""

from dataclasses import replace
from datetime import datetime

from paidonce.core.apply import ApplyContext, apply
from paidonce.core.events import (
    PROCESSED,
    Code,
    EventProblem,
    EventStatus,
    ExternalId,
    Ignored,
    Outcome,
    PaymentEvent,
    PaymentId,
    ReceivedEvent,
    SourceId,
)
from paidonce.core.facts import has_foreign_refund, is_out_of_order
from paidonce.core.payments import Payment, merge_event, merge_payments, new_payment
from paidonce.core.state import Decision, State


def decide(state: State, received: ReceivedEvent, now: datetime) -> Decision:
    """Decide what the event does to its payment. Pure: the state is only read."""
    event = received.event
    if isinstance(event, Ignored):
        return Decision(Outcome(EventStatus.IGNORED, event.code, event.reason))
    payments = state.find_payments(received.source_id, event.ids)
    if received.is_expired and any(one.facts.has_timely_capture for one in payments):
        return Decision(PROCESSED)  # a delivery in time has reported the money already
    if payments:
        return _update_payment(state, payments, received, event, now)
    payment = new_payment(PaymentId(state.new_id()), event, received)
    decision = _apply(state, None, payment, received, event, now)
    return _with_event_outcome(event, received.blocked_by, None, decision)


def _update_payment(
    state: State,
    payments: list[Payment],
    received: ReceivedEvent,
    event: PaymentEvent,
    now: datetime,
) -> Decision:
    """Merge the event into its payment. Payments that share an id with it become one (PAY-1)."""
    before, *others = sorted(
        payments, key=lambda one: (not one.is_in_effect, not one.applied_at, one.id)
    )
    merged = tuple(one for one in others if not one.is_in_effect)
    rivals = [one for one in others if one.is_in_effect]  # two that are in effect cannot be merged
    payment = before
    for other in merged:
        payment = merge_payments(payment, other, received.link_by_email)
    was_contested, payment = payment.is_contested, replace(payment, is_contested=False)
    owners = {before.id, *(one.id for one in merged)}
    ids = tuple(one for one in event.ids if _is_free_id(state, before.source_id, one, owners))
    payment = merge_event(payment, ids, event, received)
    contests = payment.is_contested or bool(rivals)
    payment = replace(
        payment,
        is_contested=was_contested or contests,
        is_test=payment.is_test and received.is_test,
    )
    decision = _apply(state, before, payment, received, event, now)
    if others:
        contested = [replace(one, is_contested=True, review=Code.LINK_CONFLICT) for one in rivals]
        decision = replace(decision, merged=merged, others=(*decision.others, *contested))
    return _with_event_outcome(event, received.blocked_by, before, decision, contests)


def _apply(
    state: State,
    before: Payment | None,
    payment: Payment,
    received: ReceivedEvent,
    event: PaymentEvent,
    now: datetime,
) -> Decision:
    context = ApplyContext(event.amount, received.link_by_email, received.blocked_by)
    return apply(state, before, payment, context, now)


def _is_free_id(
    state: State, source_id: SourceId, external_id: ExternalId, owners: set[PaymentId]
) -> bool:
    """Whether the id is new, or belongs to one of these payments."""
    owner = state.payment_ids.get((source_id, external_id))
    return owner is None or owner in owners


def _with_event_outcome(
    event: PaymentEvent,
    blocked_by: EventProblem | None,
    before: Payment | None,
    decision: Decision,
    contests: bool = False,
) -> Decision:
    """Replace the outcome of the payment by the outcome of the event where they differ.

    An event without an amount does not fail because the payment is not applied. Neither does one
    that is out of order. An event that contests the purpose of the payment fails, also when it is
    processed again.
    """
    if blocked_by is not None and decision.outcome == blocked_by.outcome:
        return decision
    payment = decision.payment
    is_contested = payment is not None and payment.is_contested
    was_contested = before is not None and before.is_contested
    if is_contested and (contests or not was_contested):
        message = "it names another order or user than the payment has"
        outcome = Outcome(EventStatus.FAILED_FINAL, Code.LINK_CONFLICT, message)
        return replace(decision, outcome=outcome, blocked_on=None)
    if payment is not None and not decision.effects and has_foreign_refund(payment.facts, event):
        message = "the refund is in another currency than the payment; it is not subtracted"
        outcome = Outcome(EventStatus.FAILED_FINAL, Code.REFUND_CURRENCY_MISMATCH, message)
        return replace(decision, outcome=outcome, blocked_on=None)
    if event.amount is not None and event.announced is None:
        return decision
    has_effect = decision.effects or decision.merged
    if before is None or payment is None or has_effect or not _is_late(event, before, payment):
        if event.amount is not None:
            return decision
        return replace(decision, outcome=PROCESSED, blocked_on=None)
    said = event.announced or event.event_type
    message = f"{said} came after {before.facts.status} and changes nothing"
    outcome = Outcome(EventStatus.IGNORED, Code.OUT_OF_ORDER, message)
    return replace(decision, outcome=outcome, blocked_on=None)


def _is_late(event: PaymentEvent, before: Payment, payment: Payment) -> bool:
    """Whether the event is behind what was known. If it was looked up, it may still add a fact."""
    if event.announced is None:
        return is_out_of_order(before.facts, event.event_type)
    return is_out_of_order(before.facts, event.announced) and payment.facts == before.facts
