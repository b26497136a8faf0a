"""What people are shown of what arrived holds no card number, no key and no secret."""

import json
import re
from base64 import b64encode
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from paidonce.core.masking import HIDDEN, MARGIN, MAX_SHOWN, Masker, is_secret_name

MASKER = Masker(["s3cret value/+", "whsec_abcdef"])
KEY = "po_a-key-that-opens-something"


def with_check_digit(digits: str) -> str:
    """The number that these digits begin, by the textbook."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return digits + str(-total % 10)


def is_time(number: str) -> bool:
    return number.startswith("1") and len(number) in (13, 16, 19)


cards = (
    st.text("0123456789", min_size=12, max_size=18)
    .map(with_check_digit)
    .filter(lambda number: not is_time(number))
)
separators = st.sampled_from(
    ["", " ", "-", ".", "/", "\u00a0", " - ", "\u2009", "\u2011", "\u202f"]
)
plain = st.text(
    st.characters(exclude_categories=("Cs", "Nd"), exclude_characters=' -._/+%\x00\xa0"\\&='),
    max_size=20,
)


@st.composite
def written_cards(draw: st.DrawFn) -> tuple[str, str]:
    """A card number, and a way to write it."""
    number, separator = draw(cards), draw(separators)
    size = draw(st.integers(1, 8))
    return number, separator.join(number[at : at + size] for at in range(0, len(number), size))


def digits_of(text: str) -> str:
    """The digits of a text, without those by which other characters are written."""
    written = re.sub(r"(?:\\|%5C)+u[0-9a-f]{4}|%[0-9A-F]{2}", "", text)
    return "".join(one for one in written if one.isdecimal())


@given(written_cards(), plain, plain)
@example(("4111111111111111", "4111 1111 1111 1111"), "", "")
def test_a_card_number_never_survives(card: tuple[str, str], before: str, after: str) -> None:
    """OPS-2 SEC-7: in text, JSON, forms, one in the other, GBK, UTF-16, bytes that are no text."""
    number, written = card
    text = f"{before}{written}{after}"
    bodies = [
        text.encode(),
        json.dumps({"a": {"b": [text]}}).encode(),
        json.dumps({"a": text}, ensure_ascii=False).encode(),
        json.dumps({text: 1}).encode(),
        json.dumps({"a": json.dumps({"b": text})}).encode(),
        f'{{"broken": "{text}'.encode(),
        urlencode({"a": text, "b": "c"}).encode(),
        urlencode({"a": json.dumps({"b": text})}).encode(),
        urlencode({"a": text}, encoding="gbk", errors="ignore").encode(),
        f"a=1&b={text}".encode("gbk", "ignore"),
        b"\xff\xfe\x81" + text.encode(),
        text.encode("utf-16-le"),
    ]
    for body in bodies:
        shown = MASKER.body(body)
        left = shown if isinstance(shown, str) else shown.decode("latin-1")
        assert number not in digits_of(left), body
    assert number not in digits_of(MASKER.line(text))
    assert MASKER.is_suspicious(text)


@pytest.mark.parametrize("separator", ["\t", "\n", "\r\n", ",", ", ", ":", "*"])
@pytest.mark.parametrize(
    "groups",
    ["4111 1111 1111 1111", "6212 3456 7890 1000 000", "3782 822463 10005", "3056 930902 5904"],
)
def test_a_card_number_is_seen_in_a_list(separator: str, groups: str) -> None:
    """SEC-7: in groups as they are printed, whatever else the list holds."""
    written = groups.replace(" ", separator)
    for text in (written, f"1234{separator}{written}", json.dumps({"a": f"no {written}."})):
        assert groups.replace(" ", "") not in digits_of(MASKER.text(text))
        assert MASKER.is_suspicious(written)
        assert groups.replace(" ", "") not in digits_of(MASKER.line(written))


@given(
    st.lists(
        st.datetimes().map(str)
        | st.times().map(str)
        | st.decimals(0, 10**7, places=2).map(str)
        | st.integers(10**9, 10**10).map(str)
        | st.integers(0, 10**9).map(lambda amount: f"{amount:,}.00"),
        max_size=8,
    ),
    st.sampled_from([",", ", ", "\t", "\n", ":"]),
)
def test_lists_of_times_and_amounts_are_masked_no_more_than_without_signs(
    values: list[str], separator: str
) -> None:
    """OPS-2: what stands by itself is as good in a list."""
    apart = [MASKER.text(f"x{value}x")[1:-1] for value in values]
    assert MASKER.text(f"x{separator.join(values)}x")[1:-1] == separator.join(apart)


def test_a_number_that_is_too_long_for_a_card_is_not_suspicious() -> None:
    """SEC-7 DAT-2: such as every trade number of Alipay's; nothing near it is overlooked."""
    trade = "2026111622001476381000123456"
    assert not MASKER.is_suspicious(f"{trade}|alipay:{trade}|990.00")
    assert MASKER.is_suspicious(f"{trade}-4111 1111 1111 1111")
    assert MASKER.line(f"{trade}-4111 1111 1111 1111") == f"{trade}-*** *** *** ***"


