"""What a command prints for programs: JSON."""

from typing import Any
from uuid import UUID

import orjson


def json_text(values: Any) -> str:
    """For programs."""
    return orjson.dumps(values, default=_plain, option=orjson.OPT_INDENT_2).decode()


def json_line(value: Any) -> str:
    """For programs that read line by line."""
    return orjson.dumps(value, default=_plain).decode()


def _plain(value: Any) -> str:
    """An id as the driver gives it is one of a kind of its own."""
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
