"""PortOne V1, beyond what every provider does. Each conversation is held by hand."""

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.domain.events import Code, ExternalId, Ignored, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.errors import (
    ConfigurationError,
    GatewayError,
    GatewayMismatchError,
    GatewayUnreachableError,
    MalformedError,
    NotApprovedError,
)
from paidonce.providers import portone
from paidonce.providers.contract import Call, Delivery, Identity, Reply, Setup, Thin
from paidonce.providers.portone_v1 import PortOneV1, Token
from tests.gateways.portone import (
    CHANGED_AT,
    ODD_VALUES,
    PAID_AT,
    V1_KEY,
    V1_SECRET,
    Cancellation,
    Payment,
)
from tests.providers.conformance import FORM, JSON, KEY, RECEIVED_AT, converse

PAID = datetime.fromtimestamp(PAID_AT, UTC)
CHANGED = datetime.fromtimestamp(CHANGED_AT, UTC)
TOTAL = Money(10_000, "KRW")
HALF = (Cancellation("c-1", 5_000),)
WHOLE = (*HALF, Cancellation("c-2", 5_000))
TOKEN_URL = "https://api.iamport.kr/users/getToken"
PAYMENT_URL = "https://api.iamport.kr/payments/imp_1?include_sandbox=true"
UNAUTHORIZED = Reply(401, b'{"code": -1, "message": "no", "response": null}')


def source(accepts_test: bool = True, secrets: tuple[str, ...] = (), **options: Any) -> PortOneV1:
    given = {"version": "v1", "api_key": V1_KEY, "api_secret": V1_SECRET} | options
    provider = portone.configure(Setup(KEY, secrets, given, accepts_test=accepts_test))
    assert isinstance(provider, PortOneV1)
    return provider


def said(status: object = "paid", **more: Any) -> dict[str, Any]:
    named = {"imp_uid": "imp_1", "merchant_uid": "order-1", "status": status, **more}
    return {key: value for key, value in named.items() if value is not None}


def sent(body: Mapping[str, Any], at: datetime = RECEIVED_AT) -> Delivery:
    return Delivery(JSON, json.dumps(body).encode(), at)


def identified(body: Mapping[str, Any], at: datetime = RECEIVED_AT) -> Identity:
    return source().identify(sent(body, at))


def answered(response: Any, code: Any = 0) -> Reply:
    return Reply(200, json.dumps({"code": code, "message": None, "response": response}).encode())


def token(value: str = "token-1", lifetime_s: int = 1_800) -> Reply:
    return answered({"access_token": value, "now": 1_000, "expired_at": 1_000 + lifetime_s})


def asked(
    body: Mapping[str, Any], reply: Payment | Reply, provider: PortOneV1 | None = None
) -> PaymentEvent | Ignored:
    """What comes of a delivery when the API, once it let us in, replies so."""
    thin = (provider or source()).translate(sent(body))
    assert isinstance(thin, Thin)
    given = reply if isinstance(reply, Reply) else answered(reply.v1())
    return converse(thin, lambda call: token() if call.method == "POST" else given)


def event(body: Mapping[str, Any], payment: Payment) -> PaymentEvent:
    known = asked(body, payment)
    assert isinstance(known, PaymentEvent)
    return known


def calls(provider: PortOneV1, *replies: Reply) -> list[Call]:
    """What is asked while the replies last."""
    thin = provider.translate(sent(said()))
    assert isinstance(thin, Thin)
    conversation = thin.ask()
    made = [next(conversation)]
    for reply in replies:
        try:
            call = conversation.send(reply)
        except (StopIteration, GatewayError):
            break
        made.append(call)
    return made


def test_all_that_the_api_says_is_read() -> None:
    """PRV-3 PAY-1"""
    assert event(said(), Payment("imp_1")) == PaymentEvent(
        says=Says.PAID,
        ids=(ExternalId("payment", "imp_1"),),
        amount=TOTAL,
        order="order-1",
        email="buyer@example.com",
        occurred_at=PAID,
        paid_at=PAID,
    )


