"""Calls the user's own handlers, in the transaction of what they are called for (FUL-5).

One item is settled at a time, in a savepoint. When a handler fails, nothing of the item's effect
stays: it is settled again as *held*. Then its facts are remembered all the same, the money is
listed as not applied, and the event is tried again or has failed. A handler that has broken the
transaction itself is told by BrokenTransactionError: whoever holds the connection starts again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from paidonce.crashpoints import Point, passing
from paidonce.domain.events import Code, EventId, PaymentEvent, Problem, reason_of
from paidonce.domain.state import Decision
from paidonce.engine.handlers import Handler, Happened, Held, happenings, named
from paidonce.engine.items import MAX_MESSAGE, Item, Revisit, Rules, Settled, Waiting
from paidonce.engine.settle import settle
from paidonce.errors import DatabaseAwayError, Reject, Retry
from paidonce.store import handling
from paidonce.store.queries import Connection
from paidonce.telemetry import logger

log = logger(__name__)

GRACE_S: Final = 1.0
"""How long a handler that was cut off has to come to an end."""
MAX_CAUSES: Final = 20

E = TypeVar("E", bound=Exception)


class BrokenTransactionError(DatabaseAwayError):
    """A handler has ended the transaction that it was called in, or its connection."""

    def __init__(self, event_id: EventId | None, held: Held) -> None:
        super().__init__(held.problem.message)
        self.event_id = event_id
        self.held = held


class _FailedError(Exception):
    """A handler has failed. What was done can be rolled back, unless the transaction is broken."""

    def __init__(self, held: Held, is_broken: bool = False) -> None:
        super().__init__(held.problem.message)
        self.held = held
        self.is_broken = is_broken


async def settle_one(connection: Connection, item: Item, rules: Rules) -> Settled:
    """Settle one item and call its handlers, in savepoints of the transaction that is open.

    Raises BrokenTransactionError, and then the connection is closed.
    """
    decision: Decision | None = None
    try:
        async with connection.transaction():
            settled = await settle(connection, [item], rules)
            decision = settled.verdicts[0].decision
            await _call_all(connection, item, decision, rules)
        return settled
    except Exception as error:
        failed = _found(error, _FailedError)
        if failed is None:
            raise
        if failed is not error or failed.is_broken:
            handling.abandon(connection)
            event_id = item.event_id if isinstance(item, Waiting) else None
            raise BrokenTransactionError(event_id, failed.held) from error
    assert decision is not None
    async with connection.transaction():
        return await settle(connection, [_held_back(item, failed.held, decision)], rules)


def broken_transaction(error: BaseException) -> BrokenTransactionError | None:
    """Whether a handler's breaking the transaction is behind this error."""
    return _found(error, BrokenTransactionError)


def without_calls(rules: Rules, held: Held) -> Rules:
    """The same rules; what handlers would be called for is held for this reason instead."""
    return replace(rules, handlers=replace(rules.handlers, instead=held))


def _held_back(item: Item, held: Held, decision: Decision) -> Item:
    """The item as one without effect. Of an event that brings no money, nothing is kept."""
    assert isinstance(item, Waiting | Revisit), "what arrives is stored before it is handled"
    if isinstance(item, Waiting) and not decision.done:
        return replace(item, held=held, preset=held.problem.outcome)
    return replace(item, held=held)


@dataclass(frozen=True, slots=True)
class _Call:
    handler: Handler
    happened: Happened


async def _call_all(
    connection: Connection, item: Item, decision: Decision | None, rules: Rules
) -> None:
    calls = _calls(connection, item, decision, rules) if decision is not None else []
    if not calls:
        return
    if rules.handlers.instead is not None:
        raise _FailedError(rules.handlers.instead)
    timeout_s = rules.handlers.timeout_s
    number = await handling.begin(connection, timeout_s)
    for call in calls:
        await _call(connection, call, timeout_s)
        if not handling.is_open(connection):
            raise _FailedError(_ended_by(call), is_broken=True)
    passing(Point.HANDLED)
    try:
        is_same = await handling.end(connection, number)
    except handling.SpoiledTransactionError as error:
        log.error("handler_failed", handler=named(calls[-1].handler), exc_info=error)
        raise _FailedError(_failure(str(error))) from error
    if not is_same:
        raise _FailedError(_ended_by(calls[-1]), is_broken=True)


def _calls(connection: Connection, item: Item, decision: Decision, rules: Rules) -> Sequence[_Call]:
    event = item.event if isinstance(item, Waiting) else None
    said = event if isinstance(event, PaymentEvent) else None
    return [
        _Call(
            handler,
            Happened(
                name=occasion,
                source=source.name if source else None,
                payment=payment,
                order=decision.order,
                amount=amount,
                event=said,
                connection=connection,
            ),
        )
        for occasion, payment, amount in happenings(decision)
        for source in (rules.sources.get(payment.source_id),)
        for handler in rules.handlers.of.get(occasion, ())
    ]


async def _call(connection: Connection, call: _Call, timeout_s: float) -> None:
    """Call one handler. Raises _FailedError, whatever the handler does."""
    task = asyncio.create_task(_run(call), name=f"handler {named(call.handler)}")
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        is_late = not task.done()
    finally:
        has_ended = await _cut_off(task)
    error = TimeoutError() if is_late else _error_of(task)
    if error is None:
        return
    held = _held(error)
    if not isinstance(error, Retry | Reject):
        log.error("handler_failed", handler=named(call.handler), exc_info=error)
    is_broken = not has_ended or not handling.is_open(connection)
    raise _FailedError(held, is_broken) from error


async def _run(call: _Call) -> None:
    try:
        await call.handler(call.happened)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError("a handler wanted to end the process") from error


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def _cut_off(task: asyncio.Task[None]) -> bool:
    """End a handler that has not ended by itself; returns whether it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_S)
        if task.done() and not task.cancelled():
            task.exception()  # it is known why it was cut off
    return task.done()


def _held(error: BaseException) -> Held:
    """What becomes of what the handler was called for."""
    match error:
        case Retry():
            return Held(Problem(Code.HANDLER_FAILED, _storable(error), False), error.after)
        case Reject():
            return Held(Problem(reason_of(error.code), _storable(error)))
        case TimeoutError():
            return _failure("its handler took too long")
        case _:
            return _failure(f"its handler failed with {type(error).__name__}")


def _failure(message: str) -> Held:
    return Held(Problem(Code.HANDLER_FAILED, message, is_final=False))


def _ended_by(call: _Call) -> Held:
    log.error("handler_broke_transaction", handler=named(call.handler))
    return _failure("its handler ended the transaction that it was called in")


def _storable(error: Exception) -> str:
    """What a handler says of its failure, as a text column can hold it."""
    text = str(error).replace("\x00", "�").encode("utf-8", "replace").decode()
    return text[:MAX_MESSAGE]


def _found(error: BaseException, kind: type[E]) -> E | None:
    """The error, or the one behind it, that is of this kind."""
    behind: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if behind is None or isinstance(behind, kind):
            return behind
        behind = behind.__cause__ or behind.__context__
    return None
