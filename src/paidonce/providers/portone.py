"""PortOne (Korea), V2; V1 is in `portone_v1.py`, what both find in `portone_query.py`.

V2 signs by Standard Webhooks. Its events say only "look"; what counts is what the query API says of
the payment (`GET /payments/{paymentId}`). Bodies come in two versions, as the merchant chose:

    2024-04-25  {"type": "Transaction.Paid", "timestamp": "2026-11-15T10:00:00.000Z",
                 "data": {"paymentId": "…", "transactionId": "…", "storeId": "…"?,
                          "cancellationId": "…"?}}
    2024-01-01  {"payment_id": "…", "tx_id": "…", "status": "Paid"}, or the same as a form

`paymentId` is the merchant's own, and his order's reference; a `transactionId` is one attempt of
it. `Transaction.Confirm` (`total_amount` instead of a status in the older version) is no event but
a question, sent before the money is taken: whoever answers 200 approves.

https://developers.portone.io/opi/ko/integration/webhook/readme-v2,
https://developers.portone.io/opi/ko/extra/confirm-process/readme-v2 and
https://developers.portone.io/api/rest-v2/payment, checked on 2026-11-16.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, assert_never
from urllib.parse import quote
from uuid import uuid4

import orjson

from paidonce.domain.events import Code, ExternalId, Ignored
from paidonce.domain.money import EXPONENTS, MAX_AMOUNT, Money, known_currency
from paidonce.errors import (
    ConfigurationError,
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidMoneyError,
    InvalidSignatureError,
    MalformedError,
    NotApprovedError,
)
from paidonce.providers import portone_v1
from paidonce.providers.contract import (
    Call,
    Confirmation,
    Conversation,
    Delivery,
    Identity,
    Provider,
    Sample,
    Setup,
    Thin,
    fingerprint,
)
from paidonce.providers.fields import iso_time, text
from paidonce.providers.form_strict import CONTENT_TYPE, is_form, parse_form
from paidonce.providers.portone_query import (
    CANCELLED,
    FAILED,
    PAID,
    PARTIAL_CANCELLED,
    REACHED,
    READY,
    Notice,
    Payment,
    Status,
    api_url,
    check_answer,
    check_same,
    email_of,
    event_of,
    is_behind,
    needed_key,
    of_test_channel,
    read_reply,
)
from paidonce.providers.standard_webhooks import PARTS, envelope, sealed, symmetric_secret

API_URL: Final = "https://api.portone.io"
CONFIRM: Final = "Transaction.Confirm"
DEFAULT_CURRENCY: Final = "KRW"
TYPES: Final = {
    "paid": PAID,
    "failed": FAILED,
    "canceled": CANCELLED,
    "refunded": PARTIAL_CANCELLED,
    "pending": READY,
}
"""The events that say so, for test webhooks."""

_KEPT: Final = frozenset({"content-type", "user-agent", *(f"webhook-{part}" for part in PARTS)})
_OTHER: Final = Ignored(Code.NON_SUCCESS_STATUS, "it is no event of a payment")
_REMEDY: Final = "check api_secret, which is PortOne's V2 API secret and no payment gateway's"
_TIMES: Final = {
    Status.PAID: "paidAt",
    Status.FAILED: "failedAt",
    Status.PARTIAL_CANCELLED: "cancelledAt",
    Status.CANCELLED: "cancelledAt",
}
_WHOLE: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Question:
    """What `Transaction.Confirm` asks: may so much be taken for this payment?"""

    payment_id: str
    store_id: str | None
    total: Any  # as it was sent
    type: str = CONFIRM


@dataclass(frozen=True, slots=True)
class Other:
    """An event that concerns no payment, or of a type that is not known yet."""

    type: str


@dataclass(frozen=True, slots=True, eq=False)
class PortOne(Provider):
    """A source of one store's V2 events."""

    name: ClassVar = "portone"
    content_types: ClassVar = frozenset({"application/json", CONTENT_TYPE})

    secrets: tuple[bytes, ...] = field(repr=False)
    api_url: str
    api_secret: str = field(repr=False)
    store_id: str | None
    approves: bool
    """Whether a question is passed on, to be held against its order. Else the answer is no."""
    currency: str
    """Of questions, which name none."""
    tolerance_s: int | None
    accepts_test: bool

    def verify(self, delivery: Delivery) -> None:
        given = envelope(delivery.headers)
        if not given.is_signed(delivery.body, self.secrets):
            raise InvalidSignatureError("no signature matches the delivery")
        given.check_age(delivery, self.tolerance_s)

    def identify(self, delivery: Delivery) -> Identity:
        event_id = envelope(delivery.headers).id
        said = delivery.read(_read)
        if not isinstance(said, Notice):
            payment_id = said.payment_id if isinstance(said, Question) else None
            return Identity(
                key=event_id,
                fingerprint=fingerprint(said.type, payment_id),
                type=said.type,
                event_id=event_id,
                payment_id=payment_id,
                order=payment_id,
            )
        return Identity(
            key=event_id,
            fingerprint=fingerprint(
                said.type, said.payment_id, said.transaction_id, said.cancellation_id
            ),
            type=said.type,
            event_id=event_id,
            payment_id=said.payment_id,
            order=said.order,
            occurred_at=said.occurred_at,
        )

    def translate(self, delivery: Delivery) -> Thin | Confirmation | Ignored:
        said = delivery.read(_read)
        match said:
            case Notice():
                return Thin(partial(self._ask, said))
            case Question():
                return self._confirmation(said)
            case Other():
                return _OTHER
            case _:
                assert_never(said)

    def signature_method(self, delivery: Delivery) -> str:
        return "hmac-sha256"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name in _KEPT}

    def refuse(self, code: str, detail: str) -> tuple[str, bytes] | None:
        """The buyer is shown why his payment was not approved."""
        if code != Code.NOT_APPROVED:
            return None
        return "application/json", orjson.dumps({"errorMessage": detail})

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        data = {"paymentId": sample.order or sample.payment_id, "transactionId": sample.payment_id}
        if self.store_id is not None:
            data["storeId"] = self.store_id
        kind = TYPES.get(sample.status, sample.status)
        said = {"type": kind, "timestamp": sample.sent_at.isoformat(), "data": data}
        body = orjson.dumps(said)
        return sealed(sample, sample.event_id or uuid4().hex, body, self.secrets[0]), body

    def usual_currency(self) -> str:
        return self.currency

    def _confirmation(self, asked: Question) -> Confirmation:
        if not self.approves:
            raise NotApprovedError("payments are not confirmed here")
        if self.store_id is not None and asked.store_id not in (None, self.store_id):
            raise NotApprovedError("it is of another store")
        if not _WHOLE.fullmatch(str(asked.total)):
            raise MalformedError("the total amount is not a whole number")
        return Confirmation(asked.payment_id, int(asked.total), self.currency)

    def _ask(self, notice: Notice) -> Conversation:
        if self.store_id is not None and notice.store_id not in (None, self.store_id):
            raise GatewayMismatchError("the event is of another store than store_id")
        url = f"{self.api_url}/payments/{quote(notice.payment_id, safe='')}"
        if self.store_id is not None:
            url += f"?storeId={quote(self.store_id, safe='')}"
        reply = yield Call("GET", url, {"Authorization": f"PortOne {self.api_secret}"})
        if reply.status == 404:
            raise GatewayUnreachableError(
                "it does not know the payment, or not yet; if it is of another store, set store_id"
            )
        check_answer(reply, _REMEDY)
        payment = read_reply(_payment, reply.json)
        check_same("id", notice.payment_id, payment.order)
        check_same("store", notice.store_id or self.store_id, payment.store_id)
        ignored = of_test_channel(payment, self.accepts_test)
        if ignored is not None:
            return ignored
        if is_behind(payment, notice):
            raise GatewayUnreachableError("it has not caught up with its own event")
        return event_of(payment, notice)


