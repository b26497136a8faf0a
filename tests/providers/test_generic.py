"""Tests of provider `generic` beyond the conformance suite."""

import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import (
    ConfigurationError,
    InvalidSignatureError,
    MalformedError,
    RejectedError,
    TimestampExpiredError,
)
from paidonce.providers.contract import Delivery, Identity, ProviderConfig, SampleEvent
from paidonce.providers.generic import provider as generic
from paidonce.providers.generic.scheme import MAX_PAIRS
from tests.providers.cases.generic import ed25519, mac, options, pem
from tests.providers.conformance import JSON, KEY, RECEIVED_AT

SECRET: Final = "a secret of the shop's own"
VECTORS: Final = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")
FIELDS: Final = {
    "event_id": "/id",
    "type": "/type",
    "payment_id": "/payment",
    "order": "/order",
    "amount": "/amount",
    "currency": "/currency",
    "occurred_at": "/at",
}
TYPES: Final = {
    "ok": "paid",
    "no": "failed",
    "off": "canceled",
    "back": "refunded",
    "new": "pending",
}
EVENT: Final[dict[str, Any]] = {
    "id": "evt-1",
    "type": "ok",
    "payment": "p-1",
    "order": "o-1",
    "amount": "990.00",
    "currency": "RUB",
    "at": "2026-11-15T11:59:00Z",
}
BODY: Final = json.dumps(EVENT).encode()
NOW: Final = str(int(RECEIVED_AT.timestamp()))


def source(
    *secrets: str,
    signature: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    tolerance_s: int | None = 300,
) -> generic.Generic:
    """One with these settings; a field that is None is not described."""
    places = {name: one for name, one in {**FIELDS, **(fields or {})}.items() if one is not None}
    described = {
        "signature": {"header": "X-Signature", **(signature or {})},
        "fields": places,
        "types": TYPES if types is None else types,
    }
    return generic.configure(ProviderConfig(KEY, secrets or (SECRET,), described, tolerance_s))


def delivered(body: bytes, **headers: str) -> Delivery:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Delivery(JSON | named, body, RECEIVED_AT)


def signed(fields: Mapping[str, Any], **headers: str) -> Delivery:
    """Signed as most senders do: the body alone, in hex."""
    body = json.dumps({name: one for name, one in fields.items() if one is not None}).encode()
    return delivered(body, x_signature=mac(SECRET, body).hex(), **headers)


def identified(provider: generic.Generic, fields: Mapping[str, Any], **headers: str) -> Identity:
    delivery = signed(fields, **headers)
    provider.verify(delivery)
    return provider.identify(delivery)


def is_accepted(provider: generic.Generic, delivery: Delivery) -> bool:
    try:
        provider.verify(delivery)
    except InvalidSignatureError:
        return False
    return True


def test_all_described_fields_are_read() -> None:
    """PRV-6 section 15"""
    fields = {"email": "/buyer/0/email", "plan_id": "header:X-Plan", "type": "/kind~1of"}
    provider = source(fields=fields)
    fields = EVENT | {"kind/of": "ok", "buyer": [{"email": "buyer@example.com"}]}
    event = provider.translate(signed(fields, x_plan="monthly"))
    assert event == PaymentEvent(
        event_type=EventType.PAID,
        ids=(ExternalId("payment", "p-1"),),
        amount=Money(99_000, "RUB"),
        order="o-1",
        email="buyer@example.com",
        plan_id="monthly",
        occurred_at=datetime(2026, 11, 15, 11, 59, tzinfo=UTC),
    )
    assert not provider.links_by_email


@pytest.mark.parametrize(
    ("kind", "event_type"),
    [
        ("ok", EventType.PAID),
        ("no", EventType.FAILED),
        ("off", EventType.VOIDED),
        ("back", EventType.REFUNDED),
        ("new", EventType.PENDING),
    ],
)
def test_a_type_has_the_configured_meaning(kind: str, event_type: EventType) -> None:
    """PRV-6"""
    event = source().translate(signed(EVENT | {"type": kind}))
    assert isinstance(event, PaymentEvent)
    assert event.event_type is event_type


