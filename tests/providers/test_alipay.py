"""Tests of Alipay beyond the conformance suite."""

import base64
import contextlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode
from uuid import uuid4

import pytest
from alipay import AliPay  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
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
from paidonce.providers.alipay import provider as alipay
from paidonce.providers.contract import Delivery, Identity, ProviderConfig, SampleEvent
from tests.providers.cases.alipay import (
    ADDRESSEES,
    alipay_form,
    china_time,
    form,
    private_key,
    public_key,
    trade,
)
from tests.providers.conformance import FORM, KEY, RECEIVED_AT, ExpectedEvent

SECRET = "alipay"
VECTORS = Path(os.environ.get("PAIDONCE_VECTORS", ""), "vectors.json")
PAID_AT = datetime(2026, 11, 15, 11, 59, tzinfo=UTC)
PAYMENT = ExternalId("payment", "2026111522001")


def source(*keys: str, **options: Any) -> alipay.Alipay:
    given = ADDRESSEES | {"public_keys": list(keys or (public_key(SECRET),))} | options
    return alipay.configure(ProviderConfig(KEY, (), given))


ALIPAY = source()


def payment_parameters(**more: str) -> dict[str, str]:
    """The parameters of a payment of 88.88 yuan; those given as "…" are left out."""
    payment_event = trade(ExpectedEvent(payment_id=PAYMENT.value, amount="88.88"), RECEIVED_AT)
    payment = {"gmt_payment": china_time(PAID_AT), "fund_bill_list": '[{"amount":"88.88"}]'}
    given = payment_event | payment | {"trans_currency": "…"} | more
    return {name: value for name, value in given.items() if value != "…"}


def sent(parameters: Mapping[str, str] | None = None, **how: Any) -> Delivery:
    return delivery_of(
        alipay_form(payment_parameters() if parameters is None else parameters, SECRET, **how)
    )


def delivery_of(body: bytes) -> Delivery:
    return Delivery(FORM, body, RECEIVED_AT)


def read(delivery: Delivery) -> tuple[Identity, PaymentEvent | Ignored]:
    return ALIPAY.identify(delivery), ALIPAY.translate(delivery)


def payment_event(**more: str) -> PaymentEvent:
    delivery = sent(payment_parameters(**more))
    ALIPAY.verify(delivery)
    event = ALIPAY.translate(delivery)
    assert isinstance(event, PaymentEvent)
    return event


def test_a_payment_is_read_with_all_fields() -> None:
    """PRV-4: in yuan and in China's time."""
    identity = ALIPAY.identify(sent())
    assert payment_event() == PaymentEvent(
        EventType.PAID,
        (PAYMENT,),
        amount=Money(8_888, "CNY"),
        order="order-1",
        occurred_at=PAID_AT,
        paid_at=PAID_AT,
    )
    assert (identity.key, identity.event_id, identity.type) == ("evt-1", "evt-1", "TRADE_SUCCESS")
    assert (identity.payment_id, identity.order) == (PAYMENT.value, "order-1")
    assert (identity.amount, identity.currency) == ("88.88", "CNY")
    assert identity.occurred_at == PAID_AT


def test_a_refund_has_the_total_refunded_and_the_paid_amount() -> None:
    """PRV-4 PAY-2: in part the trade stays as it was, in full it is closed."""
    at = datetime(2026, 11, 15, 11, 59, 30, 120_000, tzinfo=UTC)
    refund = {"gmt_refund": "2026-11-15 19:59:30.120", "out_biz_no": "r-1"}
    for status, fee, minor in (
        ("TRADE_SUCCESS", "8.88", 888),
        ("TRADE_FINISHED", "8.88", 888),
        ("TRADE_CLOSED", "88.88", 8_888),
    ):
        event = payment_event(trade_status=status, refund_fee=fee, **refund)
        assert (event.event_type, event.ids) == (EventType.REFUNDED, (PAYMENT,))
        assert (event.amount, event.refunded) == (Money(8_888, "CNY"), Money(minor, "CNY"))
        assert (event.occurred_at, event.paid_at, event.refund) == (at, PAID_AT, None)
        parameters = payment_parameters(trade_status=status, refund_fee=fee, **refund)
        assert ALIPAY.identify(sent(parameters)).type == f"{status}.refund"


