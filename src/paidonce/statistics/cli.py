"""`paidonce stats`."""

from typing import Annotated, Any, Final

import typer

from paidonce.statistics.model import Statistics
from paidonce.terminal.output import Columns, Json, json_text, show, stdout
from paidonce.terminal.session import Config, operate

_NUMBERS: Final[Columns] = {
    "received": lambda one: one.received,
    "succeeded": lambda one: one.succeeded,
    "failed": lambda one: one.failed,
    "waiting": lambda one: one.waiting,
    "duplicates": lambda one: one.duplicates,
    "success rate": lambda one: f"{one.success_rate:.2%}" if one.succeeded + one.failed else None,
}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(stats)


def stats(
    days: Annotated[int, typer.Option(min=1, max=366, help="How many days, today included.")] = 7,
    source: Annotated[str | None, typer.Option(help="From this source.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show how many deliveries were received, and their results."""
    found = operate(config, lambda services: services.statistics.report(days=days, source=source))
    if json:
        typer.echo(json_text(found))
    else:
        _show(found)


def _show(found: Statistics) -> None:
    show([found], _NUMBERS, as_json=False)
    groups: list[tuple[list[Any], str]] = [
        (list(found.by_source), "source"),
        (list(found.by_signature_method), "signature_method"),
        (list(found.by_day), "day"),
    ]
    for rows, name in groups:
        stdout.print(f"By {name.replace('_', ' ')}:")
        columns = {name.replace("_", " "): lambda one, name=name: getattr(one, name)}
        show(rows, columns | dict(_NUMBERS), as_json=False)
