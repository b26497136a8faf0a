"""Money as integer minor units and an ISO 4217 currency. Never a float."""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

from paidonce.errors import InvalidMoneyError

MAX_AMOUNT: Final = 10**12
"""In major units: above any payment, and far below the limit of a bigint of minor units."""

_NUMERAL: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?")
_CODE: Final = re.compile(r"[A-Za-z]{3}")

_TWO_DECIMALS: Final = """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY
COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF
IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR
MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG
SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VES WST
XCD XCG YER ZAR ZMW ZWG
"""
_NO_DECIMALS: Final = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_THREE_DECIMALS: Final = "BHD IQD JOD KWD LYD OMR TND"

EXPONENTS: Final[dict[str, int]] = {
    **dict.fromkeys(_TWO_DECIMALS.split(), 2),
    **dict.fromkeys(_NO_DECIMALS.split(), 0),
    **dict.fromkeys(_THREE_DECIMALS.split(), 3),
}
"""The number of decimals of each currency, by ISO 4217."""


@dataclass(frozen=True, slots=True, order=True)
class Money:
    """An exact amount. Ordered by amount, then by currency."""

    amount_minor: int
    currency: str

    def __str__(self) -> str:
        return f"{format_minor(self.amount_minor, self.currency)} {self.currency}"


@lru_cache(maxsize=4096)
def money(amount: str | int | Decimal, currency: str) -> Money:
    """Exact money from an amount in major units, such as "990.00". Prices repeat: it is cached.

    Raises InvalidMoneyError when the currency is unknown, or when the amount is not a number, is
    negative, too large, or finer than the currency's smallest unit.
    """
    code = known_currency(currency)
    sign, digits, exponent = _numeral(amount).as_tuple()
    assert isinstance(exponent, int)
    if sign and any(digits):
        raise InvalidMoneyError("the amount is negative")
    shift = exponent + EXPONENTS[code]
    coefficient = int("".join(map(str, digits)))
    minor, rest = divmod(coefficient * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    if rest:
        raise InvalidMoneyError(f"the amount is finer than the smallest unit of {code}")
    if minor > MAX_AMOUNT * 10 ** EXPONENTS[code]:
        raise InvalidMoneyError("the amount is too large")
    return Money(minor, code)


def known_currency(currency: str) -> str:
    """The currency's upper-case ISO 4217 code, or InvalidMoneyError."""
    code = currency.upper()
    if not _CODE.fullmatch(currency) or code not in EXPONENTS:
        raise InvalidMoneyError("the currency is not one of ISO 4217")
    return code


def matches(paid: Money, price: Money) -> bool:
    """Whether the same currency was paid to within 0.01 unit (exactly, without decimals)."""
    if paid.currency != price.currency:
        return False
    return abs(paid.amount_minor - price.amount_minor) <= tolerance_minor(price.currency)


def tolerance_minor(currency: str) -> int:
    """0.01 unit in minor units: 1 for RUB, 10 for KWD, 0 for KRW."""
    exponent = EXPONENTS[currency]
    return 10 ** (exponent - 2) if exponent >= 2 else 0


@lru_cache(maxsize=4096)
def format_minor(amount_minor: int, currency: str) -> str:
    """The amount in major units as a decimal string: (99000, "RUB") → "990.00"."""
    exponent = EXPONENTS[currency]
    if exponent == 0:
        return str(amount_minor)
    sign = "-" if amount_minor < 0 else ""
    units, rest = divmod(abs(amount_minor), 10**exponent)
    return f"{sign}{units}.{rest:0{exponent}d}"


def _numeral(amount: str | int | Decimal) -> Decimal:
    """The amount as a number of few digits. Scaling 1e999999 would be expensive."""
    if isinstance(amount, int) and abs(amount) > MAX_AMOUNT:
        raise InvalidMoneyError("the amount is too large")
    text = str(amount)
    if not _NUMERAL.fullmatch(text):
        raise InvalidMoneyError("the amount is not a number")
    return Decimal(text)
