"""Strict parsers of JSON and form bodies: what lenient parsers silently accept is an error.

Rejected in JSON: invalid UTF-8, duplicate keys, NaN and Infinity, nesting over 64 levels, numbers
over 64 digits or with a large exponent, NUL characters, lone surrogates. Numbers stay exact (int,
Decimal). Rejected in forms: invalid UTF-8, NUL characters, repeated fields, too many fields, deep
brackets.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

from paidonce.errors import MalformedError

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 64
MAX_EXPONENT: Final = 64
MAX_FIELDS: Final = 2_000
MAX_BRACKETS: Final = 8


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises MalformedError and nothing else."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError("the body is not UTF-8") from None
    _check_depth(text)
    try:
        value = _DECODER.decode(text)
    except MalformedError:
        raise
    except (ValueError, RecursionError):
        raise MalformedError("the body is not JSON") from None
    if not isinstance(value, dict):
        raise MalformedError("the body is not a JSON object")
    if "\\u" in text:
        _check_escapes(text)
    return value


# Also matches an unterminated string; otherwise each of its quotes would be tried as a start.
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS: Final = re.compile(r"[^\[\]{}]+")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _check_depth(text: str) -> None:
    """Limit the nesting before decoding, because the decoder is recursive."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKETS.sub("", _STRINGS.sub("", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > MAX_DEPTH:
            raise MalformedError(f"the body is nested over {MAX_DEPTH} levels")


def _check_escapes(text: str) -> None:
    """Reject escapes that a text column cannot store: NUL and lone surrogates."""
    expects_low = False
    previous_end = -1
    for found in _ESCAPE.finditer(text):
        code = int(found[1], 16) if found[1] else -1
        is_low = 0xDC00 <= code <= 0xDFFF
        if expects_low != (is_low and found.start() == previous_end) or (
            is_low and not expects_low
        ):
            raise MalformedError("the body contains a lone surrogate")
        if code == 0:
            raise MalformedError("the body contains a NUL character")
        expects_low = 0xD800 <= code <= 0xDBFF
        previous_end = found.end()
    if expects_low:
        raise MalformedError("the body contains a lone surrogate")


def without_unstorable_escapes(body: bytes) -> bytes:
    """The JSON body with U+FFFD for what `parse_object` rejects: NUL and lone surrogates."""
    return _ESCAPE_OR_PAIR.sub(_storable, body)


_ESCAPE_OR_PAIR: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u([0-9a-fA-F]{4})|\\.",
    re.DOTALL,
)


def _storable(found: re.Match[bytes]) -> bytes:
    code = int(found[1], 16) if found[1] else -1
    return rb"\ufffd" if code == 0 or 0xD800 <= code <= 0xDFFF else found[0]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise MalformedError("the body has duplicate keys")
    return value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise MalformedError(f"the body has a number over {MAX_DIGITS} digits")
    return int(digits)


def _decimal(digits: str) -> Decimal:
    mantissa, _, exponent = digits.replace("E", "e").partition("e")
    is_extreme = len(exponent) > 4 or (exponent and abs(int(exponent)) > MAX_EXPONENT)
    if len(mantissa.lstrip("-").replace(".", "")) > MAX_DIGITS or is_extreme:
        raise MalformedError(f"the body has a number over {MAX_DIGITS} digits")
    return Decimal(digits)


def _constant(name: str) -> NoReturn:
    raise MalformedError(f"the body contains {name}, which is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_decimal,
    parse_constant=_constant,
)


def parse_form(body: bytes) -> dict[str, str]:
    """Parse a form into fields by name, brackets included. Raises MalformedError and nothing else.

    Only a list (`colour[]`) may repeat a name; its first value is kept.
    """
    if body.count(b"&") >= MAX_FIELDS:
        raise MalformedError(f"the form has over {MAX_FIELDS} fields")
    fields: dict[str, str] = {}
    for pair in filter(None, body.split(b"&")):
        raw_name, _, value = pair.partition(b"=")
        name, decoded = _decode(raw_name), _decode(value)
        if name.count("[") > MAX_BRACKETS:
            raise MalformedError(f"the form is nested over {MAX_BRACKETS} levels")
        if name not in fields:
            fields[name] = decoded
        elif not name.endswith("[]"):
            raise MalformedError("the form has a field twice")
    return fields


def form_group(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields named `name[…]`, one level deep, by the name in the brackets."""
    start = f"{name}["
    inner = {key[len(start) :]: value for key, value in fields.items() if key.startswith(start)}
    return {
        key[:-1]: value
        for key, value in inner.items()
        if key.endswith("]") and key.count("]") == 1 and "[" not in key
    }


def _decode(part: bytes) -> str:
    try:
        text = unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedError("the form is not UTF-8") from None
    if "\x00" in text:
        raise MalformedError("the form contains a NUL character")
    return text
