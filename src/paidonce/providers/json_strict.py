"""JSON as a careful receiver reads it: what other readers pass over in silence is an error.

Refused: invalid UTF-8, duplicate keys, NaN and Infinity, nesting over 64, numbers over 64 digits
or with an absurd exponent, NUL characters and lone surrogates. Numbers are exact (int, Decimal).
"""

import json
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

from paidonce.errors import MalformedError

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 64
MAX_EXPONENT: Final = 64


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object that the bytes are. Raises MalformedError, and nothing else."""
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


# A string without an end is matched too, or each of its quotes would be tried as a beginning.
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS: Final = re.compile(r"[^\[\]{}]+")


def _check_depth(text: str) -> None:
    """The decoder recurses: how deep it may go is decided before it starts."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKETS.sub("", _STRINGS.sub("", text)):
        depth += 1 if bracket in "{[" else -1
        if depth > MAX_DEPTH:
            raise MalformedError(f"the body is nested over {MAX_DEPTH} deep")


_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _check_escapes(text: str) -> None:
    """Escapes that no text column can hold: NUL, and a surrogate without its other half."""
    awaited_low = False
    previous_end = -1
    for found in _ESCAPE.finditer(text):
        code = int(found[1], 16) if found[1] else -1
        is_low = 0xDC00 <= code <= 0xDFFF
        if awaited_low != (is_low and found.start() == previous_end) or (
            is_low and not awaited_low
        ):
            raise MalformedError("the body holds a lone surrogate")
        if code == 0:
            raise MalformedError("the body holds a NUL character")
        awaited_low = 0xD800 <= code <= 0xDBFF
        previous_end = found.end()
    if awaited_low:
        raise MalformedError("the body holds a lone surrogate")


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
    absurd = len(exponent) > 4 or (exponent and abs(int(exponent)) > MAX_EXPONENT)
    if len(mantissa.lstrip("-").replace(".", "")) > MAX_DIGITS or absurd:
        raise MalformedError(f"the body has a number over {MAX_DIGITS} digits")
    return Decimal(digits)


def _constant(name: str) -> NoReturn:
    raise MalformedError(f"the body holds {name}, which is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_decimal,
    parse_constant=_constant,
)
