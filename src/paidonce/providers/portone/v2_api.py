"""PortOne's V2 API: one payment, and lists of payments.

https://developers.portone.io/api/rest-v2/payment, read on 2026-11-16 in a stored copy of its
OpenAPI document (`src/schema` of github.com/portone-io/developers.portone.io), not on the site.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import orjson

from paidonce.core.events import EventType, ExternalId, PaymentEvent
from paidonce.core.money import EXPONENTS, MAX_AMOUNT, Money, known_currency
from paidonce.errors import GatewayMismatchError, MalformedError
from paidonce.providers.contract import (
    GatewayQuery,
    GatewayRequest,
    StatementApi,
    StatementPage,
    Webhook,
    fingerprint,
)
from paidonce.providers.fields import Object, read_iso_time, read_text, require_text
from paidonce.providers.portone.payment import (
    CANCELLED,
    PAGE_SIZE,
    PAID,
    PARTIAL_CANCELLED,
    READY,
    PaymentList,
    PortOnePayment,
    PortOneStatus,
    StatementReader,
    check_response,
    check_same,
    read_list,
    read_payment,
    statement_entry,
    valid_email,
)
from paidonce.providers.standard_webhooks import unsigned_headers

_REMEDY: Final = "check api_secret, which is PortOne's V2 API secret, not a payment gateway's"
_TIMES: Final = {
    PortOneStatus.PAID: "paidAt",
    PortOneStatus.FAILED: "failedAt",
    PortOneStatus.PARTIAL_CANCELLED: "cancelledAt",
    PortOneStatus.CANCELLED: "cancelledAt",
}
_WEBHOOK_TYPES: Final[Mapping[EventType, str]] = {
    EventType.PAID: PAID,
    EventType.REFUNDED: PARTIAL_CANCELLED,
    EventType.CANCELED: CANCELLED,
    EventType.VOIDED: CANCELLED,
}


@dataclass(frozen=True, slots=True)
class PortOneV2Api(StatementApi):
    """The API with the access of one store."""

    url: str
    secret: str = field(repr=False)
    store_id: str | None
    accepts_test: bool

    def find(self, payment_id: str) -> GatewayQuery[PortOnePayment | None]:
        """Read a payment; None if it is unknown. Raises GatewayError."""
        url = f"{self.url}/payments/{quote(payment_id, safe='')}"
        if self.store_id is not None:
            url += f"?storeId={quote(self.store_id, safe='')}"
        response = yield self._get(url)
        if response.status == 404:
            return None
        check_response(response, _REMEDY)
        payment = read_payment(_parse_payment, response.json)
        check_same("id", payment_id, payment.order)
        return payment

    def statement(self, since: datetime, until: datetime) -> GatewayQuery[StatementPage]:
        return StatementReader(self._list, self._translate, until).page(since)

    def look_up(self, ids: Collection[ExternalId]) -> GatewayQuery[PaymentEvent | None]:
        payment = yield from self.find(next(one.value for one in ids if one.kind == "payment"))
        return None if payment is None else statement_entry(payment)

    def build_webhook(self, entry: PaymentEvent) -> Webhook:
        payment_id, kind = entry.ids[0].value, _WEBHOOK_TYPES.get(entry.event_type, READY)
        name = fingerprint(payment_id, entry.event_type, entry.amount, entry.refunded).hex()
        body = orjson.dumps({"type": kind, "data": {"paymentId": payment_id}})
        return unsigned_headers(f"reconcile-{name}"), body

    def _list(self, since: datetime, until: datetime, number: int) -> GatewayQuery[PaymentList]:
        chosen: dict[str, Any] = {
            "timestampType": "STATUS_CHANGED_AT",
            "from": since.isoformat(),
            "until": until.isoformat(),
            "status": [
                PortOneStatus.PAID,
                PortOneStatus.PARTIAL_CANCELLED,
                PortOneStatus.CANCELLED,
            ],
            "version": "V2",
            "sortBy": "STATUS_CHANGED_AT",
            "sortOrder": "ASC",
        }
        chosen |= {} if self.accepts_test else {"isTest": False}
        chosen |= {} if self.store_id is None else {"storeId": self.store_id}
        query = orjson.dumps({"page": {"number": number, "size": PAGE_SIZE}, "filter": chosen})
        response = yield self._get(f"{self.url}/payments?requestBody={quote(query, safe='')}")
        check_response(response, _REMEDY)
        body = response.json
        return read_list(body.get("items"), _part(body, "page").get("totalCount"))

    def _translate(self, body: Object) -> PaymentEvent | None:
        payment = _parse_payment(body)
        is_v1 = body.get("version") == "V1"  # belongs to another source, with other ids
        is_foreign = self.store_id not in (None, payment.store_id)
        is_test = payment.is_test and not self.accepts_test
        return None if is_v1 or is_foreign or is_test else statement_entry(payment)

    def _get(self, url: str) -> GatewayRequest:
        return GatewayRequest("GET", url, {"Authorization": f"PortOne {self.secret}"})


def require_payment_id(body: Object, name: str) -> str:
    """Read a payment id that can be part of an address. Raises MalformedError."""
    payment_id = require_text(body, name)
    if payment_id in (".", ".."):  # in an address they would change the path
        raise MalformedError(f"{name} is not a valid id")
    return payment_id


def _parse_payment(body: Object) -> PortOnePayment:
    """Raises MalformedError, InvalidMoneyError, GatewayMismatchError."""
    status = _parse_status(require_text(body, "status"))
    transaction_id = read_text(body, "transactionId")
    payment_id = require_payment_id(body, "id")
    time_name = _TIMES.get(status, "statusChangedAt")
    currency = known_currency(read_text(body, "currency") or "")
    amount = _part(body, "amount")
    return PortOnePayment(
        status=status,
        ids=_ids(payment_id, transaction_id),
        order=payment_id,
        store_id=read_text(body, "storeId"),
        amount=_money(amount, "total", currency),
        cancelled=_money(amount, "cancelled", currency),
        is_test=_part(body, "channel").get("type") == "TEST",
        cancellations=_succeeded_cancellations(body),
        transaction_id=transaction_id,
        disputes=tuple(one.get("status") == "RESOLVED" for one in _objects(body, "disputes")),
        email=valid_email(_part(body, "customer").get("email")),
        paid_at=read_iso_time(body, "paidAt"),
        changed_at=read_iso_time(body, time_name if time_name in body else "statusChangedAt"),
    )


def _ids(payment_id: str, transaction_id: str | None) -> tuple[ExternalId, ...]:
    """PortOne makes the ids of transactions, so that one never belongs to two payments."""
    payment = ExternalId("payment", payment_id)
    return (payment, ExternalId("transaction", transaction_id)) if transaction_id else (payment,)


def _parse_status(value: str) -> PortOneStatus:
    try:
        return PortOneStatus(value)
    except ValueError:
        raise GatewayMismatchError("its status is unknown here") from None


def _money(amount: Object, name: str, currency: str) -> Money:
    minor = amount.get(name)
    if type(minor) is not int or not 0 <= minor <= MAX_AMOUNT * 10 ** EXPONENTS[currency]:
        raise MalformedError(f"amount.{name} is not an amount in minor units")
    return Money(minor, currency)


def _succeeded_cancellations(body: Object) -> frozenset[str]:
    """Return the ids of cancellations that succeeded, without requested and failed ones."""
    succeeded = [one for one in _objects(body, "cancellations") if one.get("status") == "SUCCEEDED"]
    return frozenset(str(one.get("id")) for one in succeeded)


def _part(body: Object, name: str) -> Object:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _objects(body: Object, name: str) -> list[Object]:
    items = body.get(name)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
