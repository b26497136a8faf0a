"""Translation of Stripe's events."""

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent, Refund
from paidonce.core.money import Money
from paidonce.errors import MalformedError
from paidonce.providers.contract import ProviderConfig
from paidonce.providers.stripe import provider as stripe
from tests.providers.cases.stripe import event, signed
from tests.providers.conformance import KEY

SECRET: Final = "whsec_of_the_endpoint"
STRIPE: Final = stripe.configure(ProviderConfig(KEY, (SECRET,)))
PRODUCTION: Final = stripe.configure(ProviderConfig(KEY, (SECRET,), accepts_test=False))
CREATED: Final = datetime.fromtimestamp(1794743940, UTC)

INTENT: Final[dict[str, Any]] = {
    "id": "pi_1",
    "object": "payment_intent",
    "amount": 99_000,
    "amount_received": 99_000,
    "currency": "usd",
    "latest_charge": "ch_1",
    "metadata": {"order": "o-1", "plan_id": "monthly"},
    "receipt_email": "buyer@example.com",
}
CHARGE: Final[dict[str, Any]] = {
    "id": "ch_1",
    "object": "charge",
    "amount": 99_000,
    "amount_captured": 99_000,
    "amount_refunded": 0,
    "billing_details": {"email": "buyer@example.com"},
    "captured": True,
    "created": 1794740000,
    "currency": "usd",
    "metadata": {"order_id": "o-1"},
    "payment_intent": "pi_1",
    "status": "succeeded",
}
DISPUTE: Final[dict[str, Any]] = {
    "id": "du_1",
    "object": "dispute",
    "amount": 50_000,
    "charge": "ch_1",
    "currency": "usd",
    "payment_intent": "pi_1",
    "status": "needs_response",
}
SESSION: Final[dict[str, Any]] = {
    "id": "cs_1",
    "object": "checkout.session",
    "amount_total": 99_000,
    "client_reference_id": "o-1",
    "currency": "usd",
    "customer_details": {"email": "buyer@example.com"},
    "customer_email": None,
    "invoice": None,
    "metadata": {"order": "another"},
    "mode": "payment",
    "payment_intent": "pi_1",
    "payment_status": "paid",
}
INVOICE: Final[dict[str, Any]] = {
    "id": "in_1",
    "object": "invoice",
    "amount_paid": 99_000,
    "currency": "usd",
    "customer_email": "buyer@example.com",
    "metadata": {},
    "parent": {"subscription_details": {"metadata": {"plan_id": "monthly", "order": "o-1"}}},
}
INVOICE_PAYMENT: Final[dict[str, Any]] = {
    "id": "inpay_1",
    "object": "invoice_payment",
    "amount_paid": 99_000,
    "currency": "usd",
    "invoice": "in_1",
    "payment": {"type": "payment_intent", "payment_intent": "pi_1"},
}
PI, CH = ExternalId("payment", "pi_1"), ExternalId("charge", "ch_1")
CS, IN = ExternalId("session", "cs_1"), ExternalId("invoice", "in_1")
MONEY: Final = Money(99_000, "USD")


def translate(kind: str, fields: dict[str, Any], **more: Any) -> PaymentEvent | Ignored:
    body = event(kind, {key: one for key, one in fields.items() if one is not ...}, **more)
    delivery = signed(body, SECRET)
    assert STRIPE.identify(delivery).key == "evt_1"
    return STRIPE.translate(delivery)


def payment(kind: str, fields: dict[str, Any], **more: Any) -> PaymentEvent:
    event = translate(kind, fields, **more)
    assert isinstance(event, PaymentEvent)
    return event