@pytest.mark.parametrize(
    ("payment", "says", "amount", "refunded", "at"),
    [
        (Payment("imp_1", "READY"), Says.PENDING, None, None, None),
        (Payment("imp_1", "FAILED"), Says.FAILED, None, None, CHANGED),
        (Payment("imp_1", "PAID"), Says.PAID, TOTAL, None, PAID),
        (
            Payment("imp_1", "PARTIAL_CANCELLED", cancellations=HALF),
            Says.REFUNDED, TOTAL, Money(5_000, "KRW"), CHANGED,
        ),
        (
            Payment("imp_1", "CANCELLED", cancellations=HALF),
            Says.REFUNDED, TOTAL, Money(5_000, "KRW"), CHANGED,
        ),
        (Payment("imp_1", "CANCELLED", cancellations=WHOLE), Says.CANCELED, TOTAL, TOTAL, CHANGED),
        (
            Payment("imp_1", "PAID", cancellations=WHOLE),
            Says.REFUNDED, TOTAL, TOTAL, CHANGED,
        ),
        (Payment("imp_1", "CANCELLED", was_paid=False), Says.VOIDED, None, None, None),
    ],
)  # fmt: skip
def test_status_and_amounts_decide_and_not_the_event(
    payment: Payment, says: Says, amount: Money | None, refunded: Money | None, at: datetime | None
) -> None:
    """PRV-3 PAY-2: what was canceled in part is still called paid."""
    known = event(said("ready"), payment)
    assert (known.says, known.amount, known.refunded) == (says, amount, refunded)
    if at is not None:
        assert known.occurred_at == at


@pytest.mark.parametrize(
    ("currency", "shown", "amount_minor"),
    [
        ("USD", {"amount": 19.99}, 1_999),
        ("USD", {"amount": 20}, 2_000),
        ("KRW", {"amount": 1_000.0}, 1_000),
        ("KWD", {"amount": 1.234}, 1_234),
    ],
)
def test_amounts_are_exact_in_major_units(
    currency: str, shown: dict[str, Any], amount_minor: int
) -> None:
    """PAY-1 PRV-9"""
    payment = Payment("imp_1", currency=currency, shown=shown)
    assert event(said(), payment).amount == Money(amount_minor, currency)


@pytest.mark.parametrize(
    ("status", "behind", "contradicted"),
    [
        ("ready", (), ()),
        ("failed", ("READY",), ()),
        ("paid", ("READY",), ("FAILED",)),
        ("cancelled", ("READY", "PAID"), ("FAILED",)),
    ],
)
def test_the_api_may_be_further_on_but_neither_behind_nor_against_the_event(
    status: str, behind: tuple[str, ...], contradicted: tuple[str, ...]
) -> None:
    """PRV-3 RET-1: V1 sends most events once, so that what is behind is asked for days."""
    for found in ("READY", "FAILED", "PAID", "PARTIAL_CANCELLED", "CANCELLED"):
        payment = Payment("imp_1", found, cancellations=HALF if "CANCELLED" in found else ())
        if found in behind:
            with pytest.raises(GatewayUnreachableError):
                asked(said(status), payment)
        elif found in contradicted:
            with pytest.raises(GatewayMismatchError) as caught:
                asked(said(status), payment)
            assert caught.value.may_pass
        else:
            assert event(said(status), payment).order == "order-1"


def test_a_second_cancellation_counts_when_the_history_holds_it() -> None:
    """PRV-3"""
    half = Payment("imp_1", "PARTIAL_CANCELLED", cancellations=HALF)
    assert event(said("cancelled", cancellation_id="c-1"), half).refunded == Money(5_000, "KRW")
    with pytest.raises(GatewayUnreachableError):
        asked(said("cancelled", cancellation_id="c-2"), half)
    nameless = Payment("imp_1", cancellations=HALF, shown={"cancel_history": [{"amount": 5_000}]})
    assert event(said("cancelled", cancellation_id="c-2"), nameless).says is Says.REFUNDED


