"""The meaning of Creem's events: which payment they are about, and how much of it counts.

The price counts. Creem is the merchant of record and adds the tax of the buyer's country, which an
order of the merchant cannot foresee: of 12.10 paid, including 2.10 tax, 10.00 counts, and of a
refund its share. Tax that is included in the price is part of it. Amounts are in the currency's
smallest unit. Creem says "cents" and does not mention currencies without decimals; if it counts
those in another way, their payments will not match their orders and will need a review.

One purchase sends several events, which share the id of its transaction. A `checkout.completed`
may come without it: then order and checkout name the payment, and also that it is the first of its
subscription, so that it meets the `subscription.paid` of the same money. A subscription has many
payments: its id never names one, and neither do the order and checkout that it began with name a
later one. The merchant's reference is that of the first payment only.

The reference is the checkout's `request_id`, else `metadata.order`; the plan is `metadata.plan_id`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent, Refund
from paidonce.core.money import Money
from paidonce.errors import GatewayMismatchError, GatewayUnreachableError, MalformedError
from paidonce.providers import read
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import external_ids

CHECKOUT_COMPLETED: Final = "checkout.completed"
SUBSCRIPTION_PAID: Final = "subscription.paid"
REFUND_CREATED: Final = "refund.created"
TEST_MODES: Final = ("test", "sandbox", "local")
RETURNED: Final = ("refunded", "chargedBack", "chargeback")
PARTLY_RETURNED: Final = "partialRefund"
CAPTURED: Final = ("paid", PARTLY_RETURNED, *RETURNED)
NEVER_PAID: Final = ("declined", "void", "uncollectible")
SAME_PURCHASE: Final = timedelta(minutes=10)
"""The longest time between the start of a subscription and its first payment; a renewal comes at
least a day later."""
UNKNOWN: Final = timedelta.max


class CreemEvent(NamedTuple):
    """A parsed event."""

    id: str
    type: str
    created_at: datetime
    event: PaymentEvent | Ignored
    order_id: str | None  # Creem's own
    is_test: bool


class Charge(NamedTuple):
    """A charge: the price, which counts, and the total with tax."""

    price: Money
    total_minor: int

    def share(self, minor: int) -> Money:
        """Return the share of the price in a part of the total, rounded down."""
        counted = minor * self.price.amount_minor // self.total_minor if self.total_minor else 0
        return replace(self.price, amount_minor=counted)


def read_event(delivery: Delivery) -> CreemEvent:
    """Parse the delivery. Raises MalformedError."""
    body = delivery.json
    event_id, kind = read.required_text(body, "id"), read.required_text(body, "eventType")
    at, reader = created_at(body), _READERS.get(kind)
    if reader is None:
        ignored = Ignored(Code.NON_SUCCESS_STATUS, "events of this type move no money")
        return CreemEvent(event_id, kind, at, ignored, None, is_test=False)
    obj = _part(body, "object")
    order_id = _id(_part(obj, "order"))
    return CreemEvent(event_id, kind, at, reader(obj, at), order_id, is_test(obj))


def unreadable_payment(body: read.Object) -> tuple[ExternalId, ...]:
    """Return the ids of the payment that the event reports as paid. Raises MalformedError."""
    kind, obj = read.text(body, "eventType"), _part(body, "object")
    if kind == SUBSCRIPTION_PAID:
        return external_ids(payment=read.text(obj, "last_transaction_id"))
    order = _part(obj, "order")
    if kind != CHECKOUT_COMPLETED or order.get("status") != "paid":
        return ()
    transaction_id = _id(_part(order, "transaction"))
    return external_ids(payment=transaction_id, order=_id(order), checkout=_id(obj))


def _checkout(checkout: read.Object, at: datetime) -> PaymentEvent | Ignored:
    order, subscription = _part(checkout, "order"), _part(checkout, "subscription")
    is_trial = checkout.get("order") is None and bool(subscription)
    status = read.text(order, "status")
    if status is None and not is_trial:
        raise MalformedError("order.status is missing")
    if status != "paid":
        return Ignored(Code.NON_SUCCESS_STATUS, "the order is not paid")
    charge = _charge(order)
    if charge is None:
        raise MalformedError("the order's amount is missing")
    if charge.price.amount_minor == 0:
        return Ignored(Code.NON_SUCCESS_STATUS, "nothing was charged")
    transaction_id = _id(_part(order, "transaction"))
    transaction_id = transaction_id or read.text(subscription, "last_transaction_id")
    ids = external_ids(payment=transaction_id, order=_id(order), checkout=_id(checkout))
    if transaction_id is None:
        ids += external_ids(first_of_subscription=_id(subscription))
    return _event(EventType.PAID, ids, checkout, checkout, amount=charge.price, occurred_at=at)


def _subscription_paid(subscription: read.Object, at: datetime) -> PaymentEvent | Ignored:
    paid_at = read.time_or_drop(subscription, "last_transaction_date")
    gap = _gap(read.time_or_drop(subscription, "created_at"), paid_at)
    is_first, is_later = gap <= SAME_PURCHASE, SAME_PURCHASE < gap < UNKNOWN
    product = _part(subscription, "product")
    transaction_id = read.required_text(subscription, "last_transaction_id")
    first_of = _id(subscription) if is_first else None
    ids = external_ids(payment=transaction_id, first_of_subscription=first_of)
    price = read.minor_money(product, "price", read.currency(product))
    event = _event(EventType.PAID, ids, subscription, subscription, amount=price, occurred_at=at)
    return replace(event, order=None if is_later else event.order, paid_at=paid_at)


def _refund(refund: read.Object, at: datetime) -> PaymentEvent | Ignored:
    if refund.get("status") != "succeeded":
        return Ignored(Code.NON_SUCCESS_STATUS, "the refund has not succeeded")
    transaction, refund_id = _part(refund, "transaction"), read.required_text(refund, "id")
    code = read.currency(refund, "refund_currency")
    returned = read.required_minor_money(refund, "refund_amount", code)
    event = _of_transaction(EventType.REFUNDED, refund, at)
    charge = _charge(transaction)
    if charge is None:
        return replace(event, refund=Refund(refund_id, returned))
    if charge.price.currency != returned.currency:
        raise MalformedError("the refund is in another currency than its payment")
    return replace(
        event,
        refund=Refund(refund_id, charge.share(returned.amount_minor)),
        refunded=_refunded(transaction, charge),
    )


def _of_transaction(event_type: EventType, obj: read.Object, at: datetime) -> PaymentEvent:
    """Translate a refund or a dispute into an event of its payment."""
    transaction, order = _part(obj, "transaction"), _part(obj, "order")
    checkout = _part(obj, "checkout")
    is_first = _is_first_transaction(obj, order, transaction)
    ids = external_ids(payment=_id(transaction))
    if is_first:
        ids += external_ids(order=_id(order), checkout=_id(checkout))
    charge = _charge(transaction)
    price = None if charge is None else charge.price
    event = _event(event_type, ids, obj, checkout, amount=price, occurred_at=at)
    reference = event.order if is_first else None
    return replace(event, order=reference, paid_at=read.time_or_drop(transaction, "created_at"))


_READERS: Final[Mapping[str, Callable[[read.Object, datetime], PaymentEvent | Ignored]]] = {
    CHECKOUT_COMPLETED: _checkout,
    SUBSCRIPTION_PAID: _subscription_paid,
    REFUND_CREATED: _refund,
    "dispute.created": partial(_of_transaction, EventType.DISPUTED),
}


def _is_first_transaction(obj: read.Object, order: read.Object, transaction: read.Object) -> bool:
    """Whether it is the order's first transaction, not a renewal."""
    first_id = _id(_part(order, "transaction"))
    if first_id is not None:
        return first_id == _id(transaction)
    subscriptions = (_id(_part(one, "subscription")) for one in (obj, transaction))
    if not any(subscriptions):
        return True
    gap = _gap(read.time_or_drop(order, "created_at"), read.time_or_drop(transaction, "created_at"))
    return gap <= SAME_PURCHASE


