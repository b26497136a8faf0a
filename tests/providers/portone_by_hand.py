"""PortOne V2, asked by hand: what it sends, and what comes of one reply."""

import json
from collections.abc import Mapping
from typing import Any, Final

from paidonce.domain.events import Ignored, PaymentEvent
from paidonce.providers import portone
from paidonce.providers.contract import Call, Delivery, Provider, Reply, Setup, Thin
from tests.gateways.portone import V2_SECRET, Payment
from tests.providers.cases.standard import v1, whsec
from tests.providers.conformance import JSON, KEY, RECEIVED_AT, converse

SECRET: Final = "a secret of enough bytes"


def source(accepts_test: bool = True, **options: Any) -> Provider:
    given = {"api_secret": V2_SECRET} | options
    setup = Setup(KEY, (whsec(SECRET),), given, accepts_test=accepts_test)
    return portone.configure(setup)


PORTONE: Final = source()


def sent(body: Mapping[str, Any] | bytes, event_id: str = "msg-1", **more: str) -> Delivery:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Delivery(
        {**JSON, "webhook-id": event_id, **_sealed(raw, event_id), **more}, raw, RECEIVED_AT
    )


def _sealed(body: bytes, event_id: str) -> dict[str, str]:
    timestamp = str(int(RECEIVED_AT.timestamp()))
    signature = v1(SECRET, f"{event_id}.{timestamp}.".encode() + body)
    return {"webhook-timestamp": timestamp, "webhook-signature": signature}


def said(kind: str = "Paid", **data: Any) -> dict[str, Any]:
    named = {"paymentId": "p-1", "transactionId": "tx-1", "storeId": "store-1", **data}
    at = "2026-11-15T10:00:00.000Z"
    known = {key: value for key, value in named.items() if value is not ...}
    return {"type": f"Transaction.{kind}", "timestamp": at, "data": known}


def asked(
    body: Mapping[str, Any] | bytes, reply: Payment | Reply, provider: Provider = PORTONE
) -> PaymentEvent | Ignored:
    """What comes of a delivery when the API replies so."""
    thin = provider.translate(sent(body))
    assert isinstance(thin, Thin)
    given = reply if isinstance(reply, Reply) else Reply(200, json.dumps(reply.v2()).encode())
    return converse(thin, lambda call: given)


def event(body: Mapping[str, Any], payment: Payment, provider: Provider = PORTONE) -> PaymentEvent:
    known = asked(body, payment, provider)
    assert isinstance(known, PaymentEvent)
    return known


def call_of(body: Mapping[str, Any], provider: Provider = PORTONE) -> Call:
    thin = provider.translate(sent(body))
    assert isinstance(thin, Thin)
    return next(thin.ask())
