"""Webhooks of PortOne V2, and lookups with a given API response."""

import json
from collections.abc import Mapping
from typing import Any, Final

from paidonce.core.events import Ignored, PaymentEvent
from paidonce.providers.contract import (
    Delivery,
    GatewayRequest,
    GatewayResponse,
    LookupRequired,
    Provider,
    ProviderConfig,
)
from paidonce.providers.portone import v2 as portone
from tests.providers.cases.standard import v1, whsec
from tests.providers.conformance import JSON, KEY, RECEIVED_AT, run_lookup
from tests.support.portone_server import V2_SECRET, Payment

SECRET: Final = "a secret of enough bytes"


def source(accepts_test: bool = True, **options: Any) -> Provider:
    given = {"api_secret": V2_SECRET} | options
    config = ProviderConfig(KEY, (whsec(SECRET),), given, accepts_test=accepts_test)
    return portone.configure(config)


PORTONE: Final = source()


def sent(body: Mapping[str, Any] | bytes, event_id: str = "msg-1", **more: str) -> Delivery:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Delivery(
        {**JSON, "webhook-id": event_id, **_signed_headers(raw, event_id), **more}, raw, RECEIVED_AT
    )


def _signed_headers(body: bytes, event_id: str) -> dict[str, str]:
    timestamp = str(int(RECEIVED_AT.timestamp()))
    signature = v1(SECRET, f"{event_id}.{timestamp}.".encode() + body)
    return {"webhook-timestamp": timestamp, "webhook-signature": signature}


def webhook(kind: str = "Paid", **data: Any) -> dict[str, Any]:
    fields = {"paymentId": "p-1", "transactionId": "tx-1", "storeId": "store-1", **data}
    at = "2026-11-15T10:00:00.000Z"
    sent_fields = {key: value for key, value in fields.items() if value is not ...}
    return {"type": f"Transaction.{kind}", "timestamp": at, "data": sent_fields}


def look_up(
    body: Mapping[str, Any] | bytes, reply: Payment | GatewayResponse, provider: Provider = PORTONE
) -> PaymentEvent | Ignored:
    """Translate a delivery with this response of the API."""
    lookup = provider.translate(sent(body))
    assert isinstance(lookup, LookupRequired)
    given = (
        reply
        if isinstance(reply, GatewayResponse)
        else GatewayResponse(200, json.dumps(reply.v2()).encode())
    )
    return run_lookup(lookup, lambda call: given)


def event(body: Mapping[str, Any], payment: Payment, provider: Provider = PORTONE) -> PaymentEvent:
    sent_fields = look_up(body, payment, provider)
    assert isinstance(sent_fields, PaymentEvent)
    return sent_fields


def call_of(body: Mapping[str, Any], provider: Provider = PORTONE) -> GatewayRequest:
    lookup = provider.translate(sent(body))
    assert isinstance(lookup, LookupRequired)
    return next(lookup.query())