def _event(
    event_type: EventType,
    ids: tuple[ExternalId, ...],
    obj: read.Object,
    checkout: read.Object,
    **more: Any,
) -> PaymentEvent:
    """Build an event with the customer of the object, and reference and plan of the checkout."""
    if not ids:
        raise MalformedError("the payment id is missing")
    metadata = _part(checkout, "metadata")
    return PaymentEvent(
        event_type,
        ids,
        order=read.text(checkout, "request_id") or read.text(metadata, "order"),
        email=read.email(_part(obj, "customer")),
        plan_id=read.text(metadata, "plan_id"),
        **more,
    )


def confirm_payment(event: PaymentEvent, transaction: read.Object) -> PaymentEvent:
    """Return the event with the charged amount of its transaction.

    Raises GatewayMismatchError, GatewayUnreachableError, MalformedError.
    """
    status = read.text(transaction, "status")
    charge = _charge(transaction)
    if _id(transaction) != event.ids[0].value:
        raise GatewayMismatchError("Creem returned another transaction")
    if status in NEVER_PAID:
        raise GatewayMismatchError("the transaction was not paid at Creem")
    if status not in CAPTURED or charge is None:
        raise GatewayUnreachableError("the transaction is not paid yet at Creem")
    if event.amount is not None and event.amount.currency != charge.price.currency:
        raise GatewayMismatchError("Creem charged another currency than the product's")
    refunded = _refunded(transaction, charge)
    if refunded is None and read.text(transaction, "status") == PARTLY_RETURNED:
        raise GatewayUnreachableError("Creem does not say yet how much was refunded")
    event_type = EventType.PAID if refunded is None else EventType.REFUNDED
    return replace(event, event_type=event_type, amount=charge.price, refunded=refunded)


