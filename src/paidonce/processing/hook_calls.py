"""Calls the user's own handlers in the transaction of the payment (FUL-5).

Items are processed one at a time, each in a savepoint. When a handler fails, the savepoint is
rolled back and the item is processed again as *blocked*: its facts are stored, the payment stays
unapplied, and the event is retried or fails. A handler that breaks the transaction itself raises
BrokenTransactionError: the owner of the connection starts again on another one.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import asyncpg

from paidonce.core.events import Code, EventId, EventProblem, PaymentEvent, parse_reason
from paidonce.core.input import storable
from paidonce.core.state import Decision
from paidonce.db.pool import Trouble, trouble
from paidonce.db.queries import Connection, load_queries
from paidonce.errors import DatabaseUnavailableError, Reject, Retry
from paidonce.hooks.registry import Blocked, Handler, HookEvent, handler_name, hook_calls
from paidonce.processing import handler_failures
from paidonce.processing.items import MAX_MESSAGE, BatchResult, Item, QueuedEvent, Reapply, Rules
from paidonce.processing.process import process
from paidonce.runtime.crashpoints import CrashPoint, maybe_crash
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)
CANCEL_TIMEOUT_S: Final = 1.0
"""How long a canceled handler may take to end."""
MAX_CAUSES: Final = 20

E = TypeVar("E", bound=Exception)


class BrokenTransactionError(DatabaseUnavailableError):
    """A handler ended the transaction that it was called in, or its connection."""

    def __init__(self, event_id: EventId | None, blocked: Blocked) -> None:
        super().__init__(blocked.problem.message)
        self.event_id = event_id
        self.blocked = blocked


class _HandlerFailedError(Exception):
    """A handler failed. The savepoint can be rolled back, unless the transaction is broken."""

    def __init__(self, blocked: Blocked, is_broken: bool = False) -> None:
        super().__init__(blocked.problem.message)
        self.blocked = blocked
        self.is_broken = is_broken


async def process_with_hooks(connection: Connection, item: Item, rules: Rules) -> BatchResult:
    """Process one item and call its handlers, in savepoints of the open transaction.

    Raises BrokenTransactionError, and then the connection is closed.
    """
    decision: Decision | None = None
    try:
        async with connection.transaction():
            processed = await process(connection, [item], rules)
            decision = processed.results[0].decision
            await _call_handlers(connection, item, decision, rules)
        return processed
    except Exception as error:
        failed = _find_cause(error, _HandlerFailedError)
        if failed is None:
            raise
        if failed is not error or failed.is_broken:
            with suppress(asyncpg.InterfaceError):
                connection.terminate()
            event_id = item.event_id if isinstance(item, QueuedEvent) else None
            raise BrokenTransactionError(event_id, failed.blocked) from error
    assert decision is not None
    async with connection.transaction():
        processed = await process(connection, [_block(item, failed.blocked, decision)], rules)
        if failed.blocked.failed is not None:
            name, message = failed.blocked.failed, failed.blocked.problem.message
            await handler_failures.record_failure(connection, name, message, item, rules)
        return processed


def find_broken_transaction(error: BaseException) -> BrokenTransactionError | None:
    """The BrokenTransactionError that caused this error, if any."""
    return _find_cause(error, BrokenTransactionError)


def without_hooks(rules: Rules, blocked: Blocked) -> Rules:
    """The same rules, but handlers are not called: what they would be called for is blocked."""
    return replace(rules, handlers=replace(rules.handlers, disabled_by=blocked))


def _block(item: Item, blocked: Blocked, decision: Decision) -> Item:
    """The item without its effect. An event that moves no money is not merged, either."""
    assert isinstance(item, QueuedEvent | Reapply), "deliveries are stored before hooks are called"
    if isinstance(item, QueuedEvent) and not decision.effects:
        return replace(item, blocked=blocked, forced_outcome=blocked.problem.outcome)
    return replace(item, blocked=blocked)


async def _call_handlers(
    connection: Connection, item: Item, decision: Decision | None, rules: Rules
) -> None:
    calls = _build_calls(connection, item, decision, rules) if decision is not None else []
    if not calls:
        return
    if rules.handlers.disabled_by is not None:
        raise _HandlerFailedError(rules.handlers.disabled_by)
    timeout_s = rules.handlers.timeout_s
    guard_id = await _begin_hooks(connection, timeout_s)
    for handler, hook_event in calls:
        await _call(handler, hook_event, item, rules)
        if not _is_in_transaction(connection):
            raise _HandlerFailedError(_transaction_ended(handler), is_broken=True)
    maybe_crash(CrashPoint.HOOKS_CALLED)
    last_handler, _ = calls[-1]
    names = sorted({handler_name(handler) for handler, _ in calls})
    is_same, failing = await _end_hooks(connection, guard_id, last_handler, names)
    if not is_same:
        raise _HandlerFailedError(_transaction_ended(last_handler), is_broken=True)
    if failing:
        await handler_failures.release(connection, failing)


def _build_calls(
    connection: Connection, item: Item, decision: Decision, rules: Rules
) -> Sequence[tuple[Handler, HookEvent]]:
    event = item.event if isinstance(item, QueuedEvent) else None
    calls: list[tuple[Handler, HookEvent]] = []
    for hook_type, payment, amount in hook_calls(decision):
        source = rules.sources.get(payment.source_id)
        hook_event = HookEvent(
            name=hook_type,
            source=source.name if source else None,
            payment=payment,
            order=decision.order,
            amount=amount,
            event=event if isinstance(event, PaymentEvent) else None,
            connection=connection,
        )
        calls += ((handler, hook_event) for handler in rules.handlers.by_type.get(hook_type, ()))
    return calls


async def _call(handler: Handler, hook_event: HookEvent, item: Item, rules: Rules) -> None:
    """Call one handler. Raises _HandlerFailedError, whatever the handler does."""
    name, timeout_s = handler_name(handler), rules.handlers.timeout_s
    task = asyncio.create_task(_run(handler, hook_event), name=f"handler {name}")
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        is_late = not task.done()
    finally:
        has_ended = await _cancel(task)
    error = TimeoutError() if is_late else _error_of(task)
    if error is None:
        return
    is_broken = not has_ended or not _is_in_transaction(hook_event.connection)
    blocked = _blocked_by(error, handler, rules, is_late)
    if blocked.failed is not None:
        log.error(
            "handler_failed",
            handler=name,
            detail=blocked.problem.message,
            webhook_event_id=str(item.event_id) if isinstance(item, QueuedEvent) else None,
            payment_id=str(hook_event.payment.id),
            exc_info=error,
        )
    raise _HandlerFailedError(blocked, is_broken) from error


async def _run(handler: Handler, hook_event: HookEvent) -> None:
    try:
        await handler(hook_event)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError("a handler wanted to end the process") from error


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def _cancel(task: asyncio.Task[None]) -> bool:
    """Cancel a handler that still runs; returns whether it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_TIMEOUT_S)
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it
    return task.done()


