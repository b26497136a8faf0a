"""Tests of Creem beyond the conformance suite."""

import base64
import contextlib
import hashlib
import hmac
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent, Refund
from paidonce.core.facts import facts_from_event, merge
from paidonce.core.money import Money
from paidonce.errors import (
    ConfigurationError,
    GatewayMismatchError,
    GatewayUnreachableError,
    InvalidSignatureError,
    MalformedError,
    RejectedError,
    TimestampExpiredError,
)
from paidonce.providers.contract import (
    Delivery,
    GatewayRequest,
    GatewayResponse,
    LookupRequired,
    ProviderConfig,
    Translation,
)
from paidonce.providers.creem import provider as creem
from tests.providers.cases.creem import creem_signed
from tests.providers.conformance import KEY, RECEIVED_AT

SECRET = "whsec_creem"
VECTORS = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")
NOW_MS = int(RECEIVED_AT.timestamp() * 1000)
EUR_10 = Money(1_000, "EUR")

# The same purchase of a subscription, as its events tell it: 10.00 and 2.10 of tax on top.
ORDER: dict[str, Any] = {"id": "ord_1", "amount": 1_000, "currency": "EUR", "status": "paid",
                         "type": "recurring", "created_at": "2026-11-15T11:59:30.000Z"}  # fmt: skip
TAXED = ORDER | {"sub_total": 1_000, "tax_amount": 210, "amount_due": 1_210, "amount_paid": 1_210}
PRODUCT = {"id": "prod_1", "price": 1_000, "currency": "EUR", "tax_mode": "exclusive"}
CUSTOMER = {"id": "cust_1", "email": "buyer@example.com", "country": "NL"}
METADATA = {"order": "order-1", "plan_id": "monthly"}
SUBSCRIPTION: dict[str, Any] = {
    "id": "sub_1",
    "object": "subscription",
    "product": PRODUCT,
    "customer": CUSTOMER,
    "last_transaction_id": "tran_1",
    "last_transaction_date": "2026-11-15T11:59:50.000Z",
    "created_at": "2026-11-15T11:59:48.000Z",
    "metadata": METADATA,
}
CHECKOUT: dict[str, Any] = {
    "id": "ch_1",
    "object": "checkout",
    "request_id": "order-1",
    "order": TAXED | {"transaction": "tran_1"},
    "product": PRODUCT,
    "customer": CUSTOMER,
    "subscription": {"id": "sub_1", "status": "active"},
    "metadata": METADATA,
    "status": "completed",
}
TRANSACTION: dict[str, Any] = {
    "id": "tran_1",
    "amount": 1_000,
    "amount_paid": 1_210,
    "currency": "EUR",
    "tax_amount": 210,
    "status": "paid",
    "refunded_amount": 0,
    "order": "ord_1",
    "subscription": "sub_1",
    "created_at": NOW_MS - 10_000,
}
REFUND: dict[str, Any] = {
    "id": "ref_1",
    "status": "succeeded",
    "refund_amount": 605,
    "refund_currency": "EUR",
    "transaction": TRANSACTION | {"refunded_amount": 605},
    "subscription": {"id": "sub_1"},
    "checkout": {"id": "ch_1", "request_id": "order-1", "metadata": METADATA},
    "order": ORDER,
    "customer": CUSTOMER,
}
DISPUTE: dict[str, Any] = {
    "id": "disp_1",
    "amount": 1_210,
    "currency": "EUR",
    "transaction": TRANSACTION | {"status": "chargeback", "refunded_amount": 1_210},
    "subscription": {"id": "sub_1"},
    "checkout": {"id": "ch_1"},
    "order": TAXED | {"transaction": "tran_1"},
    "customer": CUSTOMER,
}
TRAN = ExternalId("payment", "tran_1")
ORD = ExternalId("order", "ord_1")
CH = ExternalId("checkout", "ch_1")
FIRST = ExternalId("first_of_subscription", "sub_1")


def source(accepts_test: bool = True, **options: Any) -> creem.Creem:
    return creem.configure(ProviderConfig(KEY, (SECRET,), options, accepts_test=accepts_test))


