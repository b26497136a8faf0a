"""Tests of PortOne V1 beyond the conformance suite, with given API responses."""

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import Code, EventType, ExternalId, Ignored, PaymentEvent
from paidonce.core.money import Money
from paidonce.errors import (
    ConfigurationError,
    GatewayError,
    GatewayMismatchError,
    GatewayUnreachableError,
    MalformedError,
    NotApprovedError,
)
from paidonce.providers.contract import (
    Delivery,
    GatewayRequest,
    GatewayResponse,
    Identity,
    LookupRequired,
    ProviderConfig,
)
from paidonce.providers.portone import v2 as portone
from paidonce.providers.portone.v1 import AccessToken, PortOneV1
from tests.providers.conformance import FORM, JSON, KEY, RECEIVED_AT, run_lookup
from tests.support.portone_server import (
    CHANGED_AT,
    ODD_VALUES,
    PAID_AT,
    V1_KEY,
    V1_SECRET,
    Cancellation,
    Payment,
)

PAID = datetime.fromtimestamp(PAID_AT, UTC)
CHANGED = datetime.fromtimestamp(CHANGED_AT, UTC)
TOTAL = Money(10_000, "KRW")
HALF = (Cancellation("c-1", 5_000),)
WHOLE = (*HALF, Cancellation("c-2", 5_000))
TOKEN_URL = "https://api.iamport.kr/users/getToken"
PAYMENT_URL = "https://api.iamport.kr/payments/imp_1?include_sandbox=true"
UNAUTHORIZED = GatewayResponse(401, b'{"code": -1, "message": "no", "response": null}')


def source(accepts_test: bool = True, secrets: tuple[str, ...] = (), **options: Any) -> PortOneV1:
    given = {"version": "v1", "api_key": V1_KEY, "api_secret": V1_SECRET} | options
    provider = portone.configure(ProviderConfig(KEY, secrets, given, accepts_test=accepts_test))
    assert isinstance(provider, PortOneV1)
    return provider


def webhook(status: object = "paid", **more: Any) -> dict[str, Any]:
    fields = {"imp_uid": "imp_1", "merchant_uid": "order-1", "status": status, **more}
    return {key: value for key, value in fields.items() if value is not None}


def sent(body: Mapping[str, Any], at: datetime = RECEIVED_AT) -> Delivery:
    return Delivery(JSON, json.dumps(body).encode(), at)


def identified(body: Mapping[str, Any], at: datetime = RECEIVED_AT) -> Identity:
    return source().identify(sent(body, at))


def api_reply(response: Any, code: Any = 0) -> GatewayResponse:
    return GatewayResponse(
        200, json.dumps({"code": code, "message": None, "response": response}).encode()
    )


def token(value: str = "token-1", lifetime_s: int = 1_800) -> GatewayResponse:
    return api_reply({"access_token": value, "now": 1_000, "expired_at": 1_000 + lifetime_s})


def look_up(
    body: Mapping[str, Any], reply: Payment | GatewayResponse, provider: PortOneV1 | None = None
) -> PaymentEvent | Ignored:
    """What comes of a delivery when the API, once it let us in, replies so."""
    lookup = (provider or source()).translate(sent(body))
    assert isinstance(lookup, LookupRequired)
    given = reply if isinstance(reply, GatewayResponse) else api_reply(reply.v1())
    return run_lookup(lookup, lambda call: token() if call.method == "POST" else given)


def event(body: Mapping[str, Any], payment: Payment) -> PaymentEvent:
    known = look_up(body, payment)
    assert isinstance(known, PaymentEvent)
    return known


def calls(provider: PortOneV1, *replies: GatewayResponse) -> list[GatewayRequest]:
    """What is asked while the replies last."""
    lookup = provider.translate(sent(webhook()))
    assert isinstance(lookup, LookupRequired)
    query = lookup.query()
    made = [next(query)]
    for reply in replies:
        try:
            call = query.send(reply)
        except (StopIteration, GatewayError):
            break
        made.append(call)
    return made


