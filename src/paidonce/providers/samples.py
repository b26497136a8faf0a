"""Test webhooks: what they say when their maker says little, and the words that all can use."""

import re
from typing import Final
from uuid import uuid4

from paidonce.domain.events import PaymentEvent
from paidonce.domain.money import format_minor, money
from paidonce.errors import InvalidMoneyError, InvalidRequestError
from paidonce.providers.contract import Sample

WORDS: Final = ("paid", "failed", "canceled", "refunded", "pending")
"""What a test webhook may say whatever the gateway; any other status is the gateway's own word."""

_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


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
) -> Sample:
    """What a test webhook is to say. The same payment and status are the same event.

    Raises InvalidRequestError when the amount is no money.
    """
    try:
        paid = money(amount, currency)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount and currency: {error}") from None
    known_as = payment_id or f"pay-{uuid4().hex[:12]}"
    return Sample(
        payment_id=known_as,
        amount=format_minor(paid.amount_minor, paid.currency),
        currency=paid.currency,
        status=status,
        event_id=event_id or _NO_ID.sub("-", f"{known_as}-{status}"),
        order=order,
        email=email,
        plan_id=plan_id,
    )


def omitted(sample: Sample, event: object) -> list[str]:
    """What the sample asked for and the event does not say: the format has no place for it."""
    if not isinstance(event, PaymentEvent):
        return []
    asked = {"order": sample.order, "email": sample.email, "plan_id": sample.plan_id}
    return [name for name, value in asked.items() if value and getattr(event, name) is None]


def refuse_words(status: str, *unknown: str) -> None:
    """Raises InvalidRequestError when the gateway sends no event of this meaning."""
    if status in unknown:
        raise InvalidRequestError(f"status: this gateway sends no event that says {status}")
