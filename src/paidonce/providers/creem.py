"""Creem: JSON events, signed with `creem-signature: <lower-case hex HMAC-SHA256 of the body>`.

The secret is used as text, `whsec_…` and all. The time that is checked is the event's own
`created_at`, which retries repeat: one that comes late is kept, and taken by `stale = "accept"`.

What events say is in `creem_events.py`. `subscription.paid` tells no amount: with an `api_key`
Creem is asked for the transaction; without one the product's own price is taken, which counts only
where it is the order's or the plan's. The answer is `{"status": "success", "orderId": …}`, with the
merchant's reference or else Creem's order, to everything that is stored.

https://docs.creem.io/code/webhooks and https://docs.creem.io/api-reference/endpoint/get-transaction,
checked on 2026-11-16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final
from urllib.parse import quote
from uuid import UUID

import orjson

from paidonce.domain.events import Code, Ignored, PaymentEvent
from paidonce.errors import (
    ConfigurationError,
    GatewayUnreachableError,
    InvalidSignatureError,
    MalformedError,
)
from paidonce.providers.contract import (
    Call,
    Conversation,
    Delivery,
    Identity,
    Provider,
    Reply,
    Sample,
    Setup,
    Thin,
    fingerprint,
)
from paidonce.providers.creem_events import (
    SUBSCRIPTION_PAID,
    Part,
    confirmed,
    created_at,
    is_test,
    read_event,
)
from paidonce.providers.creem_samples import composed
from paidonce.providers.signing import any_matches, hmac_sha256_hex, refuse_stale

SIGNATURE_HEADER: Final = "creem-signature"
API_URL: Final = "https://api.creem.io"

_KEPT: Final = ("content-type", "user-agent", SIGNATURE_HEADER)
_TEST: Final = Ignored(Code.TEST_PAYMENT, "it is an event of Creem's test mode")


@dataclass(frozen=True, slots=True, eq=False)
class Creem(Provider):
    """A source that receives the events of one Creem account."""

    name: ClassVar = "creem"
    content_types: ClassVar = frozenset({"application/json"})

    secrets: tuple[bytes, ...] = field(repr=False)
    api_key: str | None
    api_url: str
    tolerance_s: int | None
    accepts_test: bool

    def verify(self, delivery: Delivery) -> None:
        given = delivery.headers.get(SIGNATURE_HEADER, "")
        if not any_matches(given, [hmac_sha256_hex(one, delivery.body) for one in self.secrets]):
            raise InvalidSignatureError("creem-signature does not match the body")
        try:
            at = created_at(delivery.json)
        except MalformedError:
            return  # it is authentic, and refused when it is read
        refuse_stale(at.timestamp(), delivery.received_at, self.tolerance_s)

    def identify(self, delivery: Delivery) -> Identity:
        read = delivery.read(read_event)
        event = read.meaning
        if isinstance(event, Ignored):
            digest = fingerprint(read.type, event.reason)
            return Identity(read.id, digest, read.type, read.id, occurred_at=read.created_at)
        moved = event.refund.amount if event.refund else event.amount
        return Identity(
            key=read.id,
            fingerprint=fingerprint(read.type, event.ids[0].value, event.says, moved),
            type=read.type,
            event_id=read.id,
            payment_id=event.ids[0].value,
            order=event.order,
            amount=None if moved is None else str(moved).partition(" ")[0],
            currency=None if moved is None else moved.currency,
            occurred_at=read.created_at,
        )

    def translate(self, delivery: Delivery) -> PaymentEvent | Ignored | Thin:
        read = delivery.read(read_event)
        if isinstance(read.meaning, Ignored):
            return read.meaning
        if read.is_test and not self.accepts_test:
            return _TEST
        if read.type != SUBSCRIPTION_PAID:
            return read.meaning
        if self.api_key is not None:
            return Thin(partial(self._ask, read.meaning, self.api_key))
        if read.meaning.amount is None:
            raise MalformedError("the price of the product is missing")
        return read.meaning

    def signature_method(self, delivery: Delivery) -> str:
        return "hmac-sha256"

    def evidence(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: headers[name] for name in _KEPT if name in headers}

    def acknowledge(self, status: str, event_id: UUID, delivery: Delivery) -> tuple[str, bytes]:
        read = delivery.read(read_event)
        order = read.meaning.order if isinstance(read.meaning, PaymentEvent) else None
        said = {"status": "success", "orderId": order or read.order_id}
        return "application/json", orjson.dumps(said)

    def compose(self, sample: Sample) -> tuple[dict[str, str], bytes]:
        body = orjson.dumps(composed(sample))
        signature = hmac_sha256_hex(self.secrets[0], body).decode()
        return {"content-type": "application/json", SIGNATURE_HEADER: signature}, body

    def _ask(self, event: PaymentEvent, api_key: str) -> Conversation:
        """What Creem says of the transaction that the event names."""
        transaction_id = event.ids[0].value
        reply = yield Call(
            "GET",
            f"{self.api_url}/v1/transactions?transaction_id={quote(transaction_id, safe='')}",
            {"x-api-key": api_key, "accept": "application/json"},
        )
        transaction = _replied(reply)
        try:
            if not self.accepts_test and is_test(transaction):
                return _TEST
            return confirmed(event, transaction)
        except MalformedError as error:
            raise GatewayUnreachableError(f"its reply cannot be read: {error}") from None


def configure(setup: Setup) -> Creem:
    """A source from its settings. Raises ConfigurationError."""
    setup.refuse_options_but({"api_key", "api_url"})
    secrets = tuple(secret.strip().encode() for secret in setup.needed_secrets())
    api_url = str(setup.options.get("api_url", API_URL)).rstrip("/")
    if not api_url.startswith(("https://", "http://")):
        raise ConfigurationError(f"{setup.key}.api_url = {api_url!r}: write {API_URL!r}")
    api_key = setup.secret_text("api_key")
    return Creem(secrets, api_key, api_url, setup.tolerance_s, setup.accepts_test)


def _replied(reply: Reply) -> Part:
    """The transaction. Raises GatewayUnreachableError."""
    if reply.status in (401, 403):
        raise GatewayUnreachableError("Creem refuses the api_key: give one that may read")
    if reply.status == 404:
        raise GatewayUnreachableError("Creem does not know the transaction yet")
    if reply.status != 200:
        raise GatewayUnreachableError(f"Creem answered with status {reply.status}")
    return reply.json
