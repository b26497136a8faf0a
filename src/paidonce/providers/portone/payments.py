"""What PortOne's V1 and V2 APIs share: payments, what they mean, and statements.

PortOne's webhooks only announce a change: what counts is what the API says. It may be ahead of the
webhook but not behind it, and must not contradict it.

A statement lists payments by the time of their status: a paid one by when it was paid, a cancelled
one by when it was cancelled; at most 90 days at once. When the status of a payment changes while
pages are read, it leaves its page, and one behind it may be missed; so a list whose length has
changed is read again.

V2  GET /payments?requestBody={"page": {"number": 0, "size": 100}, "filter": {"from": …}}
    → {"items": [payment, …], "page": {"number", "size", "totalCount"}}
V1  GET /payments/status/paid?from=…&to=…&page=1&limit=100
    → {"code": 0, "response": {"total": …, "list": [payment, …]}}; 400 for a page beyond the end

In V1, a payment that was refunded in part keeps the time at which it was paid.

https://developers.portone.io/api/rest-v2/payment and
https://developers.portone.io/api/rest-v1/payment, read on 2026-11-16 in stored copies of their
OpenAPI documents (`src/schema` of github.com/portone-io/developers.portone.io), not on the site.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import (
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidMoneyError,
    MalformedError,
)
from paidonce.providers import read
from paidonce.providers.contract import GatewayQuery, GatewayResponse, StatementPage

PAGE_SIZE: Final = 100
"""With ten kilobytes for each payment, a page is within the limit of a response."""
SLICE: Final = timedelta(days=1)
"""The time that is listed at once; both versions allow 90 days."""
MAX_READINGS: Final = 3
"""How often a list is read that changes meanwhile."""


class Status(StrEnum):
    """The status of a payment in the API."""

    READY = "READY"
    VIRTUAL_ACCOUNT_ISSUED = "VIRTUAL_ACCOUNT_ISSUED"
    PAY_PENDING = "PAY_PENDING"
    FAILED = "FAILED"
    PAID = "PAID"
    PARTIAL_CANCELLED = "PARTIAL_CANCELLED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class PortOneChange:
    """What a webhook announces, with the type that V2 uses for it."""

    type: str  # one of `MIN_STATUS`; a parsed webhook of V1 has its status here
    payment_id: str
    order: str | None
    transaction_id: str | None = None
    cancellation_id: str | None = None
    store_id: str | None = None
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PortOnePayment:
    """A payment as the API returns it."""

    status: Status
    ids: tuple[ExternalId, ...]
    order: str
    amount: Money
    cancelled: Money  # the total so far
    is_test: bool
    cancellations: Collection[str] = ()  # ids of those that succeeded
    transaction_id: str | None = None
    store_id: str | None = None
    disputes: tuple[bool, ...] = ()  # whether each is resolved
    email: str | None = None
    paid_at: datetime | None = None
    changed_at: datetime | None = None


MIN_STATUS: Final[Mapping[str, Status]] = {
    "Transaction.Ready": Status.READY,
    "Transaction.VirtualAccountIssued": Status.VIRTUAL_ACCOUNT_ISSUED,
    "Transaction.PayPending": Status.PAY_PENDING,
    "Transaction.Failed": Status.FAILED,
    "Transaction.Paid": Status.PAID,
    "Transaction.CancelPending": Status.READY,  # only requested
    "Transaction.PartialCancelled": Status.PARTIAL_CANCELLED,
    "Transaction.Cancelled": Status.CANCELLED,
    "Transaction.DisputeCreated": Status.PAID,
    "Transaction.DisputeResolved": Status.PAID,
}
"""The least status that a payment has after each event; other events are not about a payment."""

_ANNOUNCED: Final = {
    "Transaction.Ready": EventType.PENDING,
    "Transaction.VirtualAccountIssued": EventType.PENDING,
    "Transaction.PayPending": EventType.PROCESSING,
    "Transaction.Failed": EventType.FAILED,
}
"""What the events say that come before the money. Late ones are out of order."""

_RANK: Final = {
    Status.READY: 0,
    Status.VIRTUAL_ACCOUNT_ISSUED: 1,
    Status.PAY_PENDING: 1,
    Status.FAILED: 2,
    Status.PAID: 3,
    Status.PARTIAL_CANCELLED: 4,
    Status.CANCELLED: 5,
}


def translate_payment(
    payment: PortOnePayment, change: PortOneChange, accepts_test: bool
) -> PaymentEvent | Ignored:
    """Translate a payment that a webhook announced.

    Raises GatewayUnreachableError when the API is behind the webhook, GatewayMismatchError when it
    contradicts it.
    """
    if payment.is_test and not accepts_test:
        return Ignored(Code.TEST_PAYMENT, "it was paid through a test channel")
    if _is_behind(payment, change):
        raise GatewayUnreachableError("the API has not caught up with its own event")
    return replace(_build_event(payment, change), announced=_ANNOUNCED.get(change.type))


def statement_entry(payment: PortOnePayment) -> PaymentEvent:
    """Translate a payment of a statement, as its newest webhook would be."""
    ready = PortOneChange("Transaction.Ready", payment.ids[0].value, payment.order)
    return _build_event(payment, ready)


def check_same(name: str, expected: str | None, actual: str | None) -> None:
    """Raise GatewayMismatchError unless they are equal or the webhook has no such value."""
    if expected is not None and expected != actual:
        raise GatewayMismatchError(f"its {name} is another than the event's")


def read_response(response: GatewayResponse, remedy: str) -> read.Object:
    """Return the body. Raises GatewayUnreachableError unless the status is 200."""
    if response.status in (401, 403):
        raise GatewayUnreachableError(f"the API rejects the key ({response.status}): {remedy}")
    if response.status != 200:
        raise GatewayUnreachableError(f"the API answers {response.status}")
    return response.json


def read_payment(
    parse: Callable[[read.Object], PortOnePayment], body: read.Object
) -> PortOnePayment:
    """Parse a payment in a response. Raises GatewayUnreachableError."""
    try:
        return parse(body)
    except (MalformedError, InvalidMoneyError) as error:
        raise GatewayUnreachableError(f"the response cannot be read: {error}") from None


_EVENT_TYPES: Final = {
    Status.READY: EventType.PENDING,
    Status.VIRTUAL_ACCOUNT_ISSUED: EventType.PENDING,
    Status.PAY_PENDING: EventType.PROCESSING,
    Status.FAILED: EventType.FAILED,
    Status.PAID: EventType.PAID,
    Status.PARTIAL_CANCELLED: EventType.REFUNDED,
    Status.CANCELLED: EventType.CANCELED,
}


def _build_event(payment: PortOnePayment, change: PortOneChange) -> PaymentEvent:
    event_type = _event_type(payment, change)
    had_money = _RANK[payment.status] >= _RANK[Status.PAID] and event_type is not EventType.VOIDED
    is_returned = event_type in (EventType.REFUNDED, EventType.CANCELED)
    return PaymentEvent(
        event_type=event_type,
        ids=payment.ids,
        amount=payment.amount if had_money else None,
        refunded=payment.cancelled if is_returned else None,
        order=payment.order,
        email=payment.email,
        occurred_at=payment.changed_at or change.occurred_at,
        paid_at=payment.paid_at if had_money else None,
    )


def _event_type(payment: PortOnePayment, change: PortOneChange) -> EventType:
    if payment.status is Status.PAID and change.type.startswith("Transaction.Dispute"):
        # Only its own events report a dispute: others may come late, and bring the money.
        return EventType.DISPUTE_WON if all(payment.disputes) else EventType.DISPUTED
    was_paid = payment.paid_at is not None or payment.cancelled.amount_minor > 0
    if payment.status is Status.CANCELLED and not was_paid:
        return EventType.VOIDED  # a virtual account into which nobody has paid
    return _EVENT_TYPES[payment.status]


def _is_behind(payment: PortOnePayment, change: PortOneChange) -> bool:
    """Whether the API is behind the webhook. Raises GatewayMismatchError if it contradicts it."""
    needed, rank = _RANK[MIN_STATUS[change.type]], _RANK[payment.status]
    announced, actual = change.transaction_id, payment.transaction_id
    is_other_attempt = announced is not None and actual is not None and announced != actual
    is_about_money = needed >= _RANK[Status.PAID]
    if is_about_money and payment.status is Status.FAILED and not is_other_attempt:
        # Some gateways let a payment fail first and find out later that it was paid.
        raise GatewayMismatchError("it failed, and the event says otherwise", may_pass=True)
    if rank < needed:
        # A new attempt may follow one that failed; none follows one that was paid.
        return is_about_money or not is_other_attempt
    if payment.status is Status.PARTIAL_CANCELLED:
        return _lacks_cancellation(payment, change)
    return payment.status is Status.PAID and _lacks_dispute(payment, change)


def _lacks_cancellation(payment: PortOnePayment, change: PortOneChange) -> bool:
    """Whether the total does not include the announced cancellation yet.

    Where the API lists no cancellations, the status decides.
    """
    announced, listed = change.cancellation_id, payment.cancellations
    is_of_one = change.type == "Transaction.PartialCancelled" and announced is not None
    return is_of_one and bool(listed) and announced not in listed


def _lacks_dispute(payment: PortOnePayment, change: PortOneChange) -> bool:
    """Whether the API does not list the announced dispute, or its end, yet."""
    if change.type == "Transaction.DisputeCreated":
        return not payment.disputes
    return change.type == "Transaction.DisputeResolved" and not any(payment.disputes)


class PaymentList(NamedTuple):
    """One page of the API's list, and the number of payments on all pages."""

    items: list[Any]
    total: int