@pytest.mark.parametrize(
    ("status", "event_type", "amount"),
    [
        ("WAIT_BUYER_PAY", EventType.PENDING, None),
        ("TRADE_SUCCESS", EventType.PAID, Money(8_888, "CNY")),
        ("TRADE_FINISHED", EventType.PAID, Money(8_888, "CNY")),
        ("TRADE_CLOSED", EventType.VOIDED, None),
    ],
)
def test_each_status_has_its_meaning(
    status: str, event_type: EventType, amount: Money | None
) -> None:
    """PRV-4 PAY-2: nothing was refunded of what was closed unpaid."""
    for nothing in ({}, {"refund_fee": "0.00"}):
        event = payment_event(trade_status=status, **nothing)
        assert (event.event_type, event.amount, event.refunded) == (event_type, amount, None)


def test_a_notification_without_a_payment_is_ignored() -> None:
    """PRV-4: messages of other products, whose signature covers its type."""
    for other in (
        {"notify_type": "servicemarket_order_notify"},
        {"notify_type": "", "msg_method": "alipay.fund.trans.order.changed"},
        {"notify_type": "…", "method": "alipay.open.app.message"},
    ):
        parameters = payment_parameters(**other, trade_no="…", seller_id="…", out_trade_no="…")
        delivery = sent(parameters, leaves_out=())
        ALIPAY.verify(delivery)
        identity, event = read(delivery)
        assert isinstance(event, Ignored)
        assert event.code is Code.NON_SUCCESS_STATUS
        assert (identity.key, identity.payment_id) == ("evt-1", None)
        assert identity.type == [*other.values()][-1]


def test_a_repeated_notification_is_the_same_event() -> None:
    """INB-2: with a new time and so a new signature."""
    later = payment_parameters(notify_time=china_time(RECEIVED_AT + timedelta(minutes=4)))
    first, again = ALIPAY.identify(sent()), ALIPAY.identify(sent(later))
    assert sent(later).body != sent().body
    assert (first.key, first.fingerprint) == (again.key, again.fingerprint)
    for other in (
        {"trade_status": "TRADE_CLOSED"},
        {"refund_fee": "1.00"},
        {"out_trade_no": "order-2"},
        {"total_amount": "88.89"},
    ):
        assert ALIPAY.identify(sent(payment_parameters(**other))).fingerprint != first.fingerprint


@pytest.mark.parametrize("name", ["app_id", "seller_id"])
@pytest.mark.parametrize("value", ["2088000000000002", "", "…"])
def test_a_notification_for_another_app_or_seller_is_rejected(name: str, value: str) -> None:
    """PRV-4: though Alipay has signed it."""
    with pytest.raises(InvalidSignatureError, match=name):
        ALIPAY.verify(sent(payment_parameters(**{name: value})))


def test_both_signing_rules_are_accepted_with_and_without_empty_values() -> None:
    """PRV-4"""
    parameters = payment_parameters(body="", passback_params="", subject="Tom & Jerry = friends")
    for rule in (("sign_type",), ()):
        for skips_empty in (True, False):
            ALIPAY.verify(sent(parameters, leaves_out=rule, skips_empty=skips_empty))
    for unsigned in (("sign_type", "subject"), ("sign_type", "body"), ("sign_type", "app_id")):
        with pytest.raises(InvalidSignatureError):
            ALIPAY.verify(sent(parameters, leaves_out=unsigned, skips_empty=False))


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", "gbk", "GBK", "gb2312", "gb18030"])
def test_every_charset_is_verified_and_read(charset: str) -> None:
    """PRV-4: whatever the header says, which is not signed."""
    delivery = sent(payment_parameters(charset=charset, body="连续包月 &= 会员"), charset=charset)
    for content_type in ("application/x-www-form-urlencoded; charset=latin-1", ""):
        one = Delivery({"content-type": content_type}, delivery.body, RECEIVED_AT)
        ALIPAY.verify(one)
        assert ALIPAY.translate(one) == payment_event()


