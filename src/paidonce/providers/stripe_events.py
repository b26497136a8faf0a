"""What Stripe's events say, by the object that each of them is a snapshot of.

One payment has several ids, and several events tell of the same money. All of it is counted under
the intent, or under the charge where there is none: the kinds of ids are `payment` (the intent),
`charge`, `session` and `invoice`. A session or an invoice that names neither intent nor charge, as
those of subscriptions do since API version 2025-03-31, brings its ids, its reference and its e-mail
address, and no money: the intent's own events bring that, and `invoice_payment.paid` joins the two.

The merchant's reference is the session's `client_reference_id`, or `order` in the metadata, or
`order_id` there; the plan is `plan_id` in the metadata, of an invoice also in its subscription's.
A subscription's metadata are no reference: they are the same on each of its invoices.

https://docs.stripe.com/api/events/types, https://docs.stripe.com/currencies and
https://docs.stripe.com/changelog/basil (2025-03-31), checked on 2026-11-16.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Refund, Says
from paidonce.domain.money import EXPONENTS, Money, money
from paidonce.errors import InvalidMoneyError, MalformedError
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import address, any_time, currency, from_minor, number, text

DECIMALS: Final[Mapping[str, int]] = {**EXPONENTS, "ISK": 2, "UGX": 2, "MGA": 0}
"""How many decimals Stripe's amounts have: as many as ISO 4217 says, but for three currencies."""

BASIL: Final = "2025-03-31"
"""The API version since which what was authorised and never captured is no refund any more."""

Object = Mapping[str, Any]
Told = PaymentEvent | Ignored
Ids = tuple[ExternalId, ...]

_OTHER_TYPE: Final = Ignored(Code.NON_SUCCESS_STATUS, "this type of event says nothing that counts")
_THIN: Final = Ignored(Code.NON_SUCCESS_STATUS, "a thin event says nothing of a payment")
_NO_MONEY: Final = Ignored(Code.NON_SUCCESS_STATUS, "there was nothing to pay")
_ELSEWHERE: Final = Ignored(Code.NON_SUCCESS_STATUS, "it was paid outside of Stripe")


class StripeEvent(NamedTuple):
    """An event as it was read."""

    id: str
    type: str
    occurred_at: datetime | None
    is_live: bool
    account: str | None  # the connected one that it is of, if it is of one
    told: Told


def read_event(delivery: Delivery) -> StripeEvent:
    """What the delivery says. Raises MalformedError."""
    body = delivery.json
    event_id, kind = text(body.get("id"), "id"), text(body.get("type"), "type")
    if event_id is None or kind is None:
        raise MalformedError(f"{'id' if event_id is None else 'type'} is missing")
    at = any_time(body.get("created"), "created")
    told = _told(kind, body)
    if isinstance(told, PaymentEvent):
        if not told.ids:
            raise MalformedError("the payment's id is missing")
        told = replace(told, occurred_at=at)
    account = text(body.get("account"), "account")
    return StripeEvent(event_id, kind, at, body.get("livemode") is True, account, told)


def _told(kind: str, body: Object) -> Told:
    if body.get("object") == "v2.core.event":
        return _THIN
    if body.get("object") != "event":
        raise MalformedError("it is no event")
    reader = _READERS.get(kind)
    return _OTHER_TYPE if reader is None else reader(kind, _within(body, "data", "object"), body)


def _intent(kind: str, intent: Object, event: Object) -> Told:
    ids = _ids(
        payment=intent.get("id"),
        charge=intent.get("latest_charge"),
        invoice=intent.get("invoice"),
    )
    says = _INTENTS[kind]
    if says is Says.PAID:
        return _paid(intent, ids, "amount_received")
    return _event(says, intent, ids)


