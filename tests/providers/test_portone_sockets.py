"""PortOne's APIs over real sockets."""

from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio
from portone_server_sdk._generated.payment import payment as sdk

from paidonce.core.events import EventType, Ignored, PaymentEvent
from paidonce.errors import GatewayMismatchError, GatewayUnreachableError
from paidonce.providers.contract import (
    Delivery,
    GatewayRequest,
    GatewayResponse,
    LookupRequired,
    Provider,
    ProviderConfig,
)
from paidonce.providers.portone import v2 as portone
from tests.providers.cases.portone import V1
from tests.providers.conformance import JSON, KEY, MAX_CALLS, RECEIVED_AT
from tests.providers.portone_lookups import sent, source, webhook
from tests.support.portone_server import V2_SECRET, Cancellation, Payment, PortOneGateway, Trouble

TIMEOUT: Final = aiohttp.ClientTimeout(total=0.5)
V1_PAID: Final = b'{"imp_uid": "imp_1", "merchant_uid": "order-1", "status": "paid"}'


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[PortOneGateway]:
    async with PortOneGateway(Payment("p-1"), Payment("imp_1")) as running:
        yield running


async def look_up(provider: Provider, delivery: Delivery) -> PaymentEvent | Ignored:
    """What comes of asking the gateway what a delivery means."""
    lookup = provider.translate(delivery)
    assert isinstance(lookup, LookupRequired)
    query = lookup.query()
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        try:
            call = next(query)
            for _ in range(MAX_CALLS):
                reply = await _reply(session, call)
                if reply is None:
                    call = query.throw(GatewayUnreachableError("no answer"))
                else:
                    call = query.send(reply)
        except StopIteration as end:
            event: PaymentEvent | Ignored = end.value
            return event
    raise AssertionError("the conversation does not end")


async def _reply(session: aiohttp.ClientSession, call: GatewayRequest) -> GatewayResponse | None:
    """The reply; None if there is none, or none that says anything."""
    try:
        async with session.request(
            call.method, call.url, headers=call.headers, json=call.json
        ) as response:
            reply = GatewayResponse(response.status, await response.read())
    except (aiohttp.ClientError, TimeoutError):
        return None
    return None if reply.status == 429 or reply.status >= 500 else reply


def v2(gateway: PortOneGateway, **options: Any) -> Provider:
    return source(api_url=gateway.url, **options)


def v1(gateway: PortOneGateway) -> Provider:
    return portone.configure(ProviderConfig(KEY, (), V1 | {"api_url": gateway.url}))


PAID = sent(webhook())
PAID_V1 = Delivery(JSON, V1_PAID, RECEIVED_AT)


async def test_a_payment_is_found_by_either_version(gateway: PortOneGateway) -> None:
    """PRV-3"""
    for provider, delivery in ((v2(gateway), PAID), (v1(gateway), PAID_V1)):
        event = await look_up(provider, delivery)
        assert isinstance(event, PaymentEvent)
        assert event.event_type is EventType.PAID
    assert gateway.calls == {"p-1": 1, "imp_1": 1, "getToken": 1}


@pytest.mark.parametrize("payment_id", ["a/b?c#d&e", "주문 1", "100%", "%2F", "a+b", "..."])
async def test_an_id_of_any_characters_arrives_unchanged(
    gateway: PortOneGateway, payment_id: str
) -> None:
    """PRV-3"""
    gateway.add(Payment(payment_id))
    event = await look_up(v2(gateway), sent(webhook(paymentId=payment_id)))
    assert isinstance(event, PaymentEvent)
    assert event.order == payment_id


async def test_another_store_can_be_requested(gateway: PortOneGateway) -> None:
    """PRV-3"""
    gateway.add(Payment("p-2", store_id="store-2"))
    elsewhere = sent(webhook(paymentId="p-2", storeId="store-2"))
    with pytest.raises(GatewayUnreachableError, match="store_id"):
        await look_up(v2(gateway), elsewhere)
    event = await look_up(v2(gateway, store_id="store-2"), elsewhere)
    assert isinstance(event, PaymentEvent)


