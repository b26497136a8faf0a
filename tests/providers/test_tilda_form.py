"""Tests of Tilda's forms and API keys beyond the conformance suite."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import ConfigurationError, InvalidSignatureError, MalformedError
from paidonce.providers.contract import Delivery, ProviderConfig
from paidonce.providers.parsing import MAX_BRACKETS, MAX_FIELDS, parse_form
from paidonce.providers.tilda import provider as tilda
from tests.providers.cases.tilda import SHAPES, Shape
from tests.providers.conformance import FORM, JSON, RECEIVED_AT, ExpectedEvent

SECRET = "the-api-key"
TILDA = tilda.configure(ProviderConfig("sources.test", ("another", SECRET)))
PAYMENT = {"sys": "tinkoff", "systranid": "4471888162", "orderid": "2100966246", "amount": "11"}

every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def form(payment: Mapping[str, Any] | None = None, **fields: str) -> Delivery:
    part = {"payment": json.dumps(PAYMENT | dict(payment))} if payment is not None else {}
    return Delivery(FORM, urlencode({**fields, **part}).encode(), RECEIVED_AT)


def raw(body: bytes) -> Delivery:
    return Delivery(FORM, body, RECEIVED_AT)


def paid(delivery: Delivery) -> PaymentEvent:
    event = TILDA.translate(delivery)
    assert isinstance(event, PaymentEvent)
    return event


def with_parameter(delivery: Delivery, name: str, value: str) -> Delivery:
    if delivery.headers == JSON:
        body = json.dumps({**json.loads(delivery.body), name: value}).encode()
    else:
        body = delivery.body + f"&{quote(name)}={quote(value)}".encode()
    return Delivery(delivery.headers, body, RECEIVED_AT)


@every_shape
def test_a_paid_order_is_read_in_every_shape(shape: Shape) -> None:
    """PRV-2"""
    delivery = Delivery(*shape(ExpectedEvent("4471888162", "2100966246")), RECEIVED_AT)
    event, identity = paid(delivery), TILDA.identify(delivery)
    assert event.ids == (ExternalId("payment", "4471888162"),)
    assert (event.amount, event.email) == (Money(99_000, "RUB"), "buyer@example.com")
    assert event.occurred_at is None
    assert identity.key == "form:2100966246:4471888162"
    assert (identity.order, identity.payment_id) == ("2100966246", "4471888162")
    assert (identity.type, identity.event_id) == ("order.paid", None)
    assert TILDA.success_response("success", UUID(int=7), delivery) == ("text/plain", b"ok")


@every_shape
@pytest.mark.parametrize("name", ["Authorization", "x-tilda-key", "X-Signature", "user-agent"])
def test_the_api_key_may_be_in_any_header_and_is_not_stored(shape: Shape, name: str) -> None:
    """PRV-2 PRV-7 SEC-7"""
    headers, body = shape(ExpectedEvent())
    delivery = Delivery({**headers, name.lower(): SECRET}, body, RECEIVED_AT)
    TILDA.verify(delivery)
    assert SECRET not in TILDA.evidence_headers(delivery.headers).values()
    for wrong in (SECRET[:-1], SECRET + "x", SECRET.upper(), "", f"Bearer {SECRET}"):
        with pytest.raises(InvalidSignatureError):
            TILDA.verify(Delivery({**headers, name.lower(): wrong}, body, RECEIVED_AT))


@every_shape
@pytest.mark.parametrize("name", ["api_key", "ключ", "tranid2", "payment2"])
def test_the_api_key_may_be_a_parameter_of_any_name(shape: Shape, name: str) -> None:
    """PRV-2 PRV-7"""
    delivery = Delivery(*shape(ExpectedEvent()), RECEIVED_AT)
    TILDA.verify(with_parameter(delivery, name, SECRET))
    TILDA.verify(with_parameter(delivery, name, "another"))
    for wrong in (SECRET[:-1], SECRET + "x", ""):
        with pytest.raises(InvalidSignatureError):
            TILDA.verify(with_parameter(delivery, name, wrong))


@every_shape
def test_a_form_without_a_key_is_rejected(shape: Shape) -> None:
    """PRV-2: nobody else vouches for it."""
    with pytest.raises(InvalidSignatureError):
        TILDA.verify(Delivery(*shape(ExpectedEvent()), RECEIVED_AT))


def test_a_key_inside_the_payment_does_not_count() -> None:
    """PRV-2: only the top level counts; below it stands what buyers wrote."""
    nested = {"payment": PAYMENT | {"promocode": SECRET}, "list": [SECRET]}
    with pytest.raises(InvalidSignatureError):
        TILDA.verify(Delivery(JSON, json.dumps(nested).encode(), RECEIVED_AT))


def test_the_json_contract_takes_the_secret_in_a_header_only_without_a_signature() -> None:
    """PRV-2: S0's "signature or secret"; a signature that is there has to be right."""
    body = json.dumps({"external_payment_id": "p", "status": "paid"}).encode()
    TILDA.verify(Delivery({**JSON, "x-secret": SECRET}, body, RECEIVED_AT))
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    TILDA.verify(Delivery({**JSON, "x-signature": signature}, body, RECEIVED_AT))
    for headers in (
        {"x-signature": "0" * 64, "x-secret": SECRET},
        {"x-signature": "", "x-secret": SECRET},
        {"x-signature": SECRET},
        {"x-secret": "wrong"},
        {},
    ):
        with pytest.raises(InvalidSignatureError):
            TILDA.verify(Delivery({**JSON, **headers}, body, RECEIVED_AT))
    inside = json.dumps({"external_payment_id": "p", "status": "paid", "key": SECRET}).encode()
    with pytest.raises(InvalidSignatureError):
        TILDA.verify(Delivery(JSON, inside, RECEIVED_AT))