CREEM = source()
WITH_API_KEY = source(api_key="creem_key", api_url="https://test-api.creem.io/")


def sent(kind: str, thing: Any, created_at: Any = NOW_MS, event_id: Any = "evt_1") -> Delivery:
    event = {"id": event_id, "eventType": kind, "created_at": created_at, "object": thing}
    return creem_signed(event, SECRET)


def translate(kind: str, thing: Any, provider: creem.Creem = CREEM) -> Translation:
    delivery = sent(kind, thing)
    provider.verify(delivery)
    return provider.translate(delivery)


def payment_event(kind: str, thing: Any) -> PaymentEvent:
    event = translate(kind, thing)
    assert isinstance(event, PaymentEvent)
    return event


def look_up(
    reply: GatewayResponse | dict[str, Any], thing: Any = SUBSCRIPTION
) -> PaymentEvent | Ignored:
    """What is known of a paid subscription after Creem gave this reply."""
    event = translate("subscription.paid", thing, WITH_API_KEY)
    assert isinstance(event, LookupRequired)
    query = event.query()
    next(query)
    answer = (
        reply
        if isinstance(reply, GatewayResponse)
        else GatewayResponse(200, json.dumps(reply).encode())
    )
    with pytest.raises(StopIteration) as ended:
        query.send(answer)
    known: PaymentEvent | Ignored = ended.value.value
    return known


def test_a_checkout_is_read_with_all_fields() -> None:
    """PRV-5"""
    identity = CREEM.identify(sent("checkout.completed", CHECKOUT))
    assert payment_event("checkout.completed", CHECKOUT) == PaymentEvent(
        EventType.PAID,
        (TRAN, ORD, CH),
        amount=EUR_10,
        order="order-1",
        email="buyer@example.com",
        plan_id="monthly",
        occurred_at=RECEIVED_AT,
    )
    assert (identity.key, identity.event_id) == ("evt_1", "evt_1")
    assert (identity.type, identity.payment_id) == ("checkout.completed", "tran_1")
    assert (identity.order, identity.occurred_at) == ("order-1", RECEIVED_AT)
    assert (identity.amount, identity.currency) == ("10.00", "EUR")


@pytest.mark.parametrize(
    ("error", "minor"),
    [
        ({"amount": 1_000}, 1_000),
        ({"amount": 1_000, "amount_paid": 1_000, "tax_amount": 174}, 1_000),
        ({"amount": 1_000, "amount_paid": 1_210, "tax_amount": 210}, 1_000),
        ({"amount": 1_000, "amount_paid": 968, "tax_amount": 168, "discount_amount": 200}, 800),
        ({"amount": 800, "amount_paid": 968, "tax_amount": 168, "discount_amount": 200}, 800),
        ({"amount": 1_000, "amount_paid": 800, "tax_amount": 139, "discount_amount": 200}, 800),
        ({"amount": 1_000, "amount_paid": 1_100}, 1_100),
        ({"amount_paid": 700}, 700),
        ({"amount": 100, "amount_paid": 50, "tax_amount": 250, "discount_amount": 300}, 50),
    ],
    ids=str,
)
def test_the_price_without_added_tax_counts(error: dict[str, int], minor: int) -> None:
    """PRV-5 PAY-4: no order of the merchant's can foresee the tax of the buyer's country."""
    order = {"id": "ord_1", "currency": "EUR", "status": "paid"} | error
    assert payment_event("checkout.completed", CHECKOUT | {"order": order}).amount == Money(
        minor, "EUR"
    )


def test_the_events_of_one_purchase_are_one_payment() -> None:
    """PRV-5: by the transaction, and with one amount."""
    events = [
        payment_event("checkout.completed", CHECKOUT),
        payment_event("subscription.paid", SUBSCRIPTION),
        look_up(TRANSACTION),
        payment_event("refund.created", REFUND),
        payment_event("dispute.created", DISPUTE),
    ]
    for event in events:
        assert isinstance(event, PaymentEvent)
        assert (event.ids[0], event.amount) == (TRAN, EUR_10)
        assert event.email == "buyer@example.com"
    active = translate("subscription.active", SUBSCRIPTION)
    assert isinstance(active, Ignored)
    assert active.code is Code.NON_SUCCESS_STATUS


