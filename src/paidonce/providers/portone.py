"""PortOne (Korea), V2; V1 is in `portone_v1.py`.

What the API is asked is in `portone_api.py`, what it says in `portone_query.py` and, of many
payments, in `portone_statement.py`.

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
from uuid import uuid4

import orjson

from paidonce.domain.events import Code, Ignored
from paidonce.domain.money import known_currency
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
    Books,
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
from paidonce.providers.portone_api import Api, payment_id_of
from paidonce.providers.portone_query import (
    CANCELLED,
    FAILED,
    PAID,
    PARTIAL_CANCELLED,
    REACHED,
    READY,
    Notice,
    api_url,
    check_same,
    event_of,
    is_behind,
    needed_key,
    of_test_channel,
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
    api: Api
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

    def books(self) -> Books:
        return self.api

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
        payment = yield from self.api.find(notice.payment_id)
        if payment is None:
            raise GatewayUnreachableError(
                "it does not know the payment, or not yet; if it is of another store, set store_id"
            )
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
    store_id = setup.needed_text("store_id", "store-…") if has_store else None
    api_secret = needed_key(setup, "api_secret", "env:PORTONE_API_SECRET")
    return PortOne(
        secrets=tuple(secrets),
        api=Api(api_url(setup, API_URL), api_secret, store_id, setup.accepts_test),
        store_id=store_id,
        approves=setup.choice("confirm", ("refuse", "match-order")) == "match-order",
        currency=_currency(setup),
        tolerance_s=setup.tolerance_s,
        accepts_test=setup.accepts_test,
    )


def refuse_shared_stores(sources: Mapping[str, Provider]) -> None:
    """Raise ConfigurationError for V2 sources, by name, that would take the same payments.

    Without a store_id a secret shows the payments of its own store, whichever that is.
    """
    named: dict[tuple[str, str], dict[str | None, str]] = {}
    for name, one in sources.items():
        if isinstance(one, PortOne):
            others = named.setdefault((one.api.url, one.api.secret), {})
            if others and (one.store_id is None or None in others or one.store_id in others):
                other = others.get(one.store_id) or next(iter(others.values()))
                raise ConfigurationError(
                    f"sources.{name}.store_id, sources.{other}.store_id: both sources have the "
                    "same api_secret, and would take the same payments; name a store_id in each, "
                    "and not the same one"
                )
            others[one.store_id] = name


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
    payment_id = payment_id_of(said, "paymentId")
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
    payment_id = payment_id_of(said, "payment_id")
    return Notice(kind, payment_id, payment_id, text(said.get("tx_id"), "tx_id"))


def _not_an_event(kind: str, said: Mapping[str, Any], name: str, total: str) -> Question | Other:
    """What names a total may be a question under a name that is not known yet.

    Ignoring it would be answered 200, and so approve it.
    """
    if kind != CONFIRM and total not in said:
        return Other(kind)
    return Question(
        payment_id_of(said, name), text(said.get("storeId"), "storeId"), said.get(total)
    )
