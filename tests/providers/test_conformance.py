"""The suite that runs over every provider (PRV-9)."""

import hashlib
import hmac
import json
from collections.abc import Sequence

import pytest

from paidonce.domain.events import Ignored, Says
from paidonce.domain.money import Money
from paidonce.errors import InvalidSignatureError
from paidonce.providers import tilda
from paidonce.providers.contract import Delivery, Provider, Sample, key_digest
from tests.providers.conformance import RECEIVED_AT, SECRETS, Case, Said, changed


def tilda_provider(secrets: Sequence[str]) -> Provider:
    return tilda.configure(secrets, {}, "sources.test")


def tilda_delivery(said: Said, secret: str) -> Delivery:
    fields = {
        "external_payment_id": said.payment_id,
        "event_id": said.event_id,
        "status": said.kind,
        "amount": said.amount,
        "currency": said.currency,
        "email": said.email,
    }
    body = json.dumps({key: value for key, value in fields.items() if value is not None}).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"content-type": "application/json", "x-signature": signature}
    return Delivery(headers, body, RECEIVED_AT)


_RIGHT = tilda_delivery(Said(), SECRETS[0]).headers["x-signature"]
TILDA = Case(
    name="tilda",
    provider=tilda_provider,
    deliver=tilda_delivery,
    signature_header="x-signature",
    unknown_kind="refund_requested",
    wrong_signatures={
        "upper case": _RIGHT.upper(),
        "with a prefix": f"sha256={_RIGHT}",
        "with blanks": f" {_RIGHT} ",
        "cut short": _RIGHT[:-1],
        "of sha1's length": _RIGHT[:40],
        "sent twice": f"{_RIGHT}, {_RIGHT}",
    },
)

CASES = [TILDA]

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)


def test_an_authentic_delivery_is_accepted(case: Case) -> None:
    """PRV-9"""
    case.configured.verify(case.authentic())


def test_a_second_secret_is_accepted(case: Case) -> None:
    """PRV-7: rotation without loss."""
    for secret in SECRETS:
        case.configured.verify(case.authentic(secret=secret))


def test_a_secret_that_is_not_configured_is_refused(case: Case) -> None:
    """PRV-9"""
    with pytest.raises(InvalidSignatureError):
        case.configured.verify(case.authentic(secret="of-somebody-else"))
    with pytest.raises(InvalidSignatureError):
        case.provider(SECRETS[1:]).verify(case.authentic(secret=SECRETS[0]))


def test_each_flipped_bit_of_the_body_is_refused(case: Case) -> None:
    """PRV-9 REC-1: the raw bytes are what is signed."""
    if not case.signs_whole_body:
        pytest.skip("this gateway signs fields and not bytes")
    provider, delivery = case.configured, case.authentic()
    for bit in range(len(delivery.body) * 8):
        body = bytearray(delivery.body)
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidSignatureError):
            provider.verify(changed(delivery, body=bytes(body)))


@pytest.mark.parametrize("change", [b" ", b"\n", b"\x00"])
def test_a_byte_more_or_less_is_refused(case: Case, change: bytes) -> None:
    """PRV-9 REC-1"""
    if not case.signs_whole_body:
        pytest.skip("this gateway signs fields and not bytes")
    provider, delivery = case.configured, case.authentic()
    for body in (delivery.body + change, change + delivery.body, delivery.body[:-1], b""):
        with pytest.raises(InvalidSignatureError):
            provider.verify(changed(delivery, body=body))


def test_each_flipped_bit_of_the_signature_is_refused(case: Case) -> None:
    """PRV-9"""
    provider, delivery = case.configured, case.authentic()
    signature = delivery.headers[case.signature_header].encode()
    for bit in range(len(signature) * 8):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        given = bytes(flipped).decode("latin-1")
        with pytest.raises(InvalidSignatureError):
            provider.verify(
                changed(delivery, headers={**delivery.headers, case.signature_header: given})
            )


@pytest.mark.parametrize(
    "given", ["", " ", "é" * 64, "\xff", "\udcff\udc80", "0" * 64, "\x00", "a" * 100_000]
)
def test_a_signature_of_any_other_letters_is_refused(case: Case, given: str) -> None:
    """PRV-9: and it is refused, not an error of ours."""
    delivery = case.authentic()
    headers = {**delivery.headers, case.signature_header: given}
    with pytest.raises(InvalidSignatureError):
        case.configured.verify(changed(delivery, headers=headers))