@pytest.mark.parametrize("trouble", Trouble, ids=lambda one: one.name)
async def test_any_failure_is_retried(gateway: PortOneGateway, trouble: Trouble) -> None:
    """PRV-3 RET-1: and then found."""
    provider = v2(gateway)
    gateway.misbehave("p-1", trouble)
    with pytest.raises(GatewayUnreachableError):
        await look_up(provider, PAID)
    assert isinstance(await look_up(provider, PAID), PaymentEvent)
    assert gateway.calls["p-1"] == 2


@pytest.mark.parametrize("trouble", [one for one in Trouble if one is not Trouble.UNAUTHORIZED])
@pytest.mark.parametrize("name", ["getToken", "imp_1"])
async def test_any_v1_failure_is_a_gateway_error(
    gateway: PortOneGateway, trouble: Trouble, name: str
) -> None:
    """PRV-3: only a payment that is not known may be a lie."""
    provider = v1(gateway)
    gateway.misbehave(name, trouble)
    is_unknown = (name, trouble) == ("imp_1", Trouble.NOT_FOUND)
    with pytest.raises(GatewayMismatchError if is_unknown else GatewayUnreachableError):
        await look_up(provider, PAID_V1)
    assert isinstance(await look_up(provider, PAID_V1), PaymentEvent)


async def test_a_response_that_takes_too_long_is_a_failure(gateway: PortOneGateway) -> None:
    """PRV-3"""
    gateway.delay("p-1", 5.0)
    with pytest.raises(GatewayUnreachableError):
        await look_up(v2(gateway), PAID)


async def test_a_token_is_shared_and_renewed_when_it_has_expired(gateway: PortOneGateway) -> None:
    """PRV-3"""
    provider = v1(gateway)
    for _ in range(3):
        await look_up(provider, PAID_V1)
    assert gateway.calls["getToken"] == 1
    gateway.expire_tokens()
    assert isinstance(await look_up(provider, PAID_V1), PaymentEvent)
    assert gateway.calls["getToken"] == 2


async def test_wrong_keys_are_reported(gateway: PortOneGateway) -> None:
    """PRV-3 SEC-7"""
    wrong = V1 | {"api_url": gateway.url, "api_secret": "wrong-secret"}
    for provider, delivery in (
        (portone.configure(ProviderConfig(KEY, (), wrong)), PAID_V1),
        (v2(gateway, api_secret="wrong-secret"), PAID),
    ):
        with pytest.raises(GatewayUnreachableError, match="api_secret") as caught:
            await look_up(provider, delivery)
        assert "wrong-secret" not in str(caught.value)


async def test_a_payment_of_a_test_channel_is_found(gateway: PortOneGateway) -> None:
    """PRV-3 PAY-4: V1 hides them unless it is asked for them."""
    gateway.add(Payment("imp_1", is_test=True))
    assert isinstance(await look_up(v1(gateway), PAID_V1), PaymentEvent)
    live = ProviderConfig(KEY, (), V1 | {"api_url": gateway.url}, accepts_test=False)
    assert isinstance(await look_up(portone.configure(live), PAID_V1), Ignored)


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
def test_the_fake_gateway_works_with_the_official_library(payment: Payment, name: str) -> None:
    """PRV-9"""
    found = sdk._deserialize_payment(payment.v2())
    assert type(found).__name__ == name


async def test_the_authorization_scheme_is_the_official_one(gateway: PortOneGateway) -> None:
    """PRV-3: the header is `PortOne <secret>`, and no bearer's."""
    async with aiohttp.ClientSession() as session:
        url = f"{gateway.url}/payments/p-1"
        for value, status in ((f"PortOne {V2_SECRET}", 200), (f"Bearer {V2_SECRET}", 401)):
            async with session.get(url, headers={"Authorization": value}) as response:
                assert response.status == status
