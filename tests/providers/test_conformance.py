"""The suite that runs over every provider (PRV-9)."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import EventType, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import (
    ConfigurationError,
    InvalidRequestError,
    InvalidSignatureError,
    RejectedError,
    TimestampExpiredError,
)
from paidonce.providers.contract import Delivery, LookupRequired, SampleEvent, key_digest
from paidonce.providers.samples import STATUSES, new_sample
from tests.providers.cases import CASES
from tests.providers.conformance import (
    RECEIVED_AT,
    SECRETS,
    TOLERANCE_S,
    Case,
    ExpectedEvent,
    changed,
    header,
    with_header,
    without_header,
)

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)

_signed = pytest.mark.usefixtures("_is_signed")
"""Skips tests of signatures for gateways without them."""


@pytest.fixture
def _is_signed(case: Case) -> None:
    if not case.is_signed:
        pytest.skip("this gateway has no signatures")


def test_an_authentic_delivery_is_accepted(case: Case) -> None:
    """PRV-9"""
    case.configured.verify(case.authentic())


@_signed
def test_a_second_secret_is_accepted(case: Case) -> None:
    """PRV-7: rotation without loss."""
    for secret in SECRETS:
        case.configured.verify(case.authentic(secret=secret))


@_signed
def test_an_unconfigured_secret_is_rejected(case: Case) -> None:
    """PRV-9"""
    with pytest.raises(InvalidSignatureError):
        case.configured.verify(case.authentic(secret="of-somebody-else"))
    with pytest.raises(InvalidSignatureError):
        case.provider(*SECRETS[1:]).verify(case.authentic(secret=SECRETS[0]))


@_signed
def test_each_flipped_bit_of_the_body_is_rejected(case: Case) -> None:
    """PRV-9 REC-1: the raw bytes are what is signed."""
    if not case.signs_whole_body:
        pytest.skip("this gateway signs fields and not bytes")
    provider, delivery = case.configured, case.authentic()
    for bit in range(len(delivery.body) * 8):
        body = bytearray(delivery.body)
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidSignatureError):
            provider.verify(changed(delivery, body=bytes(body)))


@_signed
@pytest.mark.parametrize("change", [b" ", b"\n", b"\x00"])
def test_a_byte_more_or_less_is_rejected(case: Case, change: bytes) -> None:
    """PRV-9 REC-1"""
    if not case.signs_whole_body:
        pytest.skip("this gateway signs fields and not bytes")
    provider, delivery = case.configured, case.authentic()
    for body in (delivery.body + change, change + delivery.body, delivery.body[:-1], b""):
        with pytest.raises(InvalidSignatureError):
            provider.verify(changed(delivery, body=body))


@_signed
def test_each_flipped_bit_of_the_signature_and_signed_headers_is_rejected(case: Case) -> None:
    """PRV-9: the headers as well as the body."""
    provider, delivery = case.configured, case.authentic()
    for name in (case.signature_header, *case.signed_headers):
        right = header(delivery, name).encode()
        for bit in range(len(right) * 8):
            flipped = bytearray(right)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(InvalidSignatureError):
                provider.verify(with_header(delivery, name, bytes(flipped).decode("latin-1")))


@_signed
@pytest.mark.parametrize(
    "given", ["", " ", "é" * 64, "\xff", "\udcff\udc80", "0" * 64, "\x00", "a" * 100_000]
)
def test_a_signature_of_random_text_is_rejected(case: Case, given: str) -> None:
    """PRV-9: and it is refused, not an error of ours."""
    delivery = case.authentic()
    for name in (case.signature_header, *case.signed_headers):
        with pytest.raises(InvalidSignatureError):
            case.configured.verify(with_header(delivery, name, given))


@_signed
def test_a_signature_in_another_format_is_rejected(case: Case) -> None:
    """PRV-9"""
    delivery = case.authentic()
    for wrong in case.wrong_signatures.values():
        with pytest.raises(InvalidSignatureError):
            case.configured.verify(with_header(delivery, case.signature_header, wrong))


@_signed
def test_a_missing_header_is_rejected(case: Case) -> None:
    """PRV-9"""
    delivery = case.authentic()
    for name in (case.signature_header, *case.signed_headers):
        missing = without_header(delivery, name)
        for one in (missing, changed(missing, headers={})):
            with pytest.raises(InvalidSignatureError):
                case.configured.verify(one)


@_signed
@pytest.mark.parametrize("secrets", [(), ("",), ("right", "")], ids=str)
def test_a_source_without_a_secret_cannot_start(case: Case, secrets: tuple[str, ...]) -> None:
    """PRV-7: an empty secret would be an open door. The error names the key."""
    with pytest.raises(ConfigurationError, match=rf"sources\.test\.{case.secrets_setting}"):
        case.provider(*secrets)


@pytest.mark.parametrize("late_s", [-TOLERANCE_S, 0, TOLERANCE_S])
def test_a_time_within_the_tolerance_is_accepted(case: Case, late_s: int) -> None:
    """PRV-8: in both directions, and exactly at it."""
    case.configured.verify(case.late_by(late_s))


@pytest.mark.parametrize("late_s", [-TOLERANCE_S - 1, TOLERANCE_S + 1, 10**8])
def test_an_expired_time_is_rejected_with_its_own_error(case: Case, late_s: int) -> None:
    """PRV-8: where the gateway signs one; a source that takes stale ones has no such check."""
    if not case.signs_time:
        case.configured.verify(case.late_by(late_s))
        return
    with pytest.raises(TimestampExpiredError):
        case.configured.verify(case.late_by(late_s))
    case.provider(*SECRETS, tolerance_s=None).verify(case.late_by(late_s))
    with pytest.raises(TimestampExpiredError):
        case.provider(*SECRETS, tolerance_s=0).verify(case.late_by(1))


@_signed
def test_the_time_is_checked_after_the_signature(case: Case) -> None:
    """PRV-8: what is forged is not called stale."""
    forged = with_header(case.late_by(10**6), case.signature_header, "wrong")
    with pytest.raises(InvalidSignatureError):
        case.configured.verify(forged)


@_signed
def test_an_error_contains_neither_secret_nor_expected_signature(case: Case) -> None:
    """SEC-7"""
    delivery = case.authentic()
    right = header(delivery, case.signature_header)
    with pytest.raises(InvalidSignatureError) as caught:
        case.configured.verify(with_header(delivery, case.signature_header, "wrong"))
    assert right not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_a_redelivery_has_the_same_key_and_meaning(case: Case) -> None:
    """INB-1 INB-2"""
    for expected in (ExpectedEvent(), ExpectedEvent(event_id=None)):
        first = case.configured.identify(case.authentic(expected))
        again = case.configured.identify(case.authentic(expected))
        assert first.key == again.key
        assert first.fingerprint == again.fingerprint


def test_another_event_has_another_key(case: Case) -> None:
    """INB-1"""
    expected = [ExpectedEvent(), ExpectedEvent(event_id=None, payment_id="p-2")]
    if case.names_events:
        expected += [ExpectedEvent(event_id="evt-2"), ExpectedEvent(event_id=None)]
    keys = {case.identified(one).key for one in expected}
    assert len(keys) == len(expected)


def test_another_amount_currency_or_payment_is_another_meaning(case: Case) -> None:
    """INB-2"""
    expected = [ExpectedEvent(), ExpectedEvent(payment_id="p-2")]
    if not case.needs_lookup:
        expected += [ExpectedEvent(amount="990.01"), ExpectedEvent(currency="USD")]
    prints = {case.identified(one).fingerprint for one in expected}
    assert len(prints) == len(expected)


def test_the_key_and_the_fingerprint_fit_their_columns(case: Case) -> None:
    """INB-1"""
    identity = case.configured.identify(case.authentic())
    assert len(key_digest(identity.key)) == len(identity.fingerprint) == 16


def test_an_unknown_kind_of_event_is_ignored_with_a_reason(case: Case) -> None:
    """PRV-9"""
    delivery = case.authentic(ExpectedEvent(kind=case.unknown_kind))
    event = case.configured.translate(delivery)
    assert isinstance(event, Ignored)
    assert event.reason
    assert case.configured.identify(delivery).payment_id == case.unknown_payment_id


def test_a_paid_event_is_translated(case: Case) -> None:
    """PRV-1"""
    event = case.paid(ExpectedEvent())
    assert event.event_type is EventType.PAID
    assert event.amount == Money(99_000, "RUB")
    assert event.email == ("buyer@example.com" if case.tells_email else None)
    assert [one.value for one in event.ids] == ["p-1"]


@pytest.mark.parametrize(
    ("amount", "currency", "amount_minor"),
    [("10000", "KRW", 10_000), ("500", "JPY", 500), ("1.234", "KWD", 1_234), ("0.005", "BHD", 5)],
)
def test_currencies_with_no_and_three_decimals_are_exact(
    case: Case, amount: str, currency: str, amount_minor: int
) -> None:
    """PRV-9 PAY-1"""
    event = case.paid(ExpectedEvent(amount=amount, currency=currency))
    assert event.amount == Money(amount_minor, currency)


def test_a_provider_accepts_its_own_samples(case: Case) -> None:
    """OPS-6: a test webhook is as good as the gateway's."""
    sample = SampleEvent(
        "p-9", "990.00", "RUB", "paid", "evt-9", email="buyer@example.com", sent_at=RECEIVED_AT
    )
    provider = case.configured
    if not case.composes:
        with pytest.raises(ConfigurationError, match="public key"):
            provider.build_sample(sample)
        return
    headers, body = provider.build_sample(sample)
    delivery = Delivery(headers, body, RECEIVED_AT)
    provider.verify(delivery)
    expected = ExpectedEvent("p-9", "evt-9")
    event, paid = case.event(provider, delivery, expected), case.paid(expected)
    assert isinstance(event, PaymentEvent)
    assert (event.event_type, event.ids, event.amount) == (paid.event_type, paid.ids, paid.amount)
    assert event.email == paid.email