def test_a_checkout_without_its_transaction_shares_an_id_with_the_others() -> None:
    """PRV-5: as Creem's own samples are."""
    checkout = payment_event("checkout.completed", CHECKOUT | {"order": ORDER})
    assert checkout.ids == (ORD, CH, FIRST)
    assert payment_event("subscription.paid", SUBSCRIPTION).ids == (TRAN, FIRST)
    assert payment_event("refund.created", REFUND).ids == (TRAN, ORD, CH)
    subscription = {"id": "sub_1", "last_transaction_id": "tran_1"}
    named = CHECKOUT | {"order": ORDER, "subscription": subscription}
    assert payment_event("checkout.completed", named).ids == (TRAN, ORD, CH)


def test_a_renewal_is_a_payment_of_its_own() -> None:
    """PRV-5 PAY-7: and is not for the order that the subscription began with."""
    later = {"last_transaction_id": "tran_2", "last_transaction_date": "2026-12-15T11:59:50.000Z"}
    renewal = payment_event("subscription.paid", SUBSCRIPTION | later)
    assert (renewal.ids, renewal.order) == ((ExternalId("payment", "tran_2"),), None)
    assert (renewal.email, renewal.plan_id) == ("buyer@example.com", "monthly")
    transaction = TRANSACTION | {"id": "tran_2", "created_at": NOW_MS + 30 * 86_400_000}
    for order in (ORDER, ORDER | {"transaction": "tran_1"}, {}, None):
        refund = payment_event(
            "refund.created", REFUND | {"transaction": transaction, "order": order}
        )
        assert (refund.ids, refund.order) == ((ExternalId("payment", "tran_2"),), None)


def test_a_payment_that_may_be_the_first_keeps_its_reference() -> None:
    """PRV-5"""
    event = payment_event("subscription.paid", SUBSCRIPTION | {"created_at": None})
    assert (event.ids, event.order) == ((TRAN,), "order-1")


def test_a_one_time_payment_has_order_and_checkout_ids() -> None:
    """PRV-5 PAY-1: a refund finds it, whether it was told of the transaction or not."""
    once = {"subscription": None}
    order = ORDER | {"type": "onetime", "created_at": None}
    assert payment_event("checkout.completed", CHECKOUT | once | {"order": order}).ids == (ORD, CH)
    transaction = TRANSACTION | {"subscription": None}
    refund = REFUND | once | {"order": order, "transaction": transaction}
    event = payment_event("refund.created", refund)
    assert (event.ids, event.order) == ((TRAN, ORD, CH), "order-1")


def test_a_refund_counts_by_its_share_of_the_price() -> None:
    """PRV-5 PAY-2: half of 12.10 is half of 10.00, and all of it is all, in any order."""
    event = payment_event("refund.created", REFUND)
    assert (event.event_type, event.amount) == (EventType.REFUNDED, EUR_10)
    assert event.refund == Refund("ref_1", Money(500, "EUR"))
    assert event.refunded == Money(500, "EUR")
    assert event.paid_at == RECEIVED_AT - timedelta(seconds=10)
    thirds = [
        payment_event(
            "refund.created",
            REFUND | {"id": f"ref_{number}", "refund_amount": part,
                      "transaction": TRANSACTION | {"refunded_amount": total}},
        )
        for number, (part, total) in enumerate([(403, 403), (403, 806), (404, 1_210)])
    ]  # fmt: skip
    facts = [facts_from_event(one, RECEIVED_AT) for one in thirds]
    assert [one.refunded_minor for one in facts] == [333, 666, 1_000]
    known = merge(merge(facts[2], facts[0]), facts[1])
    assert (known.status, known.refunded_minor) == ("REFUNDED", 1_000)
    assert merge(facts[1], facts[0]).status == "PARTIALLY_REFUNDED"


