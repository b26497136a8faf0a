"""What is sold: prices of the past, durations, the default plan."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.money import Money
from paidonce.core.plans import Plan, plan_book

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
JUNE = datetime(2026, 6, 1, tzinfo=UTC)


def plan(
    plan_id: str = "monthly",
    price_minor: int = 99_000,
    *,
    days: int = 30,
    months: int = 0,
    is_default: bool = False,
    valid_from: datetime = JANUARY,
    valid_until: datetime | None = None,
) -> Plan:
    price = Money(price_minor, "RUB")
    return Plan(plan_id, price, "default", days, months, is_default, valid_from, valid_until)


def monthly(months: int) -> Plan:
    return plan(days=0, months=months)


@pytest.mark.parametrize(
    ("start", "months", "end"),
    [
        ("2026-01-31", 1, "2026-02-28"),
        ("2028-01-31", 1, "2028-02-29"),
        ("2028-02-29", 12, "2029-02-28"),
        ("2028-02-29", 48, "2032-02-29"),
        ("2100-01-31", 1, "2100-02-28"),
        ("2026-12-31", 1, "2027-01-31"),
        ("2026-11-30", 1, "2026-12-30"),
        ("2026-12-15", 12, "2027-12-15"),
        ("2026-03-31", 1, "2026-04-30"),
        ("2026-10-31", 4, "2027-02-28"),
    ],
)
def test_a_calendar_month_ends_on_the_same_day_or_the_last(
    start: str, months: int, end: str
) -> None:
    """FUL-1"""
    at = datetime.fromisoformat(f"{start}T13:14:15+00:00")
    assert monthly(months).duration.extend(at, at.day) == datetime.fromisoformat(
        f"{end}T13:14:15+00:00"
    )


@given(
    st.integers(0, 73_000).map(lambda days: JANUARY + timedelta(days=days, seconds=days)),
    st.integers(1, 120),
)
def test_months_always_move_forward_by_about_their_length(start: datetime, months: int) -> None:
    """FUL-1"""
    end = monthly(months).duration.extend(start, start.day)
    moved = (end.year - start.year) * 12 + end.month - start.month
    assert moved == months
    assert end.time() == start.time()
    assert end.day == start.day or (end + timedelta(days=1)).day == 1


def test_days_are_counted_exactly() -> None:
    """FUL-1"""
    assert plan(days=30).duration.extend(JANUARY, 1) == JANUARY + timedelta(days=30)


def test_the_price_is_the_one_that_was_valid_when_paid() -> None:
    """PAY-4"""
    book = plan_book([plan(price_minor=120_000, valid_from=JUNE), plan()])
    instant = timedelta(microseconds=1)
    found = {
        when: book.find("monthly", when) for when in (JANUARY, JUNE - instant, JUNE, JUNE + instant)
    }
    prices = [one.price.amount_minor if one else None for one in found.values()]
    assert prices == [99_000, 99_000, 120_000, 120_000]


def test_a_payment_before_the_first_price_has_the_first_price() -> None:
    """PAY-4"""
    book = plan_book([plan(price_minor=120_000, valid_from=JUNE), plan()])
    found = book.find("monthly", JANUARY - timedelta(days=365))
    assert found is not None
    assert found.price.amount_minor == 99_000


def test_no_plan_means_the_default_one_and_an_unknown_one_means_none() -> None:
    """PAY-4: an unknown plan is never the default one."""
    book = plan_book([plan(), plan("yearly", is_default=True)])
    default = book.find(None, JUNE)
    assert default is not None
    assert default.id == "yearly"
    assert book.find("weekly", JUNE) is None
    assert book.find("", JUNE) is None


def test_without_a_default_plan_nothing_is_found_for_no_plan() -> None:
    """PAY-4"""
    assert plan_book([plan()]).find(None, JUNE) is None
    assert plan_book([]).find(None, JUNE) is None


def test_a_plan_that_is_not_on_sale_any_more_is_unknown_for_later_payments() -> None:
    """PAY-4: what was paid while it was sold has its price."""
    book = plan_book([plan(), plan("old", is_default=True, valid_until=JUNE)])
    instant = timedelta(microseconds=1)
    for plan_id in ("old", None):
        assert book.find(plan_id, JUNE) is None
        found = book.find(plan_id, JUNE - instant)
        assert found is not None
        assert found.id == "old"
        assert book.on_sale(plan_id) is None


def test_a_payment_without_a_plan_has_the_default_one_of_its_time() -> None:
    """FUL-1 PAY-4: or the first one after it."""
    versions = [
        plan("a", valid_from=JANUARY - timedelta(days=9), valid_until=JANUARY),
        plan("a", is_default=True, valid_until=JUNE),
        plan("a", valid_from=JUNE),
        plan("b", valid_until=JUNE),
        plan("b", is_default=True, valid_from=JUNE),
    ]
    book = plan_book(versions)
    days = (JANUARY - timedelta(days=5), JANUARY, JUNE - timedelta(days=1), JUNE)
    found = [book.find(None, at) for at in days]
    assert [one and one.id for one in found] == ["a", "a", "a", "b"]
    on_sale = book.on_sale(None)
    assert on_sale is not None
    assert on_sale.id == "b"