def test_an_intent_is_read_with_all_fields() -> None:
    """PRV-6 PAY-1"""
    delivery = signed(event("payment_intent.succeeded", INTENT), SECRET)
    assert STRIPE.translate(delivery) == PaymentEvent(
        event_type=EventType.PAID,
        ids=(PI, CH),
        amount=MONEY,
        order="o-1",
        email="buyer@example.com",
        plan_id="monthly",
        occurred_at=CREATED,
    )
    identity = STRIPE.identify(delivery)
    assert (identity.key, identity.event_id) == ("evt_1", "evt_1")
    assert (identity.type, identity.payment_id) == ("payment_intent.succeeded", "pi_1")
    assert (identity.order, identity.amount, identity.currency) == ("o-1", "990.00", "USD")
    assert identity.occurred_at == CREATED


@pytest.mark.parametrize(
    ("kind", "event_type"),
    [
        ("created", EventType.PENDING),
        ("requires_action", EventType.PENDING),
        ("processing", EventType.PROCESSING),
        ("amount_capturable_updated", EventType.PROCESSING),
        ("partially_funded", EventType.PROCESSING),
        ("payment_failed", EventType.FAILED),
        ("canceled", EventType.VOIDED),
    ],
)
def test_an_intent_that_did_not_succeed_has_no_money(kind: str, event_type: EventType) -> None:
    """PAY-2: whatever amounts it names."""
    event = payment(f"payment_intent.{kind}", INTENT)
    assert (event.event_type, event.amount, event.refunded) == (event_type, None, None)
    assert event.ids == (PI, CH)


@pytest.mark.parametrize("kind", ["charge.succeeded", "charge.captured"])
def test_the_captured_amount_of_a_charge_counts(kind: str) -> None:
    """PAY-1 PAY-2: under the id of its intent, so that it counts once."""
    event = payment(kind, CHARGE)
    assert (event.event_type, event.ids, event.amount) == (EventType.PAID, (PI, CH), MONEY)
    assert (event.order, event.email) == ("o-1", "buyer@example.com")
    part = payment(kind, CHARGE | {"amount_captured": 70_000})
    assert part.amount == Money(70_000, "USD")
    assert payment(kind, CHARGE | {"amount_captured": ...}).amount == MONEY
    alone = payment(kind, CHARGE | {"payment_intent": None})
    assert (alone.event_type, alone.ids) == (EventType.PAID, (CH,))


@pytest.mark.parametrize(
    "fields",
    [
        {"captured": False, "amount_captured": 0},
        {"captured": False, "amount_captured": None},
        {"captured": False},
        {"captured": ...},
        {"captured": "true"},
        {"amount_captured": 0},
        {"status": "pending"},
        {"status": "failed"},
        {"status": ...},
    ],
    ids=str,
)
def test_an_authorisation_is_not_money(fields: dict[str, Any]) -> None:
    """PAY-2: nor is the end of an authorisation a refund."""
    for kind in ("charge.succeeded", "charge.captured", "charge.pending"):
        event = payment(kind, CHARGE | fields)
        assert (event.event_type, event.amount) == (EventType.PROCESSING, None)
    released = CHARGE | fields | {"amount_refunded": 99_000, "refunded": True}
    for kind, event_type in (
        ("charge.refunded", EventType.VOIDED),
        ("charge.expired", EventType.VOIDED),
        ("charge.failed", EventType.FAILED),
    ):
        event = payment(kind, released)
        assert (event.event_type, event.amount, event.refunded) == (event_type, None, None)


def test_a_refund_has_the_total_refunded_and_captured() -> None:
    """PAY-2 PAY-6: so that a refund which overtakes its payment is enough to know of it."""
    event = payment("charge.refunded", CHARGE | {"amount_refunded": 30_000})
    assert (event.event_type, event.ids) == (EventType.REFUNDED, (PI, CH))
    assert (event.amount, event.refunded) == (MONEY, Money(30_000, "USD"))
    assert event.paid_at == datetime.fromtimestamp(1794740000, UTC)
    delivery = signed(_refund(30_000), SECRET)
    assert STRIPE.identify(delivery).amount == "300.00"
    other = STRIPE.identify(signed(_refund(40_000), SECRET))
    assert other.fingerprint != STRIPE.identify(delivery).fingerprint


