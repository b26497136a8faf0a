"""Options of a command, made from the fields of a query (see `db.paging.ListQuery`)."""

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Annotated, Any, Final, Optional, get_args, get_type_hints

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from paidonce.errors import ConfigurationError, InvalidRequestError

MAX_LISTED: Final = 100_000
_AGO: Final = re.compile(r"([0-9]{1,4})([dh])")
_PAGE_FIELDS: Final = ("limit", "cursor")

Limit = Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many items at most.")]


def query_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter that is a query by an option for each of its filters.

    A field's description is the help of its option. `json_schema_extra={"option": "--a/--b"}` gives
    an option another name. Times may be given as `7d` or `12h`, which means so long ago.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    query_name, query_type = next(
        (name, hints[name]) for name in parameters if _is_query(hints[name])
    )
    fields = {
        name: field for name, field in query_type.model_fields.items() if name not in _PAGE_FIELDS
    }
    options = [_option(name, field) for name, field in fields.items()]
    others = [one for name, one in parameters.items() if name != query_name]

    @wraps(command)
    def expanded(**values: Any) -> None:
        filters = {name: _value(name, field, values.pop(name)) for name, field in fields.items()}
        command(**{query_name: _query(query_type, filters)}, **values)

    hints.pop(query_name)
    required = [one for one in others if one.default is inspect.Parameter.empty]
    optional = [one for one in others if one.default is not inspect.Parameter.empty]
    expanded.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in (*required, *options, *optional)
        ]
    )
    expanded.__annotations__ = {one.name: one.annotation for one in options} | hints
    return expanded


def parse_time(option: str, text: str | None) -> datetime | None:
    """A time, UTC unless it has a zone, or days or hours ago. Raises ConfigurationError."""
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        unit = {"d": "days", "h": "hours"}[ago[2]]
        return datetime.now(UTC) - timedelta(**{unit: int(ago[1])})
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        example = "2026-11-15T10:00:00Z"
        raise ConfigurationError(
            f"{option} {text}: give a time such as {example}, or 7d, or 12h"
        ) from None


def _is_query(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    extra = field.json_schema_extra
    names = [str(extra["option"])] if isinstance(extra, Mapping) and "option" in extra else []
    kind: Any = str if _is_time(field) else _plain_type(field)
    default = None if field.default is None else field.get_default()
    annotation = Annotated[Optional[kind], typer.Option(*names, help=field.description)]  # noqa: UP045
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _plain_type(field: FieldInfo) -> Any:
    """The type of a field without None and without pydantic's constraints."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = kinds[0] if kinds else field.annotation
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _is_time(field: FieldInfo) -> bool:
    return _plain_type(field).__name__ in ("datetime", "AwareDatetime")


def _value(name: str, field: FieldInfo, given: Any) -> Any:
    return parse_time(f"--{name}", given) if _is_time(field) else given


def _query(query_type: type[BaseModel], filters: Mapping[str, Any]) -> BaseModel:
    try:
        return query_type(**{name: value for name, value in filters.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequestError(f"{first['loc'][0]}: {first['msg']}") from None
