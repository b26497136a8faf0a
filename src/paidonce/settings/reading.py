"""Reads the settings, and explains mistakes in them."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from paidonce.errors import ConfigurationError, did_you_mean, meant_value
from paidonce.settings import Settings
from paidonce.settings.secrets import resolve_secret

CONFIG_FILE: Final = "paidonce.toml"
_HIDDEN: Final = ("secret", "password", "pepper", "key", "url", "storage", "smtp", "token")
_SHOWN: Final = ("retention.", "limits.api_keys")


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """The settings from the file, the environment and the flags. Raises ConfigurationError."""
    path = config_path(config)
    from_file = type("SettingsFromFile", (Settings,), {"toml_file": path})
    _refuse_unknown_variables()
    try:
        settings: Settings = from_file(**flags)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_explained(error))) from None
    except SettingsError as error:
        name = re.search(r'field "(\w+)"', str(error))
        variable = f"PAIDONCE_{name[1].upper()}" if name else "a PAIDONCE_ variable"
        raise ConfigurationError(
            f"{variable} (hidden): lists and tables are given to variables as JSON"
        ) from None
    except ValueError as error:  # invalid TOML
        raise ConfigurationError(f"{path or 'the environment'}: {error}") from None
    return settings


def with_files_read(settings: Settings) -> Settings:
    """The settings with the content of each `file:PATH`, so that all of it is of one moment.

    A file that cannot be read stays a reference: its error names the setting that needs it.
    """
    return _with_files_read(settings)  # type: ignore[no-any-return]


def _with_files_read(value: Any) -> Any:
    match value:
        case BaseModel():
            names = [*type(value).model_fields, *(value.model_extra or {})]
            read = {name: _with_files_read(getattr(value, name)) for name in names}
            return value.model_copy(update=read)
        case dict():
            return {name: _with_files_read(one) for name, one in value.items()}
        case list() | tuple():
            return type(value)(_with_files_read(one) for one in value)
        case str() if value.startswith("file:"):
            try:
                return resolve_secret(value, "")
            except ConfigurationError:
                return value
        case _:
            return value


def config_path(config: Path | None = None) -> Path | None:
    """The file to read: from the flag, the environment, or ./paidonce.toml if it exists."""
    chosen = config or (Path(named) if (named := os.environ.get("PAIDONCE_CONFIG")) else None)
    if chosen is None:
        return Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() else None
    if not chosen.is_file():
        raise ConfigurationError(f"there is no configuration file {chosen}")
    return chosen


_OTHER_VARIABLES: Final = {
    "PAIDONCE_CONFIG",
    "PAIDONCE_CRASH_AT",
    "PAIDONCE_BOOTSTRAP_KEY",
    "PAIDONCE_VECTORS",
}


def _refuse_unknown_variables() -> None:
    """Reject misspelt variables, which would otherwise be ignored."""
    sections = {f"PAIDONCE_{name.upper()}" for name in Settings.model_fields}
    for variable in os.environ:
        if not variable.startswith("PAIDONCE_") or variable in _OTHER_VARIABLES:
            continue
        if variable.partition("__")[0] not in sections:
            known = ", ".join(sorted(sections))
            hint = did_you_mean(variable.partition("__")[0], sections)
            raise ConfigurationError(
                f"{variable}: there is no such setting; names are PAIDONCE_SECTION__KEY, "
                f"beginning with one of {known}{hint}"
            )


def _explained(error: ValidationError) -> Iterator[str]:
    for one in error.errors():
        key = ".".join(str(part) for part in one["loc"])
        value = one.get("input")
        is_shown = one["type"] not in ("missing", "extra_forbidden")
        shown = f" = {_shown(key, value, one['type'])}" if is_shown else ""
        yield f"{key}{shown}: {_remedy(one['type'], one['msg'], value)}{_hint(one)}"


def _hint(one: ErrorDetails) -> str:
    """The name that was probably meant, of a setting or of a value."""
    if one["type"] == "extra_forbidden":
        return did_you_mean(str(one["loc"][-1]), _names_at(one["loc"][:-1]))
    return meant_value(one.get("input"), one.get("ctx", {}).get("expected"))


def _names_at(place: Sequence[str | int]) -> list[str]:
    """The settings that there are at this place, such as in `server` or `plans.monthly`."""
    annotation: Any = Settings
    for part in place:
        fields = _fields(annotation)
        # A table with names of the user's own, such as `plans`, has models as its values.
        annotation = fields[str(part)].annotation if str(part) in fields else annotation
    return [field.alias or name for name, field in _fields(annotation).items()]


def _fields(annotation: Any) -> Mapping[str, FieldInfo]:
    """The fields of a model, or of the model that is inside of a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return next((fields for one in get_args(annotation) if (fields := _fields(one))), {})


def _remedy(kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        return "there is no such setting; remove it or correct its name"
    if kind == "missing":
        return "is needed here"
    if kind == "string_type" and isinstance(value, int | float):
        return 'write it as text, in quotes, such as "990.00"'
    return message.removeprefix("Value error, ")


def _shown(key: str, value: object, kind: str) -> str:
    """The value, unless it may hold a secret: by its key, or because a section was expected."""
    is_number = isinstance(value, int | float)
    is_plain = is_number or (isinstance(value, str) and not kind.endswith("_type"))
    may_hide = any(word in key.lower() for word in _HIDDEN) and not key.startswith(_SHOWN)
    if not is_plain or may_hide:
        return "(hidden)"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