def _refund(amount: int) -> bytes:
    return event("charge.refunded", CHARGE | {"amount_refunded": amount})


@pytest.mark.parametrize(
    ("version", "refunded"),
    [
        ("2020-08-27", 10_000),
        ("2024-12-18.acacia", 10_000),
        ("2025-03-31.basil", 39_000),
        ("2026-05-27.dahlia", 39_000),
        (None, 39_000),
    ],
)
def test_a_released_authorisation_is_not_a_refund(version: str | None, refunded: int) -> None:
    """PAY-2: older versions of the API count it as one."""
    charge = CHARGE | {"amount_captured": 70_000, "amount_refunded": 39_000}
    event = payment("charge.refunded", charge, api_version=version)
    assert (event.amount, event.refunded) == (Money(70_000, "USD"), Money(refunded, "USD"))


@pytest.mark.parametrize(
    ("details", "answer_by"),
    [
        ({"due_by": 1_795_000_000}, datetime.fromtimestamp(1_795_000_000, UTC)),
        ({"due_by": None}, None),
        ({"due_by": "soon"}, None),
        ("nothing", None),
    ],
)
def test_a_dispute_has_a_deadline_if_stripe_sends_one(
    details: object, answer_by: datetime | None
) -> None:
    """PAY-12 PRV-6: the dispute counts without it."""
    opened = payment("charge.dispute.created", DISPUTE | {"evidence_details": details})
    assert (opened.event_type, opened.answer_by) == (EventType.DISPUTED, answer_by)


def test_a_dispute_is_a_flag_until_it_is_lost() -> None:
    """PAY-2"""
    opened = payment("charge.dispute.created", DISPUTE)
    assert (opened.event_type, opened.ids) == (EventType.DISPUTED, (PI, CH))
    assert (opened.amount, opened.refunded, opened.refund) == (None, None, None)
    closed = "charge.dispute.closed"
    lost = payment(closed, DISPUTE | {"status": "lost"})
    assert lost.event_type is EventType.REFUNDED
    assert lost.refund == Refund("dispute:du_1", Money(50_000, "USD"))
    assert (lost.amount, lost.refunded) == (None, None)
    for status in ("won", "warning_closed"):
        won = payment(closed, DISPUTE | {"status": status})
        assert (won.event_type, won.refund) == (EventType.DISPUTE_WON, None)
    for open_still in ("prevented", "under_review", None):
        assert payment(closed, DISPUTE | {"status": open_still}).event_type is EventType.DISPUTED
    assert (
        payment("charge.dispute.created", DISPUTE | {"status": "lost"}).event_type
        is EventType.DISPUTED
    )
    with pytest.raises(MalformedError, match="id is missing"):
        translate(closed, DISPUTE | {"status": "lost", "id": None})


def test_a_paid_session_is_the_payment_of_its_intent() -> None:
    """PAY-1: its own reference counts before that in its metadata."""
    for kind in ("completed", "async_payment_succeeded"):
        event = payment(f"checkout.session.{kind}", SESSION)
        assert (event.event_type, event.ids, event.amount) == (EventType.PAID, (PI, CS), MONEY)
        assert (event.order, event.email) == ("o-1", "buyer@example.com")
    assert payment("checkout.session.completed", SESSION | {"client_reference_id": None}).order == (
        "another"
    )


