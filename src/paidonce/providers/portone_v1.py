"""PortOne V1 (iamport), a part of provider `portone`.

    {"imp_uid": "imp_1234567890", "merchant_uid": "order-1", "status": "paid",
     "cancellation_id": "…"?}, or the same as a form

Nothing is signed: whoever knows the address can send it. So a webhook is only a reason to look, and
nothing is believed but the query API: `POST /users/getToken`, then `GET /payments/{imp_uid}`. The
same webhook may be sent again when more has happened, so that it is a duplicate only within a
minute; a later one is a reason to look again.

A payment that was canceled in part is still `paid`: the amounts tell. Amounts are in major units,
times are counts of seconds, and 0 where there is none.

https://developers.portone.io/opi/ko/integration/webhook/readme-v1,
https://developers.portone.io/opi/ko/extra/confirm-process/readme-v1 and
https://developers.portone.io/api/rest-v1/payment, checked on 2026-11-16.
"""

import re
import time
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

import orjson

from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Says
from paidonce.domain.money import Money, money
from paidonce.errors import (
    ConfigurationError,
    GatewayMismatchError,
    GatewayUnreachableError,
    MalformedError,
    NotApprovedError,
)
from paidonce.providers.contract import (
    Books,
    Call,
    Conversation,
    Delivery,
    Identity,
    Lookup,
    PageTurn,
    Provider,
    Reply,
    Sample,
    Setup,
    Thin,
    fingerprint,
)
from paidonce.providers.fields import number, text
from paidonce.providers.form_strict import CONTENT_TYPE, is_form, parse_form
from paidonce.providers.portone_query import (
    FAILED,
    PAID,
    PARTIAL_CANCELLED,
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
from paidonce.providers.portone_statement import (
    PAGE_SIZE,
    Found,
    Reading,
    entry_of,
    found_in,
)

API_URL: Final = "https://api.iamport.kr"
TOKEN_MARGIN_S: Final = 60
"""A token is not used in the last minute of its life."""
REPEAT_S: Final = 60
"""A repeat within so many seconds is a duplicate; a later one makes us look again (INB-2)."""
TYPES: Final = {"ready": READY, "paid": PAID, "failed": FAILED, "cancelled": PARTIAL_CANCELLED}
"""What each status says of a payment; `cancelled` may have been in part."""
STATUSES: Final = {"pending": "ready", "canceled": "cancelled", "refunded": "cancelled"}
"""The statuses that say so, for test webhooks; others are their own."""
CONFIRM: Final = "confirm"
"""Our name for the question of `confirm_url`, which has an amount and no status."""

_KEPT: Final = frozenset({"content-type", "user-agent"})
_OTHER: Final = Ignored(Code.NON_SUCCESS_STATUS, "its status is none that is known here")
_REMEDY: Final = "check api_key and api_secret, which are those of PortOne's V1 API"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FOUND: Final = {
    "ready": Status.READY,
    "paid": Status.PAID,
    "failed": Status.FAILED,
    "cancelled": Status.CANCELLED,
}
_WORDS: Final = {
    Says.PAID: "paid",
    Says.REFUNDED: "cancelled",
    Says.CANCELED: "cancelled",
    Says.VOIDED: "cancelled",
}
_TIMES: Final = {
    Status.FAILED: "failed_at",
    Status.PAID: "paid_at",
    Status.PARTIAL_CANCELLED: "cancelled_at",
    Status.CANCELLED: "cancelled_at",
}
_MAX_SECONDS: Final = 10**11


class Token:
    """The API's token, until shortly before it expires."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value = ""
        self._until_s = 0.0

    def current(self) -> str | None:
        """The token, None if there is none that is still good."""
        return self._value if self._clock() < self._until_s else None

    def keep(self, value: str, lifetime_s: float) -> None:
        """Remember a token that the API has just given."""
        self._value = value
        self._until_s = self._clock() + lifetime_s - TOKEN_MARGIN_S


@dataclass(frozen=True, slots=True)
class Said:
    """What a webhook says. Anybody can have sent it."""

    status: str
    payment_id: str
    order: str | None
    cancellation_id: str | None


@dataclass(frozen=True, slots=True, eq=False)
class PortOneV1(Provider):
    """A source of V1 webhooks."""

    name: ClassVar = "portone"
    content_types: ClassVar = frozenset({"application/json", CONTENT_TYPE})
    is_signed: ClassVar = False
    retries_refused: ClassVar = False

    api_url: str
    api_key: str = field(repr=False)
    api_secret: str = field(repr=False)
    accepts_test: bool
    token: Token = field(default_factory=Token)

    def verify(self, delivery: Delivery) -> None:
        """There is nothing to verify; `translate` believes nothing that was sent."""

    def identify(self, delivery: Delivery) -> Identity:
        said = delivery.read(_read)
        digest = fingerprint(said.status, said.payment_id, said.order, said.cancellation_id)
        minute = int(delivery.received_at.timestamp() // REPEAT_S)
        named = f"v1:{said.payment_id}:{said.status}:{said.cancellation_id or ''}"
        # With the fingerprint, so that who guesses an id cannot take the key of the real one.
        return Identity(
            key=f"{named}:{minute}:{digest.hex()}",
            fingerprint=digest,
            type=said.status,
            payment_id=said.payment_id,
            order=said.order,
        )

    def translate(self, delivery: Delivery) -> Thin | Ignored:
        said = delivery.read(_read)
        if said.status == CONFIRM:
            raise NotApprovedError("payments are not confirmed here")
        kind = TYPES.get(said.status)
        if kind is None:
            return _OTHER
        notice = Notice(kind, said.payment_id, said.order, cancellation_id=said.cancellation_id)
        return Thin(partial(self._ask, notice))

    def signature_method(self, delivery: Delivery) -> str:
        return "none"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name in _KEPT}

    def refuse(self, code: str, detail: str) -> tuple[str, bytes] | None:
        """PortOne records why a payment was not approved."""
        if code != Code.NOT_APPROVED:
            return None
        return "application/json", orjson.dumps({"reason": detail})

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        said = {
            "imp_uid": sample.payment_id,
            "merchant_uid": sample.order or sample.payment_id,
            "status": STATUSES.get(sample.status, sample.status),
        }
        return {"content-type": "application/json"}, orjson.dumps(said)

    def books(self) -> Books:
        return self

    def statement(self, since: datetime, until: datetime) -> PageTurn:
        canceled = Reading(partial(self._list, "cancelled"), self._entry, until)
        paid = partial(self._list, "paid")
        return Reading(paid, self._entry, until, partial(canceled.page, since)).page(since)

    def look_up(self, ids: Collection[ExternalId]) -> Lookup:
        payment = yield from self._find(next(one.value for one in ids if one.kind == "payment"))
        return None if payment is None else entry_of(payment)

    def notice_of(self, entry: PaymentEvent) -> tuple[dict[str, str], bytes]:
        status = _WORDS.get(entry.says, "ready")
        said = {"imp_uid": entry.ids[0].value, "merchant_uid": entry.order, "status": status}
        return {"content-type": "application/json"}, orjson.dumps(said)

    def _ask(self, notice: Notice) -> Conversation:
        payment = yield from self._find(notice.payment_id)
        if payment is None:
            raise GatewayMismatchError("it does not know the payment", may_pass=True)
        check_same("merchant_uid", notice.order, payment.order)
        ignored = of_test_channel(payment, self.accepts_test)
        if ignored is not None:
            return ignored
        if is_behind(payment, notice):
            # Asked for days: V1 tells most things once, and who names both ids did not guess them.
            raise GatewayUnreachableError("it has not caught up with its own event")
        return event_of(payment, notice)

    def _find(self, payment_id: str) -> Generator[Call, Reply, Payment | None]:
        # Without the parameter the API does not know the payments of test channels.
        reply = yield from self._get(f"/payments/{payment_id}?include_sandbox=true")
        if reply.status == 404:
            return None
        payment = read_reply(_payment, _response(reply))
        check_same("imp_uid", payment_id, payment.ids[0].value)
        return payment

    def _list(
        self, status: str, since: datetime, until: datetime, number: int
    ) -> Generator[Call, Reply, Found]:
        within = f"from={int(since.timestamp())}&to={int(until.timestamp())}"
        tests = "true" if self.accepts_test else "false"
        asked = f"{within}&page={number + 1}&limit={PAGE_SIZE}&include_sandbox={tests}"
        reply = yield from self._get(f"/payments/status/{status}?{asked}")
        if reply.status == 404 or (reply.status == 400 and number > 0):
            return Found([], 0)  # there are none, or none any more
        response = _response(reply)
        return found_in(response.get("list"), response.get("total"))

    def _entry(self, found: Mapping[str, Any]) -> PaymentEvent | None:
        payment = _payment(found)
        return None if of_test_channel(payment, self.accepts_test) else entry_of(payment)

    def _get(self, path: str) -> Generator[Call, Reply, Reply]:
        """The answer, with a token that is good; one that was thought so is renewed once."""
        token = self.token.current() or (yield from self._new_token())
        reply = yield self._call(path, token)
        if reply.status == 401:
            token = yield from self._new_token()
            reply = yield self._call(path, token)
        return reply

    def _call(self, path: str, token: str) -> Call:
        return Call("GET", f"{self.api_url}{path}", {"Authorization": f"Bearer {token}"})

    def _new_token(self) -> Generator[Call, Reply, str]:
        keys = {"imp_key": self.api_key, "imp_secret": self.api_secret}
        reply = yield Call("POST", f"{self.api_url}/users/getToken", json=keys)
        response = _response(reply)
        value, now, until = (response.get(one) for one in ("access_token", "now", "expired_at"))
        if not (isinstance(value, str) and value and value.isascii() and value.isprintable()):
            raise GatewayUnreachableError("its reply cannot be read: it holds no token")
        if type(now) is not int or type(until) is not int:
            raise GatewayUnreachableError("its reply cannot be read: the token has no times")
        self.token.keep(value, until - now)
        return value


def configure(setup: Setup) -> PortOneV1:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"version", "api_url", "api_key", "api_secret"})
    if setup.secrets:
        raise ConfigurationError(f'{setup.key}.secrets: version = "v1" signs nothing; leave it out')
    return PortOneV1(
        api_url=api_url(setup, API_URL),
        api_key=needed_key(setup, "api_key", "env:PORTONE_API_KEY"),
        api_secret=needed_key(setup, "api_secret", "env:PORTONE_API_SECRET"),
        accepts_test=setup.accepts_test,
    )


def _read(delivery: Delivery) -> Said:
    body = parse_form(delivery.body) if is_form(delivery) else delivery.json
    payment_id = text(body.get("imp_uid"), "imp_uid")
    if payment_id is None or not _ID.fullmatch(payment_id):
        raise MalformedError("imp_uid is missing, or cannot be an id")
    status = text(body.get("status"), "status")
    if status not in TYPES and "amount" in body:  # no event has one
        status = CONFIRM
    if status is None:
        raise MalformedError("status is missing")
    return Said(
        status=status,
        payment_id=payment_id,
        order=text(body.get("merchant_uid"), "merchant_uid"),
        cancellation_id=text(body.get("cancellation_id"), "cancellation_id"),
    )


def _response(reply: Reply) -> Mapping[str, Any]:
    """What the API answered. It has errors of its own, even with status 200."""
    check_answer(reply, _REMEDY)
    body = reply.json
    response = body.get("response")
    if body.get("code") != 0 or not isinstance(response, dict):
        raise GatewayUnreachableError("it answers with an error of its own")
    return response


def _payment(found: Mapping[str, Any]) -> Payment:
    """What the API says. Raises MalformedError or InvalidMoneyError."""
    payment_id, order = text(found.get("imp_uid"), "imp_uid"), _order(found)
    if payment_id is None:
        raise MalformedError("imp_uid is missing")
    amount, cancelled = _money(found, "amount"), _money(found, "cancel_amount")
    status = _status(text(found.get("status"), "status"), amount, cancelled)
    return Payment(
        status=status,
        ids=(ExternalId("payment", payment_id),),
        order=order,
        amount=amount,
        cancelled=cancelled,
        is_test=found.get("sandbox") is True,
        cancellations=_cancellations(found),
        email=email_of(found.get("buyer_email")),
        paid_at=_time(found, "paid_at"),
        changed_at=_time(found, _TIMES.get(status, "started_at")),
    )


def _status(word: str | None, amount: Money, cancelled: Money) -> Status:
    """Where the payment stands. One that was canceled in part is called paid."""
    if word is None:
        raise MalformedError("status is missing")
    if word not in _FOUND:
        raise GatewayMismatchError("its status is none that is known here")
    status = _FOUND[word]
    if status is Status.PAID and cancelled.amount_minor > 0:
        return Status.PARTIAL_CANCELLED
    if status is Status.CANCELLED and 0 < cancelled.amount_minor < amount.amount_minor:
        return Status.PARTIAL_CANCELLED
    return status


def _order(found: Mapping[str, Any]) -> str:
    order = text(found.get("merchant_uid"), "merchant_uid")
    if order is None:
        raise MalformedError("merchant_uid is missing")
    return order


def _money(found: Mapping[str, Any], name: str) -> Money:
    amount = number(found.get(name), name)
    if amount is None or isinstance(amount, str):
        raise MalformedError(f"{name} is not a number")
    return money(amount, text(found.get("currency"), "currency") or "")


def _cancellations(found: Mapping[str, Any]) -> frozenset[str]:
    history = found.get("cancel_history")
    entries = history if isinstance(history, list) else []
    ids = [one.get("cancellation_id") for one in entries if isinstance(one, dict)]
    return frozenset(one for one in ids if isinstance(one, str))


def _time(found: Mapping[str, Any], name: str) -> datetime | None:
    seconds = found.get(name)
    if type(seconds) is not int or not 0 < seconds < _MAX_SECONDS:
        return None
    return datetime.fromtimestamp(seconds, UTC)
