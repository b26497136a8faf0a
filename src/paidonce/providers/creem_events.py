"""What Creem's events say: which payment they concern, and how much of it counts.

What counts is the price. Creem sells in its own name and puts the tax of the buyer's country on
top, which no order of the merchant's can foresee: of 12.10 paid, 2.10 being tax, 10.00 counts, and
of a refund its share. Tax that is within the price is a part of it. Amounts are in the currency's
smallest unit. Creem says "cents", and nothing of currencies that have none; were it to count those
otherwise, their payments would not match their orders, and wait for a person.

One purchase sends several events. They are one payment by the id of its transaction. Where a
`checkout.completed` comes without it, order and checkout name the payment, and, so that it meets
the `subscription.paid` of the same money, that it is the first of its subscription. A subscription
has many payments: its id never names one, nor do the order and checkout that it began with name a
later one; neither is a later one for the merchant's reference, which stays the first one's.

The reference is the checkout's `request_id`, else `metadata.order`; the plan is `metadata.plan_id`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Refund, Says
from paidonce.domain.money import EXPONENTS, Money, money
from paidonce.errors import (
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidMoneyError,
    MalformedError,
)
from paidonce.providers.contract import Delivery
from paidonce.providers.fields import address, any_time, currency, text

CHECKOUT_COMPLETED: Final = "checkout.completed"
SUBSCRIPTION_PAID: Final = "subscription.paid"
REFUND_CREATED: Final = "refund.created"
TEST_MODES: Final = ("test", "sandbox", "local")
RETURNED: Final = ("refunded", "chargedBack", "chargeback")
PARTLY_RETURNED: Final = "partialRefund"
CAPTURED: Final = ("paid", PARTLY_RETURNED, *RETURNED)
NEVER_PAID: Final = ("declined", "void", "uncollectible")
AT_ONCE: Final = timedelta(minutes=10)
"""How far apart a beginning and its first payment may be; the next comes a day later at least."""
UNKNOWN: Final = timedelta.max

_OTHER_TYPE: Final = Ignored(Code.NON_SUCCESS_STATUS, "events of this type move no money")
_UNPAID: Final = Ignored(Code.NON_SUCCESS_STATUS, "the order is not paid")
_FREE: Final = Ignored(Code.NON_SUCCESS_STATUS, "nothing was charged")
_NO_REFUND: Final = Ignored(Code.NON_SUCCESS_STATUS, "the refund has not succeeded")

Part = Mapping[str, Any]
"""An object within an event."""


class Read(NamedTuple):
    """An event as it was read."""

    id: str
    type: str
    created_at: datetime
    meaning: PaymentEvent | Ignored
    order_id: str | None  # Creem's own
    is_test: bool


class Charge(NamedTuple):
    """What was charged: the price that counts, and all of it, with what came on top."""

    price: Money
    total_minor: int

    def share(self, minor: int) -> Money:
        """What a part of the total is of the price; rounded down, so that only all is all."""
        counted = minor * self.price.amount_minor // self.total_minor if self.total_minor else 0
        return replace(self.price, amount_minor=counted)


def read_event(delivery: Delivery) -> Read:
    """Raises MalformedError."""
    body = delivery.json
    event_id, kind = text(body.get("id"), "id"), text(body.get("eventType"), "eventType")
    if event_id is None or kind is None:
        raise MalformedError(f"{'id' if event_id is None else 'eventType'} is missing")
    at, reader = created_at(body), _READERS.get(kind)
    if reader is None:
        return Read(event_id, kind, at, _OTHER_TYPE, None, is_test=False)
    thing = _part(body, "object")
    order_id = _id(_part(thing, "order"))
    return Read(event_id, kind, at, reader(thing, at), order_id, is_test(thing))


def _checkout(checkout: Part, at: datetime) -> PaymentEvent | Ignored:
    order, subscription = _part(checkout, "order"), _part(checkout, "subscription")
    is_trial = checkout.get("order") is None and bool(subscription)
    status = text(order.get("status"), "order.status")
    if status is None and not is_trial:
        raise MalformedError("order.status is missing")
    if status != "paid":
        return _UNPAID
    charge = _charge(order)
    if charge is None:
        raise MalformedError("the order's amount is missing")
    if charge.price.amount_minor == 0:
        return _FREE
    transaction_id = _id(_part(order, "transaction")) or _last_transaction(subscription)
    ids = _ids(payment=transaction_id, order=_id(order), checkout=_id(checkout))
    if transaction_id is None:
        ids += _ids(first_of_subscription=_id(subscription))
    return _event(Says.PAID, ids, checkout, checkout, amount=charge.price, occurred_at=at)


def _subscription_paid(subscription: Part, at: datetime) -> PaymentEvent | Ignored:
    paid_at = _time(subscription, "last_transaction_date")
    gap = _gap(_time(subscription, "created_at"), paid_at)
    is_first, is_later = gap <= AT_ONCE, AT_ONCE < gap < UNKNOWN
    product, transaction_id = _part(subscription, "product"), _last_transaction(subscription)
    if transaction_id is None:
        raise MalformedError("last_transaction_id is missing")
    first_of = _id(subscription) if is_first else None
    ids = _ids(payment=transaction_id, first_of_subscription=first_of)
    price = _cents(product, "price", currency(product.get("currency"), "currency"))
    event = _event(Says.PAID, ids, subscription, subscription, amount=price, occurred_at=at)
    return replace(event, order=None if is_later else event.order, paid_at=paid_at)


def _refund(refund: Part, at: datetime) -> PaymentEvent | Ignored:
    if refund.get("status") != "succeeded":
        return _NO_REFUND
    transaction = _part(refund, "transaction")
    returned = _cents(refund, "refund_amount", currency(refund.get("refund_currency"), "currency"))
    refund_id = _id(refund)
    if returned is None or refund_id is None:
        raise MalformedError(f"{'id' if refund_id is None else 'refund_amount'} is missing")
    event = _of_transaction(Says.REFUNDED, refund, at)
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


def _dispute(dispute: Part, at: datetime) -> PaymentEvent | Ignored:
    return _of_transaction(Says.DISPUTED, dispute, at)


_READERS: Final[Mapping[str, Callable[[Part, datetime], PaymentEvent | Ignored]]] = {
    CHECKOUT_COMPLETED: _checkout,
    SUBSCRIPTION_PAID: _subscription_paid,
    REFUND_CREATED: _refund,
    "dispute.created": _dispute,
}


def _of_transaction(says: Says, thing: Part, at: datetime) -> PaymentEvent:
    """What a refund or a dispute says of the payment that it concerns."""
    transaction, order = _part(thing, "transaction"), _part(thing, "order")
    checkout = _part(thing, "checkout")
    is_own = _is_own(thing, order, transaction)
    ids = _ids(payment=_id(transaction))
    if is_own:
        ids += _ids(order=_id(order), checkout=_id(checkout))
    charge = _charge(transaction)
    price = None if charge is None else charge.price
    event = _event(says, ids, thing, checkout, amount=price, occurred_at=at)
    order_reference = event.order if is_own else None
    return replace(event, order=order_reference, paid_at=_time(transaction, "created_at"))


def _is_own(thing: Part, order: Part, transaction: Part) -> bool:
    """Whether it is the order's first transaction, and no renewal of what the order began."""
    named = _id(_part(order, "transaction"))
    if named is not None:
        return named == _id(transaction)
    subscriptions = (_id(_part(one, "subscription")) for one in (thing, transaction))
    if not any(subscriptions):
        return True
    return _gap(_time(order, "created_at"), _time(transaction, "created_at")) <= AT_ONCE


