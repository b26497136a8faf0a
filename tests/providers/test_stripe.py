"""Tests of Stripe beyond the conformance suite."""

import base64
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import stripe as sdk
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import ExternalId, Ignored, PaymentEvent
from paidonce.errors import ConfigurationError, InvalidSignatureError, TimestampExpiredError
from paidonce.providers.contract import Delivery, ProviderConfig, SampleEvent
from paidonce.providers.stripe import provider as stripe
from tests.providers.cases.stripe import event, signed, v1
from tests.providers.conformance import KEY, RECEIVED_AT

SECRET: Final = "whsec_of_the_endpoint"
STRIPE: Final = stripe.configure(ProviderConfig(KEY, (SECRET,)))
VECTORS: Final = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")


def with_header(body: bytes, header: str) -> Delivery:
    return Delivery({"stripe-signature": header}, body, RECEIVED_AT)


def is_accepted(delivery: Delivery, secret: str = SECRET) -> bool:
    try:
        stripe.configure(ProviderConfig(KEY, (secret,), tolerance_s=None)).verify(delivery)
    except InvalidSignatureError:
        return False
    return True


def sdk_accepts(
    body: str, header: str, secret: str = SECRET, tolerance_s: int | None = None
) -> bool:
    try:
        return bool(sdk.WebhookSignature.verify_header(body, header, secret, tolerance_s))
    except sdk.SignatureVerificationError:
        return False


@pytest.mark.parametrize("status", ["pending", "paid", "failed", "canceled", "refunded"])
def test_a_sample_of_each_status_is_translated(status: str) -> None:
    """OPS-6: in Stripe's own decimals."""
    for code, amount in (("ISK", "990"), ("MGA", "990.00"), ("KWD", "9.900"), ("USD", "9.90")):
        sample = SampleEvent("pi_9", amount, code, status, order="o-9", sent_at=RECEIVED_AT)
        headers, body = STRIPE.build_sample(sample)
        STRIPE.verify(Delivery(headers, body, RECEIVED_AT))
        event = STRIPE.translate(Delivery(headers, body, RECEIVED_AT))
        assert isinstance(event, PaymentEvent)
        assert event.event_type == ("voided" if status == "canceled" else status)
        assert (event.ids[0], event.order) == (ExternalId("payment", "pi_9"), "o-9")
        has_money = status in ("paid", "refunded")
        assert str(event.amount) == (f"{amount} {code}" if has_money else "None")


@pytest.mark.parametrize("secret", ["sk_live_1", "rk_live_1", "pk_live_1"])
def test_an_api_key_is_rejected_as_signing_secret(secret: str) -> None:
    """USE-3 SEC-7: the error names the key and the remedy, and not the secret."""
    with pytest.raises(ConfigurationError, match=r"sources\.test\.secrets\[1\].*whsec_") as caught:
        stripe.configure(ProviderConfig(KEY, (SECRET, secret)))
    assert secret not in str(caught.value)


def test_there_are_no_other_settings() -> None:
    """USE-3"""
    with pytest.raises(ConfigurationError, match=r"sources\.test\.api_key"):
        stripe.configure(ProviderConfig(KEY, (SECRET,), {"api_key": "x"}))


def test_a_valid_signature_is_found_among_others() -> None:
    """PRV-7: the endpoint's secret is rolled."""
    at = int(RECEIVED_AT.timestamp())
    old, new = v1("whsec_old", at, b"{}"), v1(SECRET, at, b"{}")
    STRIPE.verify(with_header(b"{}", f"t={at},v1={old},v1={new},v0={old}"))
    STRIPE.verify(with_header(b"{}", f"v0={old},v1={new},t={at}"))
    flood = ",".join([f"t={at}", *[f"v1={old}"] * stripe.MAX_PARTS, f"v1={new}"])
    with pytest.raises(InvalidSignatureError):
        STRIPE.verify(with_header(b"{}", flood))


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]))
SECRETS: Final = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs"]), min_size=1).filter(
    lambda one: one.strip() == one and not one.startswith(("sk_", "rk_", "pk_"))
)


