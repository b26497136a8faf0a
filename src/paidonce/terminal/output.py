"""What commands print: tables for people, JSON for programs.

All text of commands goes through this module, which escapes what came from outside (SEC-9): no
value can move the cursor, begin a line or change a colour.
"""

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

from paidonce.core.printable import printable, printable_json

MAX_WIDTH: Final = 1_000


class Output:
    """Standard output or standard error."""

    def __init__(self, *, is_error: bool) -> None:
        self.console = Console(stderr=is_error, soft_wrap=True, highlight=False, markup=False)

    def print(self, text: str, style: str = "") -> None:
        """Print lines. Only line breaks are obeyed."""
        self.console.print(Text(printable(text, keep="\n"), style=style))


stdout: Final = Output(is_error=False)
stderr: Final = Output(is_error=True)

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
        print_json(result)
    elif isinstance(shown, str):
        stderr.print(shown)
    elif callable(shown):
        shown(result)
    else:
        print_table(result, shown)


def print_json(value: Any, *, in_one_line: bool = False) -> None:
    """Print JSON: exact, and without any character that a terminal would obey."""
    option = 0 if in_one_line else orjson.OPT_INDENT_2
    typer.echo(printable_json(orjson.dumps(value, default=_json_value, option=option)))


def print_body(text: str) -> None:
    """Print a text with its own lines, such as the body of a delivery."""
    typer.echo(printable(text, keep="\n\t"))


def confirm(question: str) -> bool:
    """Ask on standard error; returns whether the answer is yes."""
    return typer.confirm(printable(question), err=True)


def print_table(items: Iterable[Any], columns: Columns, *, wraps: bool = False) -> None:
    """Print a row for each item, as wide as needed unless long values are to be wrapped."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, no_wrap=not wraps, overflow="fold")
    for item in items:
        table.add_row(*_cells(cell(item) for cell in columns.values()))
    if wraps:
        Console().print(table)
    else:
        _print_whole(table)


def print_fields(item: Any) -> None:
    """Print the fields of one item, without those that have fields themselves."""
    table = Table(box=None, show_header=False)
    for field in fields(item):
        content = getattr(item, field.name)
        if not isinstance(content, list) and not is_dataclass(content):
            table.add_row(field.name, *_cells([content]))
    _print_whole(table)


def print_line(item: Any, columns: Columns, as_json: bool) -> None:
    """Print one item in one line."""
    if as_json:
        print_json(item, in_one_line=True)
    else:
        stdout.print(line_of(item, columns))


def line_of(item: Any, columns: Columns) -> str:
    """The columns of one item, without line breaks."""
    return "  ".join(printable(_text(cell(item))) or "-" for cell in columns.values())


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error; yields what updates it (see `rich.progress`)."""
    with Progress(*columns, console=stderr.console, transient=True, redirect_stdout=False) as bar:
        yield partial(bar.update, bar.add_task("", total=None))


def rfc3339(time: datetime, precision: str = "seconds") -> str:
    """The time in UTC as RFC 3339. Its year has four digits, which `%Y` does not promise."""
    return time.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _json_value(value: Any) -> str:
    if isinstance(value, UUID):  # the driver's own class of UUID
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _print_whole(table: Table) -> None:
    """Print as wide as needed: an id that is cut off is of no use."""
    console = stdout.console
    width = Measurement.get(console, console.options.update(width=MAX_WIDTH), table).maximum
    Console(width=max(width, 1)).print(table)


def _cells(values: Iterable[object]) -> list[Text]:
    """The cells of a row. A value may be a text with a style."""
    styles = ((value, value.style if isinstance(value, Text) else "") for value in values)
    return [Text(printable(_text(value)), style=style) for value, style in styles]


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