@pytest.mark.parametrize(
    ("kind", "fields", "event_type"),
    [
        ("completed", {"payment_status": "unpaid"}, EventType.PROCESSING),
        ("completed", {"payment_status": ...}, EventType.PROCESSING),
        ("async_payment_succeeded", {"payment_status": "unpaid"}, EventType.PROCESSING),
        ("async_payment_failed", {"payment_status": "unpaid"}, EventType.FAILED),
        ("expired", {"payment_status": "unpaid", "payment_intent": None}, EventType.VOIDED),
    ],
)
def test_an_unpaid_session_has_no_money(
    kind: str, fields: dict[str, Any], event_type: EventType
) -> None:
    """PAY-2"""
    event = payment(f"checkout.session.{kind}", SESSION | fields)
    assert (event.event_type, event.amount) == (event_type, None)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("checkout.session.completed", SESSION | {"payment_status": "no_payment_required"}),
        ("checkout.session.completed", SESSION | {"amount_total": 0}),
        ("invoice.paid", INVOICE | {"amount_paid": 0}),
        ("invoice.paid", INVOICE | {"paid_out_of_band": True}),
        ("invoice_payment.paid", INVOICE_PAYMENT | {"payment": {"type": "payment_record"}}),
    ],
)
def test_an_object_without_a_charge_at_stripe_is_ignored(kind: str, fields: dict[str, Any]) -> None:
    """PAY-2"""
    event = translate(kind, fields)
    assert isinstance(event, Ignored)
    assert event.code is Code.NON_SUCCESS_STATUS


@pytest.mark.parametrize(
    ("kind", "fields", "ids"),
    [
        ("invoice.paid", INVOICE, (IN,)),
        ("invoice.payment_succeeded", INVOICE, (IN,)),
        (
            "checkout.session.completed",
            SESSION | {"payment_intent": None, "invoice": "in_1", "mode": "subscription"},
            (CS, IN),
        ),
    ],
)
def test_an_object_without_intent_and_charge_has_no_money(
    kind: str, fields: dict[str, Any], ids: tuple[ExternalId, ...]
) -> None:
    """PAY-1 PAY-3: the intent's events bring it, and counted here as well it would count twice."""
    event = payment(kind, fields)
    assert (event.event_type, event.ids, event.amount) == (EventType.PROCESSING, ids, None)
    assert event.email == "buyer@example.com"


def test_an_invoice_is_joined_to_the_intent_that_paid_it() -> None:
    """PAY-1: by older versions of the API, by its payment, or by the intent."""
    older = payment("invoice.paid", INVOICE | {"payment_intent": "pi_1", "charge": "ch_1"})
    assert (older.event_type, older.ids, older.amount) == (EventType.PAID, (PI, CH, IN), MONEY)
    assert (older.plan_id, older.order) == ("monthly", None), "no reference is that of each invoice"
    by_charge = payment("invoice.paid", INVOICE | {"charge": "ch_1"})
    assert (by_charge.event_type, by_charge.ids) == (EventType.PAID, (CH, IN))
    newer = payment("invoice_payment.paid", INVOICE_PAYMENT)
    assert (newer.event_type, newer.ids, newer.amount) == (EventType.PAID, (PI, IN), MONEY)
    assert payment("payment_intent.succeeded", INTENT | {"invoice": "in_1"}).ids == (PI, CH, IN)
    failed = payment("invoice.payment_failed", INVOICE)
    assert (failed.event_type, failed.ids, failed.amount) == (EventType.FAILED, (IN,), None)
    oldest = INVOICE | {"parent": None, "subscription_details": {"metadata": {"plan_id": "p"}}}
    assert payment("invoice.paid", oldest).plan_id == "p"


def test_an_id_may_be_an_expanded_object() -> None:
    """PAY-1"""
    expanded = payment("charge.succeeded", CHARGE | {"payment_intent": INTENT})
    assert expanded.ids == (PI, CH)
    assert payment("payment_intent.succeeded", INTENT | {"latest_charge": CHARGE}).ids == (PI, CH)
    assert payment("charge.dispute.created", DISPUTE | {"charge": CHARGE}).ids == (PI, CH)