def test_a_payment_is_read_with_all_fields() -> None:
    """PRV-3 PAY-1"""
    assert event(webhook(), Payment("imp_1")) == PaymentEvent(
        event_type=EventType.PAID,
        ids=(ExternalId("payment", "imp_1"),),
        amount=TOTAL,
        order="order-1",
        email="buyer@example.com",
        occurred_at=PAID,
        paid_at=PAID,
    )


@pytest.mark.parametrize(
    ("payment", "event_type", "amount", "refunded", "at"),
    [
        (Payment("imp_1", "READY"), EventType.PENDING, None, None, None),
        (Payment("imp_1", "FAILED"), EventType.FAILED, None, None, CHANGED),
        (Payment("imp_1", "PAID"), EventType.PAID, TOTAL, None, PAID),
        (
            Payment("imp_1", "PARTIAL_CANCELLED", cancellations=HALF),
            EventType.REFUNDED, TOTAL, Money(5_000, "KRW"), CHANGED,
        ),
        (
            Payment("imp_1", "CANCELLED", cancellations=HALF),
            EventType.REFUNDED, TOTAL, Money(5_000, "KRW"), CHANGED,
        ),
        (
            Payment("imp_1", "CANCELLED", cancellations=WHOLE),
            EventType.CANCELED, TOTAL, TOTAL, CHANGED,
        ),
        (
            Payment("imp_1", "PAID", cancellations=WHOLE),
            EventType.REFUNDED, TOTAL, TOTAL, CHANGED,
        ),
        (Payment("imp_1", "CANCELLED", was_paid=False), EventType.VOIDED, None, None, None),
    ],
)  # fmt: skip
def test_status_and_amounts_of_the_api_decide(
    payment: Payment,
    event_type: EventType,
    amount: Money | None,
    refunded: Money | None,
    at: datetime | None,
) -> None:
    """PRV-3 PAY-2: what was canceled in part is still called paid."""
    known = event(webhook("ready"), payment)
    assert (known.event_type, known.amount, known.refunded) == (event_type, amount, refunded)
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
    assert event(webhook(), payment).amount == Money(amount_minor, currency)


@pytest.mark.parametrize(
    ("status", "behind", "contradicted"),
    [
        ("ready", (), ()),
        ("failed", ("READY",), ()),
        ("paid", ("READY",), ("FAILED",)),
        ("cancelled", ("READY", "PAID"), ("FAILED",)),
    ],
)
def test_the_api_may_be_ahead_but_not_behind_or_contradicting(
    status: str, behind: tuple[str, ...], contradicted: tuple[str, ...]
) -> None:
    """PRV-3 RET-1: V1 sends most events once, so that what is behind is asked for days."""
    for found in ("READY", "FAILED", "PAID", "PARTIAL_CANCELLED", "CANCELLED"):
        payment = Payment("imp_1", found, cancellations=HALF if "CANCELLED" in found else ())
        if found in behind:
            with pytest.raises(GatewayUnreachableError):
                look_up(webhook(status), payment)
        elif found in contradicted:
            with pytest.raises(GatewayMismatchError) as caught:
                look_up(webhook(status), payment)
            assert caught.value.may_pass
        else:
            assert event(webhook(status), payment).order == "order-1"


def test_a_second_cancellation_counts_when_the_history_has_it() -> None:
    """PRV-3"""
    half = Payment("imp_1", "PARTIAL_CANCELLED", cancellations=HALF)
    assert event(webhook("cancelled", cancellation_id="c-1"), half).refunded == Money(5_000, "KRW")
    with pytest.raises(GatewayUnreachableError):
        look_up(webhook("cancelled", cancellation_id="c-2"), half)
    nameless = Payment("imp_1", cancellations=HALF, shown={"cancel_history": [{"amount": 5_000}]})
    assert (
        event(webhook("cancelled", cancellation_id="c-2"), nameless).event_type
        is EventType.REFUNDED
    )


