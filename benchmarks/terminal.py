"""Tables on the terminal."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

FILE_WIDTH = 160


def open_console() -> Console:
    """A console as wide as the terminal, or as a table needs."""
    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH)


def terminal_table(columns: Sequence[str], *, texts: Sequence[str], caption: str) -> Table:
    """An empty table. Columns hold numbers, except for those named in texts."""
    table = Table(caption=caption)
    for column in columns:
        is_text = column in texts
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    return table