def test_a_refund_without_its_transaction_counts_in_full() -> None:
    """PRV-5"""
    event = payment_event(
        "refund.created", REFUND | {"transaction": "tran_1", "subscription": None}
    )
    assert (event.ids, event.amount, event.refunded) == ((TRAN, ORD, CH), None, None)
    assert event.refund == Refund("ref_1", Money(605, "EUR"))


def test_a_partial_refund_counts_without_the_total_of_its_transaction() -> None:
    """PRV-5 PAY-2: the event has its own amount."""
    partly = TRANSACTION | {"status": "partialRefund", "refunded_amount": None}
    event = payment_event("refund.created", REFUND | {"transaction": partly})
    assert (event.refund, event.refunded) == (Refund("ref_1", Money(500, "EUR")), None)


@pytest.mark.parametrize("status", ["pending", "requiresAction", "failed", "canceled", None])
def test_a_refund_that_has_not_succeeded_is_ignored(status: str | None) -> None:
    """PAY-2"""
    assert isinstance(translate("refund.created", REFUND | {"status": status}), Ignored)


def test_a_dispute_marks_its_payment() -> None:
    """PRV-5 PAY-2: with what was captured, and without a refund."""
    event = payment_event("dispute.created", DISPUTE)
    assert (event.event_type, event.ids) == (EventType.DISPUTED, (TRAN, ORD, CH))
    assert (event.amount, event.refunded, event.refund) == (EUR_10, None, None)


@pytest.mark.parametrize("order", [ORDER | {"status": "pending"}, None, ORDER | {"amount": 0}])
def test_an_unpaid_checkout_is_ignored(order: Any) -> None:
    """PRV-5: a trial, or one that is still to be paid."""
    event = translate("checkout.completed", CHECKOUT | {"order": order})
    assert isinstance(event, Ignored)
    assert event.code is Code.NON_SUCCESS_STATUS


@pytest.mark.parametrize(
    "changed",
    [{"order": "ord_1"}, {"order": {}}, {"order": None, "subscription": None}],
    ids=["its id only", "empty", "none, and no trial"],
)
def test_a_checkout_without_an_order_status_is_malformed(
    changed: dict[str, Any],
) -> None:
    """REC-6: no status. Ignored, it might be money that nobody hears of."""
    with pytest.raises(MalformedError, match="status is missing"):
        translate("checkout.completed", CHECKOUT | changed)


@pytest.mark.parametrize("kind", ["subscription.canceled", "credits.granted", "subscription.paid "])
@pytest.mark.parametrize("thing", [SUBSCRIPTION, None, [], {"order": 1}, "x"], ids=str)
def test_another_type_is_ignored_with_any_content(kind: str, thing: Any) -> None:
    """PRV-9"""
    assert isinstance(translate(kind, thing), Ignored)
    assert CREEM.identify(sent(kind, thing)).key == "evt_1"


@pytest.mark.parametrize(
    ("kind", "thing"),
    [
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"amount": None}}),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"amount": 10.5}}),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"amount": "1000"}}),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"amount": -1}}),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"amount": 10**40}}),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"currency": "XXX"}}),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"currency": None}}),
        ("checkout.completed", CHECKOUT | {"order": [ORDER]}),
        ("checkout.completed", {"order": {**ORDER, "id": None}}),
        ("subscription.paid", SUBSCRIPTION | {"last_transaction_id": None}),
        ("subscription.paid", SUBSCRIPTION | {"product": "prod_1"}),
        ("refund.created", REFUND | {"refund_amount": None}),
        ("refund.created", REFUND | {"id": None}),
        ("refund.created", REFUND | {"refund_currency": "USD"}),
        ("refund.created", REFUND | {"transaction": None}),
        ("dispute.created", DISPUTE | {"transaction": 5}),
        ("dispute.created", {}),
    ],
)
def test_invalid_money_is_malformed(kind: str, thing: Any) -> None:
    """REC-6 PAY-4"""
    with pytest.raises(MalformedError):
        CREEM.translate(sent(kind, thing))


