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
from paidonce.domain.payments import Facts, Payment, says_less, with_event
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
        found = (self.payments.get((source_id, one)) for one in ids)
        return next((payment for payment in found if payment is not None), None)

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
    known = before or _new_payment(state, arrived.source_id)
    payment = with_event(known, event, arrived.received_at)
    outcome = PROCESSED
    if says_less(known.facts, event):
        message = f"{event.says} says less than {known.facts.status}, which is known already"
        outcome = Outcome(EventStatus.IGNORED, Code.OUT_OF_ORDER, message)
    paid = event.amount if event.says is Says.PAID else None
    decision = apply(state, payment, paid or payment.facts.captured, arrived.link_by_email, now)
    if event.says is not Says.PAID:
        # That the money still waits is no failure of an event that brought none.
        decision = replace(decision, outcome=outcome)
    return replace(decision, payment_before=before)


def apply(
    state: State,
    payment: Payment,
    paid: Money | None,
    link_by_email: bool,
    now: datetime,
) -> Decision:
    """Give what was paid for, if there is money, nobody got anything for it yet, and all agrees.

    `paid` is the amount to be priced: an event's own, so that a right amount is applied whatever
    wrong one came before it, or else all that was captured.
    """
    plan = _plan_of(state, payment)
    if payment.applied_at is not None:
        return _already_applied(payment, paid, plan)
    if paid is None or not payment.holds_money:
        return Decision(PROCESSED, payment=payment)
    payment, unlinked = _linked(state, payment, link_by_email)
    problem = _mispriced(payment, paid, plan) or unlinked
    if problem is not None:
        return _not_applied(payment, problem)
    assert plan is not None
    assert payment.user_id is not None
    return _extend(state, payment, plan, payment.user_id, now)


def _new_payment(state: State, source_id: SourceId) -> Payment:
    return Payment(PaymentId(state.new_id()), source_id, ids=(), facts=Facts())


def _plan_of(state: State, payment: Payment) -> Plan | None:
    paid_at = payment.facts.paid_at
    return state.plans.find(payment.plan_id, paid_at) if paid_at else None


def _already_applied(payment: Payment, paid: Money | None, plan: Plan | None) -> Decision:
    """The effect stands. A sibling that names another sum is kept, and a person has to look."""
    captured = payment.facts.captured
    excess = _mispriced(payment, captured, plan) if captured and plan else None
    payment = replace(payment, review=excess.code if excess else None)
    wrong = _mispriced(payment, paid, plan) if paid and plan else None
    if wrong is None:
        return Decision(PROCESSED, payment=payment)
    return Decision(Outcome(EventStatus.FAILED_FINAL, wrong.code, wrong.message), payment=payment)


def _mispriced(payment: Payment, paid: Money, plan: Plan | None) -> _NotApplied | None:
    if plan is None:
        named = f"there is no plan {payment.plan_id!r}" if payment.plan_id else "no default plan"
        return _NotApplied(Code.PLAN_UNKNOWN, named, is_final=True)
    if paid.currency != plan.price.currency:
        message = f"paid {paid}, but plan {plan.id} is sold in {plan.price.currency}"
        return _NotApplied(Code.CURRENCY_MISMATCH, message, is_final=True)
    if not matches(paid, plan.price):
        message = f"paid {paid}, but plan {plan.id} costs {plan.price}"
        return _NotApplied(Code.AMOUNT_MISMATCH, message, is_final=True)
    return None


def _linked(
    state: State, payment: Payment, link_by_email: bool
) -> tuple[Payment, _NotApplied | None]:
    """The payment with its user, or what it waits for."""
    if payment.user_id is not None:
        return payment, None
    if payment.email is None or not link_by_email:
        message = "nothing says whose payment this is"
        return payment, _NotApplied(Code.UNLINKED_PAYMENT, message, is_final=False)
    user_id = state.users.get(email_key(payment.email))
    if user_id is None:
        message = "no user has this e-mail address yet"
        return payment, _NotApplied(Code.USER_MISSING, message, is_final=False)
    return replace(payment, user_id=user_id), None


def _not_applied(payment: Payment, problem: _NotApplied) -> Decision:
    status = EventStatus.FAILED_FINAL if problem.is_final else EventStatus.FAILED_RETRYABLE
    outcome = Outcome(status, problem.code, problem.message)
    return Decision(outcome, payment=replace(payment, review=problem.code))


def _extend(state: State, payment: Payment, plan: Plan, user_id: UserId, now: datetime) -> Decision:
    before = state.subscriptions.get((user_id, plan.product))
    subscription = before or Subscription(
        SubscriptionId(state.new_id()),
        user_id,
        plan.product,
        SubscriptionStatus.INACTIVE,
        None,
    )
    longer, start = extended(subscription, plan, now)
    captured = payment.facts.captured
    excess = _mispriced(payment, captured, plan) if captured else None
    applied = replace(
        payment,
        plan_id=plan.id,
        applied_at=now,
        subscription_id=longer.id,
        period_start=start,
        period_end=longer.current_period_end,
        review=excess.code if excess else None,
    )
    return Decision(PROCESSED, None, applied, before, longer)
