"""Test webhooks: made and signed here, and then taken as if the gateway had sent them (OPS-6)."""

import time
from contextlib import suppress
from typing import Annotated, Final

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, StringConstraints

from paidonce.api.problems import Problem, ProblemError
from paidonce.core.input import Reference, Text
from paidonce.errors import ConfigurationError, InvalidRequestError, NotFoundError
from paidonce.guard.addresses import parse_address
from paidonce.ids import new_id
from paidonce.inbox.edge import NO_SOURCE, PREFIX, SAMPLES, TESTS_REJECTED, ack_word
from paidonce.inbox.intake import Intake
from paidonce.orders.service import OrderService
from paidonce.processing import items
from paidonce.providers.contract import SampleEvent
from paidonce.providers.samples import new_sample, omitted_fields

TESTS_ARE_LOCAL: Final = Problem(
    403, TESTS_REJECTED.code, "Test webhooks are made for callers on this machine only."
)

ExternalId = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]


class SampleWebhook(BaseModel):
    """What a test webhook is to say.

    `amount` is in major units. By default `currency` is the order's, else the gateway's or
    the default plan's. `status` is `paid`, `failed`, `canceled`, `refunded`, `pending`, or the
    gateway's own word. The same `payment_id` and `status` again are the same event.
    """

    model_config = ConfigDict(extra="forbid")
    amount: Text
    currency: Text | None = None
    status: Annotated[Text, StringConstraints(min_length=1, max_length=100)] = "paid"
    order: Reference | None = None
    payment_id: ExternalId | None = None
    event_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,200}$")] | None = None
    email: Text | None = None
    plan_id: Text | None = None


class SampleAnswer(BaseModel):
    """The result. `omitted` are fields that the gateway's format does not have."""

    status: str
    http: int
    event_id: str
    payment_id: str
    error_code: str | None
    error_message: str | None
    omitted: list[str]
    test: bool = True


def add_sample_webhooks(
    api: FastAPI, orders: OrderService, intake: Intake, takes_tests: bool
) -> None:
    """Add the call that makes test webhooks, or in production the one that refuses to."""
    path = f"{PREFIX}{{source}}{SAMPLES}"

    async def refuse_sample(source: str) -> None:
        raise ProblemError(TESTS_REJECTED)

    async def send_sample(source: Text, body: SampleWebhook, request: Request) -> SampleAnswer:
        """Make a correctly signed webhook and take it as a delivery. Development only.

        It is verified like any other, and what comes of it is marked `test`. What would be refused
        of the gateway's is answered with the same status here. A gateway that has to be asked
        (PortOne) is asked about the payment that was named, and knows none that was made up.
        """
        if not _is_local(request):
            raise ProblemError(TESTS_ARE_LOCAL)
        wanted = intake.sources.get(source)
        if wanted is None:
            raise ProblemError(NO_SOURCE)
        sample = await _sample(orders, wanted, body)
        address = request.client.host if request.client else None
        arrived = items.Request(str(new_id()), address, time.monotonic(), is_test=True)
        headers, content = _composed(wanted, sample)
        result = await intake.receive(wanted, headers, content, arrived)
        return _answer(result, sample)

    if takes_tests:
        api.post(path, tags=["webhooks"])(send_sample)
    else:
        api.post(path, include_in_schema=False)(refuse_sample)


def _is_local(request: Request) -> bool:
    """Whether the request comes from this machine, and not from a web page under another name."""
    peer = parse_address(request.client.host) if request.client else None
    name = request.url.hostname or ""
    host = parse_address(name)
    is_here = name == "localhost" or (host is not None and host.is_loopback)
    return peer is not None and peer.is_loopback and is_here


async def _sample(orders: OrderService, source: items.Source, body: SampleWebhook) -> SampleEvent:
    currency = body.currency
    if currency is None and body.order is not None:
        with suppress(NotFoundError):
            currency = (await orders.get(body.order)).currency
    currency = currency or source.provider.default_currency()
    currency = currency or orders.currency_of_plan(body.plan_id)
    if currency is None:
        raise InvalidRequestError("currency: is needed, because nothing else tells it")
    return new_sample(**body.model_dump(exclude={"currency"}), currency=currency)


def _composed(source: items.Source, sample: SampleEvent) -> tuple[dict[str, str], bytes]:
    try:
        return source.provider.build_sample(sample)
    except ConfigurationError as error:
        raise InvalidRequestError(str(error)) from None


def _answer(result: items.Result, sample: SampleEvent) -> SampleAnswer:
    item, outcome = result.item, result.outcome
    assert isinstance(item, items.Incoming)
    return SampleAnswer(
        status=ack_word(result),
        http=200,
        event_id=str(result.event_id),
        payment_id=item.identity.payment_id or sample.payment_id,
        error_code=outcome.code if outcome else None,
        error_message=outcome.message if outcome else None,
        omitted=omitted_fields(sample, item.event),
    )