@pytest.mark.parametrize("name", ["id", "eventType", "created_at"])
@pytest.mark.parametrize("value", [None, "", [], True, "x" * 256])
def test_an_authentic_event_without_id_type_or_time_is_malformed(name: str, value: Any) -> None:
    """REC-6"""
    event = {"id": "evt_1", "eventType": "x", "created_at": NOW_MS, "object": {}} | {name: value}
    for made in (event, {key: event[key] for key in event if key != name}):
        delivery = creem_signed(made, SECRET)
        CREEM.verify(delivery)
        with pytest.raises(MalformedError):
            CREEM.identify(delivery)


def test_a_time_is_in_milliseconds_or_iso_8601() -> None:
    """PRV-8"""
    for created_at in (NOW_MS, "2026-11-15T12:00:00.000Z", "2026-11-15T13:00:00+01:00"):
        delivery = sent("checkout.completed", CHECKOUT, created_at)
        CREEM.verify(delivery)
        assert CREEM.identify(delivery).occurred_at == RECEIVED_AT
    late = sent("checkout.completed", CHECKOUT, NOW_MS - 300_001)
    with pytest.raises(TimestampExpiredError):
        CREEM.verify(late)


def test_the_same_id_with_another_meaning_is_a_conflict() -> None:
    """INB-2"""
    things = [
        CHECKOUT,
        CHECKOUT | {"order": TAXED | {"transaction": "tran_2"}},
        CHECKOUT | {"order": ORDER | {"amount": 1_001, "transaction": "tran_1"}},
        CHECKOUT | {"order": ORDER | {"status": "pending"}},
    ]
    prints = {CREEM.identify(sent("checkout.completed", one)).fingerprint for one in things}
    assert len(prints) == len(things)


@pytest.mark.parametrize("mode", ["test", "sandbox", "local"])
def test_a_test_payment_counts_only_where_tests_are_accepted(mode: str) -> None:
    """PAY-4"""
    live = source(accepts_test=False)
    for thing in (CHECKOUT | {"mode": mode}, CHECKOUT | {"order": ORDER | {"mode": mode}}):
        assert isinstance(translate("checkout.completed", thing), PaymentEvent)
        event = translate("checkout.completed", thing, live)
        assert isinstance(event, Ignored)
        assert event.code is Code.TEST_PAYMENT
    assert isinstance(
        translate("checkout.completed", CHECKOUT | {"mode": "prod"}, live), PaymentEvent
    )


def test_a_paid_subscription_is_looked_up_with_an_api_key() -> None:
    """PRV-5: the key is in a header, the id in the address, whatever its letters."""
    event = translate(
        "subscription.paid", SUBSCRIPTION | {"last_transaction_id": "t&1"}, WITH_API_KEY
    )
    assert isinstance(event, LookupRequired)
    call = next(event.query())
    assert isinstance(call, GatewayRequest)
    assert (call.method, call.json) == ("GET", None)
    assert call.url == "https://test-api.creem.io/v1/transactions?transaction_id=t%261"
    assert call.headers["x-api-key"] == "creem_key"
    identity = WITH_API_KEY.identify(sent("subscription.paid", SUBSCRIPTION))
    assert (identity.payment_id, identity.key) == ("tran_1", "evt_1")
    assert isinstance(translate("checkout.completed", CHECKOUT, WITH_API_KEY), PaymentEvent)


def test_the_looked_up_transaction_counts() -> None:
    """PRV-5: its amount, though the product's price is another; and that it was refunded."""
    assert isinstance(
        paid := look_up(TRANSACTION | {"amount": 700, "amount_paid": 910}), PaymentEvent
    )
    assert (paid.event_type, paid.amount, paid.ids) == (
        EventType.PAID,
        Money(700, "EUR"),
        (TRAN, FIRST),
    )
    partly = look_up(TRANSACTION | {"status": "partialRefund", "refunded_amount": 605})
    assert isinstance(partly, PaymentEvent)
    assert (partly.event_type, partly.amount) == (EventType.REFUNDED, EUR_10)
    assert partly.refunded == Money(500, "EUR")
    unpriced = look_up(TRANSACTION, SUBSCRIPTION | {"product": "prod_1"})
    assert isinstance(unpriced, PaymentEvent)
    assert unpriced.amount == EUR_10