def test_only_rsa2_is_accepted() -> None:
    """PRV-4: the message does not choose a weaker one."""
    for sign_type in ("RSA", "rsa2", "MD5", "", "…"):
        for algorithm in (SHA1(), SHA256()):
            delivery = sent(payment_parameters(sign_type=sign_type), algorithm=algorithm)
            with pytest.raises(InvalidSignatureError):
                ALIPAY.verify(delivery)
    with pytest.raises(InvalidSignatureError):
        ALIPAY.verify(sent(algorithm=SHA1()))


def test_each_flipped_bit_that_changes_a_parameter_is_rejected() -> None:
    """PRV-9: what is left are other spellings of the same, such as %2f for %2F."""
    right = sent().body
    said_right = decoded(right)
    spellings = 0
    for bit in range(len(right) * 8):
        body = bytearray(right)
        body[bit // 8] ^= 1 << bit % 8
        if decoded(bytes(body)) == said_right:
            spellings += 1
            ALIPAY.verify(delivery_of(bytes(body)))
            continue
        with pytest.raises(InvalidSignatureError):
            ALIPAY.verify(delivery_of(bytes(body)))
    assert 0 < spellings < len(right)


def decoded(body: bytes) -> list[tuple[bytes, ...]]:
    pairs = [pair.split(b"=", 1) for pair in body.replace(b"+", b" ").split(b"&")]
    return [tuple(map(unquote_to_bytes, pair)) for pair in pairs]


def test_the_same_bytes_split_into_other_parameters_are_rejected() -> None:
    """PRV-4: a buyer writes into a text, and Alipay signs, what reads as another's payment.

    The official rule alone accepts it, which is why there is a guard.
    """
    stolen = {
        "notify_id": "forged",
        "notify_time": china_time(RECEIVED_AT),
        "notify_type": "trade_status_sync",
        "out_trade_no": "VICTIM",
        "seller_id": ADDRESSEES["seller_id"],
        "total_amount": "9999.00",
        "trade_no": "1",
        "trade_status": "TRADE_SUCCESS",
        "zz": "1",
    }
    text = "x&charset=utf-8&" + "&".join(f"{name}={value}" for name, value in stolen.items())
    honest = payment_parameters(body=text, total_amount="0.01")
    body = alipay_form(honest, SECRET)
    signed = "&".join(f"{k}={honest[k]}" for k in sorted(honest) if k != "sign_type" and honest[k])
    rest = signed.partition("zz=1")[2]
    sign = dict(parse_qsl(body.decode()))["sign"]
    forged = {
        "app_id": ADDRESSEES["app_id"],
        "body": "x",
        "charset": "utf-8",
        **stolen,
        "zz": "1" + rest,
    }
    assert sdk().verify(dict(forged), sign), "the attack is a real one"

    pairs = forged | {"sign": sign, "sign_type": "RSA2"}
    for delivery in (delivery_of(urlencode(pairs).encode()), delivery_of(body)):
        with pytest.raises(InvalidSignatureError, match="two ways"):
            ALIPAY.verify(delivery)


@pytest.mark.parametrize("name", [name.decode() for name in sorted(alipay.COUNTS)])
def test_a_text_that_contains_a_parameter_is_rejected(name: str) -> None:
    """PRV-4: neither one that is there nor one that could be."""
    with pytest.raises(InvalidSignatureError, match="two ways"):
        ALIPAY.verify(sent(payment_parameters(subject=f"a&{name}=b")))
    ALIPAY.verify(sent(payment_parameters(subject=f"a& {name}=b&{name}s=&b{name}={name}=")))


def test_a_repeated_parameter_is_rejected() -> None:
    """PRV-4: readers differ in which of the two they take."""
    body = sent().body
    for more in (b"&total_amount=88.88", b"&total%5Famount=1.00", b"&sign=", b"&a=1&a=1"):
        with pytest.raises(InvalidSignatureError, match="twice"):
            ALIPAY.verify(delivery_of(body + more))


@pytest.mark.parametrize("more", [b"&", b"&a", b"&a=%", b"&a=%2", b"&%zz="])
def test_an_invalid_form_is_rejected(more: bytes) -> None:
    """REC-6"""
    with pytest.raises(InvalidSignatureError):
        ALIPAY.verify(delivery_of(sent().body + more))


def test_a_form_with_too_many_parameters_is_rejected() -> None:
    """SEC-8: though Alipay has signed it."""
    room = alipay.MAX_PARAMETERS - len(payment_parameters()) - 1
    ALIPAY.verify(sent(payment_parameters(**{f"x{number}": "1" for number in range(room)})))
    with pytest.raises(InvalidSignatureError, match="over"):
        ALIPAY.verify(sent(payment_parameters(**{f"x{number}": "1" for number in range(room + 1)})))


@pytest.mark.parametrize(
    "wrong",
    [
        {"total_amount": "8e1"},
        {"total_amount": "-1.00"},
        {"total_amount": "88.888"},
        {"total_amount": "1234567890.00"},
        {"total_amount": "…"},
        {"total_amount": "٣.00"},
        {"refund_fee": "1,00"},
        {"gmt_refund": "2026-11-15 19:59:30"},
        {"trade_no": ""},
        {"trade_no": "a b"},
        {"trade_no": "1" * 129},
        {"out_trade_no": "订单"},
        {"trade_status": ""},
        {"notify_id": "…"},
        {"notify_time": "…"},
        {"notify_time": "2026-13-15 20:00:00"},
        {"notify_time": "2026-11-15T20:00:00"},
        {"gmt_refund": "0001-01-01 00:00:00"},
        {"trans_currency": "XXX"},
        {"charset": "utf-16"},
        {"notify_type": "a\x00b"},
        {"notify_type": "…", "trade_status": "…"},
    ],
    ids=str,
)
def test_a_field_in_another_format_is_malformed(wrong: dict[str, str]) -> None:
    """REC-6: authentic, and kept as such."""
    delivery = sent(payment_parameters(**wrong))
    ALIPAY.verify(delivery)
    with pytest.raises(MalformedError):
        read(delivery)


def test_the_amount_is_in_the_currency_of_the_transaction() -> None:
    """PRV-4 PAY-4: an order in another one does not match."""
    assert payment_event(trans_currency="HKD").amount == Money(8_888, "HKD")
    assert payment_event(settle_currency="USD", settle_amount="12.34").amount == Money(8_888, "CNY")


def test_the_answers_are_success_and_fail() -> None:
    """PRV-4 REC-5"""
    for word in ("success", "duplicate", "ignored", "conflict", "accepted"):
        answer = ALIPAY.success_response(word, uuid4(), sent())
        assert answer == ("text/plain", b"success")
    assert ALIPAY.error_response("INVALID_SIGNATURE", "…") == ("text/plain", b"fail")


def test_a_test_webhook_is_authentic_only_in_its_own_process() -> None:
    """OPS-6 SEC-5: its key is its own, and production has none."""
    here, elsewhere = source(), source()
    sample = SampleEvent("p", "1.00", "CNY", "paid", order="order-1", sent_at=RECEIVED_AT)
    made = Delivery(*here.build_sample(sample), RECEIVED_AT)
    here.verify(made)
    elsewhere.build_sample(sample)
    with pytest.raises(InvalidSignatureError):
        elsewhere.verify(made)
    production = alipay.configure(
        ProviderConfig(
            KEY, (), {**ADDRESSEES, "public_keys": [public_key("one")]}, accepts_test=False
        )
    )
    with pytest.raises(ConfigurationError, match="public key"):
        production.build_sample(sample)
    with pytest.raises(InvalidSignatureError):
        production.verify(made)


def certificate(secret: str) -> str:
    key, name = private_key(secret), x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    dated = builder.not_valid_before(PAID_AT - timedelta(9)).not_valid_after(PAID_AT - timedelta(1))
    made = dated.public_key(key.public_key()).sign(key, SHA256())
    return made.public_bytes(Encoding.PEM).decode()


def pem(secret: str, style: PublicFormat = PublicFormat.SubjectPublicKeyInfo) -> str:
    return private_key(secret).public_key().public_bytes(Encoding.PEM, style).decode()


def test_a_key_is_accepted_in_each_format_of_alipay(tmp_path: Path) -> None:
    """PRV-4 PRV-7: of an old certificate too, whose key is what counts; and from a file."""
    file = tmp_path / "alipay.pem"
    file.write_text(pem(SECRET))
    bare = public_key(SECRET)
    for form_of_key in (
        bare,
        "\n".join(bare[at : at + 64] for at in range(0, len(bare), 64)),
        pem(SECRET),
        pem(SECRET, PublicFormat.PKCS1),
        certificate(SECRET),
        certificate(SECRET) + certificate("another"),
        f"file:{file}",
    ):
        source(public_key("another"), form_of_key).verify(sent())


def _private_pem() -> str:
    form_of_key = PrivateFormat.PKCS8
    return private_key(SECRET).private_bytes(Encoding.PEM, form_of_key, NoEncryption()).decode()


def _other(key: Any) -> str:
    return str(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    )


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([], "is required"),
        (None, "is required"),
        ("MIIB", "a list"),
        ([1], "a list"),
        ([""], r"\[0\]: the secret is empty"),
        (["env:TEST_NOT_SET"], r"\[0\]: the environment variable"),
        (["file:not-there.pem"], r"\[0\]: the file not-there.pem"),
        (["not a key"], r"\[0\]: is not a public key"),
        (["MIIB"], r"\[0\]: is not a public key"),
        (["ключ"], r"\[0\]: is not a public key"),
        (
            ["-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----"],
            r"\[0\]: is not a public key",
        ),
        ([_private_pem()], r"\[0\]: is a private key"),
        ([_other(Ed25519PrivateKey.generate())], r"\[0\]: is not a public key"),
        ([_other(generate_private_key(65537, 1024))], r"\[0\]: .* 2048 bits"),
    ],
)
def test_an_invalid_public_key_is_a_configuration_error(keys: Any, error: str) -> None:
    """PRV-7 USE-3: with the setting's name, and without what is in it."""
    with pytest.raises(ConfigurationError, match=rf"sources\.test\.public_keys.*{error}") as caught:
        source(public_keys=keys)
    assert "MIIB" not in str(caught.value)


