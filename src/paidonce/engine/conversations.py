"""Asks a gateway what an event means: drives what its provider wants to know (`Thin`).

Nothing of the database is held meanwhile.
"""

import asyncio
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar

from paidonce.domain.events import Code, EventStatus, Ignored, Outcome, PaymentEvent
from paidonce.engine.gateway_calls import Line
from paidonce.engine.items import MAX_MESSAGE
from paidonce.engine.waiting import Answer
from paidonce.errors import GatewayMismatchError, GatewayUnreachableError
from paidonce.providers.contract import Call, Reply, Thin
from paidonce.telemetry import logger

log = logger(__name__)

T = TypeVar("T")

MAX_CALLS: Final = 8
"""How many calls one question may need."""


async def ask(thin: Thin, line: Line, pauses_s: Sequence[float]) -> Answer:
    """What the gateway says that the event means, or what has become of asking.

    What may be otherwise in a moment is asked again after each of the pauses.
    """
    failure: Exception | None = None
    for pause_s in (0.0, *pauses_s):
        await asyncio.sleep(pause_s)
        try:
            return _known(await converse(thin.ask(), line))
        except Exception as error:
            failure = error
            if not _may_pass(error):
                break
    assert failure is not None
    return _outcome(failure)


async def converse(conversation: Generator[Call, Reply, T], line: Line) -> T:
    """Answer the provider's calls until it knows. Raises whatever it raises."""
    try:
        call = next(conversation)
        for _ in range(MAX_CALLS):
            call = _next_call(conversation, await _reply(call, line))
    except StopIteration as end:
        known: T = end.value
        return known
    finally:
        conversation.close()
    raise RuntimeError(f"the provider wants more than {MAX_CALLS} calls")


async def _reply(call: Call, line: Line) -> Reply | GatewayUnreachableError:
    try:
        return await line.call(call)
    except GatewayUnreachableError as error:
        return error


def _next_call(
    conversation: Generator[Call, Reply, Any], reply: Reply | GatewayUnreachableError
) -> Call:
    """What the provider wants to know next. Raises StopIteration with what it knows at last."""
    if isinstance(reply, GatewayUnreachableError):
        return conversation.throw(reply)
    return conversation.send(reply)


def _known(said: object) -> PaymentEvent | Ignored:
    if not isinstance(said, PaymentEvent | Ignored):
        raise TypeError("the provider ended its questions without an answer")
    return said


def _may_pass(error: Exception) -> bool:
    match error:
        case GatewayUnreachableError():
            return True
        case GatewayMismatchError():
            return error.may_pass
        case _:
            return False


def _outcome(error: Exception) -> Outcome:
    """What becomes of the event. A fault of the provider's is that event's failure only."""
    told = str(error)[:MAX_MESSAGE]
    match error:
        case GatewayUnreachableError():
            return Outcome(EventStatus.FAILED_RETRYABLE, Code.PROVIDER_UNREACHABLE, told)
        case GatewayMismatchError():
            return Outcome(EventStatus.FAILED_FINAL, Code.PROVIDER_MISMATCH, told)
        case _:
            log.error("asking_failed", exc_info=error)
            fault = "asking the gateway failed; the log has the details"
            return Outcome(EventStatus.FAILED_RETRYABLE, Code.INTERNAL, fault)