@pytest.mark.parametrize("word", STATUSES)
def test_every_provider_builds_a_sample_of_each_status_or_rejects_it(case: Case, word: str) -> None:
    """OPS-6"""
    if not case.composes:
        return
    provider = case.configured
    sample = new_sample(amount="990.00", currency="RUB", status=word, payment_id="p-9")
    sample = replace(sample, sent_at=RECEIVED_AT)
    try:
        headers, body = provider.build_sample(sample)
    except InvalidRequestError:
        assert word != "paid"
        return
    delivery = Delivery(headers, body, RECEIVED_AT)
    provider.verify(delivery)
    provider.identify(delivery)
    event = provider.translate(delivery)
    if isinstance(event, PaymentEvent):
        expected = {EventType.VOIDED: "canceled"}.get(event.event_type, event.event_type)
        assert expected == word
    elif isinstance(event, Ignored):
        assert word not in ("paid", "refunded") or case.name.startswith("tilda")
    else:
        assert isinstance(event, LookupRequired)


def test_stored_evidence_can_be_read_again(case: Case) -> None:
    """REC-1 OPS-4 SEC-7: and verified again, unless the proof was a key, which is not kept."""
    provider, delivery = case.configured, case.authentic()
    kept = changed(delivery, headers=provider.evidence_headers(delivery.headers))
    assert provider.identify(kept) == provider.identify(delivery)
    assert case.event(provider, kept, ExpectedEvent()) == case.event(
        provider, delivery, ExpectedEvent()
    )
    assert not set(kept.headers.values()) & set(SECRETS)
    if case.keeps_proof:
        provider.verify(kept)


