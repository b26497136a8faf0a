"""Tests of PortOne V2 beyond the conformance suite."""

import base64
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from portone_server_sdk.webhook import WebhookVerificationError
from portone_server_sdk.webhook import verify as sdk_verify

from paidonce.core.events import EventType, Ignored
from paidonce.errors import (
    ConfigurationError,
    GatewayMismatchError,
    InvalidSignatureError,
    MalformedError,
    NotApprovedError,
    RejectedError,
)
from paidonce.providers.contract import (
    ConfirmationRequest,
    Delivery,
    GatewayRequest,
    Provider,
    ProviderConfig,
)
from paidonce.providers.portone import v2 as portone
from tests.providers.cases.standard import v1, whsec
from tests.providers.conformance import FORM, KEY
from tests.providers.portone_lookups import (
    PORTONE,
    SECRET,
    call_of,
    event,
    look_up,
    sent,
    source,
    webhook,
)
from tests.support.portone_server import V2_SECRET, Payment

VECTORS = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")


def test_both_body_versions_are_equal() -> None:
    """PRV-3 INB-2"""
    older = {"payment_id": "p-1", "tx_id": "tx-1", "status": "Paid"}
    form = sent(b"payment_id=p-1&tx_id=tx-1&status=Paid", **FORM)
    known = [PORTONE.identify(one) for one in (sent(webhook()), sent(older), form)]
    assert {one.fingerprint for one in known} == {known[0].fingerprint}
    assert {(one.key, one.event_id, one.type) for one in known} == {
        ("msg-1", "msg-1", "Transaction.Paid")
    }
    assert {(one.payment_id, one.order) for one in known} == {("p-1", "p-1")}
    assert known[0].occurred_at == datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert event(older, Payment("p-1")) == event(webhook(), Payment("p-1"))


@pytest.mark.parametrize(
    "other",
    [
        webhook("Cancelled"),
        webhook(paymentId="p-2"),
        webhook(transactionId="tx-2"),
        webhook(cancellationId="c-1"),
    ],
)
def test_another_type_payment_attempt_or_cancellation_is_another_meaning(
    other: dict[str, Any],
) -> None:
    """INB-2"""
    first, second = PORTONE.identify(sent(webhook())), PORTONE.identify(sent(other))
    assert first.key == second.key
    assert first.fingerprint != second.fingerprint


def test_a_source_accepts_events_of_one_store() -> None:
    """Section 1: paymentIds are the merchant's, and two stores may have one in common."""
    url = "https://api.portone.io/payments/p-1"
    assert call_of(webhook()) == GatewayRequest(
        "GET", url, {"Authorization": f"PortOne {V2_SECRET}"}
    )
    strict = source(store_id="store-2")
    assert call_of(webhook(storeId=...), strict).url == f"{url}?storeId=store-2"
    with pytest.raises(GatewayMismatchError, match="store"):
        call_of(webhook(), strict)
    with pytest.raises(GatewayMismatchError, match="store"):
        look_up(webhook(storeId=...), Payment("p-1"), strict)


@pytest.mark.parametrize(
    ("payment_id", "path"),
    [
        ("a/b", "a%2Fb"),
        ("a b?c#d", "a%20b%3Fc%23d"),
        ("../x", "..%2Fx"),
        ("주문", "%EC%A3%BC%EB%AC%B8"),
    ],
)
def test_an_id_cannot_change_the_request_path(payment_id: str, path: str) -> None:
    """PRV-3: the merchant chooses it."""
    url = call_of(webhook(paymentId=payment_id), source(api_url="http://127.0.0.1:1/")).url
    assert url == f"http://127.0.0.1:1/payments/{path}"


