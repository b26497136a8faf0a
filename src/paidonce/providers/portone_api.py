"""PortOne's V2 API: what it says of one payment, and which payments there are.

https://developers.portone.io/api/rest-v2/payment, read on 2026-11-16 in a stored copy of its
OpenAPI document (`src/schema` of github.com/portone-io/developers.portone.io), not on the site.
"""

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import orjson

from paidonce.domain.events import ExternalId, PaymentEvent
from paidonce.domain.money import EXPONENTS, MAX_AMOUNT, Money, known_currency
from paidonce.errors import GatewayMismatchError, MalformedError
from paidonce.providers.contract import Books, Call, Lookup, PageTurn, Reply, fingerprint
from paidonce.providers.fields import iso_time, text
from paidonce.providers.portone_query import (
    READY,
    Payment,
    Status,
    check_answer,
    check_same,
    email_of,
    of_test_channel,
    read_reply,
)
from paidonce.providers.portone_statement import (
    NOTICES,
    PAGE_SIZE,
    Found,
    Reading,
    entry_of,
    found_in,
)
from paidonce.providers.standard_webhooks import unsealed

_REMEDY: Final = "check api_secret, which is PortOne's V2 API secret and no payment gateway's"
_TIMES: Final = {
    Status.PAID: "paidAt",
    Status.FAILED: "failedAt",
    Status.PARTIAL_CANCELLED: "cancelledAt",
    Status.CANCELLED: "cancelledAt",
}


@dataclass(frozen=True, slots=True)
class Api(Books):
    """The API as one store may ask it."""

    url: str
    secret: str = field(repr=False)
    store_id: str | None
    accepts_test: bool

    def find(self, payment_id: str) -> Generator[Call, Reply, Payment | None]:
        """The payment, None if it is not known there. Raises GatewayError."""
        url = f"{self.url}/payments/{quote(payment_id, safe='')}"
        if self.store_id is not None:
            url += f"?storeId={quote(self.store_id, safe='')}"
        reply = yield self._call(url)
        if reply.status == 404:
            return None
        check_answer(reply, _REMEDY)
        payment = read_reply(_payment, reply.json)
        check_same("id", payment_id, payment.order)
        return payment

    def statement(self, since: datetime, until: datetime) -> PageTurn:
        return Reading(self._page, self._entry, until).page(since)

    def look_up(self, ids: Collection[ExternalId]) -> Lookup:
        payment = yield from self.find(next(one.value for one in ids if one.kind == "payment"))
        return None if payment is None else entry_of(payment)

    def notice_of(self, entry: PaymentEvent) -> tuple[dict[str, str], bytes]:
        payment_id = entry.ids[0].value
        said = {"type": NOTICES.get(entry.says, READY), "data": {"paymentId": payment_id}}
        name = fingerprint(payment_id, entry.says, entry.amount, entry.refunded).hex()
        return unsealed(f"reconcile-{name}"), orjson.dumps(said)

    def _page(self, since: datetime, until: datetime, number: int) -> Generator[Call, Reply, Found]:
        chosen: dict[str, Any] = {
            "timestampType": "STATUS_CHANGED_AT",
            "from": since.isoformat(),
            "until": until.isoformat(),
            "status": [Status.PAID, Status.PARTIAL_CANCELLED, Status.CANCELLED],
            "version": "V2",
            "sortBy": "STATUS_CHANGED_AT",
            "sortOrder": "ASC",
        }
        chosen |= {} if self.accepts_test else {"isTest": False}
        chosen |= {} if self.store_id is None else {"storeId": self.store_id}
        asked = orjson.dumps({"page": {"number": number, "size": PAGE_SIZE}, "filter": chosen})
        reply = yield self._call(f"{self.url}/payments?requestBody={quote(asked, safe='')}")
        check_answer(reply, _REMEDY)
        said = reply.json
        return found_in(said.get("items"), _part(said, "page").get("totalCount"))

    def _entry(self, found: Mapping[str, Any]) -> PaymentEvent | None:
        payment = _payment(found)
        is_older = found.get("version") == "V1"  # of another source, under other ids
        is_foreign = self.store_id not in (None, payment.store_id)
        if is_older or is_foreign or of_test_channel(payment, self.accepts_test):
            return None
        return entry_of(payment)

    def _call(self, url: str) -> Call:
        return Call("GET", url, {"Authorization": f"PortOne {self.secret}"})


def payment_id_of(said: Mapping[str, Any], name: str) -> str:
    """The id of a payment, as it can stand in an address. Raises MalformedError."""
    payment_id = text(said.get(name), name)
    if payment_id is None:
        raise MalformedError(f"{name} is missing")
    if payment_id in (".", ".."):  # as a part of an address they would lead elsewhere
        raise MalformedError(f"{name} cannot be an id")
    return payment_id


def _payment(found: Mapping[str, Any]) -> Payment:
    """What the API says. Raises MalformedError or InvalidMoneyError."""
    status = _status(text(found.get("status"), "status"))
    transaction_id = text(found.get("transactionId"), "transactionId")
    payment_id = payment_id_of(found, "id")
    changed_at = found.get(_TIMES.get(status, ""), found.get("statusChangedAt"))
    currency = known_currency(text(found.get("currency"), "currency") or "")
    amount = _part(found, "amount")
    return Payment(
        status=status,
        ids=_ids(payment_id, transaction_id),
        order=payment_id,
        store_id=text(found.get("storeId"), "storeId"),
        amount=_money(amount, "total", currency),
        cancelled=_money(amount, "cancelled", currency),
        is_test=_part(found, "channel").get("type") == "TEST",
        cancellations=_succeeded(found),
        transaction_id=transaction_id,
        disputes=tuple(one.get("status") == "RESOLVED" for one in _list(found, "disputes")),
        email=email_of(_part(found, "customer").get("email")),
        paid_at=iso_time(found.get("paidAt"), "paidAt"),
        changed_at=iso_time(changed_at, "the time of its status"),
    )


def _ids(payment_id: str, transaction_id: str | None) -> tuple[ExternalId, ...]:
    """PortOne makes the ids of transactions, so that one never leads to two payments."""
    known = ExternalId("payment", payment_id)
    return (known, ExternalId("transaction", transaction_id)) if transaction_id else (known,)


def _status(word: str | None) -> Status:
    if word is None:
        raise MalformedError("status is missing")
    try:
        return Status(word)
    except ValueError:
        raise GatewayMismatchError("its status is none that is known here") from None


def _money(amount: Mapping[str, Any], name: str, currency: str) -> Money:
    minor = amount.get(name)
    if type(minor) is not int or not 0 <= minor <= MAX_AMOUNT * 10 ** EXPONENTS[currency]:
        raise MalformedError(f"amount.{name} is no amount in minor units")
    return Money(minor, currency)


def _succeeded(found: Mapping[str, Any]) -> frozenset[str]:
    """The cancellations that count. One that was only asked for, or failed, is none."""
    succeeded = [one for one in _list(found, "cancellations") if one.get("status") == "SUCCEEDED"]
    return frozenset(str(one.get("id")) for one in succeeded)


def _part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = found.get(name)
    return part if isinstance(part, dict) else {}


def _list(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    items = found.get(name)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