def test_a_signature_of_another_form_is_refused(case: Case) -> None:
    """PRV-9"""
    delivery = case.authentic()
    for given in case.wrong_signatures.values():
        headers = {**delivery.headers, case.signature_header: given}
        with pytest.raises(InvalidSignatureError):
            case.configured.verify(changed(delivery, headers=headers))


def test_a_missing_signature_is_refused(case: Case) -> None:
    """PRV-9"""
    delivery = case.authentic()
    others = {k: v for k, v in delivery.headers.items() if k != case.signature_header}
    for headers in (others, {}):
        with pytest.raises(InvalidSignatureError):
            case.configured.verify(changed(delivery, headers=headers))


def test_a_refusal_tells_neither_secret_nor_expected_signature(case: Case) -> None:
    """SEC-7"""
    delivery = case.authentic()
    right = delivery.headers[case.signature_header]
    headers = {**delivery.headers, case.signature_header: "wrong"}
    with pytest.raises(InvalidSignatureError) as caught:
        case.configured.verify(changed(delivery, headers=headers))
    assert right not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_a_redelivery_has_the_same_key_and_meaning(case: Case) -> None:
    """INB-1 INB-2"""
    for said in (Said(), Said(event_id=None)):
        first = case.configured.identify(case.authentic(said))
        again = case.configured.identify(case.authentic(said))
        assert first.key == again.key
        assert first.fingerprint == again.fingerprint


def test_another_event_has_another_key(case: Case) -> None:
    """INB-1"""
    said = [Said(), Said(event_id="evt-2"), Said(event_id=None)]
    said.append(Said(event_id=None, payment_id="p-2"))
    keys = {case.configured.identify(case.authentic(one)).key for one in said}
    assert len(keys) == len(said)


def test_another_amount_currency_or_payment_is_another_meaning(case: Case) -> None:
    """INB-2"""
    said = [Said(), Said(amount="990.01"), Said(currency="USD"), Said(payment_id="p-2")]
    prints = {case.configured.identify(case.authentic(one)).fingerprint for one in said}
    assert len(prints) == len(said)


def test_the_key_and_the_fingerprint_fit_their_columns(case: Case) -> None:
    """INB-1"""
    identity = case.configured.identify(case.authentic())
    assert len(key_digest(identity.key)) == len(identity.fingerprint) == 16


def test_an_unknown_kind_of_event_is_ignored_with_a_reason(case: Case) -> None:
    """PRV-9"""
    delivery = case.authentic(Said(kind=case.unknown_kind))
    event = case.configured.translate(delivery)
    assert isinstance(event, Ignored)
    assert event.reason
    assert case.configured.identify(delivery).payment_id == "p-1"


def test_a_paid_event_says_so(case: Case) -> None:
    """PRV-1"""
    event = case.paid(Said())
    assert event.says is Says.PAID
    assert event.amount == Money(99_000, "RUB")
    assert event.email == "buyer@example.com"
    assert [one.value for one in event.ids] == ["p-1"]


@pytest.mark.parametrize(
    ("amount", "currency", "amount_minor"),
    [("10000", "KRW", 10_000), ("500", "JPY", 500), ("1.234", "KWD", 1_234), ("0.005", "BHD", 5)],
)
def test_currencies_of_no_and_of_three_decimals_are_right(
    case: Case, amount: str, currency: str, amount_minor: int
) -> None:
    """PRV-9 PAY-1"""
    event = case.paid(Said(amount=amount, currency=currency))
    assert event.amount == Money(amount_minor, currency)


def test_what_a_provider_composes_it_accepts(case: Case) -> None:
    """OPS-6: a test webhook is as good as the gateway's."""
    sample = Sample("p-9", "990.00", "RUB", "paid", event_id="evt-9", email="buyer@example.com")
    headers, body = case.configured.compose(sample)
    delivery = Delivery(headers, body, RECEIVED_AT)
    case.configured.verify(delivery)
    assert case.configured.translate(delivery) == case.paid(Said("p-9", "evt-9"))


def test_the_signature_is_kept_as_evidence(case: Case) -> None:
    """REC-1 OPS-4: a stored delivery can be verified again from what was kept."""
    provider, delivery = case.configured, case.authentic()
    kept = {k: v for k, v in delivery.headers.items() if k in provider.evidence_headers}
    provider.verify(changed(delivery, headers=kept))
