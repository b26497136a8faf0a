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
from paidonce.providers import read
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import external_ids

DECIMALS: Final[Mapping[str, int]] = {**EXPONENTS, "ISK": 2, "UGX": 2, "MGA": 0}
"""The decimals of Stripe's amounts: those of ISO 4217, except for three currencies."""

BASIL: Final = "2025-03-31"
"""The API version since which an authorisation that was never captured is not a refund."""

Event = PaymentEvent | Ignored
Ids = tuple[ExternalId, ...]

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
    event_id, kind = read.required_text(body, "id"), read.required_text(body, "type")
    at = read.time_or_drop(body, "created", delivery.dropped)
    event = _translate(kind, body)
    if isinstance(event, PaymentEvent):
        if not event.ids:
            raise MalformedError("the payment id is missing")
        email = _email(read.part(body, "data", "object"), delivery.dropped)
        event = replace(event, occurred_at=at, email=email)
    account = read.text(body, "account")
    return StripeEvent(event_id, kind, at, body.get("livemode") is True, account, event)


def _translate(kind: str, body: read.Object) -> Event:
    if body.get("object") == "v2.core.event":
        return Ignored(Code.NON_SUCCESS_STATUS, "a thin event describes no payment")
    if body.get("object") != "event":
        raise MalformedError("the body is not an event")
    reader = _READERS.get(kind)
    if reader is None:
        return Ignored(Code.NON_SUCCESS_STATUS, "this type of event has no effect")
    return reader(kind, read.part(body, "data", "object"), body)


def unreadable_payment(body: read.Object) -> Ids:
    """Return the ids of the payment that the event reports as paid. Raises MalformedError."""
    kind, obj = read.text(body, "type") or "", read.part(body, "data", "object")
    if kind == "payment_intent.succeeded":
        return _ids(obj, payment="id")
    if kind in ("charge.succeeded", "charge.captured"):
        is_paid = obj.get("captured") is True and obj.get("status") == "succeeded"
        return _ids(obj, payment="payment_intent", charge="id") if is_paid else ()
    if _SESSIONS.get(kind) is EventType.PAID:
        return _ids(obj, payment="payment_intent") if obj.get("payment_status") == "paid" else ()
    if kind in ("invoice.paid", "invoice.payment_succeeded"):
        return _ids(obj, payment="payment_intent", charge="charge")
    if kind == "invoice_payment.paid":
        return _ids(read.part(obj, "payment"), payment="payment_intent", charge="charge")
    return ()


def _intent(kind: str, intent: read.Object, event: read.Object) -> Event:
    ids = _ids(intent, payment="id", charge="latest_charge", invoice="invoice")
    event_type = _INTENTS[kind]
    if event_type is EventType.PAID:
        return _paid(intent, ids, "amount_received")
    return _event(event_type, intent, ids)


def _charge(kind: str, charge: read.Object, event: read.Object) -> Event:
    """Only captured money counts: an authorisation does not, and its end is not a refund."""
    ids = _ids(charge, payment="payment_intent", charge="id", invoice="invoice")
    captured = _captured(charge)
    if captured is None:
        return _event(_CHARGES[kind], charge, ids)
    paid = _event(EventType.PAID, charge, ids, amount=captured)
    if kind != "charge.refunded":
        return paid
    refunded = _refunded(charge, captured, event)
    paid_at = read.time_or_drop(charge, "created")
    return replace(paid, event_type=EventType.REFUNDED, refunded=refunded, paid_at=paid_at)


def _captured(charge: read.Object) -> Money | None:
    """Return the captured amount. A pending or failed charge may have `captured: true` too."""
    if charge.get("captured") is not True or charge.get("status") != "succeeded":
        return None
    has_captured = charge.get("amount_captured") is not None
    captured = _money(charge, "amount_captured" if has_captured else "amount")
    return captured if captured.amount_minor else None


def _refunded(charge: read.Object, captured: Money, event: read.Object) -> Money:
    """Return the total refunded. Older API versions add what was authorised and never captured."""
    refunded = _money(charge, "amount_refunded")
    version = read.text(event, "api_version")
    if version is None or version >= BASIL:
        return refunded
    released_minor = max(_money(charge, "amount").amount_minor - captured.amount_minor, 0)
    return Money(max(refunded.amount_minor - released_minor, 0), refunded.currency)


