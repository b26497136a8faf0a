"""Comparing a gateway's entry with stored facts: only additional facts can be repaired."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import EventType, ExternalId, PaymentEvent
from paidonce.core.facts import Facts, facts_from_event, merge
from paidonce.core.money import Money
from paidonce.reconciliation.model import ComparisonCounts, CurrencyTotals, Difference, compare

NOW: Final = datetime(2026, 11, 16, tzinfo=UTC)
IDS: Final = (ExternalId("payment", "p"),)


def reported(
    captured: int, refunded: int = 0, event_type: EventType = EventType.PAID, **fields: Any
) -> PaymentEvent:
    event = PaymentEvent(
        event_type=event_type,
        ids=IDS,
        amount=Money(captured, "KRW") if captured else None,
        refunded=Money(refunded, "KRW") if refunded else None,
    )
    return replace(event, **fields)


def recorded(captured: int, refunded: int = 0, **fields: Any) -> Facts:
    money = Money(captured, "KRW") if captured else None
    return replace(Facts(captured=money, refund_total_minor=refunded), **fields)


@pytest.mark.parametrize(
    ("here", "there", "difference"),
    [
        (recorded(100), reported(100), None),
        (recorded(100, 30), reported(100, 30, EventType.REFUNDED), None),
        (recorded(100), reported(120), Difference.BEHIND),
        (recorded(100), reported(100, 30, EventType.REFUNDED), Difference.BEHIND),
        (recorded(100), reported(100, 100, EventType.CANCELED), Difference.BEHIND),
        (recorded(0, failed_at=NOW), reported(100), Difference.BEHIND),
        (recorded(120), reported(100), Difference.DIFFERS),
        (recorded(100, 30), reported(100), Difference.DIFFERS),
        (recorded(100, canceled_at=NOW), reported(100), Difference.DIFFERS),
        (recorded(100), reported(0, event_type=EventType.FAILED), Difference.DIFFERS),
        (recorded(100, 30), reported(120), Difference.DIFFERS),
        (recorded(100), reported(0, amount=Money(100, "USD")), Difference.DIFFERS),
        (recorded(0), reported(0, event_type=EventType.PENDING), None),
        (None, reported(100), Difference.MISSING_HERE),
        (None, reported(0, event_type=EventType.VOIDED), None),
        (recorded(100), None, Difference.MISSING_THERE),
        (recorded(0), None, None),
    ],
)
def test_each_kind_of_difference(
    here: Facts | None, there: PaymentEvent | None, difference: Difference | None
) -> None:
    """PAY-9"""
    assert compare(here, there, NOW) is difference


AMOUNTS = st.integers(0, 3)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, st.booleans())
def test_only_payments_that_are_behind_agree_after_a_repair(
    captured: int, refunded: int, reported_captured: int, reported_refunded: int, is_canceled: bool
) -> None:
    """PAY-2 PAY-9: which is why it is repaired, and the rest is left to a person."""
    here = recorded(captured, refunded)
    there = reported(
        reported_captured,
        reported_refunded,
        EventType.CANCELED if is_canceled else EventType.REFUNDED,
    )
    difference = compare(here, there, NOW)
    after = compare(merge(here, facts_from_event(there, NOW)), there, NOW)
    assert (after is None) == (difference in (None, Difference.BEHIND))


def test_money_is_explained_by_stored_payments_of_the_same_amount() -> None:
    """PAY-9"""
    counts = ComparisonCounts()
    for amount in (100, 300):
        counts.add_reported(reported(amount))
    counts.add_agreed(reported(100))
    counts.add_agreed(None)
    totals = counts.totals["KRW"]
    assert (counts.compared, counts.agreed) == (2, 2)
    assert (totals.reported_minor, totals.explained_minor, totals.explained_percent) == (
        400,
        100,
        25.0,
    )
    assert CurrencyTotals().explained_percent == 100.0