def _charge(part: read.Object) -> Charge | None:
    """Return the charge of an order or a transaction, None if it has no amount."""
    code = read.currency(part)
    amount = read.minor_money(part, "amount", code)
    total = read.minor_money(part, "amount_paid", code) or amount
    if amount is None or total is None:
        return None if total is None else Charge(total, total.amount_minor)
    before_tax_minor = total.amount_minor - _minor(part, "tax_amount", code)
    reduced_minor = amount.amount_minor - _minor(part, "discount_amount", code)
    is_tax_added = before_tax_minor in (amount.amount_minor, max(reduced_minor, 0))
    price = replace(total, amount_minor=before_tax_minor) if is_tax_added else total
    return Charge(price, total.amount_minor)


def _refunded(transaction: read.Object, charge: Charge) -> Money | None:
    """Return the share of the price that was refunded so far, None if nothing or unknown."""
    returned = read.minor_money(transaction, "refunded_amount", charge.price.currency)
    if returned is not None and returned.amount_minor > 0:
        return charge.share(returned.amount_minor)
    return charge.price if read.text(transaction, "status") in RETURNED else None


def _minor(part: read.Object, name: str, code: str | None) -> int:
    amount = read.minor_money(part, name, code)
    return 0 if amount is None else amount.amount_minor


def _part(whole: read.Object, name: str) -> read.Object:
    """Return an inner object, which Creem may reduce to its id; empty if there is none."""
    part = whole.get(name)
    if isinstance(part, str):
        return {"id": part}
    if part is not None and not isinstance(part, dict):
        raise MalformedError(f"{name} is not an object")
    return part or {}


def _id(part: read.Object) -> str | None:
    return read.text(part, "id")


def created_at(body: read.Object) -> datetime:
    """Return when the event happened; Creem sends ISO 8601 or milliseconds."""
    at = read.time(body, "created_at")
    if at is None:
        raise MalformedError("created_at is missing")
    return at


def _gap(one: datetime | None, other: datetime | None) -> timedelta:
    return UNKNOWN if one is None or other is None else abs(one - other)


def is_test(obj: read.Object) -> bool:
    """Whether the object, its order or its transaction is from Creem's test mode."""
    inner = (_part(obj, "order"), _part(obj, "transaction"))
    return any(part.get("mode") in TEST_MODES for part in (obj, *inner))