def _event(
    says: Says, ids: tuple[ExternalId, ...], thing: Part, checkout: Part, **more: Any
) -> PaymentEvent:
    """With the customer of the one, and the reference and plan that the other was given."""
    if not ids:
        raise MalformedError("the payment's id is missing")
    metadata = _part(checkout, "metadata")
    order = text(checkout.get("request_id"), "request_id")
    return PaymentEvent(
        says,
        ids,
        order=order or text(metadata.get("order"), "metadata.order"),
        email=address(_part(thing, "customer").get("email"), "email"),
        plan_id=text(metadata.get("plan_id"), "metadata.plan_id"),
        **more,
    )


def confirmed(event: PaymentEvent, transaction: Part) -> PaymentEvent:
    """The event with what was charged. Raises GatewayMismatchError, MalformedError."""
    status = text(transaction.get("status"), "status")
    charge = _charge(transaction)
    if _id(transaction) != event.ids[0].value:
        raise GatewayMismatchError("Creem told of another transaction")
    if status in NEVER_PAID:
        raise GatewayMismatchError("Creem says that the transaction was not paid")
    if status not in CAPTURED or charge is None:
        raise GatewayUnreachableError("Creem does not say yet that the transaction was paid")
    if event.amount is not None and event.amount.currency != charge.price.currency:
        raise GatewayMismatchError("Creem charged another currency than the product's")
    refunded = _refunded(transaction, charge)
    says = Says.PAID if refunded is None else Says.REFUNDED
    return replace(event, says=says, amount=charge.price, refunded=refunded)