@given(st.integers(0, 10**12 - 1), st.integers(0, 99))
def test_short_numbers_and_amounts_survive(number: int, cents: int) -> None:
    """OPS-2"""
    said: dict[str, Any] = {"id": number, "amount": f"{number % 10**9}.{cents:02}", "n": [cents]}
    for body in (json.dumps(said), urlencode(said)):
        assert MASKER.text(body) == body
    assert MASKER.line(f"{number} {HIDDEN}") == f"{number} {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15T10:00:00.123456Z",
        '{"created_at": 1763280000123, "at": 1763280000123456, "ns": 1763280000123456789}',
        "2088000000000002 4111111111111112",
        "order-2026-000017, 990.00 RUB",
        "buyer@example.com",
        "",
        "=",
        "{",
        '"',
        "a=1&b",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    """OPS-2: e-mail addresses of a payment are shown to who may operate."""
    assert MASKER.text(text) == text


@given(
    st.sampled_from(
        ["password", "cardNumber", "card_no", "PAN", "cvv", "CVC2", "access-token", "apiKey",
         "x-api-key", "client_secret", "Authorization", "private_key", "p\u0061ssword"]
    ),
    st.recursive(
        st.integers() | st.text(min_size=9),
        lambda inner: st.lists(inner, min_size=1) | st.builds(lambda one: {"k": one}, inner),
        max_leaves=5,
    ),
)  # fmt: skip
def test_a_value_with_a_secret_name_is_masked_completely(name: str, value: Any) -> None:
    """OPS-2 SEC-7"""
    shown = MASKER.text(json.dumps({"before": "stays", name: value, "after": "stays"}))
    whole = json.loads(shown)
    assert (whole["before"], whole["after"]) == ("stays", "stays")
    assert set(leaves(whole[name])) <= {HIDDEN}
    form = MASKER.text(urlencode({"a": "stays", name: str(value), "b": "stays"}))
    assert form == f"a=stays&{quote_plus(name)}={HIDDEN}&b=stays"
    assert MASKER.field(name, "anything") == HIDDEN


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for pair in value.items() for one in pair for leaf in leaves(one)]
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("name", ["amount", "status", "order", "x-signature", "token_of"])
def test_names_are_told_apart(name: str) -> None:
    """OPS-2"""
    assert is_secret_name(name) is (name == "token_of")


@given(plain, plain)
def test_configured_secrets_and_keys_are_masked_everywhere(before: str, after: str) -> None:
    """OPS-2 SEC-7"""
    for secret in ("s3cret value/+", "whsec_abcdef", KEY):
        text = f"{before} {secret} {after}"
        for written in (text, json.dumps({"a": text}), urlencode({"a": text}), f'["{text}'):
            for spelled in (secret, quote_plus(secret), json.dumps(secret)[1:-1]):
                assert spelled not in MASKER.text(written)
        assert secret not in MASKER.line(text)
        assert MASKER.is_suspicious(text)


def test_a_line_shows_no_whole_address() -> None:
    """SEC-7"""
    assert MASKER.line("from buyer@example.com, <x@y.example>") == (
        "from b***@example.com, <x***@y.example>"
    )
    assert MASKER.is_suspicious("buyer@example.com")
    assert not MASKER.is_suspicious("pay_1NirD82eZvKYlo2 evt_9 990.00 paid")


@given(st.integers(MAX_SHOWN - 40, MAX_SHOWN + 40), st.booleans())
def test_a_long_body_is_cut_and_no_card_number_with_it(at: int, is_text: bool) -> None:
    """OPS-2: the output is bounded."""
    card = b"4111 1111 1111 1111"
    start = b"" if is_text else b"\xff"
    body = start + b"x" * (at - len(start)) + card + b"y" * (MARGIN + 100)
    shown = MASKER.body(body)
    assert isinstance(shown, str) is is_text
    assert len(shown) <= MAX_SHOWN
    text = shown if isinstance(shown, str) else shown.decode("latin-1")
    assert "4111" not in text


@given(st.binary(max_size=300))
def test_anything_can_be_shown(body: bytes) -> None:
    """OPS-2 REC-6: nothing that a sender can write makes it fail."""
    shown = MASKER.body(body)
    if isinstance(shown, str):
        json.dumps(shown).encode()
        shown.encode()
    else:
        b64encode(shown)


@given(st.text(st.sampled_from('{}[]:,"\\u0pasword=&%2 4'), max_size=60))
def test_broken_json_and_forms_can_be_shown(text: str) -> None:
    """OPS-2 REC-6"""
    assume(text)
    MASKER.text(text).encode()
