"""PortOne's statements, whichever version is asked: its payments by time. A part of `portone`.

Both versions list payments by the time of their status: one that is paid by when it was paid, one
that is canceled by when it was canceled. They do so page by page, at most 90 days at once. When the
status of a payment changes while pages are read, it leaves its page, and one behind it may be
overlooked; so a list whose length has changed is read again.

V2  GET /payments?requestBody={"page": {"number": 0, "size": 100}, "filter": {"from": …}}
    → {"items": [payment, …], "page": {"number", "size", "totalCount"}}
V1  GET /payments/status/paid?from=…&to=…&page=1&limit=100
    → {"code": 0, "response": {"total": …, "list": [payment, …]}}; 400 for a page beyond the end

A payment that was given back in part keeps, in V1, the time at which it was paid.

https://developers.portone.io/api/rest-v2/payment and
https://developers.portone.io/api/rest-v1/payment, read on 2026-11-16 in stored copies of their
OpenAPI documents (`src/schema` of github.com/portone-io/developers.portone.io), not on the site.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from paidonce.domain.events import PaymentEvent, Says
from paidonce.errors import (
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidMoneyError,
    MalformedError,
)
from paidonce.providers.contract import Call, Page, PageTurn, Reply
from paidonce.providers.portone_query import (
    CANCELLED,
    PAID,
    PARTIAL_CANCELLED,
    READY,
    Notice,
    Payment,
    event_of,
)

PAGE_SIZE: Final = 100
"""Ten kilobytes for each are within what a reply may hold."""
SLICE: Final = timedelta(days=1)
"""How much time is listed at once; both versions allow 90 days."""
MAX_READINGS: Final = 3
"""How often a list is read that changes under the reading."""

NOTICES: Final[Mapping[Says, str]] = {
    Says.PAID: PAID,
    Says.REFUNDED: PARTIAL_CANCELLED,
    Says.CANCELED: CANCELLED,
    Says.VOIDED: CANCELLED,
}
"""The event that says so much of a payment; `READY` says least."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one call found, and how many there are in all."""

    items: list[Any]
    total: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A list of payments, read slice by slice, and each of these page by page."""

    ask: Callable[[datetime, datetime, int], Generator[Call, Reply, Found]]
    """The page of this number, from 0, between these times."""
    read: Callable[[Mapping[str, Any]], PaymentEvent | None]
    """What an item says; None if it does not count here."""
    until: datetime
    then: Callable[[], PageTurn] | None = None
    """What is read after the last page."""

    def page(self, start: datetime, number: int = 0, total: int = -1, reading: int = 1) -> PageTurn:
        """A page of the slice that begins then. Raises GatewayUnreachableError."""
        end = min(start + SLICE, self.until)
        found = yield from self.ask(start, end, number)
        first_total = found.total if number == 0 else total
        entries, unreadable = self._entries(found.items)
        if found.items and (number + 1) * PAGE_SIZE < found.total:
            follows = partial(self.page, start, number + 1, first_total, reading)
        elif found.total != first_total and reading < MAX_READINGS:
            follows = partial(self.page, start, 0, -1, reading + 1)
        elif end < self.until:
            follows = partial(self.page, end)
        else:
            return Page(entries, unreadable, self.then)
        return Page(entries, unreadable, follows)

    def _entries(self, items: list[Any]) -> tuple[tuple[PaymentEvent, ...], int]:
        entries, unreadable = [], 0
        for item in items:
            try:
                entry = self.read(item if isinstance(item, dict) else {})
            except (MalformedError, InvalidMoneyError, GatewayMismatchError):
                unreadable += 1
                continue
            if entry is not None:
                entries.append(entry)
        return tuple(entries), unreadable


def found_in(items: Any, total: Any) -> Found:
    """The same of what a reply holds. Raises GatewayUnreachableError."""
    if not isinstance(items, list) or type(total) is not int:
        raise GatewayUnreachableError("its reply cannot be read: it holds no list of payments")
    return Found(items, total)


def entry_of(payment: Payment) -> PaymentEvent:
    """What the payment's newest webhook would be found to say."""
    return event_of(payment, Notice(READY, payment.ids[0].value, payment.order))
