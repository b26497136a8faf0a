"""The meaning of Stripe's events, by the object that each of them is a snapshot of.

A payment has several ids, and several events report the same money. All of them are counted under
the intent, or under the charge if there is none: the kinds of ids are `payment` (the intent),
`charge`, `session` and `invoice`. A session or an invoice without intent and charge, as those of
subscriptions are since API version 2025-03-31, contributes its ids, reference and e-mail address
but no money: the intent's own events bring the money, and `invoice_payment.paid` joins the two.

The merchant's reference is the session's `client_reference_id`, else `order`, else `order_id` in
the metadata; the plan is `plan_id` in the metadata, of an invoice also in its subscription's. The
metadata of a subscription is not a reference: it is the same on each of its invoices.

https://docs.stripe.com/api/events/types, https://docs.stripe.com/currencies and
https://docs.stripe.com/changelog/basil (2025-03-31), checked on 2026-11-16.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent, Refund
from paidonce.core.money import EXPONENTS, Money
from paidonce.errors import MalformedError
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import (
    Object,
    read_currency,
    read_email,
    read_minor_money,
    read_text,
    read_time,
    require_text,
)

DECIMALS: Final[Mapping[str, int]] = {**EXPONENTS, "ISK": 2, "UGX": 2, "MGA": 0}
"""The decimals of Stripe's amounts: those of ISO 4217, except for three currencies."""

BASIL: Final = "2025-03-31"
"""The API version since which an authorisation that was never captured is not a refund."""

Event = PaymentEvent | Ignored
Ids = tuple[ExternalId, ...]

_OTHER_TYPE: Final = Ignored(Code.NON_SUCCESS_STATUS, "this type of event has no effect")
_THIN: Final = Ignored(Code.NON_SUCCESS_STATUS, "a thin event describes no payment")
_NO_MONEY: Final = Ignored(Code.NON_SUCCESS_STATUS, "there was nothing to pay")
_ELSEWHERE: Final = Ignored(Code.NON_SUCCESS_STATUS, "it was paid outside of Stripe")


class StripeEvent(NamedTuple):
    """A parsed event."""

    id: str
    type: str
    occurred_at: datetime | None
    is_live: bool
    account: str | None  # the connected account, if the event is of one
    event: Event


def read_event(delivery: Delivery) -> StripeEvent:
    """Parse the delivery. Raises MalformedError."""
    body = delivery.json
    event_id, kind = require_text(body, "id"), require_text(body, "type")
    at = read_time(body, "created")
    event = _translate(kind, body)
    if isinstance(event, PaymentEvent):
        if not event.ids:
            raise MalformedError("the payment id is missing")
        event = replace(event, occurred_at=at)
    account = read_text(body, "account")
    return StripeEvent(event_id, kind, at, body.get("livemode") is True, account, event)


def _translate(kind: str, body: Object) -> Event:
    if body.get("object") == "v2.core.event":
        return _THIN
    if body.get("object") != "event":
        raise MalformedError("the body is not an event")
    reader = _READERS.get(kind)
    return _OTHER_TYPE if reader is None else reader(kind, _within(body, "data", "object"), body)


def _intent(kind: str, intent: Object, event: Object) -> Event:
    ids = _ids(intent, payment="id", charge="latest_charge", invoice="invoice")
    event_type = _INTENTS[kind]
    if event_type is EventType.PAID:
        return _paid(intent, ids, "amount_received")
    return _event(event_type, intent, ids)


def _charge(kind: str, charge: Object, event: Object) -> Event:
    """Only captured money counts: an authorisation does not, and its end is not a refund."""
    ids = _ids(charge, payment="payment_intent", charge="id", invoice="invoice")
    captured = _captured(charge)
    if captured is None:
        return _event(_CHARGES[kind], charge, ids)
    paid = _event(EventType.PAID, charge, ids, amount=captured)
    if kind != "charge.refunded":
        return paid
    refunded = _refunded(charge, captured, event)
    paid_at = read_time(charge, "created")
    return replace(paid, event_type=EventType.REFUNDED, refunded=refunded, paid_at=paid_at)


def _captured(charge: Object) -> Money | None:
    """Return the captured amount. A pending or failed charge may have `captured: true` too."""
    if charge.get("captured") is not True or charge.get("status") != "succeeded":
        return None
    has_captured = charge.get("amount_captured") is not None
    captured = _money(charge, "amount_captured" if has_captured else "amount")
    return captured if captured.amount_minor else None


def _refunded(charge: Object, captured: Money, event: Object) -> Money:
    """Return the total refunded. Older API versions add what was authorised and never captured."""
    refunded = _money(charge, "amount_refunded")
    version = read_text(event, "api_version")
    if version is None or version >= BASIL:
        return refunded
    released_minor = max(_money(charge, "amount").amount_minor - captured.amount_minor, 0)
    return Money(max(refunded.amount_minor - released_minor, 0), refunded.currency)


def _dispute(kind: str, dispute: Object, event: Object) -> Event:
    """A dispute stays open until it is won or lost, whatever other status it is closed with."""
    ids = _ids(dispute, payment="payment_intent", charge="charge")
    status = dispute.get("status") if kind == "charge.dispute.closed" else None
    if status in ("won", "warning_closed"):
        return _event(EventType.DISPUTE_WON, dispute, ids)
    if status != "lost":
        return _event(EventType.DISPUTED, dispute, ids)
    refund = Refund(f"dispute:{require_text(dispute, 'id')}", _money(dispute, "amount"))
    return replace(_event(EventType.REFUNDED, dispute, ids), refund=refund)


