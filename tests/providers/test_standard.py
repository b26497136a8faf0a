"""Tests of Standard Webhooks beyond the conformance suite."""

import base64
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import ConfigurationError, InvalidSignatureError, MalformedError, RejectedError
from paidonce.providers import standard
from paidonce.providers.contract import Delivery, ProviderConfig, SampleEvent
from paidonce.providers.standard_webhooks import MAX_SIGNATURES
from tests.providers.cases.standard import v1, v1a, whpk, whsec
from tests.providers.conformance import KEY, RECEIVED_AT

SECRET = "a secret of enough bytes"
USUAL: dict[str, Any] = {
    "payment_id": "p-1",
    "order": "o-1",
    "amount": "990.00",
    "currency": "RUB",
    "email": "buyer@example.com",
    "plan_id": "monthly",
}
VECTORS = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")


def source(*secrets: str, **options: Any) -> standard.Standard:
    return standard.configure(ProviderConfig(KEY, secrets or (whsec(SECRET),), options))


STANDARD = source()


def signed(
    body: bytes,
    event_id: str = "msg_1",
    family: str = "webhook",
    **more: str,
) -> Delivery:
    timestamp = str(int(RECEIVED_AT.timestamp()))
    headers = {
        f"{family}-id": event_id,
        f"{family}-timestamp": timestamp,
        f"{family}-signature": v1(SECRET, f"{event_id}.{timestamp}.".encode() + body),
    }
    return Delivery(headers | more, body, RECEIVED_AT)


def webhook_body(
    kind: str = "payment.succeeded", at: Any = "2026-11-15T10:00:00Z", **data: Any
) -> bytes:
    fields = {key: value for key, value in (USUAL | data).items() if value is not ...}
    return json.dumps({"type": kind, "timestamp": at, "data": fields}).encode()


def translated(body: bytes, provider: standard.Standard = STANDARD) -> PaymentEvent:
    event = provider.translate(signed(body))
    assert isinstance(event, PaymentEvent)
    return event


def test_an_event_is_read_with_all_fields() -> None:
    """PRV-6 section 15"""
    event, identity = translated(webhook_body()), STANDARD.identify(signed(webhook_body()))
    at = datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert event == PaymentEvent(
        event_type=EventType.PAID,
        ids=(ExternalId("payment", "p-1"),),
        amount=Money(99_000, "RUB"),
        order="o-1",
        email="buyer@example.com",
        plan_id="monthly",
        occurred_at=at,
    )
    assert (identity.key, identity.event_id) == ("msg_1", "msg_1")
    assert (identity.payment_id, identity.order) == ("p-1", "o-1")
    assert (identity.type, identity.amount) == ("payment.succeeded", "990.00")
    assert (identity.currency, identity.occurred_at) == ("RUB", at)


@pytest.mark.parametrize(
    ("kind", "event_type", "amount"),
    [
        ("payment.pending", EventType.PENDING, None),
        ("payment.succeeded", EventType.PAID, Money(99_000, "RUB")),
        ("payment.failed", EventType.FAILED, None),
        ("payment.canceled", EventType.VOIDED, None),
        ("payment.refunded", EventType.REFUNDED, Money(99_000, "RUB")),
    ],
)
def test_each_type_has_its_meaning(kind: str, event_type: EventType, amount: Money | None) -> None:
    """PRV-6 PAY-2: a cancellation that nobody confirmed returns no money."""
    event = translated(webhook_body(kind))
    is_refund = event_type is EventType.REFUNDED
    assert (event.event_type, event.refunded if is_refund else event.amount) == (event_type, amount)
    assert (event.amount if is_refund else event.refunded, event.refund) == (None, None)


@pytest.mark.parametrize("kind", ["payment.disputed", "PAYMENT.SUCCEEDED", "customer.created"])
def test_another_type_is_ignored_with_any_content(kind: str) -> None:
    """PRV-6 PRV-9: its fields may be of other kinds, or missing."""
    for body in (
        webhook_body(kind),
        webhook_body(kind, at=True, payment_id={}, email=[1], amount=[]),
        b'{"type":"x"}',
    ):
        event = STANDARD.translate(signed(body))
        assert isinstance(event, Ignored)
        assert event.code is Code.NON_SUCCESS_STATUS
        assert STANDARD.identify(signed(body)).key == "msg_1"


