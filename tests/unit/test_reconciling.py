"""What a gateway says, held against what is known: only what it says beyond can be repaired."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.domain.events import ExternalId, PaymentEvent, Says
from paidonce.domain.money import Money
from paidonce.domain.payments import Facts, facts_of, merge
from paidonce.domain.reconciling import Finding, Sums, Tally, compare

NOW: Final = datetime(2026, 11, 16, tzinfo=UTC)
IDS: Final = (ExternalId("payment", "p"),)


def told(captured: int, refunded: int = 0, says: Says = Says.PAID, **said: Any) -> PaymentEvent:
    event = PaymentEvent(
        says=says,
        ids=IDS,
        amount=Money(captured, "KRW") if captured else None,
        refunded=Money(refunded, "KRW") if refunded else None,
    )
    return replace(event, **said)


def known(captured: int, refunded: int = 0, **said: Any) -> Facts:
    money = Money(captured, "KRW") if captured else None
    return replace(Facts(captured=money, refund_total_minor=refunded), **said)


@pytest.mark.parametrize(
    ("here", "there", "finding"),
    [
        (known(100), told(100), None),
        (known(100, 30), told(100, 30, Says.REFUNDED), None),
        (known(100), told(120), Finding.BEHIND),
        (known(100), told(100, 30, Says.REFUNDED), Finding.BEHIND),
        (known(100), told(100, 100, Says.CANCELED), Finding.BEHIND),
        (known(0, failed_at=NOW), told(100), Finding.BEHIND),
        (known(120), told(100), Finding.DIFFERS),
        (known(100, 30), told(100), Finding.DIFFERS),
        (known(100, canceled_at=NOW), told(100), Finding.DIFFERS),
        (known(100), told(0, says=Says.FAILED), Finding.DIFFERS),
        (known(100, 30), told(120), Finding.DIFFERS),
        (known(100), told(0, amount=Money(100, "USD")), Finding.DIFFERS),
        (known(0), told(0, says=Says.PENDING), None),
        (None, told(100), Finding.MISSING_HERE),
        (None, told(0, says=Says.VOIDED), None),
        (known(100), None, Finding.MISSING_THERE),
        (known(0), None, None),
    ],
)
def test_each_way_in_which_the_two_do_not_agree(
    here: Facts | None, there: PaymentEvent | None, finding: Finding | None
) -> None:
    """PAY-9"""
    assert compare(here, there, NOW) is finding


AMOUNTS = st.integers(0, 3)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, st.booleans())
def test_what_is_behind_agrees_once_it_was_told_and_nothing_else_ever_does(
    captured: int, refunded: int, said: int, said_back: int, is_canceled: bool
) -> None:
    """PAY-2 PAY-9: which is why it is repaired, and the rest is left to a person."""
    here = known(captured, refunded)
    there = told(said, said_back, Says.CANCELED if is_canceled else Says.REFUNDED)
    finding = compare(here, there, NOW)
    after = compare(merge(here, facts_of(there, NOW)), there, NOW)
    assert (after is None) == (finding in (None, Finding.BEHIND))


def test_money_is_explained_by_what_is_here_with_the_same_amount() -> None:
    """PAY-9"""
    tally = Tally()
    for amount in (100, 300):
        tally.report(told(amount))
    tally.agree(told(100))
    tally.agree(None)
    sums = tally.sums["KRW"]
    assert (tally.compared, tally.agreed) == (2, 2)
    assert (sums.reported_minor, sums.explained_minor, sums.explained_percent) == (400, 100, 25.0)
    assert Sums().explained_percent == 100.0