async def _begin_hooks(connection: Connection, timeout_s: float) -> int:
    """Until `_end_hooks`, the transaction cannot be committed, and statements have a timeout."""
    timeout_ms = str(max(int(timeout_s * 1000), 1))
    guard_id: int = await QUERIES["begin_hooks"].value(connection, timeout_ms=timeout_ms)
    return guard_id


async def _end_hooks(
    connection: Connection, guard_id: int, handler: Handler, names: Sequence[str]
) -> tuple[bool, Sequence[str]]:
    """Allow the commit again.

    Returns whether the transaction is still the same one, and which of the handlers were failing
    until now. Raises _HandlerFailedError when it could not be committed.
    """
    try:
        ended = await QUERIES["end_hooks"].row(connection, id=guard_id, handlers=names)
        await QUERIES["check_deferred"].run(connection)
        await QUERIES["defer_again"].run(connection)
    except asyncpg.PostgresError as error:
        message = "what its handler wrote cannot be committed"
        if isinstance(error, asyncpg.InFailedSQLTransactionError):
            message = "a statement failed, and its handler went on"
        elif trouble(error) is Trouble.AWAY:
            raise
        log.error("handler_failed", handler=handler_name(handler), exc_info=error)
        raise _HandlerFailedError(_retry_later(message, handler)) from error
    return ended is not None, ended["failing"] if ended else ()


def _is_in_transaction(connection: Connection) -> bool:
    """Whether a transaction is open, as far as the client knows."""
    try:
        return not connection.is_closed() and connection.is_in_transaction()
    except asyncpg.InterfaceError:  # it was closed, and the pool has it again
        return False


def _blocked_by(error: BaseException, handler: Handler, rules: Rules, is_late: bool) -> Blocked:
    match error:
        case Retry():
            message = storable(str(error))[:MAX_MESSAGE]
            return Blocked(EventProblem(Code.HANDLER_FAILED, message, False), error.after)
        case Reject():
            message = storable(str(error))[:MAX_MESSAGE]
            return Blocked(EventProblem(parse_reason(error.code), message))
    if is_late:
        message = f"handler {handler_name(handler)} took more than {rules.handlers.timeout_s:g} s"
    else:
        message = handler_failures.describe(error, handler)
    return _retry_later(handler_failures.storable_message(message, rules), handler)


def _retry_later(message: str, handler: Handler) -> Blocked:
    problem = EventProblem(Code.HANDLER_FAILED, message, is_final=False)
    return Blocked(problem, failed=handler_name(handler))


def _transaction_ended(handler: Handler) -> Blocked:
    log.error("handler_broke_transaction", handler=handler_name(handler))
    return _retry_later("its handler ended the transaction that it was called in", handler)


def _find_cause(error: BaseException, kind: type[E]) -> E | None:
    """The error or one of its causes that is of this kind."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None or isinstance(cause, kind):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
