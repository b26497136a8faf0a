"""Deliveries and API responses of PortOne: V2 in both body versions, and V1."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from paidonce.core.money import money
from paidonce.providers.contract import (
    Delivery,
    GatewayRequest,
    GatewayResponse,
    Provider,
    ProviderConfig,
)
from paidonce.providers.portone import v2 as portone
from tests.providers.cases.standard import v1, whsec
from tests.providers.conformance import (
    FORM,
    JSON,
    KEY,
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
)
from tests.support.portone_server import V1_KEY, V1_SECRET, V2_SECRET, Payment

Shape = Callable[[ExpectedEvent], tuple[dict[str, str], bytes]]
V2: Final[dict[str, Any]] = {"api_secret": V2_SECRET}
V1: Final[dict[str, Any]] = {"version": "v1", "api_key": V1_KEY, "api_secret": V1_SECRET}


def v2_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return portone.configure(ProviderConfig(KEY, tuple(map(whsec, secrets)), V2, tolerance_s))


def v1_provider(
    *secrets: str, currency: str = "RUB", tolerance_s: int | None = TOLERANCE_S
) -> Provider:
    return portone.configure(ProviderConfig(KEY, (), V1, tolerance_s))


def newer_body(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    kind = "Transaction.Paid" if expected.kind == "paid" else expected.kind
    data = {"paymentId": expected.payment_id, "transactionId": "tx-1", "storeId": "store-1"}
    at = "2026-11-15T11:59:00.000Z"
    return JSON, json.dumps({"type": kind, "timestamp": at, "data": data}).encode()


def older_fields(expected: ExpectedEvent) -> dict[str, str]:
    status = "Paid" if expected.kind == "paid" else expected.kind
    return {"payment_id": expected.payment_id, "tx_id": "tx-1", "status": status}


def older_body(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    return JSON, json.dumps(older_fields(expected)).encode()


def older_form(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    return FORM, urlencode(older_fields(expected)).encode()


def v1_fields(expected: ExpectedEvent) -> dict[str, str]:
    return {
        "imp_uid": expected.payment_id,
        "merchant_uid": expected.payment_id,
        "status": expected.kind,
    }


def v1_body(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    return JSON, json.dumps(v1_fields(expected)).encode()


def v1_form(expected: ExpectedEvent) -> tuple[dict[str, str], bytes]:
    return FORM, urlencode(v1_fields(expected)).encode()


def v2_answer(expected: ExpectedEvent, call: GatewayRequest) -> GatewayResponse:
    assert call.headers == {"Authorization": f"PortOne {V2_SECRET}"}
    return GatewayResponse(200, json.dumps(_payment(expected).v2()).encode())


def v1_answer(expected: ExpectedEvent, call: GatewayRequest) -> GatewayResponse:
    if call.method == "POST":
        response: dict[str, Any] = {"access_token": "token", "now": 0, "expired_at": 1_800}
    else:
        assert call.headers == {"Authorization": "Bearer token"}
        response = _payment(expected).v1()
    return GatewayResponse(
        200, json.dumps({"code": 0, "message": None, "response": response}).encode()
    )


def _payment(expected: ExpectedEvent) -> Payment:
    exact = money(expected.amount, expected.currency)
    return Payment(
        id=expected.payment_id,
        total_minor=exact.amount_minor,
        currency=exact.currency,
        order=expected.payment_id,
        email=expected.email,
        shown={"transactionId": ...},
    )


def v2_case(name: str, shape: Shape, unknown: str) -> Case:
    def deliver(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
        headers, body = shape(expected)
        event_id = expected.event_id or f"msg-{expected.payment_id}"
        timestamp = str(int(sent_at.timestamp()))
        sealed = {
            "webhook-id": event_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": v1(secret, f"{event_id}.{timestamp}.".encode() + body),
        }
        return Delivery(headers | sealed, body, RECEIVED_AT)

    right = deliver(ExpectedEvent(), SECRETS[0], RECEIVED_AT).headers["webhook-signature"]
    return Case(
        name=f"portone v2, {name}",
        provider=v2_provider,
        deliver=deliver,
        signature_header="webhook-signature",
        unknown_kind=unknown,
        unknown_payment_id=None,
        wrong_signatures={
            "without its version": right.removeprefix("v1,"),
            "of another version": right.replace("v1,", "v1a,"),
            "without padding": right.rstrip("="),
            "with a part more": f"{right},x",
            "in two headers, the later one wrong": f"{right}, v1,AAAA",
        },
        signed_headers=("webhook-id", "webhook-timestamp"),
        signs_time=True,
        answer=v2_answer,
    )


def v1_case(name: str, shape: Shape) -> Case:
    def deliver(expected: ExpectedEvent, secret: str, sent_at: datetime) -> Delivery:
        return Delivery(*shape(expected), RECEIVED_AT)

    return Case(
        name=f"portone v1, {name}",
        provider=v1_provider,
        deliver=deliver,
        unknown_kind="disputed",
        names_events=False,
        answer=v1_answer,
    )


CASES: Final = [
    v2_case("2024-04-25", newer_body, "BillingKey.Issued"),
    v2_case("2024-01-01", older_body, "Refurbished"),
    v2_case("2024-01-01 as a form", older_form, "Refurbished"),
    v1_case("json", v1_body),
    v1_case("form", v1_form),
]
