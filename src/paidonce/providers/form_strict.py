"""Forms (application/x-www-form-urlencoded) as a careful receiver reads them.

Refused: invalid UTF-8, NUL characters, a field that comes twice, too many fields, deep brackets.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from paidonce.errors import MalformedError
from paidonce.providers.contract import Delivery

CONTENT_TYPE: Final = "application/x-www-form-urlencoded"
MAX_FIELDS: Final = 2_000
MAX_BRACKETS: Final = 8

_JSON: Final = "application/json"


def is_form(delivery: Delivery) -> bool:
    """Whether this is a form, by its content type, and not JSON."""
    content_type = delivery.headers.get("content-type", _JSON)
    return content_type != _JSON and content_type.lower().startswith(CONTENT_TYPE)


def parse_form(body: bytes) -> dict[str, str]:
    """The fields by name, brackets and all. Raises MalformedError, and nothing else.

    Only a list (`colour[]`) may name a field again; its first value is kept.
    """
    if body.count(b"&") >= MAX_FIELDS:
        raise MalformedError(f"the form has over {MAX_FIELDS} fields")
    fields: dict[str, str] = {}
    for pair in body.split(b"&"):
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        _add(fields, _decoded(name), _decoded(value))
    return fields


def group(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What stands under `name[…]`, one level deep."""
    start = f"{name}["
    inner = {key[len(start) :]: value for key, value in fields.items() if key.startswith(start)}
    return {
        key[:-1]: value
        for key, value in inner.items()
        if key.endswith("]") and key.count("]") == 1 and "[" not in key
    }


def _add(fields: dict[str, str], name: str, value: str) -> None:
    if name.count("[") > MAX_BRACKETS:
        raise MalformedError(f"the form is nested over {MAX_BRACKETS} deep")
    if name not in fields:
        fields[name] = value
    elif not name.endswith("[]"):
        raise MalformedError("the form has a field twice")


def _decoded(part: bytes) -> str:
    try:
        text = unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError("the form is not UTF-8") from None
    if "\x00" in text:
        raise MalformedError("the form holds a NUL character")
    return text