def _session(kind: str, session: Object, event: Object) -> Event:
    ids = _ids(session, payment="payment_intent", session="id", invoice="invoice")
    event_type, status = _SESSIONS[kind], session.get("payment_status")
    if event_type is not EventType.PAID:
        return _event(event_type, session, ids)
    if status == "no_payment_required":
        return _NO_MONEY
    if status != "paid":
        return _event(EventType.PROCESSING, session, ids)
    return _paid(session, ids, "amount_total")


def _invoice(kind: str, invoice: Object, event: Object) -> Event:
    ids = _ids(invoice, payment="payment_intent", charge="charge", invoice="id")
    if kind == "invoice.payment_failed":
        return _event(EventType.FAILED, invoice, ids)
    if invoice.get("paid_out_of_band") is True:
        return _ELSEWHERE
    return _paid(invoice, ids, "amount_paid")


def _invoice_payment(kind: str, paid: Object, event: Object) -> Event:
    payment = _within(paid, "payment")
    if payment.get("type") == "payment_record":
        return _ELSEWHERE
    ids = _ids(payment, payment="payment_intent", charge="charge")
    ids += _ids(paid, invoice="invoice")
    return _paid(paid, ids, "amount_paid")


_INTENTS: Final = {
    "payment_intent.created": EventType.PENDING,
    "payment_intent.requires_action": EventType.PENDING,
    "payment_intent.processing": EventType.PROCESSING,
    "payment_intent.partially_funded": EventType.PROCESSING,
    "payment_intent.amount_capturable_updated": EventType.PROCESSING,
    "payment_intent.succeeded": EventType.PAID,
    "payment_intent.payment_failed": EventType.FAILED,
    "payment_intent.canceled": EventType.VOIDED,
}
_CHARGES: Final = {  # the meaning of each if nothing was captured
    "charge.pending": EventType.PROCESSING,
    "charge.succeeded": EventType.PROCESSING,
    "charge.captured": EventType.PROCESSING,
    "charge.failed": EventType.FAILED,
    "charge.expired": EventType.VOIDED,
    "charge.refunded": EventType.VOIDED,
}
_DISPUTES: Final = ("charge.dispute.created", "charge.dispute.closed")
_SESSIONS: Final = {
    "checkout.session.completed": EventType.PAID,
    "checkout.session.async_payment_succeeded": EventType.PAID,
    "checkout.session.async_payment_failed": EventType.FAILED,
    "checkout.session.expired": EventType.VOIDED,
}
_INVOICES: Final = ("invoice.paid", "invoice.payment_succeeded", "invoice.payment_failed")
_READERS: Final[Mapping[str, Callable[[str, Object, Object], Event]]] = {
    **dict.fromkeys(_INTENTS, _intent),
    **dict.fromkeys(_CHARGES, _charge),
    **dict.fromkeys(_DISPUTES, _dispute),
    **dict.fromkeys(_SESSIONS, _session),
    **dict.fromkeys(_INVOICES, _invoice),
    "invoice_payment.paid": _invoice_payment,
}


def _paid(body: Object, ids: Ids, name: str) -> Event:
    """Translate a paid amount, if the object names its intent or charge."""
    amount = _money(body, name)
    if amount.amount_minor == 0:
        return _NO_MONEY
    if not any(one.kind in ("payment", "charge") for one in ids):
        return _event(EventType.PROCESSING, body, ids)
    return _event(EventType.PAID, body, ids, amount)


def _event(
    event_type: EventType, body: Object, ids: Ids, amount: Money | None = None
) -> PaymentEvent:
    return PaymentEvent(
        event_type, ids, amount, order=_order(body), email=_email(body), plan_id=_plan(body)
    )


def _ids(body: Object, **names: str) -> Ids:
    """Return the ids in these fields, by kind; each is sent as text or as an expanded object."""
    values = {
        kind: one.get("id") if isinstance(one := body.get(name), Mapping) else one
        for kind, name in names.items()
    }
    ids = ((kind, read_text(values, kind)) for kind in values)
    return tuple(ExternalId(kind, value) for kind, value in ids if value is not None)


def _money(body: Object, name: str) -> Money:
    amount = read_minor_money(body, name, read_currency(body), DECIMALS)
    if amount is None:
        raise MalformedError(f"{name} is missing")
    return amount


def _order(body: Object) -> str | None:
    metadata = _within(body, "metadata")
    return (
        read_text(body, "client_reference_id")
        or read_text(metadata, "order")
        or read_text(metadata, "order_id")
    )


def _plan(body: Object) -> str | None:
    holders = (
        body,
        _within(body, "parent", "subscription_details"),
        _within(body, "subscription_details"),
    )
    plans = (read_text(_within(one, "metadata"), "plan_id") for one in holders)
    return next(filter(None, plans), None)


def _email(body: Object) -> str | None:
    return (
        read_email(_within(body, "customer_details"))
        or read_email(body, "customer_email")
        or read_email(body, "receipt_email")
        or read_email(_within(body, "billing_details"))
    )


def _within(body: Object, *path: str) -> Object:
    """Return the object at the end of the path, an empty one if there is none."""
    for step in path:
        inner = body.get(step)
        body = inner if isinstance(inner, Mapping) else {}
    return body
