"""Tests of Tilda's JSON contract beyond the conformance suite."""

import contextlib
import hashlib
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import ConfigurationError, MalformedError
from paidonce.providers import load_providers
from paidonce.providers.contract import Delivery, Identity, ProviderConfig, key_digest
from paidonce.providers.tilda import provider as tilda
from paidonce.settings import Settings
from paidonce.settings.sections import SourceSettings

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
TILDA = tilda.configure(ProviderConfig("sources.test", ("secret",)))
USUAL: dict[str, Any] = {
    "external_payment_id": "p-1",
    "event_id": "evt-1",
    "status": "paid",
    "amount": "990.00",
    "currency": "RUB",
    "email": "buyer@example.com",
    "plan_id": "monthly",
    "paid_at": "2026-11-15T10:00:00Z",
}


def delivery(body: bytes | None = None, **fields: Any) -> Delivery:
    fields = {key: value for key, value in (USUAL | fields).items() if value is not ...}
    return Delivery({}, json.dumps(fields).encode() if body is None else body, NOW)


def identified(body: bytes | None = None, **fields: Any) -> Identity:
    return TILDA.identify(delivery(body, **fields))


def read(arrived: Delivery) -> None:
    TILDA.identify(arrived)
    TILDA.translate(arrived)


def translated(**fields: Any) -> PaymentEvent:
    event = TILDA.translate(delivery(**fields))
    assert isinstance(event, PaymentEvent)
    return event


def test_an_event_is_read_with_all_fields() -> None:
    """PRV-2"""
    at = datetime(2026, 11, 15, 10, tzinfo=UTC)
    event, identity = translated(), identified()
    assert event.ids == (ExternalId("payment", "p-1"),)
    assert (event.amount, event.email) == (Money(99_000, "RUB"), "buyer@example.com")
    assert (event.plan_id, event.occurred_at) == ("monthly", at)
    assert (identity.key, identity.event_id, identity.payment_id) == ("evt-1", "evt-1", "p-1")
    assert (identity.type, identity.amount, identity.currency) == ("paid", "990.00", "RUB")
    assert identity.occurred_at == at


@pytest.mark.parametrize("missing", [..., None, ""])
def test_without_an_event_id_the_key_is_the_hash_of_provider_and_body(missing: Any) -> None:
    """PRV-2: S0's payloadHash = sha256(provider + rawBody), in hex, of the raw bytes."""
    arrived = delivery(event_id=missing)
    expected = hashlib.sha256(b"tilda" + arrived.body).hexdigest()
    assert TILDA.identify(arrived).key == expected
    assert TILDA.identify(arrived).event_id is None
    spaced = Delivery({}, arrived.body + b" ", NOW)
    assert TILDA.identify(spaced).key != expected


@pytest.mark.parametrize("status", ["paid", "succeeded"])
def test_paid_and_succeeded_count(status: str) -> None:
    """PAY-2 section 15"""
    assert translated(status=status).amount == Money(99_000, "RUB")


@pytest.mark.parametrize(
    "status",
    [
        "pending",
        "failed",
        "refunded",
        "canceled",
        "PAID",
        "Paid",
        " paid",
        "paid ",
        "x",
        "order.paid",
        "оплачено",
    ],
)
def test_any_other_status_is_ignored(status: str) -> None:
    """PAY-2: NON_SUCCESS_STATUS, and it makes no payment."""
    event = TILDA.translate(delivery(status=status))
    assert isinstance(event, Ignored)
    assert event.code is Code.NON_SUCCESS_STATUS


@pytest.mark.parametrize(
    "spellings",
    [
        [
            b'"990.00"',
            b'"990"',
            b'"990.0"',
            b"990",
            b"990.0",
            b"990.00",
            b"9.9e2",
            b'"9.9e2"',
            b'"+990"',
        ],
        [b'"0"', b"0", b"0.0", b'"0.00"', b"0e5"],
        [b'"1000"', b"1e3", b"1000", b"1000.000"],
    ],
    ids=["990", "0", "1000"],
)
def test_equal_amounts_have_equal_fingerprints(spellings: list[bytes]) -> None:
    """INB-2: a number and a text of the same amount mean the same."""
    body = (
        b'{"external_payment_id":"p-1","event_id":"e","status":"paid","currency":"RUB","amount":%s}'
    )
    assert len({identified(body % one).fingerprint for one in spellings}) == 1


def test_equal_currencies_have_equal_fingerprints() -> None:
    """INB-2: both are the same money, so one cannot contradict the other."""
    assert translated(currency="rub").amount == translated(currency="RUB").amount
    assert identified(currency="rub").fingerprint == identified(currency="RUB").fingerprint


@pytest.mark.parametrize(
    "other",
    [
        {"amount": "990.01"},
        {"amount": 99},
        {"amount": None},
        {"currency": "USD"},
        {"currency": None},
        {"status": "failed"},
        {"external_payment_id": "p-2"},
    ],
    ids=str,
)
def test_another_amount_currency_status_or_payment_is_another_meaning(
    other: dict[str, Any],
) -> None:
    """INB-2"""
    assert identified(**other).fingerprint != identified().fingerprint


@pytest.mark.parametrize(
    "other", [{"email": "x@y.z"}, {"paid_at": None}, {"plan_id": "yearly"}, {"x": 1}]
)
def test_fields_without_money_do_not_change_the_fingerprint(other: dict[str, Any]) -> None:
    """INB-2: amount, currency, status and payment make the meaning."""
    assert identified(**other).fingerprint == identified().fingerprint


