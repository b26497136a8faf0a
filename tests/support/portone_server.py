"""PortOne's query APIs, V2 and V1, as documented, with whatever may go wrong with them."""

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum, auto
from typing import Any, Final, Self

from aiohttp import web
from portone_server_sdk._generated.payment.payment_filter_input import (
    _deserialize_payment_filter_input,
)

from paidonce.core.money import EXPONENTS

V2_SECRET: Final = "v2-api-secret"
V2_SECRETS: Final = (V2_SECRET, "v2-second-secret", "v2-third-secret")
"""A shop may have several."""
V1_KEY: Final = "v1-api-key"
V1_SECRET: Final = "v1-api-secret"
STORE: Final = "store-1"
TOKEN_LIFETIME_S: Final = 1_800
PAID_AT: Final = 1_794_736_800  # 2026-11-15T10:00:00Z
CHANGED_AT: Final = 1_794_740_400  # an hour later

LIST: Final = "a list"
"""The name under which lists are counted, delayed and spoilt."""
MAX_LISTED_S: Final = 90 * 86_400

_V1_STATUSES: Final = {
    "READY": "ready",
    "VIRTUAL_ACCOUNT_ISSUED": "ready",
    "PAY_PENDING": "ready",
    "PARTIAL_CANCELLED": "paid",
}
_ONCE_PAID: Final = frozenset({"PAID", "PARTIAL_CANCELLED", "CANCELLED"})


ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 5, 10**30, 1.5, 1e300, "", "x", "PAID", "paid", "KRW", "2026-11-15",
    [], [None], [5], [{}], [{"status": [], "id": {}}], [{"status": "SUCCEEDED"}],
    [{"status": "RESOLVED"}], {}, {"type": []}, {"email": 5}, {"total": 1, "cancelled": 2},
    {"total": 10**30, "cancelled": 0}, {"total": {}, "cancelled": []},
)  # fmt: skip
"""What no field of an answer, or hardly any, should hold."""


class Trouble(Enum):
    """What may go wrong with one answer."""

    NOT_FOUND = auto()
    UNAUTHORIZED = auto()
    TOO_MANY = auto()
    BROKEN = auto()
    GARBAGE = auto()
    CLOSED = auto()
    ERROR_OF_ITS_OWN = auto()  # V1: a code that is not 0, with status 200


@dataclass(frozen=True)
class Cancellation:
    """A part, or all, of a payment that was given back."""

    id: str
    amount_minor: int
    status: str = "SUCCEEDED"


