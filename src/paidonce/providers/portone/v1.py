"""PortOne V1 (iamport).

    {"imp_uid": "imp_1234567890", "merchant_uid": "order-1", "status": "paid",
     "cancellation_id": "…"?}, or the same as a form

Webhooks are not signed: anybody who knows the address can send one. So a webhook only triggers a
lookup, and only the API is trusted: `POST /users/getToken`, then `GET /payments/{imp_uid}`. The
same webhook may be sent again after another change, so it is a duplicate only within a minute; a
later one triggers another lookup.

A payment that was cancelled in part still has the status `paid`: the amounts decide. Amounts are in
major units; times are seconds since 1970, or 0 where there is none.

https://developers.portone.io/opi/ko/integration/webhook/readme-v1,
https://developers.portone.io/opi/ko/extra/confirm-process/readme-v1 and
https://developers.portone.io/api/rest-v1/payment, checked on 2026-11-16.
"""

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Final

import orjson

from paidonce import errors
from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money, money
from paidonce.providers import contract, read
from paidonce.providers.portone import payments

API_URL: Final = "https://api.iamport.kr"
TOKEN_MARGIN_S: Final = 60
"""A token is not used in its last minute."""
REPEAT_S: Final = 60
"""A repeat in the same period is a duplicate; a later one triggers another lookup (INB-2)."""
TYPES: Final = {
    "ready": "Transaction.Ready",
    "paid": "Transaction.Paid",
    "failed": "Transaction.Failed",
    "cancelled": "Transaction.PartialCancelled",
}
"""The V2 type of each status; `cancelled` may mean in part."""
SAMPLE_STATUSES: Final = {"pending": "ready", "canceled": "cancelled", "refunded": "cancelled"}
CONFIRM: Final = "confirm"
"""Our own name for the question of `confirm_url`, which has an amount and no status."""

_REMEDY: Final = "check api_key and api_secret, which are those of PortOne's V1 API"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WEBHOOK_STATUSES: Final = {
    EventType.PAID: "paid",
    EventType.REFUNDED: "cancelled",
    EventType.CANCELED: "cancelled",
    EventType.VOIDED: "cancelled",
}
_TIMES: Final = {
    payments.Status.FAILED: "failed_at",
    payments.Status.PAID: "paid_at",
    payments.Status.PARTIAL_CANCELLED: "cancelled_at",
    payments.Status.CANCELLED: "cancelled_at",
}


