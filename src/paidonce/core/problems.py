"""Why a payment cannot be applied, or needs review (PAY-4, PAY-5, PAY-7)."""

from dataclasses import dataclass

from paidonce.core.email import email_key
from paidonce.core.events import (
    Code,
    EventProblem,
    UserId,
)
from paidonce.core.money import Money
from paidonce.core.orders import Order
from paidonce.core.payments import Payment
from paidonce.core.plans import Plan
from paidonce.core.standing import (
    review_refunds,
)
from paidonce.core.state import State


@dataclass(frozen=True, slots=True)
class Price:
    """What the payment has to match, and the captured sum that does."""

    amount: Money
    payable: Money | None


def find_blocker(payment: Payment) -> EventProblem | None:
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


def order_mismatch(order: Order, payment: Payment, price: Price) -> EventProblem | None:
    """Why this payment does not fit this order."""
    if order.is_free:
        return EventProblem(Code.DUPLICATE_PAYMENT, "the order is free: nothing is to be paid")
    if not order.accepts_source(payment.source_id):
        return EventProblem(Code.LINK_CONFLICT, "payments of this source do not pay that order")
    return price_mismatch(payment, price)


def order_not_payable(order: Order, payment: Payment) -> EventProblem | None:
    """Why the order does not accept the payment.

    That it came too late comes first: this stays so, whatever becomes of other payments.
    """
    if order.had_expired(payment):
        return EventProblem(Code.ORDER_EXPIRED, "it was paid after the order had expired")
    if order.applied_payment_id is not None:
        return EventProblem(Code.DUPLICATE_PAYMENT, "the order is paid by another payment already")
    if order.closed_at is not None:
        return EventProblem(Code.ORDER_CLOSED, "the order was closed before it was paid")
    return None


def subscription_canceled(
    state: State, user_id: UserId | None, plan: Plan | None
) -> EventProblem | None:
    """Whether the user's subscription to the product of the plan takes no payment."""
    if user_id is None or plan is None:
        return None
    subscription = state.subscriptions.get((user_id, plan.product))
    if subscription is None or not subscription.is_canceled:
        return None
    return EventProblem(Code.SUBSCRIPTION_CANCELED, "the subscription of the user is canceled")


def price_mismatch(payment: Payment, price: Price | None) -> EventProblem | None:
    """Why no captured sum of the payment fits."""
    if price is None:
        return plan_unknown(payment.plan_id)
    captured = payment.facts.captured
    if price.payable is not None or captured is None:
        return None
    return wrong_amount(captured, price.amount)


def wrong_amount(paid: Money, price: Money) -> EventProblem:
    if paid.currency != price.currency:
        message = f"paid {paid}, but the price is in {price.currency}"
        return EventProblem(Code.CURRENCY_MISMATCH, message)
    return EventProblem(Code.AMOUNT_MISMATCH, f"paid {paid}, but the price is {price}")


def plan_unknown(plan_id: str | None) -> EventProblem:
    message = "there is no such plan" if plan_id else "there is no default plan"
    return EventProblem(Code.PLAN_UNKNOWN, message)


def unlinked_problem(payment: Payment, link_by_email: bool) -> EventProblem:
    if payment.email is not None and link_by_email:
        return user_missing(payment.email)
    message = "the payment names no order and no known user"
    return EventProblem(Code.UNLINKED_PAYMENT, message, False, blocked_on_payment(payment))


def user_missing(email: str) -> EventProblem:
    name = blocked_on_email(email_key(email))
    return EventProblem(Code.USER_MISSING, "no user has this e-mail address yet", False, name)


def unpaid_review(payment: Payment) -> Code | None:
    """Why a payment without known money needs review.

    Once all of the money is back, there is nothing to link any more.
    """
    facts = payment.facts
    if payment.is_contested and not facts.is_returned:
        return Code.LINK_CONFLICT
    if facts.unreadable_at is not None:
        return Code.MALFORMED
    is_back = facts.refunded_minor > 0 or facts.canceled_at is not None
    if facts.captured_minor == 0 and is_back:
        return Code.PAYMENT_MISSING
    return review_refunds(payment)


def blocked_on_email(key: str) -> str:
    """The name of a missing user. Events are blocked on it in the queue."""
    return f"email:{key}"


def blocked_on_order(reference: str) -> str:
    """The name of a missing order."""
    return f"order:{reference}"


def blocked_on_handler(name: str) -> str:
    """The name of a handler that fails."""
    return f"handler:{name}"


def blocked_on_payment(payment: Payment) -> str:
    """The name of a payment that is not linked."""
    return f"payment:{payment.id}"