def test_an_event_is_not_a_ping(case: Case) -> None:
    """PRV-2"""
    assert case.configured.answer_ping(case.authentic().body) is None


_KINDS = st.sampled_from(
    ["application/json", "application/x-www-form-urlencoded", "APPLICATION/JSON; charset=x", ""]
)
_NAMES = sorted({name for case in CASES for name in (case.signature_header, *case.signed_headers)})
_HEADERS = st.dictionaries(
    st.sampled_from([*_NAMES, "svix-id", "svix-timestamp", "svix-signature"]),
    st.binary().map(lambda value: value.decode("latin-1"))
    | st.sampled_from(["1794744000", "v1,x", "v1a,x", "t=1794744000,v1=x", "ts=1794744000;h1=x"]),
)
_TEXTS = st.text() | st.integers() | st.none() | st.booleans() | st.floats() | st.just("0")
_PART_NAMES = ["sys", "systranid", "orderid", "amount", "payment_id", "currency"]
_PART_NAMES += ["paymentId", "transactionId", "storeId", "cancellationId", "totalAmount"]
_PARTS = st.dictionaries(st.sampled_from(_PART_NAMES), _TEXTS)
_NAMES = ["type", "timestamp", "data", "payment", "tranid", "Email", "status", "test"]
_NAMES += ["payment_id", "tx_id", "total_amount", "imp_uid", "merchant_uid", "cancellation_id"]
_TYPES = st.sampled_from(["Transaction.Paid", "Transaction.Confirm", "Paid", "paid", "imp_1"])
_JSON = st.dictionaries(st.sampled_from(_NAMES), _TEXTS | _PARTS | _TYPES).map(
    lambda expected: json.dumps(expected).encode()
)
_FORMS = st.lists(
    st.tuples(
        st.sampled_from(["payment[amount]", "payment[systranid]", "a[", "[]", *_NAMES]),
        st.text() | _PARTS.map(json.dumps) | _TYPES,
    )
).map(lambda pairs: urlencode(pairs, errors="replace").encode())