@pytest.mark.parametrize(
    "other",
    [
        {"id": "tran_2"},
        {"id": None},
        {"status": "declined"},
        {"status": "void"},
        {"currency": "USD"},
    ],
    ids=str,
)
def test_a_contradicting_transaction_is_a_mismatch(other: dict[str, Any]) -> None:
    """PRV-5"""
    with pytest.raises(GatewayMismatchError):
        look_up(TRANSACTION | other)


@pytest.mark.parametrize(
    "reply",
    [
        GatewayResponse(404, b"{}"),
        GatewayResponse(401, b""),
        GatewayResponse(403, b"{}"),
        GatewayResponse(202, json.dumps(TRANSACTION).encode()),
        GatewayResponse(302, b""),
        GatewayResponse(200, b"<html>"),
        GatewayResponse(200, b"[]"),
        GatewayResponse(200, json.dumps(TRANSACTION | {"status": "pending"}).encode()),
        GatewayResponse(200, json.dumps(TRANSACTION | {"status": "a new one"}).encode()),
        GatewayResponse(200, json.dumps(TRANSACTION | {"status": None}).encode()),
        GatewayResponse(200, json.dumps(TRANSACTION | {"amount_paid": "12.10"}).encode()),
        GatewayResponse(
            200, json.dumps(TRANSACTION | {"amount": None, "amount_paid": None}).encode()
        ),
    ],
    ids=lambda reply: f"{reply.status} {reply.body[-20:]!r}",
)
def test_an_unusable_response_is_retried_later(reply: GatewayResponse) -> None:
    """PRV-5: and the key is not told, only that it is refused where it is."""
    with pytest.raises(GatewayUnreachableError) as caught:
        look_up(reply)
    assert "creem_key" not in str(caught.value)
    assert ("rejects the api_key" in str(caught.value)) == (reply.status in (401, 403))


def test_a_transaction_of_the_test_mode_does_not_count_at_a_live_source() -> None:
    """PAY-4"""
    live = source(accepts_test=False, api_key="creem_key")
    event = translate("subscription.paid", SUBSCRIPTION, live)
    assert isinstance(event, LookupRequired)
    query = event.query()
    next(query)
    with pytest.raises(StopIteration) as ended:
        query.send(GatewayResponse(200, json.dumps(TRANSACTION | {"mode": "test"}).encode()))
    assert ended.value.value.code is Code.TEST_PAYMENT


@pytest.mark.parametrize(
    ("kind", "thing", "order_id"),
    [
        ("checkout.completed", CHECKOUT, "order-1"),
        ("checkout.completed", CHECKOUT | {"request_id": None, "metadata": None}, "ord_1"),
        ("checkout.completed", CHECKOUT | {"order": ORDER | {"status": "open"}}, "ord_1"),
        ("subscription.paid", SUBSCRIPTION | {"metadata": {}}, None),
        ("subscription.active", SUBSCRIPTION, None),
    ],
)
def test_the_answer_is_success_with_the_order(kind: str, thing: Any, order_id: str | None) -> None:
    """PRV-5 REC-7: the same to what comes again."""
    for word in ("success", "duplicate", "ignored", "accepted"):
        content_type, body = CREEM.success_response(word, uuid4(), sent(kind, thing))
        assert content_type == "application/json"
        assert json.loads(body) == {"status": "success", "orderId": order_id}
    assert CREEM.error_response("MALFORMED", "…") is None


