"""One current period, that each payment makes longer."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import SubscriptionId, UserId
from paidonce.core.money import Money
from paidonce.core.plans import Plan
from paidonce.core.subscriptions import Subscription, SubscriptionStatus, extend_subscription

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
PLAN = Plan("monthly", Money(99_000, "RUB"), "default", 30, 0, True, NOW)
DAYS = st.integers(-4000, 4000).map(lambda days: timedelta(days=days))


def subscription(
    end: datetime | None, status: SubscriptionStatus = SubscriptionStatus.ACTIVE
) -> Subscription:
    return Subscription(
        SubscriptionId(UUID(int=1)), UserId(UUID(int=2)), "default", status, end, version=3
    )


def test_a_running_period_is_extended_from_its_end() -> None:
    """FUL-1"""
    end = NOW + timedelta(days=10)
    longer, start = extend_subscription(subscription(end), PLAN, NOW)
    assert (start, longer.current_period_end) == (end, end + timedelta(days=30))


def test_a_period_that_is_over_starts_again_now() -> None:
    """FUL-1"""
    longer, start = extend_subscription(subscription(NOW - timedelta(days=10)), PLAN, NOW)
    assert (start, longer.current_period_end) == (NOW, NOW + timedelta(days=30))


def test_a_first_period_starts_now_and_is_active() -> None:
    """FUL-1"""
    longer, start = extend_subscription(subscription(None, SubscriptionStatus.INACTIVE), PLAN, NOW)
    assert (start, longer.current_period_end) == (NOW, NOW + timedelta(days=30))
    assert longer.status is SubscriptionStatus.ACTIVE
    assert longer.version == 3


@given(
    st.none() | DAYS, st.sampled_from(SubscriptionStatus), st.integers(0, 400), st.integers(0, 36)
)
def test_a_payment_never_makes_a_subscription_shorter(
    end: timedelta | None, status: SubscriptionStatus, days: int, months: int
) -> None:
    """FUL-1"""
    plan = Plan("any", Money(1, "RUB"), "default", days, months, True, NOW)
    before = subscription(None if end is None else NOW + end, status)
    longer, start = extend_subscription(before, plan, NOW)
    assert longer.current_period_end is not None
    assert start == max(before.current_period_end or NOW, NOW)
    assert longer.current_period_end >= start >= NOW
    assert longer.current_period_end - start >= timedelta(days=days + 28 * months)
