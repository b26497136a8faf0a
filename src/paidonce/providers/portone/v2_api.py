"""PortOne's V2 API: one payment, and lists of payments. `payments.py` describes it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import orjson

from paidonce.core.events import EventType, ExternalId, PaymentEvent
from paidonce.core.money import known_currency
from paidonce.errors import GatewayMismatchError, MalformedError
from paidonce.providers import contract, read
from paidonce.providers.fields import external_ids
from paidonce.providers.portone import payments
from paidonce.providers.standard_webhooks import unsigned_headers

_REMEDY: Final = "check api_secret, which is PortOne's V2 API secret, not a payment gateway's"
_TIMES: Final = {
    payments.Status.PAID: "paidAt",
    payments.Status.FAILED: "failedAt",
    payments.Status.PARTIAL_CANCELLED: "cancelledAt",
    payments.Status.CANCELLED: "cancelledAt",
}
_WEBHOOK_TYPES: Final[Mapping[EventType, str]] = {
    EventType.PAID: "Transaction.Paid",
    EventType.REFUNDED: "Transaction.PartialCancelled",
    EventType.CANCELED: "Transaction.Cancelled",
    EventType.VOIDED: "Transaction.Cancelled",
}


@dataclass(frozen=True, slots=True)
class PortOneV2Api(contract.StatementApi):
    """The API with the access of one store."""

    url: str
    secret: str = field(repr=False)
    store_id: str | None
    accepts_test: bool

    def is_foreign(self, store_id: str | None) -> bool:
        """Whether a webhook names another store than the configured one."""
        return self.store_id is not None and store_id not in (None, self.store_id)

    def find(self, payment_id: str) -> contract.GatewayQuery[payments.PortOnePayment | None]:
        """Read a payment; None if it is unknown. Raises GatewayError."""
        url = f"{self.url}/payments/{quote(payment_id, safe='')}"
        if self.store_id is not None:
            url += f"?storeId={quote(self.store_id, safe='')}"
        response = yield self._get(url)
        if response.status == 404:
            return None
        payment = payments.read_payment(_parse_payment, payments.read_response(response, _REMEDY))
        payments.check_same("id", payment_id, payment.order)
        return payment

    def statement(
        self, since: datetime, until: datetime
    ) -> contract.GatewayQuery[contract.StatementPage]:
        return payments.StatementReader(self._list, self._translate, until).page(since)

    def look_up(self, ids: Collection[ExternalId]) -> contract.GatewayQuery[PaymentEvent | None]:
        payment = yield from self.find(next(one.value for one in ids if one.kind == "payment"))
        return None if payment is None else payments.statement_entry(payment)

    def build_webhook(self, entry: PaymentEvent) -> contract.Webhook:
        payment_id = entry.ids[0].value
        kind = _WEBHOOK_TYPES.get(entry.event_type, "Transaction.Ready")
        name = contract.fingerprint(
            payment_id, entry.event_type, entry.amount, entry.refunded
        ).hex()
        body = orjson.dumps({"type": kind, "data": {"paymentId": payment_id}})
        return unsigned_headers(f"reconcile-{name}"), body

    def _list(
        self, since: datetime, until: datetime, number: int
    ) -> contract.GatewayQuery[payments.PaymentList]:
        chosen: dict[str, Any] = {
            "timestampType": "STATUS_CHANGED_AT",
            "from": since.isoformat(),
            "until": until.isoformat(),
            "status": ["PAID", "PARTIAL_CANCELLED", "CANCELLED"],
            "version": "V2",
            "sortBy": "STATUS_CHANGED_AT",
            "sortOrder": "ASC",
        }
        chosen |= {} if self.accepts_test else {"isTest": False}
        chosen |= {} if self.store_id is None else {"storeId": self.store_id}
        query = orjson.dumps(
            {"page": {"number": number, "size": payments.PAGE_SIZE}, "filter": chosen}
        )
        response = yield self._get(f"{self.url}/payments?requestBody={quote(query, safe='')}")
        body = payments.read_response(response, _REMEDY)
        return payments.read_list(body.get("items"), read.part(body, "page").get("totalCount"))

    def _translate(self, body: read.Object) -> PaymentEvent | None:
        payment = _parse_payment(body)
        is_v1 = body.get("version") == "V1"  # belongs to another source, with other ids
        is_foreign = self.store_id not in (None, payment.store_id)
        is_test = payment.is_test and not self.accepts_test
        return None if is_v1 or is_foreign or is_test else payments.statement_entry(payment)

    def _get(self, url: str) -> contract.GatewayRequest:
        return contract.GatewayRequest("GET", url, {"Authorization": f"PortOne {self.secret}"})


def require_payment_id(body: read.Object, name: str) -> str:
    """Read a payment id that can be part of an address. Raises MalformedError."""
    payment_id = read.required_text(body, name)
    if payment_id in (".", ".."):  # in an address they would change the path
        raise MalformedError(f"{name} is not a valid id")
    return payment_id


def _parse_payment(body: read.Object) -> payments.PortOnePayment:
    """Raises MalformedError, InvalidMoneyError, GatewayMismatchError."""
    status = _parse_status(read.required_text(body, "status"))
    transaction_id = read.text(body, "transactionId")
    payment_id = require_payment_id(body, "id")
    time_name = _TIMES.get(status, "statusChangedAt")
    changed_name = time_name if time_name in body else "statusChangedAt"
    currency = known_currency(read.text(body, "currency") or "")
    amount = read.part(body, "amount")
    return payments.PortOnePayment(
        status=status,
        # PortOne makes the ids of transactions, so that one never belongs to two payments.
        ids=external_ids(payment=payment_id, transaction=transaction_id),
        order=payment_id,
        store_id=read.text(body, "storeId"),
        amount=read.required_minor_money(amount, "total", currency),
        cancelled=read.required_minor_money(amount, "cancelled", currency),
        is_test=read.part(body, "channel").get("type") == "TEST",
        cancellations=_succeeded_cancellations(body),
        transaction_id=transaction_id,
        disputes=tuple(one.get("status") == "RESOLVED" for one in read.parts(body, "disputes")),
        email=read.valid_email(read.part(body, "customer").get("email")),
        paid_at=read.time_or_drop(body, "paidAt"),
        changed_at=read.time_or_drop(body, changed_name),
    )


def _parse_status(value: str) -> payments.Status:
    try:
        return payments.Status(value)
    except ValueError:
        raise GatewayMismatchError("its status is unknown here") from None


def _succeeded_cancellations(body: read.Object) -> frozenset[str]:
    """Return the ids of cancellations that succeeded, without requested and failed ones."""
    succeeded = [
        one for one in read.parts(body, "cancellations") if one.get("status") == "SUCCEEDED"
    ]
    return frozenset(str(one.get("id")) for one in succeeded)