@pytest.mark.parametrize("shown", [{"imp_uid": "imp_2"}, {"merchant_uid": "order-2"}])
def test_a_payment_that_is_not_the_one_asked_for_is_not_believed(shown: dict[str, Any]) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="another") as caught:
        asked(said(), Payment("imp_1", shown=shown))
    assert not caught.value.may_pass


def test_a_payment_that_nobody_knows_is_soon_given_up() -> None:
    """PRV-3 SEC-5"""
    with pytest.raises(GatewayMismatchError, match="know") as caught:
        asked(said(), Reply(404, b'{"code": -1, "message": "?", "response": null}'))
    assert caught.value.may_pass


@pytest.mark.parametrize(
    "reply",
    [
        answered(Payment("imp_1").v1(), code=-1), answered(Payment("imp_1").v1(), code=None),
        answered(Payment("imp_1").v1(), code="0"), answered(None), answered([]),
        Reply(200, b"<html>"), Reply(400, b"{}"), Reply(403, b"{}"), UNAUTHORIZED,
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_asked_for_again(reply: Reply) -> None:
    """PRV-3: it has errors of its own, even with status 200."""
    with pytest.raises(GatewayUnreachableError) as caught:
        asked(said(), reply)
    assert V1_SECRET not in str(caught.value)
    assert V1_KEY not in str(caught.value)


@pytest.mark.parametrize(
    "shown",
    [
        {"amount": ...}, {"amount": "10000"}, {"amount": True}, {"amount": -1}, {"amount": 0.5},
        {"cancel_amount": None}, {"currency": "WON"}, {"currency": ...}, {"imp_uid": ...},
        {"merchant_uid": ""}, {"status": ...}, {"status": []},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_asked_for_again(shown: dict[str, Any]) -> None:
    """PRV-3 PAY-1"""
    with pytest.raises(GatewayUnreachableError, match="cannot be read"):
        asked(said(), Payment("imp_1", shown=shown))


@pytest.mark.parametrize("status", ["refunded", "PAID", 5])
def test_a_status_that_nobody_knows_needs_a_person(status: object) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="status"):
        asked(said(), Payment("imp_1", shown={"status": status}))


ODD = st.sampled_from(ODD_VALUES) | st.text()


@given(
    fields=st.dictionaries(st.sampled_from(sorted(Payment("imp_1").v1())), ODD),
    status=st.sampled_from(["paid", "cancelled"]),
)
def test_whatever_the_api_replies_is_read_or_told(fields: dict[str, Any], status: str) -> None:
    """PRV-3: and no fault of ours."""
    with contextlib.suppress(GatewayError):
        asked(said(status), Payment("imp_1", shown=fields))


@given(reply=st.binary().map(lambda body: Reply(200, body)) | ODD.map(answered))
def test_whatever_is_given_for_a_token_is_one_or_told(reply: Reply) -> None:
    """PRV-3"""
    assert len(calls(source(), reply)) == 1


def test_a_test_channel_does_not_pay_where_it_must_not() -> None:
    """PAY-4"""
    payment = Payment("imp_1", is_test=True)
    ignored = asked(said(), payment, source(accepts_test=False))
    assert isinstance(ignored, Ignored)
    assert ignored.code is Code.TEST_PAYMENT
    assert event(said(), payment).says is Says.PAID


def test_a_token_is_asked_for_once() -> None:
    """PRV-3"""
    provider = source()
    first, second = calls(provider, token(), answered(Payment("imp_1").v1()))
    keys = {"imp_key": V1_KEY, "imp_secret": V1_SECRET}
    assert first == Call("POST", TOKEN_URL, json=keys)
    assert second == Call("GET", PAYMENT_URL, {"Authorization": "Bearer token-1"})
    assert calls(provider, answered(Payment("imp_1").v1())) == [second]


def test_a_token_is_asked_for_again_shortly_before_it_expires() -> None:
    """PRV-3: by a clock of ours, whatever PortOne's says."""
    now_s = 5_000.0
    kept = Token(lambda: now_s)
    assert kept.current() is None
    kept.keep("token-1", 1_800)
    now_s += 1_739
    assert kept.current() == "token-1"
    now_s += 1
    assert kept.current() is None


def test_a_token_that_is_refused_is_renewed_once() -> None:
    """PRV-3"""
    provider = source()
    calls(provider, token("token-1"))
    made = calls(provider, UNAUTHORIZED, token("token-2"), UNAUTHORIZED)
    bearers = [call.headers.get("Authorization") for call in made]
    assert bearers == ["Bearer token-1", None, "Bearer token-2"]


@pytest.mark.parametrize("value", ["", "a\nb", "키", 5, None])
def test_a_token_that_no_header_can_carry_is_none(value: object) -> None:
    """PRV-3"""
    reply = answered({"access_token": value, "now": 0, "expired_at": 1_800})
    assert len(calls(source(), reply)) == 1


def test_a_repeat_within_the_minute_is_a_duplicate_and_a_later_one_a_reason_to_look() -> None:
    """INB-2"""
    first = identified(said())
    assert identified(said(), RECEIVED_AT + timedelta(seconds=59)).key == first.key
    later = identified(said(), RECEIVED_AT + timedelta(seconds=60))
    assert later.key != first.key
    assert later.fingerprint == first.fingerprint
    assert first.key.startswith("v1:imp_1:paid::")


@pytest.mark.parametrize(
    "other",
    [
        said("failed"), said(imp_uid="imp_2"), said(merchant_uid="order-2"),
        said(merchant_uid=None), said(cancellation_id="c-1"), said("paid:", cancellation_id=":"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_the_same_takes_no_key_of_the_real_one(other: dict[str, Any]) -> None:
    """SEC-5: nobody signed it."""
    assert identified(other).key != identified(said()).key


@pytest.mark.parametrize("body", [said(None, amount=1_000), said("asked", amount=1_000)])
def test_a_question_is_never_approved(body: dict[str, Any]) -> None:
    """PRV-3: it is the one of confirm_url; to ignore it would approve it."""
    for question in (sent(body), Delivery(FORM, urlencode(body).encode(), RECEIVED_AT)):
        assert source().identify(question).type == "confirm"
        with pytest.raises(NotApprovedError):
            source().translate(question)
    answer = source().refuse("NOT_APPROVED", "No.")
    assert answer == ("application/json", b'{"reason":"No."}')
    assert source().refuse("MALFORMED", "No.") is None


@pytest.mark.parametrize(
    "body",
    [
        {}, said(None), said(imp_uid=None), said(imp_uid=".."), said(imp_uid="a/b"),
        said(imp_uid="imp 1"), said(imp_uid="imp_1?x=1"), said(imp_uid={}), said(status=[]),
        said(merchant_uid=5.5), said(cancellation_id="c" * 256),
    ],
    ids=str,
)  # fmt: skip
def test_a_body_without_what_it_needs_is_malformed(body: dict[str, Any]) -> None:
    """REC-6"""
    for verb in (source().identify, source().translate):
        with pytest.raises(MalformedError):
            verb(sent(body))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"api_key": None}, "api_key: is needed"),
        ({"api_secret": None}, "api_secret: is needed"),
        ({"api_key": " "}, "api_key: the secret is empty"),
        ({"secrets": ("whsec_AAAA",)}, "secrets: .*signs nothing"),
        ({"store_id": "store-1"}, "store_id"),
        ({"confirm": "refuse"}, "confirm"),
        ({"api_url": "ftp://x"}, "api_url"),
    ],
)
def test_what_is_wrong_with_the_settings_is_told(options: dict[str, Any], told: str) -> None:
    """USE-3 PRV-7"""
    with pytest.raises(ConfigurationError, match=rf"sources\.test\.{told}"):
        source(**options)


def test_the_keys_are_not_shown() -> None:
    """SEC-7"""
    provider = source()
    calls(provider, token())
    assert not [one for one in (V1_KEY, V1_SECRET, "token-1") if one in repr(provider)]