def _charge(kind: str, charge: Object, event: Object) -> Told:
    """Only what was captured is money: an authorisation is not, nor is its end a refund."""
    ids = _ids(
        payment=charge.get("payment_intent"),
        charge=charge.get("id"),
        invoice=charge.get("invoice"),
    )
    captured = _captured(charge)
    if captured is None:
        return _event(_CHARGES[kind], charge, ids)
    paid = _event(Says.PAID, charge, ids, amount=captured)
    if kind != "charge.refunded":
        return paid
    refunded = _refunded(charge, captured, event)
    paid_at = any_time(charge.get("created"), "created")
    return replace(paid, says=Says.REFUNDED, refunded=refunded, paid_at=paid_at)


def _captured(charge: Object) -> Money | None:
    """What was captured. A charge that is pending or failed may call itself captured, too."""
    if charge.get("captured") is not True or charge.get("status") != "succeeded":
        return None
    is_told = charge.get("amount_captured") is not None
    captured = _money(charge, "amount_captured" if is_told else "amount")
    return captured if captured.amount_minor else None


def _refunded(charge: Object, captured: Money, event: Object) -> Money:
    """All that was refunded. Older versions add what was authorised and never captured."""
    refunded = _money(charge, "amount_refunded")
    version = text(event.get("api_version"), "api_version")
    if version is None or version >= BASIL:
        return refunded
    released_minor = max(_money(charge, "amount").amount_minor - captured.amount_minor, 0)
    return Money(max(refunded.amount_minor - released_minor, 0), refunded.currency)


def _dispute(kind: str, dispute: Object, event: Object) -> Told:
    """It stays open until it is won or lost, whatever else it is closed with."""
    ids = _ids(payment=dispute.get("payment_intent"), charge=dispute.get("charge"))
    status = dispute.get("status") if kind == "charge.dispute.closed" else None
    if status in ("won", "warning_closed"):
        return _event(Says.DISPUTE_WON, dispute, ids)
    if status != "lost":
        return _event(Says.DISPUTED, dispute, ids)
    dispute_id = text(dispute.get("id"), "id")
    if dispute_id is None:
        raise MalformedError("the dispute's id is missing")
    refund = Refund(f"dispute:{dispute_id}", _money(dispute, "amount"))
    return replace(_event(Says.REFUNDED, dispute, ids), refund=refund)


def _session(kind: str, session: Object, event: Object) -> Told:
    ids = _ids(
        payment=session.get("payment_intent"),
        session=session.get("id"),
        invoice=session.get("invoice"),
    )
    says, status = _SESSIONS[kind], session.get("payment_status")
    if says is not Says.PAID:
        return _event(says, session, ids)
    if status == "no_payment_required":
        return _NO_MONEY
    if status != "paid":
        return _event(Says.PROCESSING, session, ids)
    return _paid(session, ids, "amount_total")


def _invoice(kind: str, invoice: Object, event: Object) -> Told:
    ids = _ids(
        payment=invoice.get("payment_intent"),
        charge=invoice.get("charge"),
        invoice=invoice.get("id"),
    )
    if kind == "invoice.payment_failed":
        return _event(Says.FAILED, invoice, ids)
    if invoice.get("paid_out_of_band") is True:
        return _ELSEWHERE
    return _paid(invoice, ids, "amount_paid")


def _invoice_payment(kind: str, paid: Object, event: Object) -> Told:
    payment = _within(paid, "payment")
    if payment.get("type") == "payment_record":
        return _ELSEWHERE
    ids = _ids(
        payment=payment.get("payment_intent"),
        charge=payment.get("charge"),
        invoice=paid.get("invoice"),
    )
    return _paid(paid, ids, "amount_paid")