def _charge(part: Part) -> Charge | None:
    """What an order or a transaction charged; None where it does not tell."""
    code = currency(part.get("currency"), "currency")
    amount = _cents(part, "amount", code)
    total = _cents(part, "amount_paid", code) or amount
    if amount is None or total is None:
        return None if total is None else Charge(total, total.amount_minor)
    before_tax_minor = total.amount_minor - _minor(part, "tax_amount", code)
    reduced_minor = amount.amount_minor - _minor(part, "discount_amount", code)
    is_on_top = before_tax_minor in (amount.amount_minor, max(reduced_minor, 0))
    price = replace(total, amount_minor=before_tax_minor) if is_on_top else total
    return Charge(price, total.amount_minor)


def _refunded(transaction: Part, charge: Charge) -> Money | None:
    """The share of the price that was returned so far, if any was."""
    returned = _cents(transaction, "refunded_amount", charge.price.currency)
    if returned is not None and returned.amount_minor > 0:
        return charge.share(returned.amount_minor)
    status = text(transaction.get("status"), "status")
    if status == PARTLY_RETURNED:
        raise GatewayUnreachableError("Creem does not say yet how much was refunded")
    return charge.price if status in RETURNED else None


def _minor(part: Part, name: str, code: str | None) -> int:
    amount = _cents(part, name, code)
    return 0 if amount is None else amount.amount_minor


def _cents(part: Part, name: str, code: str | None) -> Money | None:
    """An amount in the currency's smallest unit."""
    minor = part.get(name)
    if minor is None:
        return None
    if type(minor) is not int:
        raise MalformedError(f"{name} is not a whole number")
    if code not in EXPONENTS:
        raise MalformedError("the currency is missing, or not one of ISO 4217")
    try:
        return money(Decimal(minor).scaleb(-EXPONENTS[code]), code)
    except InvalidMoneyError as error:
        raise MalformedError(f"{name}: {error}") from None


def _ids(**named: str | None) -> tuple[ExternalId, ...]:
    return tuple(ExternalId(kind, value) for kind, value in named.items() if value is not None)


def _part(whole: Part, name: str) -> Part:
    """An object, or what is left of it when Creem gives only its id; empty if there is none."""
    part = whole.get(name)
    if isinstance(part, str):
        return {"id": part}
    if part is not None and not isinstance(part, dict):
        raise MalformedError(f"{name} is not an object")
    return part or {}


def _id(part: Part) -> str | None:
    return text(part.get("id"), "id")


def _last_transaction(subscription: Part) -> str | None:
    return text(subscription.get("last_transaction_id"), "last_transaction_id")


def created_at(body: Part) -> datetime:
    """When the event happened."""
    at = _time(body, "created_at")
    if at is None:
        raise MalformedError("created_at is missing")
    return at


def _time(part: Part, name: str) -> datetime | None:
    """A time, in ISO 8601 or milliseconds: Creem writes both."""
    return any_time(part.get(name), name)


def _gap(one: datetime | None, other: datetime | None) -> timedelta:
    return UNKNOWN if one is None or other is None else abs(one - other)


def is_test(thing: Part) -> bool:
    """Whether it is of Creem's test mode, or a part of it is."""
    inner = (_part(thing, "order"), _part(thing, "transaction"))
    return any(part.get("mode") in TEST_MODES for part in (thing, *inner))