@given(headers=_HEADERS, kind=_KINDS, body=st.binary() | _JSON | _FORMS)
def test_no_input_causes_an_internal_error(
    case: Case, headers: dict[str, str], kind: str, body: bytes
) -> None:
    """PRV-9 REC-6: whatever the headers and the body, it is read or refused."""
    provider = case.configured
    delivery = Delivery({**headers, "content-type": kind}, body, RECEIVED_AT)
    with pytest.raises(InvalidSignatureError) if case.is_signed else contextlib.nullcontext():
        provider.verify(delivery)
    for verb in (provider.identify, provider.translate, provider.signature_method):
        with contextlib.suppress(RejectedError):
            verb(delivery)
    provider.evidence_headers(delivery.headers)
    provider.answer_ping(body)


@given(body=st.binary() | _JSON | _FORMS)
def test_any_authentic_body_is_read_or_malformed(case: Case, body: bytes) -> None:
    """PRV-9 REC-6: the same, with headers that are right in themselves."""
    delivery = changed(case.authentic(), body=body)
    for verb in (case.configured.verify, case.configured.identify, case.configured.translate):
        with contextlib.suppress(RejectedError):
            verb(delivery)


@given(where=st.integers(0, 2**32), value=_TEXTS | _PARTS | st.lists(_TEXTS))
def test_a_field_of_any_other_type_is_read_or_malformed(
    case: Case, where: int, value: object
) -> None:
    """PRV-9 REC-6: an authentic body in which one value is another."""
    delivery = case.authentic()
    if "json" not in delivery.headers["content-type"]:
        return
    body = json.loads(delivery.body)
    holders = list(_holders(body))
    holder = holders[where % len(holders)]
    holder[sorted(holder)[where % len(holder)]] = value
    odd = changed(delivery, body=json.dumps(body).encode())
    for verb in (case.configured.identify, case.configured.translate):
        with contextlib.suppress(RejectedError):
            verb(odd)


def _holders(value: object) -> Iterator[dict[str, object]]:
    """The objects within a JSON value that hold something."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and value:
        yield value
    for one in inner:
        yield from _holders(one)
