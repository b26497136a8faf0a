"""What every command shares: its settings, its two consoles, its way to run."""

import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
import uvloop
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from paidonce import demo
from paidonce.cli.for_programs import json_line, json_text
from paidonce.errors import ConfigurationError, InvalidRequestError, PaidonceError
from paidonce.settings import Settings

if TYPE_CHECKING:
    from paidonce.operations import Actor, Operations

T = TypeVar("T")

WIDEST: Final = 1_000

shown = Console()
told = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

Config = Annotated[
    Path | None, typer.Option("--config", help="The TOML file; else ./paidonce.toml.")
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


def chosen_settings(config: Path | None, **server: Any) -> tuple[Settings, bool]:
    """The settings, and whether they are the demo's. Raises ConfigurationError."""
    chosen = {name: value for name, value in server.items() if value is not None}
    return demo.settings_or_demo(config, **({"server": chosen} if chosen else {}))


def operate(config: Path | None, verb: "Callable[[Operations], Awaitable[T]]") -> T:
    """Ask for something, or do it, as an operator on this machine. What it logs is not shown."""
    from paidonce.operating import opened_operations
    from paidonce.telemetry import keep_quiet

    keep_quiet()
    _refuse_no_text(sys.argv)
    settings, _ = chosen_settings(config)

    async def within() -> T:
        async with opened_operations(settings) as operations:
            return await verb(operations)

    answer: T = run(within())
    return answer


def _refuse_no_text(arguments: Iterable[str]) -> None:
    """A terminal passes on bytes that are no UTF-8, and the database has no place for them."""
    if any("\udc80" <= character <= "\udcff" for one in arguments for character in one):
        raise InvalidRequestError("an argument is not UTF-8: write it as text")


def show(values: Any, columns: Mapping[str, Callable[[Any], object]], as_json: bool) -> None:
    """A table for people, with a line for each value, or everything for programs."""
    if as_json:
        typer.echo(json_text(values))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for value in values:
        table.add_row(*_cells(cell(value) for cell in columns.values()))
    _print_whole(table)


def show_one(value: Any, as_json: bool) -> None:
    """What one thing is, field by field."""
    if as_json:
        typer.echo(json_text(value))
        return
    table = Table(box=None, show_header=False)
    for field in fields(value):
        content = getattr(value, field.name)
        if not isinstance(content, list) and not is_dataclass(content):
            table.add_row(field.name, *_cells([content]))
    _print_whole(table)


def line_of(value: Any, columns: Mapping[str, Callable[[Any], object]], as_json: bool) -> str:
    """One thing in one line."""
    if as_json:
        return json_line(value)
    cells = (cell(value) for cell in columns.values())
    return "  ".join(_told(one) or "-" for one in cells)


def operator() -> "Actor":
    """Whoever types, as the audit log names him. Who can reach the database may do everything."""
    from paidonce.operations import Actor, Scope

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Actor(f"cli:{user}", Scope.ADMIN)


def _print_whole(table: Table) -> None:
    """As wide as it is: an id that is cut off, or broken over lines, is of no use."""
    wide = Measurement.get(shown, shown.options.update(width=WIDEST), table).maximum
    Console(width=max(wide, 1)).print(table)


def _cells(values: Iterable[object]) -> list[Text]:
    return [Text(_told(value)) for value in values]


def _told(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return str(value)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run what is asynchronous to its end."""
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        sys.exit(130)


def exit_code(command: Callable[..., Any], *arguments: Any) -> int:
    """The exit code of a command; an error of ours is told in its own words."""
    try:
        command(*arguments)
    except PaidonceError as error:
        told.print(f"paidonce: {error}")
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0