@pytest.mark.parametrize("kind", ["payment.succeeded", "payment.refunded"])
@pytest.mark.parametrize("data", [{"amount": ...}, {"amount": None}, {"currency": ...}], ids=str)
def test_money_without_an_amount_is_malformed(kind: str, data: dict[str, Any]) -> None:
    """PAY-4"""
    with pytest.raises(MalformedError, match="missing"):
        STANDARD.translate(signed(webhook_body(kind, **data)))
    assert translated(webhook_body("payment.failed", **data)).event_type is EventType.FAILED


@pytest.mark.parametrize("data", [{"payment_id": ...}, {"payment_id": ""}, {"payment_id": {}}])
def test_a_payment_without_an_id_is_malformed(data: dict[str, Any]) -> None:
    """REC-6"""
    with pytest.raises(MalformedError, match="payment"):
        STANDARD.translate(signed(webhook_body(**data)))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type":1.5}', b'{"type":""}', b"\xff"])
def test_a_body_without_a_type_is_malformed(body: bytes) -> None:
    """REC-6"""
    STANDARD.verify(signed(body))
    with pytest.raises(MalformedError):
        STANDARD.identify(signed(body))


@pytest.mark.parametrize(
    "at",
    [
        "2026-11-15T10:00:00Z",
        "2026-11-15T13:00:00+03:00",
        1794736800,
        1794736800000,
        "1794736800",
        "1794736800000",
        1794736800.0,
    ],
)
def test_times_are_iso_8601_or_numbers(at: object) -> None:
    """PRV-6: of seconds or of milliseconds since 1970."""
    assert translated(webhook_body(at=at)).occurred_at == datetime(2026, 11, 15, 10, tzinfo=UTC)


@pytest.mark.parametrize("at", [True, -1, "soon", 10**15, 10**60, [], {}, "1" * 300, "-5"])
def test_an_invalid_time_is_dropped(at: object) -> None:
    """REC-8: the rest counts."""
    delivery = signed(webhook_body(at=at))
    event = STANDARD.translate(delivery)
    assert isinstance(event, PaymentEvent)
    assert (event.occurred_at, delivery.dropped) == (None, ["occurred_at"])


def test_svix_headers_are_equivalent() -> None:
    """PRV-6"""
    delivery = signed(webhook_body(), family="svix")
    STANDARD.verify(delivery)
    assert STANDARD.identify(delivery).key == "msg_1"
    mixed = signed(webhook_body(), family="svix", **{"webhook-id": "another"})
    STANDARD.verify(mixed)
    assert STANDARD.identify(mixed).key == "msg_1", "the id that was signed"


def test_a_valid_signature_is_found_among_others() -> None:
    """PRV-7: rotation; other versions and malformed entries are passed over."""
    delivery = signed(webhook_body())
    right = delivery.headers["webhook-signature"]
    for others in (f"v1,AAAA {right}", f"{right} v2,x", f"v1 , ,, v1a, é {right}", f" {right} "):
        headers = {**delivery.headers, "webhook-signature": others}
        STANDARD.verify(Delivery(headers, delivery.body, RECEIVED_AT))
    flood = "v1,AAAA " * MAX_SIGNATURES + right
    headers = {**delivery.headers, "webhook-signature": flood}
    with pytest.raises(InvalidSignatureError):
        STANDARD.verify(Delivery(headers, delivery.body, RECEIVED_AT))


def test_a_source_may_have_secrets_and_public_keys_at_once() -> None:
    """PRV-6 PRV-7: a sender moves from v1 to v1a without loss."""
    provider = source(whsec(SECRET), whpk("key"))
    by_secret = signed(webhook_body())
    provider.verify(by_secret)
    content = f"msg_1.{by_secret.headers['webhook-timestamp']}.".encode() + by_secret.body
    headers = {**by_secret.headers, "webhook-signature": v1a("key", content)}
    by_key = Delivery(headers, by_secret.body, RECEIVED_AT)
    provider.verify(by_key)
    assert provider.signature_method(by_secret) == "hmac-sha256"
    assert provider.signature_method(by_key) == "ed25519"
    with pytest.raises(InvalidSignatureError):
        source(whsec(SECRET)).verify(by_key)