@pytest.mark.parametrize(
    "body",
    [
        webhook(paymentId=...), webhook(paymentId=""), webhook(paymentId="."),
        webhook(paymentId=".."),
        webhook(paymentId={}), webhook(paymentId="p" * 256), webhook(transactionId=[]),
        {"type": ""},
        webhook() | {"data": None}, {"type": None},
        {"payment_id": "p-1", "tx_id": "tx-1"}, {"status": "Paid"}, {},
    ],
    ids=str,
)  # fmt: skip
def test_a_body_without_a_required_field_is_malformed(body: dict[str, Any]) -> None:
    """REC-6"""
    for verb in (PORTONE.identify, PORTONE.translate):
        with pytest.raises(MalformedError):
            verb(sent(body))


@pytest.mark.parametrize("kind", ["BillingKey.Issued", "TaxInvoice.Issued", "Transaction.Split"])
def test_an_event_without_a_payment_is_ignored(kind: str) -> None:
    """PRV-3 PRV-9"""
    for body in ({"type": kind}, {"type": kind, "data": {"paymentId": {}}, "timestamp": 5}):
        assert isinstance(PORTONE.translate(sent(body)), Ignored)
        assert PORTONE.identify(sent(body)).key == "msg-1"


QUESTIONS: list[Delivery] = [
    sent(webhook("Confirm", storeId=..., totalAmount=1_000)),
    sent(webhook("Confirm", totalAmount=1_000)),
    sent(webhook("ConfirmAgain", totalAmount=1_000)),
    sent({"payment_id": "p-1", "tx_id": "tx-1", "total_amount": 1_000}),
    sent({"payment_id": "p-1", "tx_id": "tx-1", "total_amount": 1_000, "status": "Asked"}),
    sent(b"payment_id=p-1&tx_id=tx-1&total_amount=1000", **FORM),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.body.decode())
def test_a_confirmation_request_is_never_approved_by_accident(question: Delivery) -> None:
    """PRV-3: to ignore it would be answered 200, and approve it."""
    PORTONE.verify(question)
    assert PORTONE.identify(question).payment_id == "p-1"
    with pytest.raises(NotApprovedError):
        PORTONE.translate(question)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.body.decode())
def test_a_confirmation_request_is_compared_with_its_order_if_configured(
    question: Delivery,
) -> None:
    """PRV-3"""
    assert source(confirm="match-order").translate(question) == ConfirmationRequest(
        "p-1", 1_000, "KRW"
    )


@pytest.mark.parametrize("total", [None, "", -1, 1.5, True, "1e3", [], 10**19])
def test_a_confirmation_request_without_an_amount_is_malformed(total: object) -> None:
    """PRV-3"""
    with pytest.raises(MalformedError):
        source(confirm="match-order").translate(sent(webhook("Confirm", totalAmount=total)))


def test_a_confirmation_request_of_another_store_is_not_approved() -> None:
    """PRV-3"""
    question = sent(webhook("Confirm", totalAmount=1_000))
    assert source(confirm="match-order", store_id="store-1").translate(question)
    with pytest.raises(NotApprovedError):
        source(confirm="match-order", store_id="store-2").translate(question)


def test_only_a_denied_confirmation_has_a_portone_answer() -> None:
    """PRV-3 REC-5"""
    answer = PORTONE.error_response("NOT_APPROVED", "Sold out.")
    assert answer == ("application/json", b'{"errorMessage":"Sold out."}')
    assert PORTONE.error_response("MALFORMED", "No.") is None


