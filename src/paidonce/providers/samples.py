"""Test webhooks: defaults of a sample, and the statuses that every provider understands."""

import re
from typing import Final
from uuid import uuid4

from paidonce.core.events import PaymentEvent
from paidonce.core.money import format_minor, money
from paidonce.errors import InvalidMoneyError, InvalidRequestError
from paidonce.providers.contract import SampleEvent

STATUSES: Final = ("paid", "failed", "canceled", "refunded", "pending")
"""Any other status is passed on as the gateway's own word."""

_NOT_IN_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


def new_sample(
    *,
    amount: str,
    currency: str,
    status: str = "paid",
    payment_id: str | None = None,
    event_id: str | None = None,
    order: str | None = None,
    email: str | None = None,
    plan_id: str | None = None,
) -> SampleEvent:
    """Build a sample. By default, the same payment and status give the same event id.

    Raises InvalidRequestError when the amount is not valid.
    """
    try:
        paid = money(amount, currency)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount and currency: {error}") from None
    payment_id = payment_id or f"pay-{uuid4().hex[:12]}"
    event_id = event_id or _NOT_IN_ID.sub("-", f"{payment_id}-{status}")
    amount = format_minor(paid.amount_minor, paid.currency)
    return SampleEvent(payment_id, amount, paid.currency, status, event_id, order, email, plan_id)


def omitted_fields(sample: SampleEvent, event: object) -> list[str]:
    """Return the fields of the sample that the gateway's format cannot carry."""
    if not isinstance(event, PaymentEvent):
        return []
    wanted = {"order": sample.order, "email": sample.email, "plan_id": sample.plan_id}
    return [name for name, value in wanted.items() if value and getattr(event, name) is None]


def reject_statuses(status: str, *unsupported: str) -> None:
    """Raise InvalidRequestError when the gateway has no event for this status."""
    if status in unsupported:
        raise InvalidRequestError(f"status: this gateway sends no event for {status}")