@dataclass(frozen=True, slots=True)
class StatementReader:
    """Reads a list of payments slice by slice, and each slice page by page."""

    list_page: Callable[[datetime, datetime, int], GatewayQuery[PaymentList]]
    """Lists the page of this number, from 0, between these times."""
    translate: Callable[[read.Object], PaymentEvent | None]
    """Translates an item; None if it does not count here."""
    until: datetime
    then: Callable[[], GatewayQuery[StatementPage]] | None = None
    """What follows the last page."""

    def page(
        self, start: datetime, number: int = 0, total: int = -1, reading: int = 1
    ) -> GatewayQuery[StatementPage]:
        """Read a page of the slice that begins at this time. Raises GatewayUnreachableError."""
        end = min(start + SLICE, self.until)
        listed = yield from self.list_page(start, end, number)
        first_total = listed.total if number == 0 else total
        entries, unreadable = self._translate_all(listed.items)
        if listed.items and (number + 1) * PAGE_SIZE < listed.total:
            next_page = partial(self.page, start, number + 1, first_total, reading)
        elif listed.total != first_total and reading < MAX_READINGS:
            next_page = partial(self.page, start, 0, -1, reading + 1)
        elif end < self.until:
            next_page = partial(self.page, end)
        else:
            return StatementPage(entries, unreadable, self.then)
        return StatementPage(entries, unreadable, next_page)

    def _translate_all(self, items: list[Any]) -> tuple[tuple[PaymentEvent, ...], int]:
        entries, unreadable = [], 0
        for item in items:
            try:
                entries.append(self.translate(item if isinstance(item, dict) else {}))
            except (MalformedError, InvalidMoneyError, GatewayMismatchError):
                unreadable += 1
        return tuple(entry for entry in entries if entry is not None), unreadable


def read_list(items: Any, total: Any) -> PaymentList:
    """Check a list in a response. Raises GatewayUnreachableError."""
    if not isinstance(items, list) or type(total) is not int:
        raise GatewayUnreachableError("the response cannot be read: it has no list of payments")
    return PaymentList(items, total)
