"""The user's own handlers: functions that are called in the transaction of a payment (FUL-5).

    @paidonce.on("payment.succeeded")
    async def ship(event: paidonce.HookEvent) -> None:
        await event.connection.execute("INSERT INTO parcels …")

What a handler writes through `event.connection` is committed together with the payment, or not at
all. A handler is called again only if its last call was rolled back.
"""

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, assert_never

from paidonce.core.events import EventProblem, PaymentEvent
from paidonce.core.facts import PaymentStatus
from paidonce.core.money import Money
from paidonce.core.orders import Order
from paidonce.core.payments import Payment
from paidonce.core.state import Applied, Decision, Reinstated, Reversed
from paidonce.db.queries import Connection
from paidonce.errors import ConfigurationError, did_you_mean

ENTRY_POINTS: Final = "paidonce.handlers"
DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_CONCURRENCY: Final = 4


class HookType(StrEnum):
    """When a handler is called: once per payment, except for refunds and reinstatements."""

    SUCCEEDED = "payment.succeeded"  # the payment was applied
    REFUNDED = "payment.refunded"  # money of an applied payment went back, each minor unit once
    REINSTATED = "payment.reinstated"  # more of an applied payment stands than before
    FAILED = "payment.failed"  # an attempt failed, and no money was captured so far
    CANCELED = "payment.canceled"  # it was canceled before any money was captured


@dataclass(frozen=True, slots=True)
class HookEvent:
    """The argument of a handler."""

    name: str
    source: str | None
    """The name of the source; None if it is not configured any more."""
    payment: Payment
    order: Order | None
    amount: Money | None
    """What was applied, went back or was reinstated now; None where no money moved."""
    event: PaymentEvent | None
    """The gateway's event; None when an operator, or a new user or order, caused the call."""
    connection: Connection
    """Open in the transaction of the payment. Do not commit or roll back."""


Handler = Callable[[HookEvent], Awaitable[None]]
Decorated = TypeVar("Decorated", bound=Handler)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a payment is neither applied nor reversed now: a handler failed."""

    problem: EventProblem
    after: timedelta | None = None  # the delay that the handler asked for
    failed: str | None = None  # the handler that failed; None if it asked for another attempt


@dataclass(frozen=True, slots=True)
class Handlers:
    """All handlers in the order of their registration, and how to call them."""

    by_type: Mapping[HookType, Sequence[Handler]]
    timeout_s: float = DEFAULT_TIMEOUT_S
    disabled_by: Blocked | None = None
    """If set, handlers are not called: what they would be called for is blocked."""
    concurrency: int = DEFAULT_CONCURRENCY  # for how many events they may run at the same time

    def __bool__(self) -> bool:
        return any(self.by_type.values())


NO_HANDLERS: Final = Handlers(MappingProxyType({}))

_registered: Final[dict[HookType, list[Handler]]] = {one: [] for one in HookType}


def on(name: str) -> Callable[[Decorated], Decorated]:
    """Decorator: call the async function when this happens to a payment.

    Raises ConfigurationError when there is no such name, or the function is not async.
    """
    if name not in frozenset(HookType):
        names = ", ".join(HookType)
        hint = did_you_mean(name, HookType)
        raise ConfigurationError(f"on({name!r}): there is no such name; names are {names}{hint}")

    def register(handler: Decorated) -> Decorated:
        if not any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__))):
            raise ConfigurationError(f"on({name!r}): give it an async function")
        _refuse_double_import(name, handler)
        _registered[HookType(name)].append(handler)
        return handler

    return register


def registered_handlers(
    timeout_s: float = DEFAULT_TIMEOUT_S, concurrency: int = DEFAULT_CONCURRENCY
) -> Handlers:
    by_type = {one: tuple(handlers) for one, handlers in _registered.items()}
    return Handlers(by_type, timeout_s, concurrency=concurrency)


def import_handlers(modules: Sequence[str]) -> None:
    """Import the modules that register handlers: these, and those of installed entry points.

    Raises ConfigurationError.
    """
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        _load(point)
    for index, module in enumerate(modules):
        _import(module, f"handlers[{index}]")


def hook_calls(decision: Decision) -> Iterator[tuple[HookType, Payment, Money | None]]:
    """The hooks to call for a decision: type, payment, amount."""
    for effect in decision.effects:
        captured = effect.payment.facts.captured
        assert captured is not None
        match effect:
            case Applied():
                hook_type, amount_minor = HookType.SUCCEEDED, effect.payment.applied_minor
            case Reversed():
                hook_type, amount_minor = HookType.REFUNDED, effect.amount_minor
            case Reinstated():
                hook_type, amount_minor = HookType.REINSTATED, effect.amount_minor
            case _:
                assert_never(effect)
        yield hook_type, effect.payment, Money(amount_minor, captured.currency)
    payment = decision.payment
    if payment is None or payment.facts.captured_minor > 0:
        return
    earlier = [one for one in (decision.payment_before, *decision.merged) if one is not None]
    status = payment.facts.status
    unpaid = _UNPAID.get(status)
    if unpaid is not None and all(one.facts.status is not status for one in earlier):
        yield unpaid, payment, None


_UNPAID: Final = {PaymentStatus.FAILED: HookType.FAILED, PaymentStatus.CANCELED: HookType.CANCELED}


def _refuse_double_import(name: str, handler: Handler) -> None:
    """A file that is imported under two names would be called twice for each event."""
    location = _source_location(handler)
    for other in _registered[HookType(name)]:
        is_same = location is not None and _source_location(other) == location
        if is_same and other.__module__ != handler.__module__:
            raise ConfigurationError(
                f"on({name!r}): {handler.__module__} is {other.__module__}, imported a second time "
                "under another name: import it by one name only"
            )


def _source_location(handler: Handler) -> tuple[str, int] | None:
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


@cache
def _load(point: EntryPoint) -> None:
    try:
        point.load()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"entry point {point.name} = {point.value!r} of {ENTRY_POINTS}: it cannot be imported: "
            f"{type(error).__name__}: {error}; fix or uninstall that package"
        ) from error


@cache
def _import(module: str, key: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # an installed program does not import from the working directory
    was_imported, before = module in sys.modules, _handler_count()
    try:
        importlib.import_module(module)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{key} = {module!r}: it cannot be imported: {type(error).__name__}: {error}; give a "
            "module that can be imported from the working directory, or install it"
        ) from error
    if _handler_count() == before and not (was_imported and before):
        raise ConfigurationError(
            f"{key} = {module!r}: it registers no handler; decorate one with @paidonce.on(…), "
            "or remove it here"
        )


def _handler_count() -> int:
    return sum(map(len, _registered.values()))


def handler_name(handler: Any) -> str:
    """The name of a handler in the log."""
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return f"{getattr(handler, '__module__', '')}.{name}"