@pytest.mark.parametrize("event_id", ["", "a.b", ".", "é", "a\x00", "x" * 256, "a\n"])
def test_an_invalid_id_is_rejected(event_id: str) -> None:
    """PRV-6: with a dot in it, a part of the id could pass for a time."""
    with pytest.raises(InvalidSignatureError):
        STANDARD.verify(signed(webhook_body(), event_id))


@pytest.mark.parametrize(
    "timestamp",
    ["", " ", "+1794744000", "-1", "1794744000.0", "1e9", "１７９４７４４０００", "1" * 13],
)
def test_a_timestamp_that_is_not_a_number_is_rejected(timestamp: str) -> None:
    """PRV-6: even when it was signed so."""
    body = webhook_body()
    signature = v1(SECRET, f"msg_1.{timestamp}.".encode() + body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": timestamp}
    delivery = Delivery({**headers, "webhook-signature": signature}, body, RECEIVED_AT)
    with pytest.raises(InvalidSignatureError):
        STANDARD.verify(delivery)


@pytest.mark.parametrize(
    "secret",
    [
        "whsec_",
        "whsec_====",
        "whsec_no base64!",
        "whsec_A",
        "whsec_é",
        "hunter-2",
        "whpk_",
        "whpk_AAAA",
        "whpk_!",
        "whsk_" + "A" * 88,
    ],
)
def test_an_invalid_secret_is_reported_without_it(secret: str) -> None:
    """PRV-7 SEC-7 USE-3"""
    with pytest.raises(ConfigurationError, match=r"sources\.test\.secrets\[1\]") as caught:
        source(whsec(SECRET), secret)
    body = secret.removeprefix("whsec_").removeprefix("whpk_").removeprefix("whsk_")
    assert not body or body not in str(caught.value)


@pytest.mark.parametrize("length", range(1, 9))
def test_padding_and_prefix_are_optional(length: int) -> None:
    """PRV-7"""
    raw = b"0123456789"[:length]
    full = base64.b64encode(raw).decode()
    for one in (full, full.rstrip("="), f"whsec_{full}", f"whsec_{full.rstrip('=')}"):
        assert source(one).secrets == (raw,)


def test_fields_can_be_elsewhere() -> None:
    """PRV-6 section 15: pointers with escapes and indices, and minor units."""
    fields = {
        "type": "/event",
        "payment_id": "/payload/items/1/id",
        "order": "/payload/a~1b~0c",
        "amount_minor": "/payload/total",
        "currency": "/payload/currency",
        "occurred_at": "/payload/at",
        "nonce": "/payload/nonce",
    }
    provider = source(fields=fields, types={"order.paid": "paid", "order.void": "canceled"})
    payload = {
        "items": [{"id": "no"}, {"id": "p-7"}], "a/b~c": "o-7", "total": 99_000, "currency": "rub",
        "at": 1794736800,
    }  # fmt: skip
    body = json.dumps({"event": "order.paid", "payload": payload}).encode()
    event = translated(body, provider)
    assert (event.event_type, event.amount) == (EventType.PAID, Money(99_000, "RUB"))
    assert event.ids == (ExternalId("payment", "p-7"),)
    assert event.occurred_at == datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert provider.identify(signed(body)).order == "o-7"
    void = json.dumps({"event": "order.void", "payload": payload}).encode()
    assert translated(void, provider).event_type is EventType.VOIDED


@pytest.mark.parametrize(
    ("minor", "currency", "money"),
    [
        (10_000, "KRW", Money(10_000, "KRW")),
        ("1234", "KWD", Money(1234, "KWD")),
        (0, "USD", Money(0, "USD")),
    ],
)
def test_minor_units_are_the_currencys_own(minor: object, currency: str, money: Money) -> None:
    """PAY-1"""
    provider = source(fields={"amount_minor": "/data/amount"})
    assert translated(webhook_body(amount=minor, currency=currency), provider).amount == money


@pytest.mark.parametrize("minor", ["990.00", 1.5, -1, "1e3", "x", 10**60])
def test_minor_units_are_whole(minor: object) -> None:
    """PAY-1 PAY-4"""
    provider = source(fields={"amount_minor": "/data/amount"})
    with pytest.raises(MalformedError):
        provider.translate(signed(webhook_body(amount=minor)))


def test_a_type_can_be_given_another_meaning() -> None:
    """PRV-6"""
    provider = source(types={"payment.succeeded": "ignored", "payment.settled": "paid"})
    assert isinstance(provider.translate(signed(webhook_body())), Ignored)
    assert translated(webhook_body("payment.settled"), provider).event_type is EventType.PAID
    assert translated(webhook_body("payment.failed"), provider).event_type is EventType.FAILED


def test_an_id_in_the_body_is_the_key_if_configured() -> None:
    """INB-1: it is signed; where it is missing, the delivery's own is."""
    provider = source(fields={"event_id": "/data/event"})
    assert provider.identify(signed(webhook_body(event="e-1"))).key == "e-1"
    assert provider.identify(signed(webhook_body())).key == "msg_1"


def test_an_unsigned_id_is_no_part_of_the_key() -> None:
    """INB-1: or a replay under a future id would squat the real event's key."""
    provider = source(fields={"event_id": "header:X-Event-Id"})
    real = provider.identify(signed(webhook_body(), **{"x-event-id": "e-1"}))
    squatter = provider.identify(signed(webhook_body(payment_id="p-0"), **{"x-event-id": "e-1"}))
    assert real.event_id == squatter.event_id == "e-1"
    assert real.key != squatter.key
    again = provider.identify(signed(webhook_body(), **{"x-event-id": "e-2"}))
    assert again.key == real.key
    assert "x-event-id" in provider.evidence_headers({"x-event-id": "e-1"})


def test_an_unsigned_nonce_does_not_count() -> None:
    """SEC-3 INB-1: no header is signed but those of the envelope, which make no nonce."""
    in_body = source(fields={"nonce": "/data/nonce"})
    assert in_body.identify(signed(webhook_body(nonce="n-1"))).nonce == "n-1"
    assert in_body.identify(signed(webhook_body())).nonce is None
    assert source().identify(signed(webhook_body(nonce="n-1"))).nonce is None
    with pytest.raises(MalformedError, match="nonce"):
        in_body.identify(signed(webhook_body(nonce={})))
    in_header = source(fields={"nonce": "header:X-Nonce"})
    assert in_header.identify(signed(webhook_body(), **{"x-nonce": "n-1"})).nonce is None


@pytest.mark.parametrize("name", ["header:webhook-id", "header:Svix-Id"])
def test_the_signed_id_may_be_named(name: str) -> None:
    """INB-1: naming what is usual changes nothing, and no unsigned twin of it is believed."""
    provider = source(fields={"event_id": name})
    other = {"svix-id": "unsigned"}
    assert provider.identify(signed(webhook_body(), **other)).key == "msg_1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fields": {"payment": "/id"}}, ["fields.payment", "'/id'", "payment_id"]),
        ({"fields": {"type": "event"}}, ["fields.type", "'event'", "header:NAME"]),
        ({"fields": {"type": "/a~2"}}, ["fields.type", "'/a~2'"]),
        ({"fields": {"type": ""}}, ["fields.type", "''"]),
        ({"fields": {"type": 5}}, ["fields.type", "5"]),
        ({"fields": {"type": "header:"}}, ["fields.type", "'header:'"]),
        ({"fields": {"type": "header:a b"}}, ["fields.type", "'header:a b'"]),
        ({"fields": "/type"}, ["fields", "'/type'", "table"]),
        ({"fields": {"amount": "/a", "amount_minor": "/b"}}, ["amount_minor", "one of them"]),
        ({"types": {"x": "payed"}}, ["types.x", "'payed'", "paid, failed, canceled"]),
        ({"types": {"x": None}}, ["types.x", "None"]),
        ({"types": ["x"]}, ["types", "['x']", "table"]),
        ({"feilds": {}}, ["sources.test.feilds", "fields, types"]),
    ],
)
def test_a_wrong_description_is_a_configuration_error(
    options: dict[str, Any], words: list[str]
) -> None:
    """USE-3: the key, the value and the remedy."""
    with pytest.raises(ConfigurationError) as caught:
        source(**options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "fields", [{}, {"type": "header:x-type", "amount_minor": "/total", "event_id": "/id"}]
)
def test_a_sample_has_the_described_format(fields: Mapping[str, str]) -> None:
    """OPS-6"""
    provider = source(fields=fields)
    for status, event_type in (("paid", EventType.PAID), ("refunded", EventType.REFUNDED)):
        sample = SampleEvent("p-9", "990.00", "RUB", status, "evt-9", sent_at=RECEIVED_AT)
        headers, body = provider.build_sample(sample)
        delivery = Delivery(headers, body, RECEIVED_AT)
        provider.verify(delivery)
        event = provider.translate(delivery)
        assert isinstance(event, PaymentEvent)
        assert event.event_type is event_type
        assert (event.amount or event.refunded) == Money(99_000, "RUB")
        assert provider.identify(delivery).key.split(":")[0] == "evt-9"