@pytest.mark.parametrize("shown", [{"imp_uid": "imp_2"}, {"merchant_uid": "order-2"}])
def test_another_payment_than_the_requested_one_is_a_mismatch(shown: dict[str, Any]) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="another") as caught:
        look_up(webhook(), Payment("imp_1", shown=shown))
    assert not caught.value.may_pass


def test_an_unknown_payment_is_given_up_soon() -> None:
    """PRV-3 SEC-5"""
    with pytest.raises(GatewayMismatchError, match="know") as caught:
        look_up(webhook(), GatewayResponse(404, b'{"code": -1, "message": "?", "response": null}'))
    assert caught.value.may_pass


@pytest.mark.parametrize(
    "reply",
    [
        api_reply(Payment("imp_1").v1(), code=-1), api_reply(Payment("imp_1").v1(), code=None),
        api_reply(Payment("imp_1").v1(), code="0"), api_reply(None), api_reply([]),
        GatewayResponse(200, b"<html>"), GatewayResponse(400, b"{}"), GatewayResponse(403, b"{}"),
        UNAUTHORIZED,
    ],
)  # fmt: skip
def test_an_error_response_is_retried(reply: GatewayResponse) -> None:
    """PRV-3: it has errors of its own, even with status 200."""
    with pytest.raises(GatewayUnreachableError) as caught:
        look_up(webhook(), reply)
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
def test_an_unreadable_response_is_retried(shown: dict[str, Any]) -> None:
    """PRV-3 PAY-1"""
    with pytest.raises(GatewayUnreachableError, match="cannot be read"):
        look_up(webhook(), Payment("imp_1", shown=shown))


@pytest.mark.parametrize("status", ["refunded", "PAID", 5])
def test_an_unknown_status_is_a_mismatch(status: object) -> None:
    """PRV-3"""
    with pytest.raises(GatewayMismatchError, match="status"):
        look_up(webhook(), Payment("imp_1", shown={"status": status}))


ODD = st.sampled_from(ODD_VALUES) | st.text()


@given(
    fields=st.dictionaries(st.sampled_from(sorted(Payment("imp_1").v1())), ODD),
    status=st.sampled_from(["paid", "cancelled"]),
)
def test_any_response_is_read_or_a_gateway_error(fields: dict[str, Any], status: str) -> None:
    """PRV-3: and no fault of ours."""
    with contextlib.suppress(GatewayError):
        look_up(webhook(status), Payment("imp_1", shown=fields))


@given(reply=st.binary().map(lambda body: GatewayResponse(200, body)) | ODD.map(api_reply))
def test_any_token_response_is_read_or_a_gateway_error(reply: GatewayResponse) -> None:
    """PRV-3"""
    assert len(calls(source(), reply)) == 1


def test_a_test_channel_does_not_count_in_production() -> None:
    """PAY-4"""
    payment = Payment("imp_1", is_test=True)
    ignored = look_up(webhook(), payment, source(accepts_test=False))
    assert isinstance(ignored, Ignored)
    assert ignored.code is Code.TEST_PAYMENT
    assert event(webhook(), payment).event_type is EventType.PAID


def test_a_token_is_requested_once() -> None:
    """PRV-3"""
    provider = source()
    first, second = calls(provider, token(), api_reply(Payment("imp_1").v1()))
    keys = {"imp_key": V1_KEY, "imp_secret": V1_SECRET}
    assert first == GatewayRequest("POST", TOKEN_URL, json=keys)
    assert second == GatewayRequest("GET", PAYMENT_URL, {"Authorization": "Bearer token-1"})
    assert calls(provider, api_reply(Payment("imp_1").v1())) == [second]


def test_a_token_is_renewed_shortly_before_it_expires() -> None:
    """PRV-3: by a clock of ours, whatever PortOne's says."""
    now_s = 5_000.0
    kept = AccessToken(lambda: now_s)
    assert kept.current() is None
    kept.keep("token-1", 1_800)
    now_s += 1_739
    assert kept.current() == "token-1"
    now_s += 1
    assert kept.current() is None


