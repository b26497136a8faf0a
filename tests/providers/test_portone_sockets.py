"""PortOne's query APIs, asked through real sockets."""

from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio
from portone_server_sdk._generated.payment import payment as sdk

from paidonce.domain.events import Ignored, PaymentEvent, Says
from paidonce.errors import GatewayMismatchError, GatewayUnreachableError
from paidonce.providers import portone
from paidonce.providers.contract import Call, Delivery, Provider, Reply, Setup, Thin
from tests.gateways.portone import V2_SECRET, Cancellation, Payment, PortOneGateway, Trouble
from tests.providers.cases.portone import V1
from tests.providers.conformance import JSON, KEY, MAX_CALLS, RECEIVED_AT
from tests.providers.portone_by_hand import said, sent, source

TIMEOUT: Final = aiohttp.ClientTimeout(total=0.5)
V1_PAID: Final = b'{"imp_uid": "imp_1", "merchant_uid": "order-1", "status": "paid"}'


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[PortOneGateway]:
    async with PortOneGateway(Payment("p-1"), Payment("imp_1")) as running:
        yield running


async def asked(provider: Provider, delivery: Delivery) -> PaymentEvent | Ignored:
    """What comes of asking the gateway what a delivery means."""
    thin = provider.translate(delivery)
    assert isinstance(thin, Thin)
    conversation = thin.ask()
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        try:
            call = next(conversation)
            for _ in range(MAX_CALLS):
                reply = await _reply(session, call)
                if reply is None:
                    call = conversation.throw(GatewayUnreachableError("no answer"))
                else:
                    call = conversation.send(reply)
        except StopIteration as end:
            event: PaymentEvent | Ignored = end.value
            return event
    raise AssertionError("the conversation does not end")


async def _reply(session: aiohttp.ClientSession, call: Call) -> Reply | None:
    """The reply; None if there is none, or none that says anything."""
    try:
        async with session.request(
            call.method, call.url, headers=call.headers, json=call.json
        ) as response:
            reply = Reply(response.status, await response.read())
    except (aiohttp.ClientError, TimeoutError):
        return None
    return None if reply.status == 429 or reply.status >= 500 else reply


def v2(gateway: PortOneGateway, **options: Any) -> Provider:
    return source(api_url=gateway.url, **options)


def v1(gateway: PortOneGateway) -> Provider:
    return portone.configure(Setup(KEY, (), V1 | {"api_url": gateway.url}))


PAID = sent(said())
PAID_V1 = Delivery(JSON, V1_PAID, RECEIVED_AT)


async def test_a_payment_is_found_by_either_version(gateway: PortOneGateway) -> None:
    """PRV-3"""
    for provider, delivery in ((v2(gateway), PAID), (v1(gateway), PAID_V1)):
        event = await asked(provider, delivery)
        assert isinstance(event, PaymentEvent)
        assert event.says is Says.PAID
    assert gateway.calls == {"p-1": 1, "imp_1": 1, "getToken": 1}


@pytest.mark.parametrize("payment_id", ["a/b?c#d&e", "주문 1", "100%", "%2F", "a+b", "..."])
async def test_an_id_of_any_letters_arrives_as_it_is(
    gateway: PortOneGateway, payment_id: str
) -> None:
    """PRV-3"""
    gateway.add(Payment(payment_id))
    event = await asked(v2(gateway), sent(said(paymentId=payment_id)))
    assert isinstance(event, PaymentEvent)
    assert event.order == payment_id


async def test_another_store_is_asked_for(gateway: PortOneGateway) -> None:
    """PRV-3"""
    gateway.add(Payment("p-2", store_id="store-2"))
    elsewhere = sent(said(paymentId="p-2", storeId="store-2"))
    with pytest.raises(GatewayUnreachableError, match="store_id"):
        await asked(v2(gateway), elsewhere)
    event = await asked(v2(gateway, store_id="store-2"), elsewhere)
    assert isinstance(event, PaymentEvent)


@pytest.mark.parametrize("trouble", Trouble, ids=lambda one: one.name)
async def test_whatever_goes_wrong_is_asked_for_again(
    gateway: PortOneGateway, trouble: Trouble
) -> None:
    """PRV-3 RET-1: and then found."""
    provider = v2(gateway)
    gateway.misbehave("p-1", trouble)
    with pytest.raises(GatewayUnreachableError):
        await asked(provider, PAID)
    assert isinstance(await asked(provider, PAID), PaymentEvent)
    assert gateway.calls["p-1"] == 2


