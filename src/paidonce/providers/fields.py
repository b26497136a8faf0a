"""The fields that most events have, and what is built of them. Shared by the providers."""

from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from paidonce.core.events import EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money, format_minor, money
from paidonce.errors import InvalidMoneyError, MalformedError
from paidonce.providers.contract import Identity, fingerprint
from paidonce.providers.read import Number


class EventFields(NamedTuple):
    """The fields of an event that names one payment by one id."""

    type: str
    payment_id: str | None
    event_id: str | None = None
    order: str | None = None
    amount: Number | None = None  # in major units
    currency: str | None = None
    email: str | None = None
    plan_id: str | None = None
    occurred_at: datetime | None = None
    refunded: Number | None = None  # the total so far, where it is sent beside the amount

    def fingerprint(self) -> bytes:
        """Digest the payment, type, amount and currency (INB-2)."""
        parts = (self.payment_id, self.type, canonical(self.amount), self.currency)
        if self.refunded is None:
            return fingerprint(*parts)
        return fingerprint(*parts, canonical(self.refunded))

    def identity(self, key: str, digest: bytes) -> Identity:
        """Return the identity of the event, with this key and fingerprint."""
        kind, payment_id, event_id, order, amount, code, _, _, at, _ = self
        shown = None if amount is None else str(amount)
        # Positional, because keyword arguments cost time on the path of every event.
        return Identity(key, digest, kind, event_id, payment_id, order, shown, code, at)

    def money(self) -> Money:
        """Return the amount and currency as money. Raises MalformedError."""
        if self.amount is None or self.currency is None:
            missing = "currency" if self.currency is None else "amount"
            raise MalformedError(f"{missing} is missing")
        try:
            return money(self.amount, self.currency)
        except InvalidMoneyError as error:
            raise MalformedError(str(error)) from None

    def payment_event(
        self,
        event_type: EventType,
        amount: Money | None = None,
        refunded: Money | None = None,
        paid_at: datetime | None = None,
    ) -> PaymentEvent:
        """Return the event, with this money. Raises MalformedError without a payment id."""
        _, payment_id, _, order, _, _, email, plan_id, at, _ = self
        if payment_id is None:
            raise MalformedError("the payment id is missing")
        ids = (ExternalId("payment", payment_id),)
        # Positional, as above. There is no single refund.
        return PaymentEvent(
            event_type, ids, amount, refunded, None, order, email, plan_id, at, paid_at
        )


def build_event_identity(
    key: str,
    kind: str,
    event: PaymentEvent | Ignored,
    digest: bytes,
    occurred_at: datetime | None,
    event_id: str | None = None,
) -> Identity:
    """Build the identity of an event that is already translated; shows the amount that it moves."""
    if isinstance(event, Ignored):
        return Identity(key, digest, kind, event_id, occurred_at=occurred_at)
    moved, amount, code = moved_amount(event), None, None
    if moved is not None:
        amount, code = format_minor(moved.amount_minor, moved.currency), moved.currency
    payment_id, order = event.ids[0].value, event.order
    return Identity(key, digest, kind, event_id, payment_id, order, amount, code, occurred_at)


def moved_amount(event: PaymentEvent) -> Money | None:
    """Return the amount of the refund, or of the payment if the event is not a refund."""
    return event.refund.amount if event.refund else event.refunded or event.amount


@lru_cache(maxsize=4096)
def canonical(amount: Number | None) -> str | None:
    """Return one spelling of an amount: 990, 990.0 and "990.00" are equal."""
    try:
        return None if amount is None else str(Decimal(str(amount)).normalize())
    except ArithmeticError:
        return str(amount)


def external_ids(**values: str | None) -> tuple[ExternalId, ...]:
    """Return the ids of a payment, by kind, without those that are missing."""
    return tuple(ExternalId(kind, value) for kind, value in values.items() if value)