def test_a_source_requires_its_app_and_seller() -> None:
    """USE-3"""
    for name in ("app_id", "seller_id"):
        with pytest.raises(ConfigurationError, match=name):
            source(**{name: ""})
    with pytest.raises(ConfigurationError, match=r"currency: this provider has no such setting"):
        source(currency="CNY")
    with pytest.raises(ConfigurationError, match=r"secrets: .* public_keys"):
        alipay.configure(ProviderConfig(KEY, ("secret",), ADDRESSEES))


@pytest.mark.parametrize("name", ["gmt_payment", "gmt_close"])
def test_a_time_that_cannot_be_read_is_dropped(name: str) -> None:
    """REC-8: the rest counts."""
    delivery = sent(payment_parameters(**{name: "0001-01-01 00:00:00"}))
    event = ALIPAY.translate(delivery)
    assert isinstance(event, PaymentEvent)
    assert (event.amount, delivery.dropped) == (Money(8_888, "CNY"), [name])


def test_an_expired_notification_is_not_reported_as_forged() -> None:
    """PRV-8: by the time that it was sent, not by that of the payment."""
    old = payment_parameters(gmt_payment="2020-01-01 00:00:00")
    ALIPAY.verify(sent(old))
    late = payment_parameters(notify_time=china_time(RECEIVED_AT - timedelta(seconds=301)))
    with pytest.raises(TimestampExpiredError, match="301 s before"):
        ALIPAY.verify(sent(late))