@pytest.mark.parametrize("trouble", [one for one in Trouble if one is not Trouble.UNAUTHORIZED])
@pytest.mark.parametrize("name", ["getToken", "imp_1"])
async def test_whatever_goes_wrong_with_v1_is_told(
    gateway: PortOneGateway, trouble: Trouble, name: str
) -> None:
    """PRV-3: only a payment that is not known may be a lie."""
    provider = v1(gateway)
    gateway.misbehave(name, trouble)
    is_unknown = (name, trouble) == ("imp_1", Trouble.NOT_FOUND)
    with pytest.raises(GatewayMismatchError if is_unknown else GatewayUnreachableError):
        await asked(provider, PAID_V1)
    assert isinstance(await asked(provider, PAID_V1), PaymentEvent)


async def test_an_answer_that_takes_too_long_is_none(gateway: PortOneGateway) -> None:
    """PRV-3"""
    gateway.delay("p-1", 5.0)
    with pytest.raises(GatewayUnreachableError):
        await asked(v2(gateway), PAID)


async def test_a_token_is_shared_and_renewed_when_it_has_expired(gateway: PortOneGateway) -> None:
    """PRV-3"""
    provider = v1(gateway)
    for _ in range(3):
        await asked(provider, PAID_V1)
    assert gateway.calls["getToken"] == 1
    gateway.expire_tokens()
    assert isinstance(await asked(provider, PAID_V1), PaymentEvent)
    assert gateway.calls["getToken"] == 2


async def test_wrong_keys_are_told(gateway: PortOneGateway) -> None:
    """PRV-3 SEC-7"""
    wrong = V1 | {"api_url": gateway.url, "api_secret": "wrong-secret"}
    for provider, delivery in (
        (portone.configure(Setup(KEY, (), wrong)), PAID_V1),
        (v2(gateway, api_secret="wrong-secret"), PAID),
    ):
        with pytest.raises(GatewayUnreachableError, match="api_secret") as caught:
            await asked(provider, delivery)
        assert "wrong-secret" not in str(caught.value)


async def test_a_payment_of_a_test_channel_is_found(gateway: PortOneGateway) -> None:
    """PRV-3 PAY-4: V1 hides them unless it is asked for them."""
    gateway.add(Payment("imp_1", is_test=True))
    assert isinstance(await asked(v1(gateway), PAID_V1), PaymentEvent)
    live = Setup(KEY, (), V1 | {"api_url": gateway.url}, accepts_test=False)
    assert isinstance(await asked(portone.configure(live), PAID_V1), Ignored)


HALF = (Cancellation("c-1", 5_000),)


@pytest.mark.parametrize(
    ("payment", "name"),
    [
        (Payment("p-1", "READY"), "ReadyPayment"),
        (Payment("p-1", "VIRTUAL_ACCOUNT_ISSUED"), "VirtualAccountIssuedPayment"),
        (Payment("p-1", "PAY_PENDING"), "PayPendingPayment"),
        (Payment("p-1", "FAILED"), "FailedPayment"),
        (Payment("p-1", "PAID", disputes=("UNRESOLVED",)), "PaidPayment"),
        (Payment("p-1", "PARTIAL_CANCELLED", cancellations=HALF), "PartialCancelledPayment"),
        (Payment("p-1", "CANCELLED", cancellations=HALF), "CancelledPayment"),
    ],
)
def test_the_gateway_of_these_tests_answers_as_the_official_library_expects(
    payment: Payment, name: str
) -> None:
    """PRV-9"""
    found = sdk._deserialize_payment(payment.v2())
    assert type(found).__name__ == name


async def test_the_official_secret_scheme_is_asked_for(gateway: PortOneGateway) -> None:
    """PRV-3: the header is `PortOne <secret>`, and no bearer's."""
    async with aiohttp.ClientSession() as session:
        url = f"{gateway.url}/payments/p-1"
        for value, status in ((f"PortOne {V2_SECRET}", 200), (f"Bearer {V2_SECRET}", 401)):
            async with session.get(url, headers={"Authorization": value}) as response:
                assert response.status == status