@pytest.mark.skipif(not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors")
def test_published_vectors_are_accepted() -> None:
    """PRV-9"""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    ours = [one for one in vectors if one["scheme"] == "standard_webhooks_v1"]
    assert ours
    for vector in ours:
        provider = source(vector["secret"])
        body, at = base64.b64decode(vector["body_b64"]), datetime.fromtimestamp(vector["now"], UTC)
        delivery = Delivery(vector["headers"], body, at)
        provider.verify(delivery)
        with pytest.raises(InvalidSignatureError):
            provider.verify(Delivery(vector["headers"], body + b" ", at))


IDS = st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True)


@given(secret=st.binary(min_size=1), event_id=IDS, body=st.text(), late_s=st.integers(-290, 290))
def test_a_webhook_signed_by_the_reference_library_is_accepted(
    secret: bytes, event_id: str, body: str, late_s: int
) -> None:
    """PRV-9"""
    issued = "whsec_" + base64.b64encode(secret).decode()
    now = datetime.now(UTC)
    at = now + timedelta(seconds=late_s)
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(issued).sign(event_id, at, body),
    }
    source(issued).verify(Delivery(headers, body.encode(), now))


ENTRIES = st.sampled_from(["right", "wrong", "v2,x", "v1,AAAA", "v1", ",", "v1,!", "v1,a,b", ""])


