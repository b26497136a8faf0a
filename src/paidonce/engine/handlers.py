"""Effects of the user's own: functions that are called in the transaction of a payment (FUL-5).

    @paidonce.on("payment.succeeded")
    async def ship(happened: paidonce.Happened) -> None:
        await happened.connection.execute("INSERT INTO parcels …")

What a handler writes through the connection that it gets is committed together with everything
else, or not at all. It is called again only if nothing of the last call stayed.
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
from typing import Any, Final, TypeVar

from paidonce.domain.events import PaymentEvent, Problem
from paidonce.domain.money import Money
from paidonce.domain.orders import Order
from paidonce.domain.payments import Payment, PaymentStatus
from paidonce.domain.state import Applied, Decision
from paidonce.errors import ConfigurationError
from paidonce.store.queries import Connection

ENTRY_POINTS: Final = "paidonce.handlers"
DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_AT_ONCE: Final = 4


class Occasion(StrEnum):
    """When a handler is called. Each happens once in the life of a payment, refunds excepted."""

    SUCCEEDED = "payment.succeeded"  # it was applied
    REFUNDED = "payment.refunded"  # money of an applied one went back, each unit once
    FAILED = "payment.failed"  # an attempt failed, and no money came so far
    CANCELED = "payment.canceled"  # it was given up before any money came


@dataclass(frozen=True, slots=True)
class Happened:
    """What a handler gets."""

    name: str
    source: str | None
    """Where it was paid; None if that is not configured any more."""
    payment: Payment
    order: Order | None
    amount: Money | None
    """What was applied, or what of it went back now; None where no money moved."""
    event: PaymentEvent | None
    """What the gateway said; None when a person, or a new user or order, made it happen."""
    connection: Connection
    """Open in the transaction in which everything else commits. Do not end that."""


Handler = Callable[[Happened], Awaitable[None]]
Decorated = TypeVar("Decorated", bound=Handler)


@dataclass(frozen=True, slots=True)
class Held:
    """What a handler's failure means for what it was called for."""

    problem: Problem
    after: timedelta | None = None  # when it wants to be called again


@dataclass(frozen=True, slots=True)
class Handlers:
    """All handlers, in the order in which they were registered, and how they are called."""

    of: Mapping[Occasion, Sequence[Handler]]
    timeout_s: float = DEFAULT_TIMEOUT_S
    instead: Held | None = None
    """What becomes of all that they would be called for, without calling them."""
    at_once: int = DEFAULT_AT_ONCE  # for how many events they may be called

    def __bool__(self) -> bool:
        return any(self.of.values())


NO_HANDLERS: Final = Handlers(MappingProxyType({}))

_registered: Final[dict[Occasion, list[Handler]]] = {one: [] for one in Occasion}


def on(name: str) -> Callable[[Decorated], Decorated]:
    """Register the async function that follows, to be called when this has happened.

    Raises ConfigurationError when there is no such name, or the function is not async.
    """
    if name not in frozenset(Occasion):
        known = ", ".join(Occasion)
        raise ConfigurationError(f"on({name!r}): there is no such name; names are {known}")

    def register(handler: Decorated) -> Decorated:
        if not any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__))):
            raise ConfigurationError(f"on({name!r}): give it an async function")
        _refuse_twin(name, handler)
        _registered[Occasion(name)].append(handler)
        return handler

    return register


def registered(timeout_s: float = DEFAULT_TIMEOUT_S, at_once: int = DEFAULT_AT_ONCE) -> Handlers:
    """All that was registered so far."""
    of = {one: tuple(handlers) for one, handlers in _registered.items()}
    return Handlers(of, timeout_s, at_once=at_once)


def import_handlers(modules: Sequence[str]) -> None:
    """Import what registers handlers: the modules, and what packages announce by entry point.

    Raises ConfigurationError.
    """
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        _load(point)
    for index, module in enumerate(modules):
        _import(module, f"handlers[{index}]")


def happenings(decision: Decision) -> Iterator[tuple[Occasion, Payment, Money | None]]:
    """What a decision did that handlers may want to hear of."""
    for done in decision.done:
        captured = done.payment.facts.captured
        assert captured is not None
        if isinstance(done, Applied):
            yield Occasion.SUCCEEDED, done.payment, captured
        else:
            back = Money(done.amount_minor, captured.currency)
            yield Occasion.REFUNDED, done.payment, back
    payment = decision.payment
    if payment is None or payment.facts.captured_minor > 0:
        return
    earlier = [one for one in (decision.payment_before, *decision.absorbed) if one is not None]
    reached = payment.facts.status
    occasion = _UNPAID.get(reached)
    if occasion is not None and all(one.facts.status is not reached for one in earlier):
        yield occasion, payment, None


_UNPAID: Final = {
    PaymentStatus.FAILED: Occasion.FAILED,
    PaymentStatus.CANCELED: Occasion.CANCELED,
}


def _refuse_twin(name: str, handler: Handler) -> None:
    """A file that is imported under two names would have each of its effects twice."""
    for other in _registered[Occasion(name)]:
        is_same = _place(other) == _place(handler)
        if is_same and _place(handler) is not None and other.__module__ != handler.__module__:
            raise ConfigurationError(
                f"on({name!r}): {handler.__module__} is {other.__module__}, imported a second time "
                "under another name: import it by one name only"
            )


def _place(handler: Handler) -> tuple[str, int] | None:
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
            f"{type(error).__name__}: {error}; mend or uninstall the package that has it"
        ) from error


@cache
def _import(module: str, key: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # a program that is installed does not look where it is started
    was_imported, before = module in sys.modules, _number()
    try:
        importlib.import_module(module)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{key} = {module!r}: it cannot be imported: {type(error).__name__}: {error}; give a "
            "module that can be imported from the working directory, or install it"
        ) from error
    if _number() == before and not (was_imported and before):
        raise ConfigurationError(
            f"{key} = {module!r}: it registers no handler; decorate one with @paidonce.on(…), "
            "or remove it here"
        )


def _number() -> int:
    return sum(map(len, _registered.values()))


def named(handler: Any) -> str:
    """What to call a handler in the log."""
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return f"{getattr(handler, '__module__', '')}.{name}"
