"""The gateway that carries payments out, over HTTP.

It is told of a payment by `POST {url}/payments`, with the payment's id as its idempotency key, and
asked about one by `GET {url}/payments/{payment_id}`. Both answer `{transaction_id, status}`, and
how much was paid as `{amount, currency}` if they like.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote

from paidonce.domain.money import Money, format_minor, money
from paidonce.domain.wallet_payments import MAX_TRANSACTION_ID, Said, Word
from paidonce.engine.gateway_calls import Line, Patience, Telephone
from paidonce.errors import GatewayUnreachableError, InvalidMoneyError, MalformedError
from paidonce.providers.contract import Call, Reply
from paidonce.providers.json_strict import parse_object
from paidonce.store.wallet_payments import Question

LEASE_MARGIN_S: Final = 5.0
CALLS_A_QUESTION: Final = 2
"""Asked about a payment and not knowing it, the gateway is told of it again."""
NOT_FOUND: Final = 404
NOT_OF_THE_PAYMENT: Final = frozenset({401, 403, 404, 405, 407, 408, 409, 425})
"""Refusals of the call, and not of the payment: another time, or rightly configured, it is taken.

Too many calls (429) and whatever is no 2xx or 4xx at all count as no reply.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the gateway says of a payment that it has taken."""

    transaction_id: str
    word: Word
    paid: Money | None = None

    @property
    def said(self) -> Said:
        return Said(self.word, self.paid)


@dataclass(frozen=True, slots=True)
class Declined:
    """The gateway does not take the payment, and never will."""

    status: int


@dataclass(frozen=True, slots=True)
class Access:
    """Where the gateway is, and how much may be asked of it."""

    url: str = field(repr=False)
    key: str | None = field(repr=False)
    timeout_s: float
    rate: float
    """How many calls a second."""
    max_calls: int
    """How many at once."""

    @property
    def lease_s(self) -> float:
        """How long one question takes at most, with the wait for its turn."""
        waiting_s = self.max_calls * CALLS_A_QUESTION / self.rate
        return self.timeout_s * CALLS_A_QUESTION + waiting_s + LEASE_MARGIN_S


class Gateway:
    """The way to the gateway: with limits on time, size and rate. It follows nobody anywhere."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._url = access.url.rstrip("/")
        connect_s = min(Patience().connect_s, access.timeout_s)
        self._telephone = Telephone(Patience(connect_s=connect_s, call_s=access.timeout_s))
        self._line = Line(self._telephone, access.rate)

    async def tell(self, question: Question) -> Answer | Declined:
        """Let it carry out the payment; told again, it does nothing more than the first time.

        Raises GatewayUnreachableError when nobody can say whether it does.
        """
        said = {
            "payment_id": question.payment_id,
            "amount": format_minor(question.amount_minor, question.currency),
            "currency": question.currency,
        }
        reply = await self._call(
            "POST", "/payments", said, {"idempotency-key": _field_value(question.payment_id)}
        )
        if reply.status in NOT_OF_THE_PAYMENT:
            raise GatewayUnreachableError(f"it replied {reply.status}")
        return Declined(reply.status) if reply.status >= 400 else _answer(reply)

    async def ask(self, payment_id: str) -> Answer | None:
        """What has become of the payment; None if the gateway knows nothing of it.

        Raises GatewayUnreachableError.
        """
        reply = await self._call("GET", f"/payments/{quote(payment_id, safe='')}")
        if reply.status == NOT_FOUND:
            return None
        if reply.status >= 400:
            raise GatewayUnreachableError(f"it replied {reply.status}")
        return _answer(reply)

    async def close(self) -> None:
        """Hang up."""
        await self._telephone.close()

    async def _call(
        self,
        method: Literal["GET", "POST"],
        path: str,
        said: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        sent = {"accept": "application/json", **(headers or {})}
        if self.access.key is not None:
            sent["authorization"] = f"Bearer {self.access.key}"
        return await self._line.call(Call(method, f"{self._url}{path}", sent, said))


def _field_value(payment_id: str) -> str:
    """The id as a header can hold it. Ids of letters and digits stay as they are.

    A blank is none of them: at the end of a header it is lost, and two payments would be one.
    """
    return quote(payment_id, safe="!#$&'*+-.^_`|~:/@")


def _answer(reply: Reply) -> Answer:
    """Raises GatewayUnreachableError for what is no answer: nobody can say what it means."""
    try:
        said = parse_object(reply.body)
        transaction_id, word = said.get("transaction_id"), Word(str(said.get("status")))
        paid = _paid(said)
    except (MalformedError, InvalidMoneyError, ValueError):
        raise GatewayUnreachableError("its reply cannot be read") from None
    if not isinstance(transaction_id, str) or not 0 < len(transaction_id) <= MAX_TRANSACTION_ID:
        raise GatewayUnreachableError("its reply has no transaction_id")
    return Answer(transaction_id, word, paid)


def _paid(said: dict[str, Any]) -> Money | None:
    """How much was paid, where it is told. Raises InvalidMoneyError."""
    amount, currency = said.get("amount"), said.get("currency")
    if amount is None and currency is None:
        return None
    if not isinstance(amount, str) or not isinstance(currency, str):
        raise InvalidMoneyError("an amount and a currency are texts")
    return money(amount, currency)