def test_other_types_are_ignored_under_the_keys_of_their_events() -> None:
    """PRV-9 INB-1: whatever else they carry."""
    provider = source(types=TYPES | {"seen": "ignored"})
    for kind in ("seen", "other"):
        for fields in (EVENT, EVENT | {"amount": [], "payment": {}, "currency": 5}):
            delivery = signed(fields | {"type": kind})
            event = provider.translate(delivery)
            assert isinstance(event, Ignored)
            assert event.code is Code.NON_SUCCESS_STATUS
            assert provider.identify(delivery).key == "evt-1"


@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [("hmac-sha1", "sha1"), ("hmac-sha256", "sha256"), ("hmac-sha512", "sha512")],
)
@given(body=st.binary(), secret=st.text(min_size=1), prefix=st.text("ab=:, ", max_size=5))
def test_every_hmac_is_accepted_as_the_standard_library_makes_it(
    algorithm: str, digest: str, encoding: str, body: bytes, secret: str, prefix: str
) -> None:
    """PRV-6 PRV-9: and by no other secret, over no other body."""
    if not secret.strip() or any(0xD800 <= ord(letter) < 0xE000 for letter in secret):
        return
    signature = {"algorithm": algorithm, "encoding": encoding, "prefix": prefix}
    provider = source(secret, signature=signature)
    made = hmac.new(secret.encode(), body, digest).digest()
    written = prefix + (made.hex() if encoding == "hex" else base64.b64encode(made).decode())
    provider.verify(delivered(body, x_signature=written))
    assert provider.signature_method(delivered(body)) == algorithm
    for wrong in (
        delivered(body + b" ", x_signature=written),
        delivered(body, x_signature=written + " "),
        delivered(body, x_signature=f"{prefix} {written.removeprefix(prefix)}"),
        delivered(body, x_signature=written[:-1]),
    ):
        assert not is_accepted(provider, wrong)
    other = source(secret + "x", signature=signature)
    assert not is_accepted(other, delivered(body, x_signature=written))


def test_the_time_may_be_in_a_header_beside_the_pairs() -> None:
    """PRV-6"""
    signature = {"pairs": True, "value": "s", "signed": "{body}{timestamp}"}
    provider = source(signature=signature | {"timestamp": "header:X-Time"})
    header = f"k=1, s={mac(SECRET, BODY + NOW.encode()).hex()}"
    provider.verify(delivered(BODY, x_signature=header, x_time=NOW))
    assert not is_accepted(provider, delivered(BODY, x_signature=f"{header},X-Time={NOW}"))


def test_a_base64_signature_of_the_body_alone_is_accepted() -> None:
    """PRV-6: as CloudPayments sends it."""
    provider = source(signature={"header": "Content-HMAC", "encoding": "base64"})
    signature = base64.b64encode(mac(SECRET, BODY)).decode()
    provider.verify(delivered(BODY, content_hmac=signature))
    assert not is_accepted(provider, delivered(BODY, content_hmac=mac(SECRET, BODY).hex()))


def test_a_valid_signature_is_found_among_the_pairs() -> None:
    """PRV-7: whatever the order, with commas or semicolons, with blanks after them."""
    provider = source(signature=options("paddle")["signature"] | {"header": "X-Signature"})
    right = f"h1={mac(SECRET, f'{NOW}:'.encode() + BODY).hex()}"
    for header in (
        f"ts={NOW};h1=00;{right}",
        f"{right},ts={NOW}",
        f"ts={NOW}; {right}; h2=x; odd",
    ):
        provider.verify(delivered(BODY, x_signature=header))
    flood = ";".join([f"ts={NOW}", *["h1=00"] * MAX_PAIRS, right])
    assert not is_accepted(provider, delivered(BODY, x_signature=flood))


