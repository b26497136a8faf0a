"""Strict JSON parsing."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.errors import MalformedError
from paidonce.providers.parsing import MAX_DEPTH, MAX_DIGITS, parse_object

FULL = 256 * 1024
CPU_LIMIT_S = 1.0
"""A full body takes some milliseconds; read in quadratic time it would take minutes."""

letters = st.characters(codec="utf-8", exclude_characters="\x00")
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.decimals(-(10**9), 10**9, places=3)
    | st.text(letters),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(letters), inner, max_size=4)
    ),
    max_leaves=20,
)
documents = st.dictionaries(st.text(letters), values, max_size=6)


def written(document: Any, *, as_ascii: bool) -> bytes:
    plain = json.dumps(document, ensure_ascii=as_ascii, default=lambda number: f"number:{number}")
    return _with_numbers(plain).encode()


def _with_numbers(text: str) -> str:
    """Decimals cannot be written by json.dumps; they go through as marked text."""
    parts = text.split('"number:')
    return parts[0] + "".join(part.replace('"', "", 1) for part in parts[1:])


@given(documents, st.booleans())
def test_ordinary_documents_are_read_as_by_the_standard_library(
    document: dict[str, Any], as_ascii: bool
) -> None:
    """REC-6: what is not refused means what json.loads says, and numbers are exact."""
    body = written(document, as_ascii=as_ascii)
    assert parse_object(body) == json.loads(body, parse_float=Decimal)


@pytest.mark.parametrize(
    ("text", "number"),
    [("990.10", "990.10"), ("0.1", "0.1"), ("1e2", "1E+2"), ("1E-2", "0.01"), ("1.5e+3", "1500")],
)
def test_numbers_with_a_fraction_are_exact(text: str, number: str) -> None:
    """PAY-1: money never passes through a float."""
    value = parse_object(b'{"amount": %s}' % text.encode())["amount"]
    assert isinstance(value, Decimal)
    assert value == Decimal(number)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"null", b"1", b'"text"', b"[]", b'[{"a": 1}]', b"true"),
        *(b"{", b"}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{'a':1}", b'{"a":1}x', b"{}{}"),
        *(b'{"a":01}', b'{"a":.5}', b'{"a":1.}', b'{"a":+1}', b'{"a":0x1}', b'{"a":1_0}'),
        *(b'{"a":"\n"}', b'{"a":"\x00"}', b'{"a":"\\x41"}', b'{"a":"\\u12"}', b"\xef\xbb\xbf{}"),
    ],
)
def test_anything_but_a_json_object_is_malformed(body: bytes) -> None:
    """REC-6"""
    with pytest.raises(MalformedError):
        parse_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"\xff"}',
        b'{"a":"\xc0\x80"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xe2\x82"}',
        '{"a":"é"}'.encode("latin-1"),
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\xf4\x90\x80\x80"}',
    ],
)
def test_invalid_utf_8_is_malformed(body: bytes) -> None:
    """REC-6"""
    with pytest.raises(MalformedError, match="UTF-8"):
        parse_object(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"amount":1,"amount":1}',
        b'{"amount":1,"\\u0061mount":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":[{"b":1,"c":2,"b":3}]}',
        b'{"":1,"":2}',
    ],
)
def test_duplicate_keys_are_malformed_at_every_depth(body: bytes) -> None:
    """REC-6"""
    with pytest.raises(MalformedError, match="duplicate"):
        parse_object(body)


@pytest.mark.parametrize("name", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_only_python_accepts_are_malformed(name: bytes) -> None:
    """REC-6"""
    for body in (b'{"a":%s}' % name, b'{"a":[{"b":%s}]}' % name):
        with pytest.raises(MalformedError):
            parse_object(body)


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"b":', b"}]")]
)
def test_nesting_has_a_limit(opening: bytes, closing: bytes) -> None:
    """REC-6"""
    step = 2 if opening.startswith(b"[{") else 1
    fits = (MAX_DEPTH - 1) // step
    assert MAX_DEPTH == 64
    parse_object(b'{"a":' + opening * fits + b"1" + closing * fits + b"}")
    for times in (fits + 1, 5_000, 20_000):
        with pytest.raises(MalformedError, match="nested"):
            parse_object(b'{"a":' + opening * times + b"1" + closing * times + b"}")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1000,
        "{" * 1000,
        '\\"' + "[" * 1000,
        "\\\\",
        '\\"' * 500 + "{" * 500,
        "]" * 999,
        "}{" * 99,
    ],
)
def test_brackets_in_text_do_not_count_as_nesting(text: str) -> None:
    """REC-6"""
    body = ('{"a": "' + text + '", "b": {"' + text + '": 1}}').encode()
    assert parse_object(body) == json.loads(body)


def test_text_that_ends_in_a_backslash_hides_no_nesting() -> None:
    """REC-6: an escaped backslash before a quote does not escape the quote."""
    body = b'{"a": "\\\\", "b": ' + b"[" * 100 + b"]" * 100 + b', "c": "\\\\"}'
    with pytest.raises(MalformedError, match="nested"):
        parse_object(body)


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("shape", ["{}", "{}.0", "0.{}", "{}e1"])
def test_a_number_over_64_digits_is_malformed(shape: str, sign: str) -> None:
    """REC-6"""
    for digits in (MAX_DIGITS + 1, 5_000, 100_000):
        with pytest.raises(MalformedError, match="digits"):
            parse_object(('{"a":' + sign + shape.format("9" * digits) + "}").encode())


@pytest.mark.parametrize("digits", [1, 30, MAX_DIGITS - 1, MAX_DIGITS])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_of_64_digits_is_read(digits: int, sign: str) -> None:
    """REC-6: over 64 digits is malformed, 64 are not, whatever the sign."""
    number = int(sign + "9" * digits)
    assert parse_object(b'{"a":%d}' % number) == {"a": number}


@pytest.mark.parametrize(
    "exponent", ["65", "-65", "+65", "999999", "131071", "9" * 50, "-" + "9" * 50]
)
def test_an_extreme_exponent_is_malformed(exponent: str) -> None:
    """REC-6: a short body must not become a huge number."""
    for letter in "eE":
        with pytest.raises(MalformedError):
            parse_object(f'{{"a":1{letter}{exponent}}}'.encode())
        with pytest.raises(MalformedError):
            parse_object(f'{{"a":1.5{letter}{exponent}}}'.encode())


@pytest.mark.parametrize(
    "escapes",
    [
        r"\ud800",
        r"\udc00",
        r"\ud800x",
        r"\ud800\ud800",
        r"\udc00\ud800",
        r"\ud83d \ude00",
        r"\ud83d\n",
        r"\ud83d\u0041",
        r"\ud83d\ude00\ude00",
        r"\uDBFF",
        r"\\\ud800",
        r"\ud83d\\ude00",
    ],
)
def test_a_lone_surrogate_is_malformed_in_values_and_in_names(escapes: str) -> None:
    """REC-6: no text column can hold it."""
    for body in (f'{{"a":"{escapes}"}}', f'{{"{escapes}":1}}', f'{{"a":["{escapes}"]}}'):
        with pytest.raises(MalformedError, match="surrogate"):
            parse_object(body.encode())


@pytest.mark.parametrize(
    ("escapes", "text"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\uD83D\uDE00\ud83d\ude00", "😀😀"),
        (r"\\ud800", r"\ud800"),
        (r"\\\\ud800", r"\\ud800"),
        (r"\\u0000", r"\u0000"),
        (r"\u0041\"\u0042", 'A"B'),
    ],
)
def test_whole_pairs_and_escaped_backslashes_are_read(escapes: str, text: str) -> None:
    """REC-6"""
    assert parse_object(f'{{"a":"{escapes}"}}'.encode()) == {"a": text}


@pytest.mark.parametrize("escapes", [r"\u0000", r"a\u0000b", r"\\\u0000", r"\ud83d\ude00\u0000"])
def test_an_escaped_nul_is_malformed(escapes: str) -> None:
    """REC-6"""
    for body in (f'{{"a":"{escapes}"}}', f'{{"{escapes}":1}}'):
        with pytest.raises(MalformedError, match="NUL"):
            parse_object(body.encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_malformed(body: bytes) -> None:
    """REC-6: nothing else is raised."""
    with contextlib.suppress(MalformedError):
        assert isinstance(parse_object(body), dict)


@given(st.text(st.sampled_from('{}[]",:\\u0d8cDEe+-.19 \ntrfalsnNaI'), max_size=120))
def test_any_text_that_is_nearly_json_is_an_object_or_malformed(text: str) -> None:
    """REC-6"""
    try:
        value = parse_object(text.encode())
    except MalformedError:
        return
    assert value == json.loads(text, parse_float=Decimal)
    json.dumps(value, ensure_ascii=False, default=str).encode()


@given(st.dictionaries(st.text(), st.text() | st.none(), min_size=1))
def test_every_result_can_be_stored_as_text(document: dict[str, str | None]) -> None:
    """REC-6: whatever a sender escapes, PostgreSQL can hold the result."""
    try:
        value = parse_object(json.dumps(document).encode())
    except MalformedError:
        text = "".join(f"{key}{value}" for key, value in document.items())
        assert "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text)
        return
    for text in (*value, *(one for one in value.values() if one)):
        assert b"\x00" not in text.encode()


def full(beginning: bytes, repeated: bytes, end: bytes = b"") -> bytes:
    times = (FULL - len(beginning) - len(end)) // len(repeated)
    return beginning + repeated * times + end


HOSTILE: dict[str, bytes] = {
    "quotes": full(b"", b'"'),
    "quotes and brackets": full(b"[" * 100, b'"'),
    "escaped quotes": full(b"[" * 100 + b'"', b'\\"'),
    "unfinished text": full(b"[" * 100 + b'{"a":"', b"a"),
    "unfinished escapes": full(b"[" * 100 + b'{"a":"', b"\\\\"),
    "odd backslashes": full(b"[" * 100 + b'{"a":"', b"\\"),
    "brackets in text": full(b'{"a":"', b"[", b'"}'),
    "brackets": full(b"", b"["),
    "closing brackets": full(b"[" * 100, b"]"),
    "pairs of brackets": full(b'{"a":[', b"[],", b"[]]}"),
    "empty texts": full(b'{"a":[', b'"",', b'""]}'),
    "escapes": full(b'{"a":"', b"\\u0041", b'"}'),
    "pairs of surrogates": full(b'{"a":"', b"\\ud83d\\ude00", b'"}'),
    "a long number": full(b'{"a":', b"9", b"}"),
    "a long fraction": full(b'{"a":0.', b"9", b"}"),
    "a long exponent": full(b'{"a":1e', b"9", b"}"),
    "many numbers": full(b'{"a":[', b"1e64,", b"1]}"),
    "many zeros": full(b'{"a":[', b"0,", b"0]}"),
    "blanks": full(b"{", b" ", b"}"),
    "commas": full(b"{", b","),
    "colons": full(b'{"a"', b":"),
    "duplicate keys": full(b"{", b'"a":1,', b'"a":1}'),
    "many keys": b"{" + b",".join(b'"%d":0' % key for key in range(FULL // 10)) + b"}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_cost_is_linear_in_the_size_of_the_body(body: bytes) -> None:
    """REC-6 SEC-8: work is bounded by the body, in steps and in time of the processor."""
    assert len(body) <= FULL
    begun_s = time.process_time()
    steps = _steps(lambda: _tried(body))
    assert steps <= 2 * FULL + 1000
    assert time.process_time() - begun_s < CPU_LIMIT_S


def _tried(body: bytes) -> None:
    with contextlib.suppress(MalformedError):
        parse_object(body)


def _steps(work: Callable[[], None]) -> int:
    """How many calls, of Python's and of C's functions, the work makes."""
    number = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number
