"""What commands print: tables for people, JSON for programs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import orjson
import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

MAX_WIDTH: Final = 1_000

stdout = Console()
stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Columns = Mapping[str, Callable[[Any], object]]
"""The columns of a table: a title, and the value of an item."""


def show(items: Any, columns: Columns, as_json: bool) -> None:
    """Print a table with a row for each item, or JSON."""
    if as_json:
        typer.echo(json_text(items))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for item in items:
        table.add_row(*_cells(cell(item) for cell in columns.values()))
    _print_whole(table)


def show_one(item: Any, as_json: bool) -> None:
    """Print the fields of one item, or JSON."""
    if as_json:
        typer.echo(json_text(item))
        return
    table = Table(box=None, show_header=False)
    for field in fields(item):
        content = getattr(item, field.name)
        if not isinstance(content, list) and not is_dataclass(content):
            table.add_row(field.name, *_cells([content]))
    _print_whole(table)


def line_of(item: Any, columns: Columns, as_json: bool) -> str:
    """One item in one line."""
    if as_json:
        return json_line(item)
    return "  ".join(_text(cell(item)) or "-" for cell in columns.values())


def json_text(value: Any) -> str:
    """Indented JSON."""
    return orjson.dumps(value, default=_json_value, option=orjson.OPT_INDENT_2).decode()


def json_line(value: Any) -> str:
    """JSON in one line."""
    return orjson.dumps(value, default=_json_value).decode()


def _json_value(value: Any) -> str:
    if isinstance(value, UUID):  # the driver's own class of UUID
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _print_whole(table: Table) -> None:
    """Print as wide as needed: an id that is cut off is of no use."""
    width = Measurement.get(stdout, stdout.options.update(width=MAX_WIDTH), table).maximum
    Console(width=max(width, 1)).print(table)


def _cells(values: Iterable[object]) -> list[Text]:
    return [Text(_text(value)) for value in values]


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return str(value)
