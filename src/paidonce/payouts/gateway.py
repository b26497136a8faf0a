"""The HTTP client of the gateway that carries out payments.

`POST {url}/payments` sends a payment, with its id as idempotency key, and
`GET {url}/payments/{payment_id}` returns its state. Both answer `{transaction_id, status}`, and
optionally `{amount, currency}` that were paid.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from paidonce.core.callbacks import GatewayStatus
from paidonce.core.money import Money
from paidonce.errors import GatewayUnreachableError, InvalidMessageError, MalformedError
from paidonce.lookup.http_client import HttpClient, HttpTimeouts, RateLimitedClient
from paidonce.payouts.messages import read_money
from paidonce.payouts.model import MAX_TRANSACTION_ID, WalletPayment
from paidonce.providers.contract import GatewayRequest, GatewayResponse
from paidonce.providers.parsing import parse_object
from paidonce.settings.sections import PayoutSettings

LEASE_MARGIN_S: Final = 5.0
CALLS_PER_ATTEMPT: Final = 2
"""A payment that the gateway does not know is sent again."""
NOT_FOUND: Final = 404
CALL_REFUSED: Final = frozenset({401, 403, 404, 405, 407, 408, 409, 425})
"""Statuses that refuse the call and not the payment: a later call may be accepted.

The HTTP client treats 429 and everything but 2xx and 4xx as no answer.
"""


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """The state of a payment that the gateway has accepted."""

    transaction_id: str
    status: GatewayStatus
    paid: Money | None = None


@dataclass(frozen=True, slots=True)
class GatewayRefusal:
    """The gateway does not accept the payment, and never will."""

    http_status: int


class Gateway:
    """Calls the gateway, with limits on time, size and rate, and without redirects."""

    def __init__(self, settings: PayoutSettings, key: str | None) -> None:
        assert settings.gateway_url is not None
        self.max_calls = settings.max_calls
        waiting_s = settings.max_calls * CALLS_PER_ATTEMPT / settings.rate
        self.lease_s = settings.timeout_s * CALLS_PER_ATTEMPT + waiting_s + LEASE_MARGIN_S
        """The longest duration of an attempt, with the wait for the rate limit."""
        self._key = key
        self._url = settings.gateway_url.rstrip("/")
        connect_s = min(HttpTimeouts().connect_s, settings.timeout_s)
        self._http = HttpClient(HttpTimeouts(connect_s=connect_s, call_s=settings.timeout_s))
        self._client = RateLimitedClient(self._http, settings.rate)

    async def send(self, payment: WalletPayment) -> GatewayAnswer | GatewayRefusal:
        """Send a payment. A repeated call pays once.

        Raises GatewayUnreachableError if the result is unknown.
        """
        body = {
            "payment_id": payment.payment_id,
            "amount": payment.amount,
            "currency": payment.currency,
        }
        # Spaces are escaped: a trailing space is lost in a header, and two payments would be one.
        key = quote(payment.payment_id, safe="!#$&'*+-.^_`|~:/@")
        response = await self._call("POST", "/payments", body, {"idempotency-key": key})
        if response.status in CALL_REFUSED:
            raise GatewayUnreachableError(f"it replied {response.status}")
        if response.status >= 400:
            return GatewayRefusal(response.status)
        return _parse_answer(response)

    async def get(self, payment_id: str) -> GatewayAnswer | None:
        """The state of a payment; None if the gateway does not know it.

        Raises GatewayUnreachableError.
        """
        response = await self._call("GET", f"/payments/{quote(payment_id, safe='')}")
        if response.status == NOT_FOUND:
            return None
        if response.status >= 400:
            raise GatewayUnreachableError(f"it replied {response.status}")
        return _parse_answer(response)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _call(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> GatewayResponse:
        sent = {"accept": "application/json", **(headers or {})}
        if self._key is not None:
            sent["authorization"] = f"Bearer {self._key}"
        return await self._client.call(GatewayRequest(method, f"{self._url}{path}", sent, body))


def _parse_answer(response: GatewayResponse) -> GatewayAnswer:
    """Raises GatewayUnreachableError for an unreadable answer: the result is unknown."""
    try:
        fields = parse_object(response.body)
        transaction_id = fields.get("transaction_id")
        status = GatewayStatus(str(fields.get("status")))
        is_paid_given = fields.get("amount") is not None or fields.get("currency") is not None
        paid = read_money(fields) if is_paid_given else None
    except (MalformedError, InvalidMessageError, ValueError):
        raise GatewayUnreachableError("its reply cannot be read") from None
    if not isinstance(transaction_id, str) or not 0 < len(transaction_id) <= MAX_TRANSACTION_ID:
        raise GatewayUnreachableError("its reply has no transaction_id")
    return GatewayAnswer(transaction_id, status, paid)