def test_a_source_is_configured_with_a_key_that_may_be_a_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """USE-3 SEC-7"""
    monkeypatch.setenv("CREEM_KEY", "from-the-environment")
    assert source(api_key="env:CREEM_KEY").api_key == "from-the-environment"
    assert source().api_url == "https://api.creem.io"
    wrong_options = [("api_key", ""), ("api_key", "ключ"), ("api_key", "a\nb")]
    for name, wrong in (*wrong_options, ("api_url", "api.creem.io"), ("public_key", "x")):
        with pytest.raises(ConfigurationError, match=rf"sources\.test\.{name}"):
            creem.configure(ProviderConfig(KEY, (SECRET,), {name: wrong}))


@pytest.mark.skipif(not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors")
def test_published_vectors_are_accepted() -> None:
    """PRV-9"""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    ours = [one for one in vectors if one["id"].startswith("creem")]
    assert ours
    for vector in ours:
        provider = creem.configure(ProviderConfig(KEY, (vector["secret"],)))
        body = base64.b64decode(vector["body_b64"])
        at = datetime.fromtimestamp(json.loads(body)["created_at"] / 1000, UTC)
        delivery = Delivery(vector["headers"], body, at)
        provider.verify(delivery)
        event = provider.translate(delivery)
        assert isinstance(event, PaymentEvent)
        assert (event.amount, event.order) == (EUR_10, "my-request-id")
        with pytest.raises(InvalidSignatureError):
            provider.verify(Delivery(vector["headers"], body + b" ", at))


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(SUBSCRIPTION)
PARTS = st.dictionaries(
    st.sampled_from(["id", "amount", "currency", "status", "transaction", "created_at", "mode"]),
    VALUES | st.sampled_from(["paid", "succeeded", "EUR", NOW_MS, [], {}]),
)
THINGS = st.dictionaries(
    st.sampled_from([*CHECKOUT, *REFUND, *SUBSCRIPTION]),
    VALUES | PARTS | st.sampled_from([ORDER, TRANSACTION, "succeeded", 5, 10**30]),
)


@given(
    kind=st.sampled_from(
        ["checkout.completed", "subscription.paid", "refund.created", "dispute.created"]
    ),
    usual=st.sampled_from([{}, CHECKOUT, SUBSCRIPTION, REFUND, DISPUTE]),
    thing=THINGS | PARTS,
)
def test_any_signed_event_is_read_or_malformed(
    kind: str, usual: dict[str, Any], thing: dict[str, Any]
) -> None:
    """REC-6: and what is read has no negative amount."""
    delivery = sent(kind, usual | thing)
    for verb in (CREEM.verify, CREEM.identify, CREEM.translate):
        with contextlib.suppress(RejectedError):
            verb(delivery)
    with contextlib.suppress(RejectedError):
        event = CREEM.translate(delivery)
        if isinstance(event, PaymentEvent):
            single = event.refund.amount if event.refund else None
            error = [one for one in (event.amount, event.refunded, single) if one is not None]
            assert all(one.amount_minor >= 0 for one in error)


@given(secret=st.text(min_size=1).filter(str.strip), body=st.binary(), other=st.binary())
def test_the_documented_signature_and_no_other_is_accepted(
    secret: str, body: bytes, other: bytes
) -> None:
    """PRV-9"""
    key = secret.strip().encode("utf-8", "replace")
    provider = creem.configure(ProviderConfig(KEY, (key.decode(),), {}, None))
    headers = {"creem-signature": hmac.new(key, body, hashlib.sha256).hexdigest()}
    provider.verify(Delivery(headers, body, RECEIVED_AT))
    if other != body:
        with pytest.raises(InvalidSignatureError):
            provider.verify(Delivery(headers, other, RECEIVED_AT))


@pytest.mark.parametrize("status", ["refunded", "chargedBack", "chargeback"])
def test_a_refunded_transaction_without_an_amount_is_refunded_in_full(status: str) -> None:
    """PRV-5 PAY-2: it never counts as paid."""
    event = look_up(TRANSACTION | {"status": status, "refunded_amount": None})
    assert isinstance(event, PaymentEvent)
    assert (event.event_type, event.refunded) == (EventType.REFUNDED, event.amount)
    with pytest.raises(GatewayUnreachableError):
        look_up(TRANSACTION | {"status": "partialRefund", "refunded_amount": None})
