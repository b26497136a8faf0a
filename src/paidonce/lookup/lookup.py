"""Runs the queries of providers against their gateways, without a database connection."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from paidonce.core.events import Code, EventStatus, Ignored, Outcome, PaymentEvent
from paidonce.errors import GatewayError, GatewayMismatchError, GatewayUnreachableError
from paidonce.lookup.http_client import RateLimitedClient
from paidonce.processing.items import MAX_MESSAGE
from paidonce.providers.contract import GatewayQuery, LookupRequired
from paidonce.queue.claims import LookupAnswer
from paidonce.runtime.leader import LeadershipLostError
from paidonce.telemetry import logger

log = logger(__name__)

T = TypeVar("T")

MAX_CALLS: Final = 8
"""The most requests of one query."""


async def look_up_event(lookup: LookupRequired, client: RateLimitedClient) -> LookupAnswer:
    """Return what the event means, or the outcome of the failed lookup."""
    try:
        event: object = await run_query(lookup.query, client)
        if not isinstance(event, PaymentEvent | Ignored):
            raise TypeError("the provider's query returned no event")
        return event
    except LeadershipLostError:
        raise
    except Exception as error:
        return _failed_outcome(error)


async def run_query(start: Callable[[], GatewayQuery[T]], client: RateLimitedClient) -> T:
    """Run the query and return its result. Raises what the query raises.

    After a failure that may pass, tries again after each pause of the client.
    """
    for pause_s in client.pauses_s:
        try:
            return await _run_once(start(), client)
        except GatewayError as error:
            if not error.may_pass:
                raise
        await asyncio.sleep(pause_s)
    return await _run_once(start(), client)


async def _run_once(query: GatewayQuery[T], client: RateLimitedClient) -> T:
    try:
        request = next(query)
        for _ in range(MAX_CALLS):
            try:
                response = await client.call(request)
            except GatewayUnreachableError as error:
                request = query.throw(error)
            else:
                request = query.send(response)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        query.close()
    raise RuntimeError(f"the provider makes more than {MAX_CALLS} requests")


def _failed_outcome(error: Exception) -> Outcome:
    """Return the outcome of the event. A bug in a provider fails only this event."""
    message = str(error)[:MAX_MESSAGE]
    match error:
        case GatewayUnreachableError():
            return Outcome(EventStatus.FAILED_RETRYABLE, Code.PROVIDER_UNREACHABLE, message)
        case GatewayMismatchError():
            return Outcome(EventStatus.FAILED_FINAL, Code.PROVIDER_MISMATCH, message)
        case _:
            log.error("lookup_failed", exc_info=error)
            message = "the lookup failed; the log has the details"
            return Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, message)