def test_an_event_with_an_amount_is_still_an_event() -> None:
    """PRV-3: PortOne may add fields without notice."""
    assert event(webhook(totalAmount=1_000), Payment("p-1")).event_type is EventType.PAID


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_secret": None}, ["sources.test.api_secret", "required"]),
        ({"api_secret": ""}, ["sources.test.api_secret", "empty"]),
        ({"api_secret": "a\nb"}, ["sources.test.api_secret"]),
        ({"api_secret": "비밀"}, ["sources.test.api_secret"]),
        ({"api_url": "api.portone.io"}, ["sources.test.api_url", "'api.portone.io'", "https://"]),
        ({"store_id": ""}, ["sources.test.store_id"]),
        ({"confirm": "yes"}, ["sources.test.confirm", "'yes'", '"refuse", "match-order"']),
        ({"version": "v3"}, ["sources.test.version", "'v3'", '"v2", "v1"']),
        ({"api_key": "x"}, ["sources.test.api_key"]),
    ],
)
def test_a_wrong_setting_is_a_configuration_error(
    options: dict[str, Any], words: list[str]
) -> None:
    """USE-3 PRV-7"""
    with pytest.raises(ConfigurationError) as caught:
        source(**options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("secret", ["not base64!", "whsec_ ", "whsec_===="])
def test_an_invalid_secret_is_reported_without_it(secret: str) -> None:
    """PRV-7 SEC-7"""
    with pytest.raises(ConfigurationError, match=r"sources\.test\.secrets\[0\]") as caught:
        portone.configure(ProviderConfig(KEY, (secret,), {"api_secret": V2_SECRET}))
    assert secret not in str(caught.value)


def test_a_secret_may_come_with_its_prefix_or_without() -> None:
    """PRV-3"""
    for secret in (whsec(SECRET), whsec(SECRET).removeprefix("whsec_")):
        portone.configure(ProviderConfig(KEY, (secret,), {"api_secret": V2_SECRET})).verify(
            sent(webhook())
        )


def test_the_secrets_are_not_shown() -> None:
    """SEC-7"""
    assert V2_SECRET not in repr(PORTONE)
    assert SECRET not in repr(PORTONE)


@pytest.mark.skipif(not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors")
def test_published_vectors_are_accepted() -> None:
    """PRV-9"""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    ours = [one for one in vectors if one["id"].startswith("portone-v2")]
    assert ours
    for vector in ours:
        provider = portone.configure(
            ProviderConfig(KEY, (vector["secret"],), {"api_secret": V2_SECRET})
        )
        body, at = base64.b64decode(vector["body_b64"]), datetime.fromtimestamp(vector["now"], UTC)
        provider.verify(Delivery(vector["headers"], body, at))
        with pytest.raises(InvalidSignatureError):
            provider.verify(Delivery(vector["headers"], body + b" ", at))


ENTRIES = st.sampled_from(["right", "wrong", "v2,x", "v1,AAAA", "v1", ",", "v1,!", "v1,a,b", ""])


@given(
    secret=st.binary(min_size=1, max_size=64),
    event_id=st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True),
    text=st.text(),
    late_s=st.sampled_from([-400, -290, 0, 290, 400]),
    entries=st.lists(ENTRIES, max_size=5),
    spelling=st.sampled_from(["{}", "0{}", "{}.0", "{}x", "-{}"]),
)
def test_the_official_library_accepts_the_same(
    secret: bytes, event_id: str, text: str, late_s: int, entries: list[str], spelling: str
) -> None:
    """PRV-9: on random deliveries near its own clock."""
    issued = base64.b64encode(secret).decode()
    provider = portone.configure(ProviderConfig(KEY, (issued,), {"api_secret": V2_SECRET}))
    now = datetime.now(UTC)
    timestamp = spelling.format(int(now.timestamp()) + late_s)
    payload = json.dumps({"type": text, "data": {"paymentId": text}}, ensure_ascii=False)
    body = payload.encode("utf-8", "replace")
    right = v1(secret, f"{event_id}.{timestamp}.".encode() + body)
    named = {"right": right, "wrong": v1(b"x" + secret, body)}
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(named.get(entry, entry) for entry in entries),
    }
    ours = _accepts(provider, Delivery(headers, body, now))
    assert ours == _library_accepts(issued, body.decode(), headers)
    assert ours == ("right" in entries and spelling in ("{}", "0{}") and abs(late_s) <= 300)


def _accepts(provider: Provider, delivery: Delivery) -> bool:
    try:
        provider.verify(delivery)
    except RejectedError:
        return False
    return True


def _library_accepts(secret: str, payload: str, headers: Mapping[str, str]) -> bool:
    try:
        sdk_verify(secret, payload, headers)
    except WebhookVerificationError:
        return False
    return True
