"""Makes commands of calls to services, and options of the fields of a query or a request."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Optional, TypeVar, get_args

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from paidonce.clock import CLOCK
from paidonce.errors import ConfigurationError, InvalidRequestError
from paidonce.terminal.output import Columns, print_fields, show
from paidonce.terminal.session import Config, operate

MAX_LISTED: Final = 100_000
_AGO: Final = re.compile(r"([0-9]{1,4})([dh])")
_PAGE_FIELDS: Final = ("limit", "cursor")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many items at most.")]
Reason = Annotated[str, typer.Option(help="The reason, for the audit log.")]
OptionalReason = Annotated[str | None, typer.Option(help="The reason, for the audit log.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

Result = Awaitable[object]
Call = TypeVar("Call", bound=Callable[..., Result])
M = TypeVar("M", bound=BaseModel)


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, name: str, text: str, *, no_args_is_help: bool = True) -> None:
        super().__init__(name=name, help=text, no_args_is_help=no_args_is_help)

    def operation(
        self, name: str, shown: Columns | Callable[[Any], object] = print_fields
    ) -> Callable[[Call], Callable[..., None]]:
        """Make a command of a function that calls a service; `show` prints what it returns.

        The first parameter of the function is the services; the others become arguments and
        options, and a query or a request becomes an option for each of its fields.
        """

        def add(call: Call) -> Callable[..., None]:
            @wraps(call)
            def command(config: Path | None, json: bool, **values: Any) -> None:
                show(operate(config, lambda services: call(services, **values)), json, shown)

            _, *given = inspect.signature(call).parameters.values()
            common = _parameter("config", None, Config), _parameter("json", False, Json)
            _set_parameters(command, *given, *common)
            return self.command(name)(query_options(command))

        return add


def query_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter that is a model, if any, by an option for each of its fields.

    A field's description is the help of its option. `json_schema_extra={"option": "--a/--b"}` gives
    an option another name. Times may be given as `7d` or `12h`, which means so long ago.
    """
    parameters = inspect.signature(command).parameters.values()
    query = next((one for one in parameters if _is_query(one.annotation)), None)
    if query is None:
        return command
    fields = {
        name: field
        for name, field in query.annotation.model_fields.items()
        if name not in _PAGE_FIELDS
    }

    @wraps(command)
    def expanded(**values: Any) -> None:
        filters = {name: _value(name, field, values.pop(name)) for name, field in fields.items()}
        command(**{query.name: validated(query.annotation, **filters)}, **values)

    others = [one for one in parameters if one is not query]
    required = [one for one in others if one.default is inspect.Parameter.empty]
    optional = [one for one in others if one.default is not inspect.Parameter.empty]
    options = [_option(name, field) for name, field in fields.items()]
    _set_parameters(expanded, *required, *options, *optional)
    return expanded


def _set_parameters(command: Callable[..., None], *parameters: inspect.Parameter) -> None:
    """Let Typer see these parameters instead of those of the function."""
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {}


def _parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def parse_time(option: str, text: str | None) -> datetime | None:
    """A time, UTC unless it has a zone, or days or hours ago. Raises ConfigurationError."""
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        unit = {"d": "days", "h": "hours"}[ago[2]]
        return CLOCK.now() - timedelta(**{unit: int(ago[1])})
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
    if field.is_required():
        annotation: Any = Annotated[kind, typer.Option(*names, help=field.description)]
        return _parameter(name, inspect.Parameter.empty, annotation)
    default = None if field.default is None else field.get_default()
    annotation = Annotated[Optional[kind], typer.Option(*names, help=field.description)]  # noqa: UP045
    return _parameter(name, default, annotation)


def _plain_type(field: FieldInfo) -> Any:
    """The type of a field without None and without pydantic's constraints."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = kinds[0] if kinds else field.annotation
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _is_time(field: FieldInfo) -> bool:
    return _plain_type(field).__name__ in ("datetime", "AwareDatetime")


def _value(name: str, field: FieldInfo, given: Any) -> Any:
    return parse_time(f"--{name}", given) if _is_time(field) else given


def validated(model: type[M], /, **values: Any) -> M:
    """A request or a query with these values, without those that are None.

    Raises InvalidRequestError.
    """
    try:
        return model(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequestError(f"{first['loc'][0]}: {first['msg']}") from None