_INTENTS: Final = {
    "payment_intent.created": Says.PENDING,
    "payment_intent.requires_action": Says.PENDING,
    "payment_intent.processing": Says.PROCESSING,
    "payment_intent.partially_funded": Says.PROCESSING,
    "payment_intent.amount_capturable_updated": Says.PROCESSING,
    "payment_intent.succeeded": Says.PAID,
    "payment_intent.payment_failed": Says.FAILED,
    "payment_intent.canceled": Says.VOIDED,
}
_CHARGES: Final = {  # what each says of a charge of which nothing was captured
    "charge.pending": Says.PROCESSING,
    "charge.succeeded": Says.PROCESSING,
    "charge.captured": Says.PROCESSING,
    "charge.failed": Says.FAILED,
    "charge.expired": Says.VOIDED,
    "charge.refunded": Says.VOIDED,
}
_DISPUTES: Final = ("charge.dispute.created", "charge.dispute.closed")
_SESSIONS: Final = {
    "checkout.session.completed": Says.PAID,
    "checkout.session.async_payment_succeeded": Says.PAID,
    "checkout.session.async_payment_failed": Says.FAILED,
    "checkout.session.expired": Says.VOIDED,
}
_INVOICES: Final = ("invoice.paid", "invoice.payment_succeeded", "invoice.payment_failed")
_READERS: Final[Mapping[str, Callable[[str, Object, Object], Told]]] = {
    **dict.fromkeys(_INTENTS, _intent),
    **dict.fromkeys(_CHARGES, _charge),
    **dict.fromkeys(_DISPUTES, _dispute),
    **dict.fromkeys(_SESSIONS, _session),
    **dict.fromkeys(_INVOICES, _invoice),
    "invoice_payment.paid": _invoice_payment,
}


def _paid(told: Object, ids: Ids, name: str) -> Told:
    """That the amount under this name was paid, if it is known by which intent or charge."""
    amount = _money(told, name)
    if amount.amount_minor == 0:
        return _NO_MONEY
    if not any(one.kind in ("payment", "charge") for one in ids):
        return _event(Says.PROCESSING, told, ids)
    return _event(Says.PAID, told, ids, amount)


def _event(says: Says, told: Object, ids: Ids, amount: Money | None = None) -> PaymentEvent:
    return PaymentEvent(
        says, ids, amount, order=_order(told), email=_email(told), plan_id=_plan(told)
    )


def _ids(**found: Any) -> Ids:
    """The ids that are there, by their kinds; each is given alone or with its whole object."""
    alone = {
        kind: text(one.get("id") if isinstance(one, Mapping) else one, kind)
        for kind, one in found.items()
    }
    return tuple(ExternalId(kind, one) for kind, one in alone.items() if one is not None)


def _money(holder: Object, name: str) -> Money:
    code = currency(holder.get("currency"), "currency")
    amount = from_minor(number(holder.get(name), name), code, DECIMALS)
    if amount is None or code is None:
        raise MalformedError(f"{name if amount is None else 'currency'} is missing")
    try:
        return money(amount, code)
    except InvalidMoneyError as error:
        raise MalformedError(str(error)) from None


def _order(told: Object) -> str | None:
    metadata = _within(told, "metadata")
    return (
        text(told.get("client_reference_id"), "client_reference_id")
        or text(metadata.get("order"), "metadata.order")
        or text(metadata.get("order_id"), "metadata.order_id")
    )


def _plan(told: Object) -> str | None:
    holders = (
        told,
        _within(told, "parent", "subscription_details"),
        _within(told, "subscription_details"),
    )
    plans = (text(_within(one, "metadata").get("plan_id"), "plan_id") for one in holders)
    return next((plan for plan in plans if plan is not None), None)


def _email(told: Object) -> str | None:
    offered = (
        _within(told, "customer_details").get("email"),
        told.get("customer_email"),
        told.get("receipt_email"),
        _within(told, "billing_details").get("email"),
    )
    emails = (address(one, "email") for one in offered)
    return next((email for email in emails if email is not None), None)


def _within(holder: Object, *path: str) -> Object:
    """The object at the end of the path, an empty one if there is none."""
    for step in path:
        inner = holder.get(step)
        holder = inner if isinstance(inner, Mapping) else {}
    return holder