@pytest.mark.parametrize("late_s", [0, 299, -299, 301, -301, 10**6])
def test_a_signed_time_may_be_in_milliseconds(late_s: int) -> None:
    """PRV-8"""
    provider = source(signature={"signed": "{timestamp}.{body}", "timestamp": "X-Time"})
    for timestamp in (int(NOW) - late_s, (int(NOW) - late_s) * 1000):
        signature = mac(SECRET, f"{timestamp}.".encode() + BODY).hex()
        delivery = delivered(BODY, x_signature=signature, x_time=str(timestamp))
        if abs(late_s) <= 300:
            provider.verify(delivery)
            continue
        with pytest.raises(TimestampExpiredError):
            provider.verify(delivery)


@pytest.mark.parametrize("event_id", ["evt-1", "a.1", "1.a", f"{NOW}.", "5", "..", "1.2.3"])
@pytest.mark.parametrize("template", ["{id}.{timestamp}.{body}", "{timestamp}.{id}{body}"])
def test_signed_content_can_be_split_in_one_way_only(template: str, event_id: str) -> None:
    """PRV-6 INB-1: or a captured signature would fit another id, time or body."""
    places = {"id": "X-Id", "timestamp": "X-Time"}
    provider = source(signature={"signed": template, **places}, tolerance_s=None)
    content = template.format(id=event_id, timestamp=NOW, body=BODY.decode())
    signature = mac(SECRET, content.encode()).hex()
    accepted = []
    for parts in _taken_apart(template, content):
        headers = {"x_id": parts["id"], "x_time": parts["timestamp"], "x_signature": signature}
        delivery = delivered(parts["body"].encode(), **headers)
        with contextlib.suppress(RejectedError):
            provider.verify(delivery)
            provider.identify(delivery)
            accepted.append(parts)
    assert accepted == [{"id": event_id, "timestamp": NOW, "body": BODY.decode()}]


def _taken_apart(template: str, content: str) -> Iterator[dict[str, str]]:
    """All three parts that, put into the template, make this content."""
    one, first, two, second, three = re.split(r"\{|\}", template)[1:-1]
    for end, start in itertools.combinations_with_replacement(range(len(content) + 1), 2):
        parts = content[:end], content[end + len(first) : start], content[start + len(second) :]
        found = dict(zip((one, two, three), parts, strict=True))
        if template.format(**found) == content:
            yield found


def test_an_id_in_the_body_is_the_key() -> None:
    """INB-1 INB-2"""
    first, other = identified(source(), EVENT), identified(source(), EVENT | {"amount": "1"})
    assert first.key == other.key == first.event_id == "evt-1"
    assert first.fingerprint != other.fingerprint


def test_an_unsigned_id_is_no_part_of_the_key() -> None:
    """INB-1: a replay under an id that is still to come would keep the real event out, and one
    captured delivery under many ids would be as many events.
    """
    provider = source(fields={"event_id": "header:X-Event-Id"})
    captured = identified(provider, EVENT, x_event_id="evt-future")
    real = identified(provider, EVENT | {"payment": "p-2"}, x_event_id="evt-future")
    assert captured.event_id == real.event_id == "evt-future"
    assert captured.key != real.key
    again = identified(provider, EVENT, x_event_id="evt-other")
    assert (again.key, again.fingerprint) == (captured.key, captured.fingerprint)
    assert identified(provider, EVENT).key == captured.key, "without the header, too"


def test_an_unsigned_header_cannot_block_the_real_event() -> None:
    """INB-1: the type in a header, changed by whoever passes the delivery on."""
    provider = source(fields={"type": "header:X-Type"})
    changed, real = (identified(provider, EVENT, x_type=kind) for kind in ("seen", "ok"))
    assert changed.key != real.key


def test_an_unsigned_type_makes_no_more_events_than_it_has_meanings() -> None:
    """INB-1: a captured delivery under 300 types is ignored once."""
    provider = source(fields={"type": "header:X-Type"})
    found = [identified(provider, EVENT, x_type=f"made-up-{number}") for number in range(300)]
    assert len({(one.key, one.fingerprint) for one in found}) == 1


