"""Runs the queries of providers against their gateways, without a database connection."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from paidonce.core.events import Code, EventStatus, Ignored, Outcome, PaymentEvent
from paidonce.errors import GatewayMismatchError, GatewayUnreachableError
from paidonce.lookup.http_client import RateLimitedClient
from paidonce.processing.items import MAX_MESSAGE
from paidonce.providers.contract import (
    GatewayQuery,
    GatewayRequest,
    GatewayResponse,
    LookupRequired,
)
from paidonce.queue.claims import LookupAnswer
from paidonce.runtime.leader import LeadershipLostError
from paidonce.telemetry import logger

log = logger(__name__)

T = TypeVar("T")

MAX_CALLS: Final = 8
"""The most requests of one query."""


async def look_up_event(
    lookup: LookupRequired, client: RateLimitedClient, pauses_s: Sequence[float]
) -> LookupAnswer:
    """Return what the event means, or the outcome of the failed lookup.

    After a failure that may pass, tries again after each of the pauses.
    """
    failure: Exception | None = None
    for pause_s in (0.0, *pauses_s):
        await asyncio.sleep(pause_s)
        try:
            return _check_event(await run_query(lookup.query(), client))
        except LeadershipLostError:
            raise
        except Exception as error:
            failure = error
            if not _may_pass(error):
                break
    assert failure is not None
    return _failed_outcome(failure)


async def run_query(query: GatewayQuery[T], client: RateLimitedClient) -> T:
    """Send the requests of the query and return its result. Raises what the query raises."""
    try:
        request = next(query)
        for _ in range(MAX_CALLS):
            request = _next_request(query, await _send(request, client))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        query.close()
    raise RuntimeError(f"the provider makes more than {MAX_CALLS} requests")


async def _send(
    request: GatewayRequest, client: RateLimitedClient
) -> GatewayResponse | GatewayUnreachableError:
    try:
        return await client.call(request)
    except GatewayUnreachableError as error:
        return error


def _next_request(
    query: GatewayQuery[Any], response: GatewayResponse | GatewayUnreachableError
) -> GatewayRequest:
    """Return the next request of the query. Raises StopIteration with its result."""
    if isinstance(response, GatewayUnreachableError):
        return query.throw(response)
    return query.send(response)


def _check_event(result: object) -> PaymentEvent | Ignored:
    if not isinstance(result, PaymentEvent | Ignored):
        raise TypeError("the provider's query returned no event")
    return result


def _may_pass(error: Exception) -> bool:
    match error:
        case GatewayUnreachableError():
            return True
        case GatewayMismatchError():
            return error.may_pass
        case _:
            return False


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
