"""What an event does: `decide(state, event, now)` is all of the business, without any I/O.

An event is first remembered: its facts are merged into the payment, always. Then, if the payment
holds money that nobody has got anything for, it is applied, once; and if money of an applied one
went back, its effect is reversed, once (`applying.py`).
"""

from dataclasses import dataclass, replace
from datetime import datetime

from paidonce.domain.applying import Terms, apply
from paidonce.domain.events import (
    PROCESSED,
    Code,
    EventStatus,
    ExternalId,
    Ignored,
    Outcome,
    PaymentEvent,
    PaymentId,
    Problem,
    SourceId,
)
from paidonce.domain.payments import Payment, first_heard, joined, says_less, with_event
from paidonce.domain.state import Decision, State


@dataclass(frozen=True, slots=True)
class Arrived:
    """A canonical event with what its delivery and its source add to it."""

    source_id: SourceId
    event: PaymentEvent | Ignored
    received_at: datetime
    link_by_email: bool
    held: Problem | None = None
    """Why the user's own code does not let the payment be applied, or reversed, now."""
    is_test: bool = False
    """Whether we made the delivery ourselves, to try something."""
    is_stale: bool = False
    """Whether the delivery was refused because it came too late: then it says what was paid."""


def decide(state: State, arrived: Arrived, now: datetime) -> Decision:
    """What the event does to the payment it speaks of. Pure: the state is only read."""
    event = arrived.event
    if isinstance(event, Ignored):
        return Decision(Outcome(EventStatus.IGNORED, event.code, event.reason))
    known = state.payments_known_as(arrived.source_id, event.ids)
    if arrived.is_stale and any(one.facts.is_told_in_time for one in known):
        return Decision(PROCESSED)  # it has nothing to add to what came in time
    if known:
        return _heard_again(state, known, arrived, event, now)
    payment_id = PaymentId(state.new_id())
    payment = first_heard(
        payment_id,
        arrived.source_id,
        event,
        arrived.received_at,
        arrived.is_test,
        arrived.is_stale,
    )
    decision = _applied(state, None, payment, arrived, event, now)
    return _with_outcome_of(event, arrived.held, None, decision)


def _heard_again(
    state: State, known: list[Payment], arrived: Arrived, event: PaymentEvent, now: datetime
) -> Decision:
    """What the event does to a payment that is known, perhaps as several until now (PAY-1)."""
    before, *others = sorted(known, key=lambda one: (not one.stands, not one.applied_at, one.id))
    absorbed = tuple(one for one in others if not one.stands)
    rivals = [one for one in others if one.stands]  # two that both stand cannot become one
    payment = before
    for other in absorbed:
        payment = joined(payment, other, arrived.link_by_email)
    was_contested, payment = payment.is_contested, replace(payment, is_contested=False)
    own = {before.id, *(one.id for one in absorbed)}
    ids = tuple(one for one in event.ids if _leads_to(state, before.source_id, one, own))
    payment = with_event(
        payment, ids, event, arrived.received_at, arrived.link_by_email, arrived.is_stale
    )
    payment = replace(
        payment,
        is_contested=payment.is_contested or bool(rivals),
        is_test=payment.is_test and arrived.is_test,
    )
    contests = payment.is_contested
    payment = replace(payment, is_contested=was_contested or contests)
    decision = _applied(state, before, payment, arrived, event, now)
    if others:
        contested = [replace(one, is_contested=True, review=Code.LINK_CONFLICT) for one in rivals]
        decision = replace(decision, absorbed=absorbed, others=(*decision.others, *contested))
    return _with_outcome_of(event, arrived.held, before, decision, contests)


def _applied(
    state: State,
    before: Payment | None,
    payment: Payment,
    arrived: Arrived,
    event: PaymentEvent,
    now: datetime,
) -> Decision:
    paid = event.amount or payment.facts.captured
    terms = Terms(paid, arrived.link_by_email, arrived.held)
    return apply(state, before, payment, terms, now)


def _leads_to(state: State, source_id: SourceId, one: ExternalId, payments: set[PaymentId]) -> bool:
    """Whether the id is new, or one of these payments'."""
    owner = state.names.get((source_id, one))
    return owner is None or owner in payments


def _with_outcome_of(
    event: PaymentEvent,
    held: Problem | None,
    before: Payment | None,
    decision: Decision,
    contests: bool = False,
) -> Decision:
    """That the money still waits is no failure of an event that brought none.

    One that contests what the payment is for fails, however often it is looked at.
    """
    if held is not None and decision.outcome == held.outcome:
        return decision
    payment = decision.payment
    is_contested = payment is not None and payment.is_contested
    if is_contested and (contests or not _was_contested(before)):
        message = "it names something else than what the payment is known to be for"
        outcome = Outcome(EventStatus.FAILED_FINAL, Code.LINK_CONFLICT, message)
        return replace(decision, outcome=outcome, awaits=None)
    if event.amount is not None:
        return decision
    has_effect = decision.done or decision.absorbed
    if before is None or has_effect or not says_less(before.facts, event):
        return replace(decision, outcome=PROCESSED, awaits=None)
    message = f"{event.says} says less than {before.facts.status}, which is known already"
    outcome = Outcome(EventStatus.IGNORED, Code.OUT_OF_ORDER, message)
    return replace(decision, outcome=outcome, awaits=None)


def _was_contested(before: Payment | None) -> bool:
    return before is not None and before.is_contested
