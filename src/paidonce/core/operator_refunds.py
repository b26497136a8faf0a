"""Refunds that operators record: the gateway does not report them, or not yet (PAY-13)."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce.core.events import (
    MAX_EXTERNAL_ID,
    OPERATOR_REFUND_PREFIX,
    OUTSIDE_REFUND_PREFIX,
    Code,
    EventType,
    PaymentEvent,
    Refund,
)
from paidonce.core.facts import facts_from_event, merge
from paidonce.core.money import Money
from paidonce.core.payments import Payment
from paidonce.errors import ConflictError, UnprocessableRequestError

IDEMPOTENCY_CONFLICT: Final = "IDEMPOTENCY_CONFLICT"
MAX_REFUND_ID: Final = MAX_EXTERNAL_ID - len(OPERATOR_REFUND_PREFIX)
"""The longest id that an operator can give a refund."""


@dataclass(frozen=True, slots=True)
class OperatorRefund:
    """A refund of a payment. `outside_gateway`: the gateway does not know of it, as cash."""

    id: str
    amount: Money
    at: datetime
    outside_gateway: bool = False

    @property
    def refund_id(self) -> str:
        """The id among the refunds of the payment, which the gateway's own ids never equal."""
        prefix = OUTSIDE_REFUND_PREFIX if self.outside_gateway else OPERATOR_REFUND_PREFIX
        return prefix + self.id

    @property
    def other_refund_id(self) -> str:
        """The id that it has if it was recorded with the other value of `outside_gateway`."""
        return replace(self, outside_gateway=not self.outside_gateway).refund_id


def record_refund(payment: Payment, refund: OperatorRefund) -> Payment:
    """The payment with the refund; unchanged if it is recorded already.

    Raises ConflictError if the id has other content, UnprocessableRequestError if it is too much.
    """
    facts, captured = payment.facts, payment.facts.captured
    recorded_minor = facts.refunds.get(refund.refund_id)
    if recorded_minor is not None or refund.other_refund_id in facts.refunds:
        require_same(recorded_minor == refund.amount.amount_minor, refund)
        return payment
    if captured is None or captured.amount_minor == 0:
        raise nothing_captured(payment.id)
    event = PaymentEvent(
        EventType.REFUNDED,
        payment.ids,
        refund=Refund(refund.refund_id, refund.amount),
        occurred_at=refund.at,
    )
    after = merge(facts, facts_from_event(event, refund.at))
    if after.refunded_minor > after.captured_minor:
        left = Money(max(facts.captured_minor - facts.refunded_minor, 0), captured.currency)
        message = f"amount: {refund.amount} is more than the payment has left, which is {left}"
        raise UnprocessableRequestError(message, Code.REFUND_EXCESS)
    return replace(payment, facts=after)


def nothing_captured(payment_id: UUID) -> UnprocessableRequestError:
    """The error for a payment that has nothing to refund."""
    message = f"payment {payment_id} captured no money, so nothing can be refunded"
    return UnprocessableRequestError(message, Code.REFUND_EXCESS)


def require_same(is_same: bool, refund: OperatorRefund) -> None:
    """Raise ConflictError unless the recorded refund with this id has the same content."""
    if not is_same:
        message = f"refund {refund.id} is recorded with another payment, amount or outside_gateway"
        raise ConflictError(message, IDEMPOTENCY_CONFLICT)
