"""What an event does: `decide(state, event, now)` is all of the business, without any I/O.

An event is first remembered (its facts are merged into the payment, always), and then, if the
payment holds money that nobody has got anything for, the payment is applied: priced, linked to a
user, and its subscription extended, once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from paidonce.domain.email import email_key
from paidonce.domain.events import (
    PROCESSED,
    Code,
    EventStatus,
    ExternalId,
    Ignored,
    Outcome,
    PaymentEvent,
    PaymentId,
    Says,
    SourceId,
    SubscriptionId,
    UserId,
)
from paidonce.domain.money import Money, matches
from paidonce.domain.payments import Payment, first_heard, says_less, with_event
from paidonce.domain.plans import Plan, PlanBook
from paidonce.domain.subscriptions import Subscription, SubscriptionStatus, extended


@dataclass(frozen=True, slots=True)
class Arrived:
    """A canonical event with what its delivery and its source add to it."""

    source_id: SourceId
    event: PaymentEvent | Ignored
    received_at: datetime
    link_by_email: bool


@dataclass(slots=True)
class State:
    """Every row that a batch touches, as it was when it was locked and as decisions leave it."""

    plans: PlanBook
    new_id: Callable[[], UUID]
    payments: dict[tuple[SourceId, ExternalId], Payment] = field(default_factory=dict)
    users: dict[str, UserId] = field(default_factory=dict)  # by e-mail key
    subscriptions: dict[tuple[UserId, str], Subscription] = field(default_factory=dict)

    def payment_known_as(self, source_id: SourceId, ids: Iterable[ExternalId]) -> Payment | None:
        """The payment that the gateway knows by any of these ids."""
        for one in ids:
            payment = self.payments.get((source_id, one))
            if payment is not None:
                return payment
        return None

    def remember(self, decision: "Decision") -> None:
        """Let the events that follow see what this one decided."""
        if decision.payment is not None:
            for one in decision.payment.ids:
                self.payments[decision.payment.source_id, one] = decision.payment
        if decision.subscription is not None:
            after = decision.subscription
            self.subscriptions[after.user_id, after.product] = after


@dataclass(frozen=True, slots=True)
class Decision:
    """What an event changes, and what became of it."""

    outcome: Outcome
    payment_before: Payment | None = None
    payment: Payment | None = None
    subscription_before: Subscription | None = None
    subscription: Subscription | None = None

    @property
    def applies(self) -> bool:
        """Whether this is the decision that applied the payment."""
        before, after = self.payment_before, self.payment
        return bool(after and after.applied_at and not (before and before.applied_at))


@dataclass(frozen=True, slots=True)
class _NotApplied:
    """Why a payment that holds money cannot be applied now."""

    code: Code
    message: str
    is_final: bool


def decide(state: State, arrived: Arrived, now: datetime) -> Decision:
    """What the event does to the payment it speaks of. Pure: the state is only read."""
    event = arrived.event
    if isinstance(event, Ignored):
        return Decision(Outcome(EventStatus.IGNORED, event.code, event.reason))
    before = state.payment_known_as(arrived.source_id, event.ids)
    if before is None:
        payment_id = PaymentId(state.new_id())
        payment = first_heard(payment_id, arrived.source_id, event, arrived.received_at)
    else:
        payment = with_event(before, _own_ids(state, before, event), event, arrived.received_at)
    if event.says is Says.PAID:
        return apply(state, before, payment, event.amount, arrived.link_by_email, now)
    decision = apply(state, before, payment, payment.facts.captured, arrived.link_by_email, now)
    # That the money still waits is no failure of an event that brought none.
    return replace(decision, outcome=_outcome_without_money(before, event))


def apply(
    state: State,
    before: Payment | None,
    payment: Payment,
    paid: Money | None,
    link_by_email: bool,
    now: datetime,
) -> Decision:
    """Give what was paid for, if there is money, nobody got anything for it yet, and all agrees.

    `paid` is the amount to be priced: an event's own, so that a right amount is applied whatever
    wrong one came before it, or else all that was captured. `before` is the payment as it was.
    """
    plan = _plan_of(state, payment)
    if payment.applied_at is not None:
        return _already_applied(before, payment, paid, plan)
    if paid is None or (payment.facts.captured_minor > 0 and not payment.holds_money):
        return Decision(PROCESSED, before, replace(payment, review=None))
    user_id = _owner(state, payment, link_by_email)
    problem = _mispriced(payment, paid, plan)
    if problem is None and user_id is None:
        problem = _unlinked(payment, link_by_email)
    if problem is not None:
        owned = replace(payment, user_id=user_id)
        return _not_applied(before, owned, plan, problem, link_by_email)
    assert plan is not None
    assert user_id is not None
    return _extend(state, before, payment, plan, user_id, now)


def _own_ids(state: State, payment: Payment, event: PaymentEvent) -> tuple[ExternalId, ...]:
    """The event's ids without those that lead to another payment."""
    known = state.payments
    return tuple(
        one for one in event.ids if known.get((payment.source_id, one), payment).id == payment.id
    )


