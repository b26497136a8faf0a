"""Exact money: parsing, printing, tolerance, and what is refused."""

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paidonce.core.money import (
    EXPONENTS,
    MAX_AMOUNT,
    Money,
    format_minor,
    known_currency,
    matches,
    money,
    tolerance_minor,
)
from paidonce.errors import InvalidMoneyError

CURRENCIES = st.sampled_from(sorted(EXPONENTS))


@pytest.mark.parametrize(
    ("amount", "currency", "amount_minor"),
    [
        ("990.00", "RUB", 99_000),
        ("990", "RUB", 99_000),
        ("990.5", "RUB", 99_050),
        ("0.01", "USD", 1),
        ("10000", "KRW", 10_000),
        ("10000.00", "JPY", 10_000),
        ("1.234", "KWD", 1_234),
        ("1", "BHD", 1_000),
        (990, "EUR", 99_000),
        (Decimal("19.99"), "EUR", 1_999),
        ("0", "RUB", 0),
    ],
)
def test_an_amount_in_major_units_becomes_exact_minor_units(
    amount: str | int | Decimal, currency: str, amount_minor: int
) -> None:
    """PAY-1"""
    assert money(amount, currency) == Money(amount_minor, currency)


@pytest.mark.parametrize(
    ("currency", "decimals"),
    [
        *((currency, 0) for currency in ["JPY", "KRW", "VND", "CLP", "ISK", "UGX", "XOF"]),
        *((currency, 2) for currency in ["RUB", "USD", "CNY", "HUF", "TWD", "MGA"]),
        *((currency, 3) for currency in ["KWD", "BHD", "JOD", "OMR", "TND", "IQD", "LYD"]),
    ],
)
def test_each_currency_has_the_decimals_of_iso_4217(currency: str, decimals: int) -> None:
    """PAY-1"""
    assert EXPONENTS[currency] == decimals


@given(st.integers(0, MAX_AMOUNT), CURRENCIES)
def test_formatted_money_parses_back(amount_minor: int, currency: str) -> None:
    """PAY-1"""
    assert money(format_minor(amount_minor, currency), currency) == Money(amount_minor, currency)


@given(st.integers(-(10**18), 10**18), CURRENCIES)
def test_printing_agrees_with_exact_division(amount_minor: int, currency: str) -> None:
    """PAY-1"""
    exponent = EXPONENTS[currency]
    printed = format_minor(amount_minor, currency)
    assert Decimal(printed) == Decimal(amount_minor) / 10**exponent
    assert len(printed.partition(".")[2]) == exponent


@given(CURRENCIES, st.integers(0, 10**9), st.integers(1, 30))
def test_an_amount_finer_than_the_smallest_unit_is_refused(
    currency: str, amount_minor: int, finer: int
) -> None:
    """PAY-1: never rounded, however far behind the point the surplus digit stands."""
    exponent = EXPONENTS[currency]
    printed = format_minor(amount_minor, currency) + ("." if exponent == 0 else "")
    with pytest.raises(InvalidMoneyError):
        money(printed + "0" * (finer - 1) + "1", currency)


@pytest.mark.parametrize(
    "amount",
    [
        "",
        " ",
        "abc",
        "12,50",
        "1.2.3",
        "NaN",
        "sNaN",
        "Infinity",
        "-Infinity",
        "-1",
        "-0.01",
        "0x10",
        *("1e16", "1e999999", "1e-3", "1e-999999", "1e99999999999999999999", "9" * 41),
        *("1000000000000.01", "٫", "\ud800", "\x00", "1\x00"),
    ],
)
def test_text_that_is_no_amount_is_refused(amount: str) -> None:
    """PAY-4 REC-6"""
    with pytest.raises(InvalidMoneyError):
        money(amount, "RUB")


@pytest.mark.parametrize(
    "currency", ["", "R", "RUR", "RUBB", "XXX", "XTS", "РУБ", "₽", "\x00", "R B"]
)
def test_an_unknown_currency_is_refused(currency: str) -> None:
    """PAY-4"""
    with pytest.raises(InvalidMoneyError):
        money("1", currency)


@pytest.mark.parametrize("currency", ["uſd", "ıdr"])
def test_letters_that_only_look_like_a_currency_are_refused(currency: str) -> None:
    """PAY-4: upper-casing must not turn foreign letters into a known currency."""
    with pytest.raises(InvalidMoneyError):
        known_currency(currency)


def test_a_currency_is_read_in_any_letter_case() -> None:
    """PAY-4"""
    assert money("1", "rub") == Money(100, "RUB")


@given(st.text(), st.text(max_size=5) | CURRENCIES)
def test_any_text_is_money_or_refused_as_money(amount: str, currency: str) -> None:
    """REC-6"""
    try:
        parsed = money(amount, currency)
    except InvalidMoneyError:
        return
    assert 0 <= parsed.amount_minor <= MAX_AMOUNT * 1000


@example("990.0000000000000000000000000001", "RUB")
@example("1e-2000000", "RUB")
@given(
    st.from_regex(r"[+-]?[0-9]{0,30}\.?[0-9]{0,30}([eE][+-]?[0-9]{1,22})?", fullmatch=True),
    CURRENCIES,
)
def test_any_numeral_is_exact_money_or_refused_as_money(amount: str, currency: str) -> None:
    """PAY-1 REC-6: what is accepted is exactly what was written."""
    try:
        parsed = money(amount, currency)
    except InvalidMoneyError:
        return
    mantissa, _, exponent = amount.lower().partition("e")
    units, _, fraction = mantissa.partition(".")
    power = int(exponent or 0) - len(fraction) + EXPONENTS[currency]
    digits = int(units + fraction or 0)
    assert digits == 0 or abs(power) < 100, "an absurd exponent was taken for money"
    power = power if digits else 0
    assert parsed.amount_minor * 10 ** max(-power, 0) == digits * 10 ** max(power, 0)


@pytest.mark.parametrize("amount", [10**15, 10**64, 10**5000, Decimal(10) ** 5000], ids="abcd")
def test_a_huge_number_is_refused_as_money(amount: int | Decimal) -> None:
    """REC-6: nothing but InvalidMoneyError, whatever the type."""
    with pytest.raises(InvalidMoneyError):
        money(amount, "RUB")


def test_the_largest_amount_is_the_documented_one() -> None:
    """PAY-1"""
    assert money(10**12, "KWD").amount_minor == MAX_AMOUNT * 1000
    with pytest.raises(InvalidMoneyError):
        money("1000000000000.001", "KWD")


@pytest.mark.parametrize(("currency", "tolerance"), [("RUB", 1), ("KWD", 10), ("KRW", 0)])
def test_the_tolerance_is_a_hundredth_of_a_unit_at_most(currency: str, tolerance: int) -> None:
    """PAY-4"""
    price = Money(99_000, currency)
    assert tolerance_minor(currency) == tolerance
    for sign in (1, -1):
        assert matches(Money(99_000 + sign * tolerance, currency), price)
        assert not matches(Money(99_000 + sign * (tolerance + 1), currency), price)


def test_another_currency_never_matches() -> None:
    """PAY-4"""
    assert not matches(Money(99_000, "USD"), Money(99_000, "RUB"))