def test_a_rejected_token_is_renewed_once() -> None:
    """PRV-3"""
    provider = source()
    calls(provider, token("token-1"))
    made = calls(provider, UNAUTHORIZED, token("token-2"), UNAUTHORIZED)
    bearers = [call.headers.get("Authorization") for call in made]
    assert bearers == ["Bearer token-1", None, "Bearer token-2"]


@pytest.mark.parametrize("value", ["", "a\nb", "키", 5, None])
def test_a_token_with_invalid_characters_is_an_error(value: object) -> None:
    """PRV-3"""
    reply = api_reply({"access_token": value, "now": 0, "expired_at": 1_800})
    assert len(calls(source(), reply)) == 1


def test_a_repeat_within_the_minute_is_a_duplicate_and_a_later_one_a_new_lookup() -> None:
    """INB-2"""
    first = identified(webhook())
    assert identified(webhook(), RECEIVED_AT + timedelta(seconds=59)).key == first.key
    later = identified(webhook(), RECEIVED_AT + timedelta(seconds=60))
    assert later.key != first.key
    assert later.fingerprint == first.fingerprint
    assert first.key.startswith("v1:imp_1:paid::")


@pytest.mark.parametrize(
    "other",
    [
        webhook("failed"), webhook(imp_uid="imp_2"), webhook(merchant_uid="order-2"),
        webhook(merchant_uid=None), webhook(cancellation_id="c-1"),
        webhook("paid:", cancellation_id=":"),
    ],
    ids=str,
)  # fmt: skip
def test_a_forged_webhook_cannot_take_the_key_of_the_real_one(other: dict[str, Any]) -> None:
    """SEC-5: nobody signed it."""
    assert identified(other).key != identified(webhook()).key


@pytest.mark.parametrize("body", [webhook(None, amount=1_000), webhook("look_up", amount=1_000)])
def test_a_confirmation_request_is_never_approved(body: dict[str, Any]) -> None:
    """PRV-3: it is the one of confirm_url; to ignore it would approve it."""
    for question in (sent(body), Delivery(FORM, urlencode(body).encode(), RECEIVED_AT)):
        assert source().identify(question).type == "confirm"
        with pytest.raises(NotApprovedError):
            source().translate(question)
    answer = source().error_response("NOT_APPROVED", "No.")
    assert answer == ("application/json", b'{"reason":"No."}')
    assert source().error_response("MALFORMED", "No.") is None


@pytest.mark.parametrize(
    "body",
    [
        {}, webhook(None), webhook(imp_uid=None), webhook(imp_uid=".."), webhook(imp_uid="a/b"),
        webhook(imp_uid="imp 1"), webhook(imp_uid="imp_1?x=1"), webhook(imp_uid={}),
        webhook(status=[]),
        webhook(merchant_uid=5.5), webhook(cancellation_id="c" * 256),
    ],
    ids=str,
)  # fmt: skip
def test_a_body_without_a_required_field_is_malformed(body: dict[str, Any]) -> None:
    """REC-6"""
    for verb in (source().identify, source().translate):
        with pytest.raises(MalformedError):
            verb(sent(body))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"api_key": None}, "api_key: is required"),
        ({"api_secret": None}, "api_secret: is required"),
        ({"api_key": " "}, "api_key: the secret is empty"),
        ({"secrets": ("whsec_AAAA",)}, "secrets: .*signs nothing"),
        ({"store_id": "store-1"}, "store_id"),
        ({"confirm": "refuse"}, "confirm"),
        ({"api_url": "ftp://x"}, "api_url"),
    ],
)
def test_a_wrong_setting_is_a_configuration_error(options: dict[str, Any], error: str) -> None:
    """USE-3 PRV-7"""
    with pytest.raises(ConfigurationError, match=rf"sources\.test\.{error}"):
        source(**options)


def test_the_keys_are_not_shown() -> None:
    """SEC-7"""
    provider = source()
    calls(provider, token())
    assert not [one for one in (V1_KEY, V1_SECRET, "token-1") if one in repr(provider)]
