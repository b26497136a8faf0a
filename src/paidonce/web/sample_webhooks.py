"""Test webhooks: made and signed here, and then taken as if the gateway had sent them (OPS-6)."""

import time
from typing import Annotated, Final

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, StringConstraints
from uuid_utils.compat import uuid7

from paidonce.domain.addresses import parsed
from paidonce.engine import items
from paidonce.engine.intake import Intake
from paidonce.errors import ConfigurationError, InvalidRequestError, NotFoundError
from paidonce.operations import Operations
from paidonce.providers.contract import Sample
from paidonce.providers.samples import new_sample, omitted
from paidonce.web.api.shapes import Reference, Text
from paidonce.web.auth import ProblemError
from paidonce.web.edge import NO_SOURCE, PREFIX, SAMPLES, TESTS_REFUSED, word_of
from paidonce.web.problems import Problem

TESTS_ARE_LOCAL: Final = Problem(
    403, TESTS_REFUSED.code, "Test webhooks are made for callers on this machine only."
)

ExternalId = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]


class SampleWebhook(BaseModel):
    """What a test webhook is to say.

    `amount` is in major units. `currency` is the order's if nothing is said, else the gateway's or
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
    """What became of it. `omitted` is what the gateway's format has no place for."""

    status: str
    http: int
    event_id: str
    payment_id: str
    error_code: str | None
    error_message: str | None
    omitted: list[str]
    test: bool = True


def add_sample_webhooks(
    api: FastAPI, operations: Operations, intake: Intake, takes_tests: bool
) -> None:
    """Add the call that makes test webhooks, or in production the one that refuses to."""
    path = f"{PREFIX}{{source}}{SAMPLES}"

    async def refuse_sample(source: str) -> None:
        raise ProblemError(TESTS_REFUSED)

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
        sample = await _sample(operations, wanted, body)
        address = request.client.host if request.client else None
        arrived = items.Request(str(uuid7()), address, time.monotonic(), is_test=True)
        headers, content = _composed(wanted, sample)
        verdict = await intake.receive(wanted, headers, content, arrived)
        return _answer(verdict, sample)

    if takes_tests:
        api.post(path, tags=["webhooks"])(send_sample)
    else:
        api.post(path, include_in_schema=False)(refuse_sample)


def _is_local(request: Request) -> bool:
    """Whether somebody on this machine asks, and no page in his browser under another name."""
    peer = parsed(request.client.host) if request.client else None
    name = request.url.hostname or ""
    host = parsed(name)
    is_here = name == "localhost" or (host is not None and host.is_loopback)
    return peer is not None and peer.is_loopback and is_here


async def _sample(operations: Operations, source: items.Source, body: SampleWebhook) -> Sample:
    currency = body.currency or await _currency(operations, source, body)
    if currency is None:
        raise InvalidRequestError("currency: is needed, because nothing else tells it")
    return new_sample(**body.model_dump(exclude={"currency"}), currency=currency)


async def _currency(
    operations: Operations, source: items.Source, body: SampleWebhook
) -> str | None:
    if body.order is not None:
        try:
            return (await operations.order(body.order)).currency
        except NotFoundError:
            pass
    return source.provider.usual_currency() or operations.currency_of_plan(body.plan_id)


def _composed(source: items.Source, sample: Sample) -> tuple[dict[str, str], bytes]:
    try:
        return source.provider.compose(sample)
    except ConfigurationError as error:
        raise InvalidRequestError(str(error)) from None


def _answer(verdict: items.Verdict, sample: Sample) -> SampleAnswer:
    item, outcome = verdict.item, verdict.outcome
    assert isinstance(item, items.Incoming)
    return SampleAnswer(
        status=word_of(verdict),
        http=200,
        event_id=str(verdict.event_id),
        payment_id=item.identity.payment_id or sample.payment_id,
        error_code=outcome.code if outcome else None,
        error_message=outcome.message if outcome else None,
        omitted=omitted(sample, item.event),
    )