@pytest.mark.skipif(not VECTORS.is_file(), reason="PAIDONCE_VECTORS names no folder of vectors")
def test_published_vectors_are_accepted() -> None:
    """PRV-9: real notifications, one of each rule."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    ours = [one for one in vectors if one["scheme"].startswith("alipay_rsa2")]
    assert {one["scheme"] for one in ours} == {"alipay_rsa2_v1", "alipay_rsa2_v2"}
    for vector in ours:
        parameters = vector["params"]
        provider = source(
            vector["public_key"],
            app_id=parameters["app_id"],
            seller_id=parameters.get("seller_id", "none"),
        )
        at = datetime.fromisoformat(f"{parameters['notify_time']}+08:00")
        body = base64.b64decode(vector["body_b64"])
        delivery = Delivery(FORM, body, at)
        provider.verify(delivery)
        assert provider.identify(delivery).key == parameters["notify_id"]
        is_trade = "trade_no" in parameters
        assert isinstance(provider.translate(delivery), PaymentEvent if is_trade else Ignored)
        with pytest.raises(InvalidSignatureError):
            provider.verify(Delivery(FORM, body.replace(b"0.10", b"0.11", 1) + b"&a=1", at))


def sdk() -> AliPay:
    """The oracle: a widely used SDK, with our key as the app's and as Alipay's."""
    return AliPay(
        appid=ADDRESSEES["app_id"],
        app_private_key_string=_private_pem(),
        alipay_public_key_string=pem(SECRET),
    )


SDK = sdk()
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True).filter(
    lambda name: name.encode() not in alipay.COUNTS
)
VALUES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(others=st.dictionaries(NAMES, VALUES, max_size=6))
def test_a_form_signed_by_the_sdk_is_accepted(others: dict[str, str]) -> None:
    """PRV-9"""
    parameters = others | {k: v for k, v in payment_parameters().items() if k != "sign_type"}
    body = SDK.sign_data(dict(parameters)).encode() + b"&sign_type=RSA2"
    signed = "&".join(f"{name}={parameters[name]}" for name in sorted(parameters))
    if reads_in_two_ways(signed, parameters):
        with pytest.raises(InvalidSignatureError, match="two ways"):
            ALIPAY.verify(delivery_of(body))
    else:
        ALIPAY.verify(delivery_of(body))


def reads_in_two_ways(signed: str, parameters: Mapping[str, str]) -> bool:
    names = [part.split("=")[0] for part in signed.split("&")]
    return any(names.count(one.decode()) != (one.decode() in parameters) for one in alipay.COUNTS)


@given(
    parameters=st.dictionaries(
        NAMES | st.sampled_from(sorted(payment_parameters())), VALUES, max_size=6
    ),
    is_right=st.booleans(),
)
def test_the_sdk_agrees_on_what_is_authentic(parameters: dict[str, str], is_right: bool) -> None:
    """PRV-9: it accepts whatever is accepted here."""
    given = payment_parameters() | parameters | ADDRESSEES
    given |= {
        name: payment_parameters()[name] for name in ("notify_time", "sign_type", "notify_type")
    }
    body = alipay_form(given if is_right else payment_parameters(), SECRET)
    sign = dict(parse_qsl(body.decode()))["sign"]
    delivery = delivery_of(
        form({k: v.encode() for k, v in given.items()} | {"sign": sign.encode()})
    )
    is_accepted = True
    try:
        ALIPAY.verify(delivery)
    except InvalidSignatureError:
        is_accepted = False
    with_values = {name: value for name, value in given.items() if value}
    assert not is_accepted or SDK.verify(with_values, sign)
    assert is_accepted == (is_right or given == payment_parameters())


@given(
    more=st.dictionaries(
        st.sampled_from([name.decode() for name in sorted(alipay.COUNTS)]),
        st.text(max_size=20) | st.sampled_from(["TRADE_SUCCESS", "1.00", "2026-11-15 20:00:00"]),
    )
)
def test_any_signed_form_is_read_or_malformed(more: dict[str, str]) -> None:
    """REC-6"""
    delivery = sent(payment_parameters() | more)
    for verb in (ALIPAY.verify, ALIPAY.identify, ALIPAY.translate):
        with contextlib.suppress(RejectedError):
            verb(delivery)