def _outcome_without_money(before: Payment | None, event: PaymentEvent) -> Outcome:
    if before is None or not says_less(before.facts, event):
        return PROCESSED
    message = f"{event.says} says less than {before.facts.status}, which is known already"
    return Outcome(EventStatus.IGNORED, Code.OUT_OF_ORDER, message)


def _plan_of(state: State, payment: Payment) -> Plan | None:
    paid_at = payment.facts.paid_at
    return state.plans.find(payment.plan_id, paid_at) if paid_at else None


def _already_applied(
    before: Payment | None, payment: Payment, paid: Money | None, plan: Plan | None
) -> Decision:
    """The effect stands. A sibling that names another sum is kept, and a person has to look."""
    payment = replace(payment, review=_wrong_sum(payment, plan))
    wrong = _mispriced(payment, paid, plan) if paid and plan else None
    if wrong is None:
        return Decision(PROCESSED, before, payment)
    outcome = Outcome(EventStatus.FAILED_FINAL, wrong.code, wrong.message)
    return Decision(outcome, before, payment)


def _wrong_sum(payment: Payment, plan: Plan | None) -> Code | None:
    """Why a person should look at what was captured, whatever order it became known in."""
    captured = payment.facts.captured
    wrong = _mispriced(payment, captured, plan) if captured else None
    return wrong.code if wrong else None


def _mispriced(payment: Payment, paid: Money, plan: Plan | None) -> _NotApplied | None:
    if plan is None:
        named = "there is no such plan" if payment.plan_id else "there is no default plan"
        return _NotApplied(Code.PLAN_UNKNOWN, named, is_final=True)
    if paid == plan.price or (paid.amount_minor > 0 and matches(paid, plan.price)):
        return None
    if paid.currency != plan.price.currency:
        message = f"paid {paid}, but plan {plan.id} is sold in {plan.price.currency}"
        return _NotApplied(Code.CURRENCY_MISMATCH, message, is_final=True)
    message = f"paid {paid}, but plan {plan.id} costs {plan.price}"
    return _NotApplied(Code.AMOUNT_MISMATCH, message, is_final=True)


def _owner(state: State, payment: Payment, link_by_email: bool) -> UserId | None:
    """Whose payment it is, if that is known."""
    if payment.user_id is not None or payment.email is None or not link_by_email:
        return payment.user_id
    return state.users.get(email_key(payment.email))


def _unlinked(payment: Payment, link_by_email: bool) -> _NotApplied:
    if payment.email is None or not link_by_email:
        message = "nothing says whose payment this is"
        return _NotApplied(Code.UNLINKED_PAYMENT, message, is_final=False)
    message = "no user has this e-mail address yet"
    return _NotApplied(Code.USER_MISSING, message, is_final=False)


def _not_applied(
    before: Payment | None,
    payment: Payment,
    plan: Plan | None,
    problem: _NotApplied,
    link_by_email: bool,
) -> Decision:
    status = EventStatus.FAILED_FINAL if problem.is_final else EventStatus.FAILED_RETRYABLE
    outcome = Outcome(status, problem.code, problem.message)
    unlinked = _unlinked(payment, link_by_email).code if payment.user_id is None else None
    review = _wrong_sum(payment, plan) or unlinked or problem.code
    return Decision(outcome, before, replace(payment, review=review))


def _extend(
    state: State,
    before: Payment | None,
    payment: Payment,
    plan: Plan,
    user_id: UserId,
    now: datetime,
) -> Decision:
    subscription_before = state.subscriptions.get((user_id, plan.product))
    subscription = subscription_before or Subscription(
        SubscriptionId(state.new_id()), user_id, plan.product, SubscriptionStatus.INACTIVE, None
    )
    longer, start = extended(subscription, plan, now)
    applied = Payment(  # spelt out: on the path of every payment, `replace` is not cheap
        id=payment.id,
        source_id=payment.source_id,
        ids=payment.ids,
        facts=payment.facts,
        email=payment.email,
        user_id=user_id,
        plan_id=plan.id,
        applied_at=now,
        subscription_id=longer.id,
        period_start=start,
        period_end=longer.current_period_end,
        review=_wrong_sum(payment, plan),
        version=payment.version,
    )
    return Decision(PROCESSED, before, applied, subscription_before, longer)