def test_the_signature_method_is_reported() -> None:
    """OPS-1"""
    assert TILDA.signature_method(form({})) == "api-key"
    signed = Delivery({**JSON, "x-signature": "0"}, b"{}", RECEIVED_AT)
    assert TILDA.signature_method(signed) == "hmac-sha256"


@pytest.mark.parametrize(
    "payment",
    [
        {"systranid": "0"},
        {"systranid": ""},
        {"systranid": None},
        {"systranid": 0},
        {"systranid": " "},
        {"sys": "none"},
        {"sys": "None", "systranid": "5"},
    ],
    ids=str,
)
def test_an_order_without_a_real_transaction_is_not_a_payment(payment: dict[str, Any]) -> None:
    """PRV-2: and leaves the key of the payment that may follow free."""
    delivery = form(payment)
    event = TILDA.translate(delivery)
    assert isinstance(event, Ignored)
    assert event.code is Code.NON_SUCCESS_STATUS
    identity = TILDA.identify(delivery)
    assert (identity.type, identity.order) == ("order.created", "2100966246")
    assert identity.payment_id is None
    assert identity.key == "form:2100966246:0" != TILDA.identify(form({})).key


def test_a_lead_is_ignored_and_its_key_is_its_id_or_a_hash() -> None:
    """PRV-2"""
    lead = form(Name="x", tranid="1:2", email="a@b.c")
    assert isinstance(TILDA.translate(lead), Ignored)
    assert TILDA.identify(lead).key == "lead:1:2"
    assert TILDA.identify(raw(b"Name=x&tranid=1:2&payment=")).key == "lead:1:2"
    nameless = form(Name="x")
    assert TILDA.identify(nameless).key == hashlib.sha256(b"tilda" + nameless.body).hexdigest()
    assert TILDA.identify(form(Name="y")).key != TILDA.identify(nameless).key
    as_json = Delivery(JSON, b'{"Name":"x","tranid":"1:2","payment":[]}', RECEIVED_AT)
    assert TILDA.identify(as_json).key == "lead:1:2"
    assert isinstance(TILDA.translate(as_json), Ignored)


def test_keys_of_forms_and_json_never_collide() -> None:
    """INB-1"""
    ids = ["form:7:1", "lead:7:1", "json:form:7:1", "json:json:form:7:1", "7:1", "json:x"]
    bodies = [{"external_payment_id": "p", "status": "paid", "event_id": one} for one in ids]
    contract = [
        TILDA.identify(Delivery(JSON, json.dumps(one).encode(), RECEIVED_AT)) for one in bodies
    ]
    forms = [form({"orderid": "7", "systranid": "1"}), form(tranid="7:1")]
    keys = [one.key for one in contract] + [TILDA.identify(one).key for one in forms]
    assert len(set(keys)) == len(ids) + 2
    assert [one.event_id for one in contract] == ids


@pytest.mark.parametrize("name", ["Email", "email", "E-mail", "EMAIL", "e-MAIL"])
def test_the_email_address_is_found_under_common_names(name: str) -> None:
    """PRV-2 PAY-5"""
    assert paid(form({}, **{name: " Buyer@Example.com "})).email == "Buyer@Example.com"
    assert paid(form({}, **{name: "nobody"})).email is None
    assert paid(form({}, mail="buyer@example.com")).email is None


@pytest.mark.parametrize(
    ("currency", "amount", "money"),
    [
        ("RUB", "4.9", Money(490, "RUB")),
        ("KZT", 11, Money(1_100, "KZT")),
        ("usd", "2", Money(200, "USD")),
    ],
)
def test_the_currency_is_a_setting_of_the_source(
    currency: str, amount: object, money: Money
) -> None:
    """PRV-2"""
    provider = tilda.configure(ProviderConfig("sources.test", (SECRET,), {"currency": currency}))
    event = provider.translate(form({"amount": amount}))
    assert isinstance(event, PaymentEvent)
    assert event.amount == money


@pytest.mark.parametrize("currency", ["", "RUR", 5, None, ["RUB"]])
def test_an_unknown_currency_is_a_configuration_error(currency: object) -> None:
    """USE-3"""
    with pytest.raises(ConfigurationError, match=r"sources\.test\.currency = .*RUB"):
        tilda.configure(ProviderConfig("sources.test", (SECRET,), {"currency": currency}))