class AccessToken:
    """The API's token, until shortly before it expires."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value = ""
        self._until_s = 0.0

    def current(self) -> str | None:
        """Return the token, None if there is no valid one."""
        return self._value if self._clock() < self._until_s else None

    def keep(self, value: str, lifetime_s: float) -> None:
        """Store a new token."""
        self._value = value
        self._until_s = self._clock() + lifetime_s - TOKEN_MARGIN_S


@dataclass(frozen=True, slots=True, eq=False)
class PortOneV1(contract.Provider):
    """A source of V1 webhooks."""

    name: ClassVar = "portone"
    content_types: ClassVar = frozenset({contract.JSON_TYPE, contract.FORM_TYPE})
    is_signed: ClassVar = False
    retries_rejected: ClassVar = False

    api_url: str
    api_key: str = field(repr=False)
    api_secret: str = field(repr=False)
    accepts_test: bool
    token: AccessToken = field(default_factory=AccessToken)

    def verify(self, delivery: contract.Delivery) -> None:
        """Accept everything: there is no signature, and `translate` trusts only the API."""

    def identify(self, delivery: contract.Delivery) -> contract.Identity:
        webhook = delivery.parse_once(_parse)
        status, payment_id, order = webhook.type, webhook.payment_id, webhook.order
        digest = contract.fingerprint(status, payment_id, order, webhook.cancellation_id)
        minute = int(delivery.received_at.timestamp() // REPEAT_S)
        name = f"v1:{payment_id}:{status}:{webhook.cancellation_id or ''}"
        # With the fingerprint, so that who guesses an id cannot take the key of the real event.
        key = f"{name}:{minute}:{digest.hex()}"
        return contract.Identity(key, digest, status, payment_id=payment_id, order=order)

    def translate(self, delivery: contract.Delivery) -> contract.LookupRequired | Ignored:
        webhook = delivery.parse_once(_parse)
        if webhook.type == CONFIRM:
            raise errors.NotApprovedError("payments are not confirmed here")
        kind = TYPES.get(webhook.type)
        if kind is None:
            return Ignored(Code.NON_SUCCESS_STATUS, "its status is unknown here")
        return contract.LookupRequired(partial(self._look_up, replace(webhook, type=kind)))

    def signature_method(self, delivery: contract.Delivery) -> str:
        return "none"

    def error_response(self, code: str, detail: str) -> contract.ResponseBody | None:
        """PortOne records why a payment was not approved."""
        if code != Code.NOT_APPROVED:
            return None
        return contract.JSON_TYPE, orjson.dumps({"reason": detail})

    def build_sample(self, sample: contract.SampleEvent) -> contract.Webhook:
        status = SAMPLE_STATUSES.get(sample.status, sample.status)
        return _webhook(sample.payment_id, sample.order or sample.payment_id, status)

    def statement_api(self) -> contract.StatementApi:
        return self

    def statement(
        self, since: datetime, until: datetime
    ) -> contract.GatewayQuery[contract.StatementPage]:
        list_paid, list_cancelled = (partial(self._list, one) for one in ("paid", "cancelled"))
        cancelled = payments.StatementReader(list_cancelled, self._translate, until)
        then = partial(cancelled.page, since)
        return payments.StatementReader(list_paid, self._translate, until, then).page(since)

    def look_up(self, ids: Collection[ExternalId]) -> contract.GatewayQuery[PaymentEvent | None]:
        payment = yield from self._find(next(one.value for one in ids if one.kind == "payment"))
        return None if payment is None else payments.statement_entry(payment)

    def build_webhook(self, entry: PaymentEvent) -> contract.Webhook:
        status = _WEBHOOK_STATUSES.get(entry.event_type, "ready")
        return _webhook(entry.ids[0].value, entry.order, status)

    def _look_up(self, change: payments.PortOneChange) -> contract.Lookup:
        payment = yield from self._find(change.payment_id)
        if payment is None:
            raise errors.GatewayMismatchError("the API does not know the payment", may_pass=True)
        payments.check_same("merchant_uid", change.order, payment.order)
        # An API that is behind is queried for days: V1 sends most webhooks once, and who names
        # both ids did not guess them.
        return payments.translate_payment(payment, change, self.accepts_test)

    def _find(self, payment_id: str) -> contract.GatewayQuery[payments.PortOnePayment | None]:
        # Without the parameter, the API does not return payments of test channels.
        response = yield from self._get(f"/payments/{payment_id}?include_sandbox=true")
        if response.status == 404:
            return None
        payment = payments.read_payment(_parse_payment, _read_response(response))
        payments.check_same("imp_uid", payment_id, payment.ids[0].value)
        return payment

    def _list(
        self, status: str, since: datetime, until: datetime, number: int
    ) -> contract.GatewayQuery[payments.PaymentList]:
        period = f"from={int(since.timestamp())}&to={int(until.timestamp())}"
        tests = "true" if self.accepts_test else "false"
        query = f"{period}&page={number + 1}&limit={payments.PAGE_SIZE}&include_sandbox={tests}"
        response = yield from self._get(f"/payments/status/{status}?{query}")
        if response.status == 404 or (response.status == 400 and number > 0):
            return payments.PaymentList([], 0)  # none, or no more
        body = _read_response(response)
        return payments.read_list(body.get("list"), body.get("total"))

    def _translate(self, body: read.Object) -> PaymentEvent | None:
        payment = _parse_payment(body)
        is_test = payment.is_test and not self.accepts_test
        return None if is_test else payments.statement_entry(payment)

    def _get(self, path: str) -> contract.GatewayQuery[contract.GatewayResponse]:
        """Request a path with a token; one that the API rejects is renewed once."""
        token = self.token.current() or (yield from self._new_token())
        response = yield self._request(path, token)
        if response.status == 401:
            token = yield from self._new_token()
            response = yield self._request(path, token)
        return response

    def _request(self, path: str, token: str) -> contract.GatewayRequest:
        headers = {"Authorization": f"Bearer {token}"}
        return contract.GatewayRequest("GET", f"{self.api_url}{path}", headers)

    def _new_token(self) -> contract.GatewayQuery[str]:
        keys = {"imp_key": self.api_key, "imp_secret": self.api_secret}
        url = f"{self.api_url}/users/getToken"
        response = yield contract.GatewayRequest("POST", url, json=keys)
        body = _read_response(response)
        value, now, until = (body.get(one) for one in ("access_token", "now", "expired_at"))
        if not (isinstance(value, str) and value and value.isascii() and value.isprintable()):
            raise errors.GatewayUnreachableError("the response cannot be read: it has no token")
        if type(now) is not int or type(until) is not int:
            raise errors.GatewayUnreachableError(
                "the response cannot be read: the token has no times"
            )
        self.token.keep(value, until - now)
        return value


def configure(config: contract.ProviderConfig) -> PortOneV1:
    """Build the provider of a source. Raises ConfigurationError."""
    config.reject_unknown_options({"version", "api_url", "api_key", "api_secret"})
    if config.secrets:
        raise errors.ConfigurationError(
            f'{config.key}.secrets: version = "v1" signs nothing; remove it'
        )
    return PortOneV1(
        api_url=config.url("api_url", API_URL),
        api_key=config.require_api_key("api_key", "env:PORTONE_API_KEY"),
        api_secret=config.require_api_key("api_secret", "env:PORTONE_API_SECRET"),
        accepts_test=config.accepts_test,
    )


def _webhook(payment_id: str, order: str | None, status: str) -> contract.Webhook:
    body = {"imp_uid": payment_id, "merchant_uid": order, "status": status}
    return {"content-type": contract.JSON_TYPE}, orjson.dumps(body)


def _parse(delivery: contract.Delivery) -> payments.PortOneChange:
    """Parse a webhook, with the status as its type. Anybody can have sent it."""
    body: read.Object = delivery.form if delivery.is_form else delivery.json
    payment_id = read.text(body, "imp_uid")
    if payment_id is None or not _ID.fullmatch(payment_id):
        raise errors.MalformedError("imp_uid is missing or not a valid id")
    status = read.text(body, "status")
    if status not in TYPES and "amount" in body:  # events have no amount
        status = CONFIRM
    if status is None:
        raise errors.MalformedError("status is missing")
    order, cancellation_id = read.text(body, "merchant_uid"), read.text(body, "cancellation_id")
    return payments.PortOneChange(status, payment_id, order, cancellation_id=cancellation_id)


def _read_response(response: contract.GatewayResponse) -> read.Object:
    """Return the content of a response. The API reports errors with status 200 too."""
    body = payments.read_response(response, _REMEDY)
    content = body.get("response")
    if body.get("code") != 0 or not isinstance(content, dict):
        raise errors.GatewayUnreachableError("the API answers with an error code")
    return content


def _parse_payment(body: read.Object) -> payments.PortOnePayment:
    """Raises MalformedError, InvalidMoneyError, GatewayMismatchError."""
    payment_id, order = (
        read.required_text(body, "imp_uid"),
        read.required_text(body, "merchant_uid"),
    )
    amount, cancelled = _money(body, "amount"), _money(body, "cancel_amount")
    status = _parse_status(read.required_text(body, "status"), amount, cancelled)
    return payments.PortOnePayment(
        status=status,
        ids=(ExternalId("payment", payment_id),),
        order=order,
        amount=amount,
        cancelled=cancelled,
        is_test=body.get("sandbox") is True,
        cancellations=_cancellations(body),
        email=read.valid_email(body.get("buyer_email")),
        paid_at=_time(body, "paid_at"),
        changed_at=_time(body, _TIMES.get(status, "started_at")),
    )


def _parse_status(value: str, amount: Money, cancelled: Money) -> payments.Status:
    """A payment that was cancelled in part is still called paid."""
    if value not in TYPES:
        raise errors.GatewayMismatchError("its status is unknown here")
    status = payments.Status(value.upper())
    if status is payments.Status.PAID and cancelled.amount_minor > 0:
        return payments.Status.PARTIAL_CANCELLED
    if status is payments.Status.CANCELLED and 0 < cancelled.amount_minor < amount.amount_minor:
        return payments.Status.PARTIAL_CANCELLED
    return status


def _money(body: read.Object, name: str) -> Money:
    amount = read.number(body, name)
    if amount is None or isinstance(amount, str):
        raise errors.MalformedError(f"{name} is not a number")
    return money(amount, read.text(body, "currency") or "")


def _cancellations(body: read.Object) -> frozenset[str]:
    ids = [one.get("cancellation_id") for one in read.parts(body, "cancel_history")]
    return frozenset(one for one in ids if isinstance(one, str))


def _time(body: read.Object, name: str) -> datetime | None:
    seconds = body.get(name)
    if type(seconds) is not int or not 0 < seconds < read.MAX_SECONDS:
        return None
    return datetime.fromtimestamp(seconds, UTC)
