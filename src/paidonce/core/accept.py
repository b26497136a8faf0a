"""Operators accept a payment in spite of its amount or its age (PAY-8)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from paidonce.core.apply import find_target
from paidonce.core.events import Code, Reason
from paidonce.core.payments import Acceptance, Payment
from paidonce.core.state import State
from paidonce.errors import ConflictError

NOT_ACCEPTABLE: Final = "NOT_ACCEPTABLE"

_NO_MONEY: Final = "it holds no money"
_REMEDIES: Final[Mapping[Reason, str]] = {
    Code.LINK_CONFLICT: (
        "its events name different orders or users, or its order takes no payments of its source: "
        "link it to the right one"
    ),
    Code.REFUND_WANTED: "it is marked for refund: use unmark-for-refund first",
    Code.CURRENCY_MISMATCH: (
        "it was paid in another currency: link it to an order in that one, or mark it for refund"
    ),
    Code.REFUND_CURRENCY_MISMATCH: (
        "a refund of it is in another currency: find out what was refunded, then link it to what "
        "it is for, which ends the review"
    ),
    Code.DUPLICATE_PAYMENT: (
        "another payment pays its order: link it to another order, or mark it for refund"
    ),
    Code.ORDER_CLOSED: "its order is closed: link it to another order, or mark it for refund",
    Code.ORDER_EXPIRED: "its order had expired: link it to another order, or mark it for refund",
    Code.SUBSCRIPTION_CANCELED: "its subscription is canceled: resume it, or mark it for refund",
    Code.ORDER_MISSING: "its order does not exist: create the order, or link it to another one",
    Code.USER_MISSING: "its user does not exist: create the user, or link it to another one",
    Code.UNLINKED_PAYMENT: "it names no order and no user: link it to one",
    Code.PLAN_UNKNOWN: "its plan does not exist: add the plan, or link it to an order",
    Code.HANDLER_FAILED: "a handler failed: correct the handler, then reprocess the event",
    Code.PAYMENT_MISSING: "only a refund of it was reported, and no money",
}

_ENDED_BY_LINK: Final = (Code.LINK_CONFLICT, Code.REFUND_CURRENCY_MISMATCH)
"""An applied payment can be linked only to what it is for. That ends these reviews."""


@dataclass(frozen=True, slots=True)
class AcceptRequest:
    """Who accepts a payment, and why."""

    by: str
    reason: str


def accept(state: State, payment: Payment, request: AcceptRequest, now: datetime) -> Payment:
    """The payment with the acceptance of its captured sum.

    Of an expired payment, only the expiry is lifted. A repeat changes nothing. Raises ConflictError
    for everything else, and names what can be done instead.
    """
    captured = payment.facts.captured
    if payment.review is Code.MALFORMED:
        raise _not_acceptable(payment, "its delivery cannot be read: let the gateway send it again")
    if captured is None:
        raise _not_acceptable(payment, _NO_MONEY)
    target = find_target(state, payment)
    accepted = Acceptance(request.by, now, request.reason, captured, target)
    if not payment.facts.is_expired and _is_repeat(payment.acceptance, accepted):
        return payment
    if not payment.has_funds:
        raise _not_acceptable(payment, _NO_MONEY)
    if payment.review is Code.TIMESTAMP_EXPIRED:
        lifted = replace(payment.facts, is_expired=False)
        return replace(payment, facts=lifted, acceptance=replace(accepted, only_expiry=True))
    if payment.review is None:
        raise _not_acceptable(payment, "it is applied, and there is no excess")
    if target is None or payment.review not in (Code.AMOUNT_MISMATCH, Code.EXCESS):
        raise _not_acceptable(payment, _remedy(payment, payment.review))
    return replace(payment, acceptance=accepted)


def _remedy(payment: Payment, review: Reason) -> str:
    """What can be done about the review instead."""
    if payment.applied_at is not None and review not in _ENDED_BY_LINK:
        return "it was applied before, so it cannot be linked or marked: refund it at the gateway"
    rejected = "a handler rejected it: reprocess its event, which calls the handler again"
    return _REMEDIES.get(review, rejected)


def _is_repeat(before: Acceptance | None, accepted: Acceptance) -> bool:
    """Whether the same sum was accepted for the same target.

    The expiry was lifted by a request that is the same to the letter, or it is another decision.
    """
    if before is None or (before.amount, before.target) != (accepted.amount, accepted.target):
        return False
    is_same = (before.by, before.reason) == (accepted.by, accepted.reason)
    return is_same or not before.only_expiry


def _not_acceptable(payment: Payment, remedy: str) -> ConflictError:
    return ConflictError(f"payment {payment.id} cannot be accepted: {remedy}", NOT_ACCEPTABLE)
