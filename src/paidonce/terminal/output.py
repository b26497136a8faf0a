"""What commands print: tables for people, JSON for programs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import orjson
import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

MAX_WIDTH: Final = 1_000

stdout = Console()
stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

Columns = Mapping[str, Callable[[Any], object]]
"""The columns of a table: a title, and the value of an item."""


def columns(attributes: str, **computed: Callable[[Any], object]) -> Columns:
    """The columns of these attributes, written as in SQL: `"id, received_at as received"`.

    What is not an attribute of the item is computed by the function of that name.
    """
    made: dict[str, Callable[[Any], object]] = {}
    for one in attributes.split(", "):
        name, _, title = one.partition(" as ")
        made[title or name] = computed.get(name) or attrgetter(name)
    return made


def show(result: Any, as_json: bool, shown: Columns | Callable[[Any], object] | str) -> None:
    """Print a result as JSON, or as a table with these columns, or by a function.

    A text is printed on standard error, instead of the result.
    """
    if as_json:
        typer.echo(json_text(result))
    elif isinstance(shown, str):
        stderr.print(shown)
    elif callable(shown):
        shown(result)
    else:
        print_table(result, shown)


def print_table(items: Iterable[Any], columns: Columns) -> None:
    """Print a row for each item."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for item in items:
        table.add_row(*_cells(cell(item) for cell in columns.values()))
    _print_whole(table)


def print_fields(item: Any) -> None:
    """Print the fields of one item, without those that have fields themselves."""
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


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error; yields what updates it (see `rich.progress`)."""
    with Progress(*columns, console=stderr, transient=True, redirect_stdout=False) as bar:
        yield partial(bar.update, bar.add_task("", total=None))


def rfc3339(time: datetime, precision: str = "seconds") -> str:
    """The time in UTC as RFC 3339. Its year has four digits, which `%Y` does not promise."""
    return time.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


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
            return rfc3339(value).replace("T", " ")
        case _:
            return str(value)