@pytest.mark.parametrize("amount", [None, "", "x", "-1", "4.901", True, [], "1e99"])
def test_a_paid_order_without_a_valid_amount_is_malformed(amount: object) -> None:
    """PAY-4"""
    with pytest.raises(MalformedError):
        TILDA.translate(form({"amount": amount}))


@pytest.mark.parametrize(
    "body",
    [
        b"a=%ff",
        b"a=\xff",
        b"a%00=1",
        b"a=1&a=2",
        b"a=1&%61=2",
        b"payment[amount]=1&payment%5Bamount%5D=2",
        b"payment={}x",
        b"payment=[]",
        b"payment=paid",
        b'payment={"a":1,"a":2}',
        b'payment={"sys":"a"}&payment[sys]=b',
        b"&".join(b"f%d=1" % n for n in range(MAX_FIELDS + 1)),
        b"a" + b"[x]" * (MAX_BRACKETS + 1) + b"=1",
        b"payment[orderid]=" + b"x" * 300,
        b'payment={"systranid":{}}',
        b'payment={"orderid":1.5}',
    ],
    ids=lambda body: body[:30].decode("latin-1"),
)
def test_an_invalid_form_is_malformed(body: bytes) -> None:
    """REC-6: and is refused as forged while nobody vouches for it."""
    with pytest.raises(MalformedError):
        TILDA.identify(raw(body))
    with pytest.raises(InvalidSignatureError):
        TILDA.verify(raw(body))
    TILDA.verify(Delivery({**FORM, "key": SECRET}, body, RECEIVED_AT))


def test_a_form_as_json_has_the_same_field_limit() -> None:
    """REC-6 SEC-8: each of them has to be held against each secret."""
    fields = {"tranid": "1:2"} | {f"f{n}": SECRET for n in range(MAX_FIELDS)}
    delivery = Delivery(JSON, json.dumps(fields).encode(), RECEIVED_AT)
    with pytest.raises(MalformedError):
        TILDA.identify(delivery)
    with pytest.raises(InvalidSignatureError):
        TILDA.verify(delivery)


@pytest.mark.parametrize("part", [5, True, ["x"], "x"])
def test_a_payment_of_another_type_is_malformed(part: object) -> None:
    """REC-6"""
    body = json.dumps({"payment": part, "tranid": "1:2"}).encode()
    with pytest.raises(MalformedError):
        TILDA.identify(Delivery(JSON, body, RECEIVED_AT))


def test_an_unusual_form_is_read() -> None:
    """REC-6: lists, empty pairs, plus signs, stray percent signs, fields without a value."""
    body = b"&a[]=1&a[]=2&&b=1+1%2B1&c&d=100%&payment[products][]=x&payment[products][]=y"
    fields = parse_form(body)
    assert fields == {
        "a[]": "1", "b": "1 1+1", "c": "", "d": "100%", "payment[products][]": "x"
    }  # fmt: skip
    assert isinstance(TILDA.translate(raw(body)), Ignored)


@pytest.mark.parametrize(
    "body",
    [
        b"&" * 262_000,
        b"a[" * 131_000,
        b"%" * 262_000,
        b"%41" * 87_000,
        b"+" * 262_000,
        b"payment=" + b"[" * 250_000,
        b"payment[" * 32_000,
        b"&".join(b"payment[%d]=1" % n for n in range(1_900)),
    ],
    ids=lambda body: body[:12].decode(),
)
def test_parsing_a_form_is_fast(body: bytes) -> None:
    """REC-6 SEC-8: reading takes time in proportion to its size."""
    started_s = time.process_time()
    for verb in (TILDA.verify, TILDA.identify):
        with pytest.raises((MalformedError, InvalidSignatureError)):
            verb(raw(body + b"&x=%ff"))
    assert time.process_time() - started_s < 1


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=8))
def test_an_encoded_form_is_read_back(fields: dict[str, str]) -> None:
    """PRV-2"""
    if any("\x00" in text for pair in fields.items() for text in pair):
        return
    if any(name.count("[") > MAX_BRACKETS for name in fields):
        return
    assert parse_form(urlencode(fields).encode()) == fields


@pytest.mark.parametrize(
    "body",
    [
        b"test=test",
        b"test=test&key=the-api-key",
        b"api=another&test=test",
        b'{"test":"test"}',
        b' {"test": "test", "key": "the-api-key"}',
    ],
)
def test_a_ping_is_answered(body: bytes) -> None:
    """PRV-2: with or without the API key beside it."""
    assert TILDA.answer_ping(body) == ("text/plain", b"ok")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"test=test2",
        b"test=test&test=test",
        b"test=test&key=wrong",
        b"test=test&key=",
        b"test=test&Email=a@b.c",
        b"xtest=test",
        b"a=test=test",
        b'{"test":"test","a":1}',
        b'{"test":true}',
        b'{"test":"test"',
        b'["test"]',
        b"test=test&key=the-api-key" + b"&" * 2_000,
        b"test=test&a=%ff",
    ],
)
def test_nothing_else_is_a_ping(body: bytes) -> None:
    """PRV-2"""
    assert TILDA.answer_ping(body) is None