def _dispute(kind: str, dispute: read.Object, event: read.Object) -> Event:
    """A dispute stays open until it is won or lost, whatever other status it is closed with."""
    ids = _ids(dispute, payment="payment_intent", charge="charge")
    status = dispute.get("status") if kind == "charge.dispute.closed" else None
    if status in ("won", "warning_closed"):
        return _event(EventType.DISPUTE_WON, dispute, ids)
    if status != "lost":
        return replace(_event(EventType.DISPUTED, dispute, ids), answer_by=_answer_by(dispute))
    refund = Refund(f"dispute:{read.required_text(dispute, 'id')}", _money(dispute, "amount"))
    return replace(_event(EventType.REFUNDED, dispute, ids), refund=refund)


def _answer_by(dispute: read.Object) -> datetime | None:
    """Until when Stripe accepts evidence. The dispute counts without it."""
    return read.time_or_drop(read.part(dispute, "evidence_details"), "due_by")


def _session(kind: str, session: read.Object, event: read.Object) -> Event:
    ids = _ids(session, payment="payment_intent", session="id", invoice="invoice")
    event_type, status = _SESSIONS[kind], session.get("payment_status")
    if event_type is not EventType.PAID:
        return _event(event_type, session, ids)
    if status == "no_payment_required":
        return _NO_MONEY
    if status != "paid":
        return _event(EventType.PROCESSING, session, ids)
    return _paid(session, ids, "amount_total")


def _invoice(kind: str, invoice: read.Object, event: read.Object) -> Event:
    ids = _ids(invoice, payment="payment_intent", charge="charge", invoice="id")
    if kind == "invoice.payment_failed":
        return _event(EventType.FAILED, invoice, ids)
    if invoice.get("paid_out_of_band") is True:
        return _ELSEWHERE
    return _paid(invoice, ids, "amount_paid")


def _invoice_payment(kind: str, paid: read.Object, event: read.Object) -> Event:
    payment = read.part(paid, "payment")
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
_READERS: Final[Mapping[str, Callable[[str, read.Object, read.Object], Event]]] = {
    **dict.fromkeys(_INTENTS, _intent),
    **dict.fromkeys(_CHARGES, _charge),
    **dict.fromkeys(_DISPUTES, _dispute),
    **dict.fromkeys(_SESSIONS, _session),
    **dict.fromkeys(_INVOICES, _invoice),
    "invoice_payment.paid": _invoice_payment,
}


def _paid(body: read.Object, ids: Ids, name: str) -> Event:
    """Translate a paid amount, if the object names its intent or charge."""
    amount = _money(body, name)
    if amount.amount_minor == 0:
        return _NO_MONEY
    if not any(one.kind in ("payment", "charge") for one in ids):
        return _event(EventType.PROCESSING, body, ids)
    return _event(EventType.PAID, body, ids, amount)


def _event(
    event_type: EventType, body: read.Object, ids: Ids, amount: Money | None = None
) -> PaymentEvent:
    return PaymentEvent(event_type, ids, amount, order=_order(body), plan_id=_plan(body))


def _ids(body: read.Object, **names: str) -> Ids:
    """Return the ids in these fields, by kind; each is sent as text or as an expanded object."""
    values = {
        kind: one.get("id") if isinstance(one := body.get(name), dict) else one
        for kind, name in names.items()
    }
    return external_ids(**{kind: read.text(values, kind) for kind in values})


def _money(body: read.Object, name: str) -> Money:
    return read.required_minor_money(body, name, read.currency(body), DECIMALS)


def _order(body: read.Object) -> str | None:
    metadata = read.part(body, "metadata")
    return (
        read.text(body, "client_reference_id")
        or read.text(metadata, "order")
        or read.text(metadata, "order_id")
    )


def _plan(body: read.Object) -> str | None:
    return (
        read.text(read.part(body, "metadata"), "plan_id")
        or read.text(read.part(body, "parent", "subscription_details", "metadata"), "plan_id")
        or read.text(read.part(body, "subscription_details", "metadata"), "plan_id")
    )


def _email(body: read.Object, dropped: list[str]) -> str | None:
    return (
        read.email(read.part(body, "customer_details"), dropped=dropped)
        or read.email(body, "customer_email", dropped)
        or read.email(body, "receipt_email", dropped)
        or read.email(read.part(body, "billing_details"), dropped=dropped)
    )
