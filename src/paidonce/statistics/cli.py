"""`paidonce stats`."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from paidonce.statistics.model import Statistics
from paidonce.terminal.commands import Json
from paidonce.terminal.output import columns, print_table, show, stdout
from paidonce.terminal.session import Config, Use, operate

_NUMBERS: Final = (
    "received, succeeded, failed, waiting, duplicates, rejected, success_rate as success rate"
)


def stats(
    days: Annotated[int, typer.Option(min=1, max=366, help="How many days, today included.")] = 7,
    source: Annotated[str | None, typer.Option(help="From this source.")] = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show how many deliveries were received, and their results."""
    found = operate(
        config, lambda services: services.statistics.report(days=days, source=source), Use.STORED
    )
    show(found, json, _print)


def _print(found: Statistics) -> None:
    _print_numbers(_NUMBERS, [found])
    stdout.print("By source:")
    _print_numbers(f"source, {_NUMBERS}", found.by_source)
    stdout.print("By signature method:")
    _print_numbers(f"signature_method as signature method, {_NUMBERS}", found.by_signature_method)
    stdout.print("By day:")
    _print_numbers(f"day, {_NUMBERS}", found.by_day)


def _print_numbers(attributes: str, rows: Sequence[object]) -> None:
    print_table(rows, columns(attributes, success_rate=_success_rate))


def _success_rate(one: Any) -> str | None:
    return f"{one.success_rate:.2%}" if one.succeeded + one.failed else None
