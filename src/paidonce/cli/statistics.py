"""`stats`: how much was received, and what became of it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from paidonce.cli.for_programs import json_text
from paidonce.cli.terminal import Config, Json, operate, show, shown

if TYPE_CHECKING:
    from paidonce.views import Statistics

_NUMBERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "received": lambda one: one.received,
    "succeeded": lambda one: one.succeeded,
    "failed": lambda one: one.failed,
    "waiting": lambda one: one.waiting,
    "duplicates": lambda one: one.duplicates,
    "success rate": lambda one: f"{one.success_rate:.2%}" if one.succeeded + one.failed else None,
}


def add_to(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command()(stats)


def stats(
    days: Annotated[int, typer.Option(min=1, max=366, help="Today and the days before.")] = 7,
    source: Annotated[str | None, typer.Option(help="Of this source only.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what was received, and what became of it."""
    found = operate(config, lambda verbs: verbs.statistics(days=days, source=source))
    if json:
        typer.echo(json_text(found))
    else:
        _show(found)


def _show(found: "Statistics") -> None:
    show([found], _NUMBERS, as_json=False)
    groups: list[tuple[list[Any], str]] = [
        (list(found.by_source), "source"),
        (list(found.by_signature_method), "signature_method"),
        (list(found.by_day), "day"),
    ]
    for rows, name in groups:
        shown.print(f"By {name.replace('_', ' ')}:")
        columns = {name.replace("_", " "): lambda one, name=name: getattr(one, name)}
        show(rows, columns | dict(_NUMBERS), as_json=False)