@given(body=TEXTS, secret=SECRETS, other=SECRETS, at=st.integers(0, 10**12 - 1))
def test_the_official_library_accepts_the_same_signatures(
    body: str, secret: str, other: str, at: int
) -> None:
    """PRV-9: the oracle, for random bodies, secrets and times."""
    header = f"t={at},v1={v1(secret, at, body.encode())}"
    delivery = with_header(body.encode(), header)
    assert sdk_accepts(body, header, secret)
    assert is_accepted(delivery, secret)
    assert is_accepted(delivery, other) == sdk_accepts(body, header, other) == (other == secret)
    assert not is_accepted(with_header(body.encode() + b" ", header), secret)
    assert not sdk_accepts(body + " ", header, secret)


AT: Final = 1794744000
RIGHT: Final = v1(SECRET, AT, b"{}")
PARTS: Final = st.sampled_from(
    [f"t={AT}", f"t={AT + 1}", f"t= {AT}", "t=", "t", f"v1={RIGHT}", f"v1={RIGHT[:-1]}0",
     f"v1={RIGHT}=", f" v1={RIGHT}", f"v0={RIGHT}", "v1=", "v1", "", "v2=x", "="],
) | st.text(st.characters(codec="ascii"), max_size=5)  # fmt: skip


@given(st.lists(PARTS, max_size=6))
def test_no_odd_header_is_accepted_that_the_official_library_rejects(
    parts: list[str],
) -> None:
    """PRV-9: and none is refused that Stripe could have sent."""
    header = ",".join(parts)
    ours, theirs = is_accepted(with_header(b"{}", header)), sdk_accepts("{}", header)
    assert theirs or not ours
    pairs = [one.partition("=") for one in header.split(",")]
    times = [value for name, _, value in pairs if name == "t"]
    has_empty = any(name in ("t", "v1") and not equals for name, equals, _ in pairs)
    is_plain = times == [str(AT)] and f"v1={RIGHT}" in parts and not has_empty
    assert ours or not is_plain


@given(st.integers(-2_000, 2_000).filter(lambda age_s: abs(abs(age_s) - 300) > 30))
def test_the_official_library_rejects_the_same_times_except_future_ones(age_s: int) -> None:
    """PRV-8 PRV-9"""
    now = int(time.time())
    header = f"t={now - age_s},v1={v1(SECRET, now - age_s, b'{}')}"
    delivery = Delivery({"stripe-signature": header}, b"{}", datetime.fromtimestamp(now, UTC))
    assert sdk_accepts("{}", header, tolerance_s=300) == (age_s < 300)
    if abs(age_s) < 300:
        STRIPE.verify(delivery)
        return
    with pytest.raises(TimestampExpiredError):
        STRIPE.verify(delivery)


@given(event_id=st.text("abc_123", min_size=1), amount=st.integers(1, 10**9))
def test_the_official_library_reads_the_same_event(event_id: str, amount: int) -> None:
    """PRV-9"""
    intent = {"id": "pi_1", "object": "payment_intent", "amount_received": amount}
    body = event("payment_intent.succeeded", intent | {"currency": "usd"}, event_id)
    delivery = signed(body, SECRET)
    a_century_s = 100 * 365 * 24 * 3600
    theirs = sdk.Webhook.construct_event(
        body, delivery.headers["stripe-signature"], SECRET, a_century_s
    )
    STRIPE.verify(delivery)
    ours = STRIPE.identify(delivery)
    assert (ours.key, ours.type, ours.payment_id) == (theirs.id, theirs.type, "pi_1")
    assert theirs.data.object.amount_received == amount
    assert ours.amount == f"{amount // 100}.{amount % 100:02}"


@pytest.mark.skipif(not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors")
def test_published_vectors_verify() -> None:
    """PRV-6"""
    found = [one for one in json.loads(VECTORS.read_text()) if one["scheme"] == "stripe"]
    assert found
    for vector in found:
        headers = {name.lower(): value for name, value in vector["headers"].items()}
        at = datetime.fromtimestamp(vector["now"], UTC)
        provider = stripe.configure(ProviderConfig(KEY, (vector["secret"],)))
        delivery = Delivery(headers, base64.b64decode(vector["body_b64"]), at)
        provider.verify(delivery)
        assert provider.identify(delivery).key == "evt_123"
        assert isinstance(provider.translate(delivery), Ignored)
        late = Delivery(headers, delivery.body, at + timedelta(seconds=300))
        with pytest.raises(TimestampExpiredError):
            provider.verify(late)