def test_fields_cannot_run_into_each_other_in_a_fingerprint() -> None:
    """INB-2"""
    one = identified(external_payment_id="a\x1fpaid", status="b")
    other = identified(external_payment_id="a", status="paid\x1fb")
    assert one.fingerprint != other.fingerprint


def test_a_payment_id_may_be_a_number() -> None:
    """PRV-2"""
    assert translated(external_payment_id=123).ids == (ExternalId("payment", "123"),)


@pytest.mark.parametrize("name", ["external_payment_id", "status"])
@pytest.mark.parametrize("value", [..., None, "", True, 1.5, [], {}, ["p"], "x" * 256])
def test_a_delivery_without_payment_id_or_status_is_malformed(name: str, value: Any) -> None:
    """REC-6"""
    with pytest.raises(MalformedError, match=name):
        identified(**{name: value})


@pytest.mark.parametrize("name", ["event_id", "currency", "plan_id"])
@pytest.mark.parametrize("value", [True, 1.5, [], {}, "x" * 256])
def test_a_field_of_another_type_is_malformed(name: str, value: Any) -> None:
    """REC-6"""
    arrived = delivery(**{name: value})
    with pytest.raises(MalformedError, match=name):
        read(arrived)


@pytest.mark.parametrize(
    "amount",
    [
        ...,
        None,
        "",
        True,
        [],
        {},
        "x",
        "-1",
        -1,
        "NaN",
        "990,00",
        "990.001",
        "1e999999999",
        "9" * 300,
        "1e-999999999999999999",
        10**60,
        "sNaN",
        "\x00",
    ],
)
def test_a_paid_event_without_a_valid_amount_is_malformed(amount: object) -> None:
    """PAY-4 REC-6"""
    arrived = delivery(amount=amount)
    with pytest.raises(MalformedError):
        read(arrived)


@pytest.mark.parametrize("currency", [..., None, "", "XXX", "RUR", "рубль"])
def test_a_paid_event_without_a_known_currency_is_malformed(currency: object) -> None:
    """PAY-4"""
    with pytest.raises(MalformedError):
        TILDA.translate(delivery(currency=currency))


@pytest.mark.parametrize("email", [..., None, "", "nobody", "a b@c", "@", "x@"])
def test_an_invalid_email_address_counts_as_missing(email: object) -> None:
    """PAY-5: the money is kept."""
    assert translated(email=email).email is None


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-15T10:00:00Z", "2026-11-15T10:00:00+00:00"),
        ("2026-11-15T10:00:00+03:00", "2026-11-15T07:00:00+00:00"),
        ("2026-11-15 10:00:00", "2026-11-15T10:00:00+00:00"),
        ("2026-11-15T10:00:00.123456Z", "2026-11-15T10:00:00.123456+00:00"),
        ("2026-11-15", "2026-11-15T00:00:00+00:00"),
    ],
)
def test_times_are_utc_unless_they_have_an_offset(text: str, utc: str) -> None:
    """PRV-2"""
    assert translated(paid_at=text).occurred_at == datetime.fromisoformat(utc)


@pytest.mark.parametrize(
    "text", ["yesterday", "2026-13-01", "0001-01-01T00:00:00+23:59", "15.11.2026"]
)
def test_an_invalid_time_is_dropped(text: str) -> None:
    """REC-8"""
    assert translated(paid_at=text).occurred_at is None


@pytest.mark.parametrize("number", [1712123012359, 1794736800, 1794736800000])
def test_a_numeric_time_is_dropped(number: int) -> None:
    """REC-8 PAY-4: 1712123012359, milliseconds of 2024, must not be the year 1712."""
    assert translated(paid_at=number).occurred_at is None


fields = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(USUAL, fields)))
def test_no_input_causes_an_internal_error(fields: dict[str, object]) -> None:
    """REC-6"""
    arrived = Delivery({}, json.dumps(fields).encode(), NOW)
    try:
        identity = TILDA.identify(arrived)
        TILDA.translate(arrived)
    except MalformedError:
        return
    assert len(key_digest(identity.key)) == 16


@given(
    st.text(max_size=50)
    | st.integers()
    | st.from_regex(r"[0-9]{0,40}(\.[0-9]{0,40})?(e[0-9]{1,9})?")
)
def test_any_amount_has_a_fingerprint_or_is_malformed(amount: object) -> None:
    """REC-6 INB-2"""
    with contextlib.suppress(MalformedError):
        assert len(identified(amount=amount).fingerprint) == 16


def test_the_answer_is_json_with_status_and_event_id() -> None:
    """REC-5 section 15"""
    kind, body = TILDA.success_response("success", UUID(int=7), delivery())
    assert kind == "application/json"
    assert json.loads(body) == {"status": "success", "event_id": str(UUID(int=7))}


def test_a_source_without_secrets_is_rejected() -> None:
    """PRV-7"""
    with pytest.raises(ConfigurationError, match=r"sources\.shop\.secrets"):
        tilda.configure(ProviderConfig("sources.shop"))


@pytest.mark.parametrize("secret", ["", " "])
def test_an_empty_secret_is_rejected(secret: str) -> None:
    """PRV-7: an empty HMAC key would let anybody sign."""
    source = SourceSettings(provider="tilda", secrets=("right", secret))
    with pytest.raises(ConfigurationError, match=r"sources\.shop\.secrets\[1\]"):
        load_providers(Settings(sources={"shop": source}))


def test_an_unknown_setting_is_rejected() -> None:
    """USE-3"""
    with pytest.raises(ConfigurationError, match=r"sources\.shop\.api_key"):
        tilda.configure(ProviderConfig("sources.shop", ("secret",), {"api_key": "x"}))