@pytest.mark.parametrize("field", ["payment_id", "amount", "amount_minor", "refunded", "currency"])
def test_money_is_not_read_from_an_unsigned_header(field: str) -> None:
    """INB-1 PRV-6: whoever has seen one delivery could report any payment."""
    changed: dict[str, str | None] = {field: "header:X-Money"}
    if field == "amount_minor":
        changed["amount"] = None
    with pytest.raises(ConfigurationError, match=rf"fields\.{field}: .*unsigned header"):
        source(fields=changed)
    if field != "amount_minor":
        signature = {"signed": "{id}{body}", "id": "X-Money"}
        assert source(signature=signature, fields=changed), "a signed one is as good as the body"


def test_a_signed_id_is_the_key() -> None:
    """INB-1"""
    signature = {"signed": "{id}:{body}", "id": "X-Event-Id"}
    by_field = {"event_id": "header:X-Event-Id"}
    for described, fields in (
        (signature, {"event_id": None}),
        (signature, by_field),
        ({"signed": "{id}:{body}"}, by_field),
    ):
        provider = source(signature=described, fields=fields)
        made = mac(SECRET, b"evt-9:" + BODY).hex()
        delivery = delivered(BODY, x_signature=made, x_event_id="evt-9")
        provider.verify(delivery)
        found = provider.identify(delivery)
        assert (found.key, found.event_id) == ("evt-9", "evt-9")
    inner = source(signature=signature).identify(delivery)
    assert inner.key == "evt-1", "the settings say where it stands"


@pytest.mark.parametrize("change", ["type", "order", "payment", "at"])
def test_the_key_without_an_id_is_type_order_payment_and_time(change: str) -> None:
    """INB-1: its type, order, payment and time; another amount is a contradiction."""
    provider = source(fields={"event_id": None})
    first = identified(provider, EVENT)
    others = {"type": "no", "at": "2026-11-15T11:59:01Z"}
    other = identified(provider, EVENT | {change: others.get(change, "x-9")})
    assert first.key != other.key
    again = identified(provider, EVENT | {"attempt": 2, "amount": "1.00"})
    assert (first.key, first.event_id) == (again.key, None)
    assert first.fingerprint != again.fingerprint


def test_the_key_without_id_and_time_is_a_hash_of_the_body() -> None:
    """INB-1"""
    provider = source(fields={"event_id": None, "occurred_at": None})
    first, other = identified(provider, EVENT), identified(provider, EVENT | {"attempt": 2})
    assert first.key != other.key
    assert first.key == hashlib.sha256(signed(EVENT).body).hexdigest()


def test_an_unsigned_nonce_does_not_count() -> None:
    """SEC-3 INB-1: anybody can change it, and each would be recorded."""
    in_body = source(fields={"nonce": "/nonce"})
    assert identified(in_body, EVENT | {"nonce": "n-1"}).nonce == "n-1"
    assert identified(in_body, EVENT).nonce is None
    in_header = source(fields={"nonce": "header:X-Nonce"})
    assert identified(in_header, EVENT, x_nonce="n-1").nonce is None
    signature = {"signed": "{id}{body}", "id": "X-Nonce"}
    in_signed = source(signature=signature, fields={"nonce": "header:X-Nonce"})
    made = mac(SECRET, b"n-1" + BODY).hex()
    delivery = delivered(BODY, x_signature=made, x_nonce="n-1")
    in_signed.verify(delivery)
    assert (in_signed.identify(delivery).nonce, in_signed.identify(delivery).key) == (
        "n-1",
        "evt-1",
    )
    with pytest.raises(MalformedError, match="nonce"):
        in_body.identify(signed(EVENT | {"nonce": {}}))