@dataclass(frozen=True)
class Payment:
    """A payment at the gateway, in V2's words. `id` is V2's paymentId, or V1's imp_uid."""

    id: str
    status: str = "PAID"
    total_minor: int = 10_000
    currency: str = "KRW"
    order: str = "order-1"  # V1 only: in V2 the id is the order's reference
    transaction_id: str = "tx-1"
    store_id: str = STORE
    is_test: bool = False
    was_paid: bool = True
    email: str | None = "buyer@example.com"
    cancellations: tuple[Cancellation, ...] = ()
    disputes: tuple[str, ...] = ()
    paid_at_s: int = PAID_AT
    changed_at_s: int = CHANGED_AT
    version: str = "V2"
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the answer that are to be wrong, or missing where they are `...`."""

    @property
    def cancelled_minor(self) -> int:
        return sum(one.amount_minor for one in self.cancellations if one.status == "SUCCEEDED")

    @property
    def has_money(self) -> bool:
        return self.was_paid and self.status in _ONCE_PAID

    def status_at_s(self, is_paid: bool) -> int:
        """When it came to have its status, by which it is listed."""
        return self.paid_at_s if is_paid else self.changed_at_s

    def v2(self) -> dict[str, Any]:
        """The answer of `GET /payments/{paymentId}`."""
        said: dict[str, Any] = {
            "status": self.status,
            "id": self.id,
            "transactionId": self.transaction_id,
            "merchantId": "merchant-1",
            "storeId": self.store_id,
            "channel": {
                "type": "TEST" if self.is_test else "LIVE",
                "pgProvider": "HTML5_INICIS",
                "pgMerchantId": "pg-1",
            },
            "version": self.version,
            "requestedAt": _iso(self.paid_at_s - 60),
            "updatedAt": _iso(self.changed_at_s),
            "statusChangedAt": _iso(self.changed_at_s),
            "orderName": "하나",
            "amount": {
                "total": self.total_minor,
                "taxFree": 0,
                "discount": 0,
                "paid": self.total_minor - self.cancelled_minor if self.has_money else 0,
                "cancelled": self.cancelled_minor,
                "cancelledTaxFree": 0,
            },
            "currency": self.currency,
            "customer": {"name": "구매자"} | ({"email": self.email} if self.email else {}),
            "origin": {"platformType": "PC", "ipAddress": "127.0.0.1"},
            "failure": {"reason": "…"} if self.status == "FAILED" else ...,
            "paidAt": _iso(self.paid_at_s) if self.has_money else ...,
            "failedAt": _iso(self.changed_at_s) if self.status == "FAILED" else ...,
            "cancelledAt": _iso(self.changed_at_s) if self.cancellations else ...,
            "cancellations": [_cancellation(one) for one in self.cancellations] or ...,
            "disputes": [_dispute(one) for one in self.disputes] or ...,
        }
        return {key: one for key, one in {**said, **self.shown}.items() if one is not ...}

    def v1(self) -> dict[str, Any]:
        """The `response` of `GET /payments/{imp_uid}`."""
        status = _V1_STATUSES.get(self.status, self.status.lower())
        said: dict[str, Any] = {
            "imp_uid": self.id,
            "merchant_uid": self.order,
            "pay_method": "card",
            "sandbox": self.is_test,
            "amount": self._major(self.total_minor),
            "cancel_amount": self._major(self.cancelled_minor),
            "currency": self.currency,
            "status": status,
            "buyer_email": self.email,
            "started_at": self.paid_at_s - 60,
            "paid_at": self.paid_at_s if self.has_money else 0,
            "failed_at": self.changed_at_s if status == "failed" else 0,
            "cancelled_at": self.changed_at_s if self.cancellations else 0,
            "cancel_history": [
                {
                    "amount": self._major(one.amount_minor),
                    "cancelled_at": CHANGED_AT,
                    "cancellation_id": one.id,
                }
                for one in self.cancellations
            ],
        }
        return {key: one for key, one in {**said, **self.shown}.items() if one is not ...}

    def _major(self, minor: int) -> int | float:
        """A number as the API writes it: whole where the currency has no decimals."""
        exponent = EXPONENTS[self.currency]
        return float(Decimal(minor).scaleb(-exponent)) if exponent else minor


class PortOneGateway:
    """Both APIs on a port of this machine, while it is entered."""

    def __init__(self, *payments: Payment, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        """How long every answer takes."""
        self.payments: dict[str, Payment] = {}
        self.calls: Counter[str] = Counter()
        """How often each was asked for, by the payment's id, or `getToken`."""
        self.left_out: set[str] = set()
        """What no list names, though it is known."""
        self.then: list[Callable[[], Awaitable[None]]] = []
        """What happens after each of the next lists was read, and before it arrives."""
        self.url = ""
        self._troubles: defaultdict[str, list[Trouble]] = defaultdict(list)
        self._delays_s: dict[str, float] = {}
        self._tokens: dict[str, float] = {}
        self.add(*payments)

    def add(self, *payments: Payment) -> None:
        """From now on these are known, or known as they are here."""
        self.payments |= {one.id: one for one in payments}

    def misbehave(self, name: str, *troubles: Trouble) -> None:
        """The next answers about this payment, or `getToken`, are these; then all is well."""
        self._troubles[name].extend(troubles)

    def delay(self, name: str, delay_s: float) -> None:
        """Answers about this payment, or `getToken`, take so long."""
        self._delays_s[name] = delay_s

    def expire_tokens(self) -> None:
        """V1: the tokens that were given out are good no more."""
        self._tokens.clear()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/users/getToken", self._get_token)
        app.router.add_get("/payments", self._list_v2)
        app.router.add_get("/payments/status/{status}", self._list_v1)
        app.router.add_get("/payments/{id}", self._get_payment)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _get_token(self, request: web.Request) -> web.StreamResponse:
        spoilt = await self._spoilt(request, "getToken")
        if spoilt is not None:
            return spoilt
        given = await request.json()
        if (given.get("imp_key"), given.get("imp_secret")) != (V1_KEY, V1_SECRET):
            return _v1_error(401, "wrong keys")
        now = int(time.time())
        token = next(
            iter(self._tokens), f"token-{self.calls['getToken']}"
        )  # the same while it lives
        self._tokens[token] = now + TOKEN_LIFETIME_S
        response = {"access_token": token, "now": now, "expired_at": now + TOKEN_LIFETIME_S}
        return web.json_response({"code": 0, "message": None, "response": response})

    async def _get_payment(self, request: web.Request) -> web.StreamResponse:
        payment_id = request.match_info["id"]
        spoilt = await self._spoilt(request, payment_id)
        if spoilt is not None:
            return spoilt
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        payment = self.payments.get(payment_id)
        if scheme == "PortOne":
            return self._v2(key, payment, request.query.get("storeId", STORE))
        return self._v1(key, payment, request.query.get("include_sandbox") == "true")

    def _v2(self, key: str, payment: Payment | None, store_id: str) -> web.Response:
        if key not in V2_SECRETS:
            return web.json_response({"type": "UNAUTHORIZED"}, status=401)
        if payment is None or payment.store_id != store_id:
            return web.json_response({"type": "PAYMENT_NOT_FOUND"}, status=404)
        return web.json_response(payment.v2())

    def _v1(self, token: str, payment: Payment | None, has_sandbox: bool) -> web.Response:
        if self._tokens.get(token, 0) < time.time():
            return _v1_error(401, "no token, or an old one")
        if payment is None or (payment.is_test and not has_sandbox):
            return _v1_error(404, "unknown payment")
        return web.json_response({"code": 0, "message": None, "response": payment.v1()})

    async def _list_v2(self, request: web.Request) -> web.StreamResponse:
        spoilt = await self._spoilt(request, LIST)
        if spoilt is not None:
            return spoilt
        if request.headers.get("Authorization") != f"PortOne {V2_SECRET}":
            return web.json_response({"type": "UNAUTHORIZED"}, status=401)
        asked = json.loads(request.query["requestBody"])
        chosen, page = asked["filter"], asked["page"]
        _deserialize_payment_filter_input(dict(chosen))  # raises if it is not what it should be
        assert chosen["timestampType"] == "STATUS_CHANGED_AT"
        begin, end = (_seconds(chosen[name]) for name in ("from", "until"))
        assert end - begin <= MAX_LISTED_S
        found = [
            one
            for one in self._listable(chosen.get("storeId", STORE))
            if one.status in chosen["status"]
            and begin <= one.status_at_s(one.status == "PAID") < end
            and chosen.get("isTest", one.is_test) == one.is_test
        ]
        found.sort(key=lambda one: (one.status_at_s(one.status == "PAID"), one.id))
        first = page["number"] * page["size"]
        items = [one.v2() for one in found[first : first + page["size"]]]
        said = {"items": items, "page": page | {"totalCount": len(found)}}
        answer = web.json_response(said)
        await self._after_list()
        return answer

    async def _list_v1(self, request: web.Request) -> web.StreamResponse:
        spoilt = await self._spoilt(request, LIST)
        if spoilt is not None:
            return spoilt
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._tokens.get(token, 0) < time.time():
            return _v1_error(401, "no token, or an old one")
        query, status = request.query, request.match_info["status"]
        begin, end, page, limit = (int(query[name]) for name in ("from", "to", "page", "limit"))
        assert end - begin <= MAX_LISTED_S
        assert limit <= 1_000
        found = [
            one
            for one in self._listable(STORE)
            if one.v1()["status"] == status
            and begin <= one.status_at_s(status == "paid") <= end
            and (query.get("include_sandbox") == "true" or not one.is_test)
        ]
        found.sort(key=lambda one: one.id)
        shown = found[(page - 1) * limit : page * limit]
        if page > 1 and not shown:
            return _v1_error(400, "no such page")
        response = {
            "total": len(found),
            "previous": page - 1,
            "next": page + 1,
            "list": [one.v1() for one in shown],
        }
        answer = web.json_response({"code": 0, "message": None, "response": response})
        await self._after_list()
        return answer

    async def _after_list(self) -> None:
        """Let happen what is to happen between the reading of a list and its arrival."""
        if self.then:
            await self.then.pop(0)()

    def _listable(self, store_id: str) -> list[Payment]:
        """What can be listed: not what is left out of lists for a test."""
        return [
            one
            for one in self.payments.values()
            if one.store_id == store_id and one.id not in self.left_out
        ]

    async def _spoilt(self, request: web.Request, name: str) -> web.StreamResponse | None:
        """The answer that is not what it should be, if it is to be one."""
        self.calls[name] += 1
        await asyncio.sleep(self._delays_s.get(name, self.delay_s))
        troubles = self._troubles[name]
        match troubles.pop(0) if troubles else None:
            case None:
                return None
            case Trouble.NOT_FOUND:
                return _v1_error(404, "unknown payment")
            case Trouble.UNAUTHORIZED:
                return _v1_error(401, "no")
            case Trouble.TOO_MANY:
                return web.Response(status=429, headers={"Retry-After": "1"})
            case Trouble.BROKEN:
                return web.Response(status=500, text="oops")
            case Trouble.GARBAGE:
                return web.Response(text="<html>maintenance</html>", content_type="text/html")
            case Trouble.ERROR_OF_ITS_OWN:
                return _v1_error(200, "something")
            case Trouble.CLOSED:  # in the midst of it: one without a beginning is tried again
                assert request.transport is not None
                request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                request.transport.close()
                return web.Response()


@contextmanager
def served() -> Iterator[PortOneGateway]:
    """A gateway for tests that have no event loop, in a thread of its own."""
    loop, gateway = asyncio.new_event_loop(), PortOneGateway()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(gateway.__aenter__(), loop).result(10)
    try:
        yield gateway
    finally:
        asyncio.run_coroutine_threadsafe(gateway.__aexit__(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _v1_error(status: int, message: str) -> web.Response:
    return web.json_response({"code": -1, "message": message, "response": None}, status=status)


def _iso(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _cancellation(one: Cancellation) -> dict[str, Any]:
    return {
        "status": one.status,
        "id": one.id,
        "totalAmount": one.amount_minor,
        "taxFreeAmount": 0,
        "vatAmount": 0,
        "reason": "…",
        "requestedAt": _iso(CHANGED_AT),
    }


def _dispute(status: str) -> dict[str, Any]:
    return {"status": status, "reason": "…", "createdAt": _iso(CHANGED_AT)}