@given(
    secret=st.binary(min_size=1, max_size=64),
    event_id=IDS | st.sampled_from(["", "a.b"]),
    body=st.binary(max_size=64),
    late_s=st.sampled_from([-400, -290, 0, 290, 400]),
    entries=st.lists(ENTRIES, max_size=5),
    spelling=st.sampled_from(["{}", "{}.0", "0{}", " {}", "{}x", "-{}"]),
)
def test_nothing_is_accepted_that_the_reference_library_rejects(
    secret: bytes, event_id: str, body: bytes, late_s: int, entries: list[str], spelling: str
) -> None:
    """PRV-9: on random deliveries. Where the two differ, ours is the stricter:

    - the library takes times such as `1e9` or `17.0`, and signs another text than was sent: one
      with the time as a whole number. Here a time is a count of seconds, written as it was signed.
    - it takes ids with a dot in them.
    - it takes base64 in other spellings; here a signature has one.
    - a malformed entry before the right one, or a body that is not UTF-8, makes it fail with a
      ValueError; here the entry is passed over, and the body is bytes. These are left out below.
    """
    issued = "whsec_" + base64.b64encode(secret).decode()
    now = datetime.now(UTC)
    timestamp = spelling.format(int(now.timestamp()) + late_s)
    right = v1(secret, f"{event_id}.{timestamp}.".encode() + body)
    named = {"right": right, "wrong": v1(b"x" + secret, body)}
    signatures = " ".join(named.get(entry, entry) for entry in entries)
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": signatures,
    }
    ours = _accepts(source(issued), Delivery(headers, body, now))
    assert ours == (
        "right" in entries
        and spelling in ("{}", "0{}")
        and abs(late_s) <= 300
        and event_id not in ("", "a.b")
    )
    try:
        Webhook(issued).verify(body, headers, json_parse=False)
    except WebhookVerificationError:
        assert not ours or spelling == "0{}", "it signs the time without its zero"
    except ValueError:
        return
    else:
        assert ours or event_id == "a.b"


def _accepts(provider: standard.Standard, delivery: Delivery) -> bool:
    try:
        provider.verify(delivery)
    except RejectedError:
        return False
    return True