def test_a_refund_may_be_sent_beside_the_paid_amount() -> None:
    """PAY-2: by an event of its own, or by the payment's."""
    provider = source(fields={"refunded_minor": "/returned"})

    def told(**fields: Any) -> tuple[EventType, Money | None, Money | None]:
        event = provider.translate(signed(EVENT | fields))
        assert isinstance(event, PaymentEvent)
        return event.event_type, event.amount, event.refunded

    whole, part = Money(99_000, "RUB"), Money(9_000, "RUB")
    assert told(returned=0) == told() == (EventType.PAID, whole, None)
    assert told(returned=9_000) == (EventType.REFUNDED, whole, part)
    assert told(type="back", returned=9_000) == (EventType.REFUNDED, whole, part)
    assert told(type="back", returned=9_000, amount=None) == (EventType.REFUNDED, None, part)
    assert told(type="no", returned=0) == (EventType.FAILED, None, None)
    with pytest.raises(MalformedError, match="refunded"):
        told(type="back")
    with pytest.raises(MalformedError, match="whole number"):
        told(type="back", returned="9.5")
    prints = {identified(provider, EVENT | {"returned": one}).fingerprint for one in (0, 1, 2)}
    assert len(prints) == 3


@pytest.mark.parametrize("status", ["paid", "failed", "canceled", "refunded", "pending", "seen"])
def test_a_sample_of_each_status_is_translated(status: str) -> None:
    """OPS-6: signed with what the template wants."""
    signature = {
        "signed": "{url}\n{id}\n{timestamp}\n{body}\n",
        "id": "X-Id",
        "pairs": True,
        "timestamp": "t",
        "value": "v1",
        "url": "https://example.com/",
    }
    fields = {"refunded": "/returned", "plan_id": "header:X-Plan", "nonce": "/nonce"}
    provider = source(signature=signature, fields=fields)
    sample = SampleEvent(
        "p-9", "9.90", "USD", status, order="o-9", plan_id="m", sent_at=RECEIVED_AT
    )
    headers, body = provider.build_sample(sample)
    delivery = Delivery(headers, body, RECEIVED_AT)
    provider.verify(delivery)
    event = provider.translate(delivery)
    if status == "seen":
        assert isinstance(event, Ignored)
        return
    assert isinstance(event, PaymentEvent)
    assert event.event_type == ("voided" if status == "canceled" else status)
    assert (event.order, event.plan_id) == ("o-9", "m")
    assert provider.identify(delivery).nonce


def test_overlapping_fields_build_no_sample() -> None:
    """OPS-6 USE-3"""
    sample = SampleEvent("p-9", "9.90", "USD", "paid")
    for fields in ({"payment_id": "/type/id"}, {"type": "/payment", "payment_id": "/payment/id"}):
        with pytest.raises(ConfigurationError, match="no body can have"):
            source(fields=fields).build_sample(sample)


def test_public_keys_may_be_given_in_several_forms() -> None:
    """PRV-6 PRV-7"""
    key = ed25519("key")
    public = key.public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    forms = (pem(key), f"\n{pem(key)}\n", _b64(der), _b64(public.public_bytes_raw()))
    for encoding, written in (("hex", bytes.hex), ("base64", _b64)):
        for form in forms:
            signature = {"algorithm": "ed25519", "encoding": encoding, "prefix": "v1="}
            provider = source(pem(ed25519("old")), form, signature=signature)
            right = f"v1={written(key.sign(BODY))}"
            provider.verify(delivered(BODY, x_signature=right))
            for wrong in (right[3:], right.upper(), f"{right}\n", right[:-2], "v1=é", "v1="):
                assert not is_accepted(provider, delivered(BODY, x_signature=wrong))


def _b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.mark.skipif(not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors")
@pytest.mark.parametrize(("vector_id", "name"), [("paddle-", "paddle"), ("github-", "hub")])
def test_published_vectors_verify_with_the_documented_settings(vector_id: str, name: str) -> None:
    """PRV-6"""
    found = [one for one in json.loads(VECTORS.read_text()) if one["id"].startswith(vector_id)]
    assert found
    for vector in found:
        headers = {key.lower(): value for key, value in vector["headers"].items()}
        at = datetime.fromtimestamp(vector.get("now", 0), UTC)
        body = base64.b64decode(vector["body_b64"])
        provider = generic.configure(ProviderConfig(KEY, (vector["secret"],), options(name)))
        provider.verify(Delivery(headers, body, at))
        assert not is_accepted(provider, Delivery(headers, body + b" ", at))