def configure(setup: Setup) -> Provider:
    """A source from its settings. Raises ConfigurationError."""
    if setup.choice("version", ("v2", "v1")) == "v1":
        return portone_v1.configure(setup)
    setup.refuse_options_but(
        {"version", "api_url", "api_secret", "store_id", "confirm", "currency"}
    )
    secrets = [
        symmetric_secret(secret, f"{setup.key}.secrets[{index}]", "whsec_…")
        for index, secret in enumerate(setup.needed_secrets())
    ]
    has_store = "store_id" in setup.options
    return PortOne(
        secrets=tuple(secrets),
        api_url=api_url(setup, API_URL),
        api_secret=needed_key(setup, "api_secret", "env:PORTONE_API_SECRET"),
        store_id=setup.needed_text("store_id", "store-…") if has_store else None,
        approves=setup.choice("confirm", ("refuse", "match-order")) == "match-order",
        currency=_currency(setup),
        tolerance_s=setup.tolerance_s,
        accepts_test=setup.accepts_test,
    )


def _currency(setup: Setup) -> str:
    chosen = setup.options.get("currency", DEFAULT_CURRENCY)
    try:
        return known_currency(str(chosen))
    except InvalidMoneyError as error:
        raise ConfigurationError(f"{setup.key}.currency = {chosen!r}: {error}") from None


def _read(delivery: Delivery) -> Notice | Question | Other:
    if is_form(delivery):
        return _read_older(parse_form(delivery.body))
    body = delivery.json
    return _read_newer(body) if "type" in body else _read_older(body)


def _read_newer(body: Mapping[str, Any]) -> Notice | Question | Other:
    """A body of version 2024-04-25."""
    kind = text(body["type"], "type")
    if kind is None:
        raise MalformedError("type is missing")
    data = body.get("data")
    said = data if isinstance(data, dict) else {}
    if kind not in REACHED:
        return _not_an_event(kind, said, "paymentId", "totalAmount")
    payment_id = _payment_id(said, "paymentId")
    return Notice(
        type=kind,
        payment_id=payment_id,
        order=payment_id,
        transaction_id=text(said.get("transactionId"), "transactionId"),
        cancellation_id=text(said.get("cancellationId"), "cancellationId"),
        store_id=text(said.get("storeId"), "storeId"),
        occurred_at=iso_time(body.get("timestamp"), "timestamp"),
    )


def _read_older(said: Mapping[str, Any]) -> Notice | Question | Other:
    """A body of version 2024-01-01."""
    status = text(said.get("status"), "status")
    if status is None and "total_amount" not in said:
        raise MalformedError("status is missing")
    kind = CONFIRM if status is None else f"Transaction.{status}"
    if kind not in REACHED:
        return _not_an_event(kind, said, "payment_id", "total_amount")
    payment_id = _payment_id(said, "payment_id")
    return Notice(kind, payment_id, payment_id, text(said.get("tx_id"), "tx_id"))


def _not_an_event(kind: str, said: Mapping[str, Any], name: str, total: str) -> Question | Other:
    """What names a total may be a question under a name that is not known yet.

    Ignoring it would be answered 200, and so approve it.
    """
    if kind != CONFIRM and total not in said:
        return Other(kind)
    return Question(_payment_id(said, name), text(said.get("storeId"), "storeId"), said.get(total))


def _payment_id(said: Mapping[str, Any], name: str) -> str:
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
    payment_id = _payment_id(found, "id")
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