@pytest.mark.parametrize(
    ("code", "amount", "money"),
    [
        ("usd", 1050, Money(1050, "USD")),
        ("jpy", 500, Money(500, "JPY")),
        ("isk", 500, Money(5, "ISK")),
        ("ugx", 1_000_000, Money(10_000, "UGX")),
        ("mga", 500, Money(50_000, "MGA")),
        ("huf", 10_045, Money(10_045, "HUF")),
        ("twd", 80_045, Money(80_045, "TWD")),
        ("kwd", 5_120, Money(5_120, "KWD")),
    ],
)
def test_amounts_have_the_decimals_of_stripe(code: str, amount: int, money: Money) -> None:
    """PRV-9 PAY-1: which are not always those of ISO 4217."""
    fields = INTENT | {"currency": code, "amount_received": amount}
    assert payment("payment_intent.succeeded", fields).amount == money


@pytest.mark.parametrize(
    "fields",
    [
        {"amount_received": ...},
        {"amount_received": -1},
        {"amount_received": 9.5},
        {"amount_received": "9.50"},
        {"amount_received": True},
        {"amount_received": 10**20},
        {"amount_received": 5, "currency": "isk"},
        {"currency": ...},
        {"currency": "xyz"},
        {"id": ..., "latest_charge": ...},
        {"metadata": {"order": ["o"]}},
        {"latest_charge": ["ch_1"]},
    ],
    ids=str,
)
def test_an_invalid_paid_intent_is_malformed(fields: dict[str, Any]) -> None:
    """REC-6 PAY-4"""
    with pytest.raises(MalformedError):
        translate("payment_intent.succeeded", INTENT | fields)


@pytest.mark.parametrize(
    "more",
    [{"id": None}, {"type": None}, {"object": "list"}, {"object": None}, {"data": None},
     {"data": {"object": []}}, {"api_version": []}],
    ids=str,
)  # fmt: skip
def test_a_body_that_is_not_an_event_is_malformed(more: dict[str, Any]) -> None:
    """REC-6"""
    charge = CHARGE | {"amount_refunded": 1}
    body = json.dumps(json.loads(event("charge.refunded", charge)) | more).encode()
    with pytest.raises(MalformedError):
        STRIPE.identify(signed(body, SECRET))


@pytest.mark.parametrize("kind", ["customer.created", "charge.updated", "refund.created", "x"])
def test_other_types_and_thin_events_are_ignored(kind: str) -> None:
    """PRV-6 PRV-9: whatever they carry."""
    thin = {"object": "v2.core.event", "created": "2026-11-15T11:59:00.000Z", "data": None}
    for more in ({}, {"data": None}, thin):
        event = translate(kind, CHARGE, **more)
        assert isinstance(event, Ignored)
        assert event.code is Code.NON_SUCCESS_STATUS
    assert isinstance(translate("payment_intent.succeeded", INTENT, **thin), Ignored)


def test_test_mode_does_not_count_in_production() -> None:
    """PAY-4"""
    for livemode, code in ((True, None), (False, Code.TEST_PAYMENT), (None, Code.TEST_PAYMENT)):
        delivery = signed(event("payment_intent.succeeded", INTENT, livemode=livemode), SECRET)
        fields = PRODUCTION.translate(delivery)
        assert (fields.code if isinstance(fields, Ignored) else None) == code
        assert isinstance(STRIPE.translate(delivery), PaymentEvent)


def test_events_of_a_connected_account_count_only_if_configured() -> None:
    """PAY-4 PRV-6: who has one could pay himself for an order of ours."""
    foreign = signed(event("payment_intent.succeeded", INTENT, account="acct_1"), SECRET)
    own = signed(event("payment_intent.succeeded", INTENT), SECRET)
    connected = stripe.configure(ProviderConfig(KEY, (SECRET,), {"account": "acct_1"}))
    assert isinstance(STRIPE.translate(own), PaymentEvent)
    assert isinstance(STRIPE.translate(foreign), Ignored)
    assert isinstance(connected.translate(foreign), PaymentEvent)
    assert isinstance(connected.translate(own), Ignored)
