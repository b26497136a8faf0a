"""How a command gets its settings and its services, and how it runs."""

import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer
import uvloop

from paidonce.core.actors import COMMAND_LINE, Actor, Scope
from paidonce.errors import ConfigurationError, InvalidRequestError, PaidonceError
from paidonce.settings import Settings
from paidonce.settings.demo import settings_or_demo
from paidonce.settings.reading import load_settings
from paidonce.terminal.output import stderr

if TYPE_CHECKING:
    from paidonce.bootstrap import services

T = TypeVar("T")
Services: TypeAlias = "services.Services"


class Use(StrEnum):
    """What a command needs the services for."""

    STORED = "stored"  # works on what is stored: needs no secrets of gateways and no handlers
    ACT = "act"
    RECONCILE = "reconcile"  # with workers that reconcile and look up


OpenServices = Callable[[Settings, Use], AbstractAsyncContextManager[Services]]

Config = Annotated[
    Path | None, typer.Option("--config", help="The TOML file. Default: ./paidonce.toml.")
]

_openers: list[OpenServices] = []


def provide_services(opener: OpenServices) -> None:
    """Let commands open the services like this. The root command calls it."""
    _openers.append(opener)


def open_services(settings: Settings, use: Use = Use.ACT) -> AbstractAsyncContextManager[Services]:
    """The services, while the database is open."""
    return _openers[-1](settings, use)


def load_command_settings(config: Path | None, **server: Any) -> tuple[Settings, bool]:
    """The settings, and whether they are the demo's. Raises ConfigurationError."""
    given = {name: value for name, value in server.items() if value is not None}
    return settings_or_demo(config, **({"server": given} if given else {}))


def operate(
    config: Path | None, action: Callable[[Services], Awaitable[T]], use: Use = Use.ACT
) -> T:
    """Call a service as an operator on this machine. Its log lines are not shown."""
    from paidonce.telemetry import keep_quiet

    keep_quiet()
    _reject_invalid_utf8(sys.argv)
    if use is Use.STORED:
        settings = load_settings(config)
    else:
        settings, _ = load_command_settings(config)

    async def call() -> T:
        async with open_services(settings, use) as services:
            return await action(services)

    result: T = run(call())
    return result


def operator() -> Actor:
    """The user of this terminal, who may do everything: they can reach the database."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Actor(f"{COMMAND_LINE}{user}", Scope.ADMIN)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        sys.exit(130)


def exit_code(command: Callable[..., Any], *arguments: Any) -> int:
    """Run a command; returns its exit code. An error of Paidonce is printed as its message."""
    try:
        command(*arguments)
    except PaidonceError as error:
        stderr.print(f"paidonce: {error}")
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


def _reject_invalid_utf8(arguments: Iterable[str]) -> None:
    """The database cannot store arguments that are not UTF-8."""
    if any("\udc80" <= character <= "\udcff" for one in arguments for character in one):
        raise InvalidRequestError("an argument is not UTF-8: write it as text")
