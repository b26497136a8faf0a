"""The periods of a subscription follow from its grants, in whatever order refunds arrive."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations
from typing import Final
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.events import EventType, PaymentEvent, PaymentId, Refund
from paidonce.core.facts import Facts, merge, settle_foreign_refunds
from paidonce.core.money import Money
from paidonce.core.orders import Kind
from paidonce.core.plans import Duration
from paidonce.core.refunds import MAX_REFUND_TIMES
from paidonce.core.subscriptions import Grant, Period, next_period, schedule
from tests.core.lives import (
    EMAIL,
    NOW,
    PERIOD,
    PRICE,
    REFERENCE,
    World,
    event_type,
    heard,
    order_of,
    world_with,
)

JANUARY: Final = datetime(2026, 1, 1, tzinfo=UTC)
MONTH: Final = Duration(1, timedelta(0))
DAYS: Final = Duration(0, PERIOD)


def day(number: int) -> datetime:
    return JANUARY + timedelta(days=number)


def grant(number: int, at: datetime, duration: Duration = DAYS, back: int | None = None) -> Grant:
    returned_at = None if back is None else day(back)
    return Grant(PaymentId(UUID(int=number)), at, duration, returned_at)


def periods(*grants: Grant, takes_back_used: bool = False) -> list[tuple[int, int]]:
    """Start and end of each period in days since the first of January."""
    found = schedule(grants, takes_back_used=takes_back_used)
    assert found.last == found.periods[max(grants, key=lambda one: one.at).payment_id]
    ordered = (found.periods[one.payment_id] for one in grants)
    return [((one.start - JANUARY).days, (one.end - JANUARY).days) for one in ordered]


def test_a_refund_of_a_period_that_is_over_takes_nothing_back() -> None:
    """FUL-7: January lapsed, April runs, January's dispute is lost."""
    assert periods(grant(1, day(0), back=100), grant(2, day(90))) == [(0, 30), (90, 120)]


def test_the_unused_part_falls_out_and_later_periods_move_up() -> None:
    """FUL-7"""
    assert periods(grant(1, day(0), back=10), grant(2, day(1))) == [(0, 10), (10, 40)]
    assert periods(grant(1, day(0)), grant(2, day(1), back=10)) == [(0, 30), (30, 30)]
    assert periods(grant(1, day(0)), grant(2, day(1), back=40)) == [(0, 30), (30, 40)]
    assert periods(grant(1, day(0), back=5), grant(2, day(20))) == [(0, 5), (20, 50)]


def test_all_of_a_period_is_taken_back_if_the_settings_say_so() -> None:
    """FUL-7: then the end may be in the past."""
    lapsed = grant(1, day(0), back=100)
    assert periods(lapsed, grant(2, day(10)), takes_back_used=True) == [(0, 0), (10, 40)]


def ends(start: datetime, durations: Sequence[Duration]) -> list[tuple[int, int]]:
    """Month and day of each end, of periods that are all paid at the start."""
    period = Period(start, start, None)
    found = []
    end: datetime | None = None
    for duration in durations:
        period = next_period(end, period.anchor_day, start, duration)
        end = period.end
        found.append((end.month, end.day))
    return found


def test_months_keep_their_anchor_day() -> None:
    """FUL-8: 31 January, 28 February, 31 March, 30 April."""
    start = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert ends(start, [MONTH] * 4) == [(2, 28), (3, 31), (4, 30), (5, 31)]
    leap = datetime(2028, 1, 30, tzinfo=UTC)
    assert ends(leap, [MONTH] * 3) == [(2, 29), (3, 30), (4, 30)]


def test_a_lapse_a_plan_in_days_and_a_refund_set_the_anchor_anew() -> None:
    """FUL-8"""
    start = datetime(2026, 1, 31, tzinfo=UTC)
    assert ends(start, [MONTH, Duration(0, timedelta(days=2)), MONTH]) == [(2, 28), (3, 2), (4, 2)]
    lapsed = next_period(
        datetime(2026, 2, 28, tzinfo=UTC), 31, datetime(2026, 3, 5, tzinfo=UTC), MONTH
    )
    assert (lapsed.end.month, lapsed.end.day, lapsed.anchor_day) == (4, 5, 5)
    first = Grant(PaymentId(UUID(int=1)), start, MONTH, datetime(2026, 2, 10, tzinfo=UTC))
    second = Grant(PaymentId(UUID(int=2)), start, MONTH)
    last = schedule([first, second]).last
    assert (last.end, last.anchor_day) == (datetime(2026, 3, 10, tzinfo=UTC), 10)


grants_of_one = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from([MONTH, DAYS]), st.none() | st.integers(0, 500)),
    min_size=1,
    max_size=8,
)


@given(grants_of_one, st.randoms(use_true_random=False), st.booleans())
def test_a_schedule_has_no_overlap_and_no_order_of_arrival(
    made: list[tuple[int, Duration, int | None]], dice: object, takes_back_used: bool
) -> None:
    """FUL-7"""
    grants = [grant(n, day(at), length, back) for n, (at, length, back) in enumerate(made)]
    found = schedule(grants, takes_back_used=takes_back_used)
    shuffled = list(grants)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert schedule(shuffled, takes_back_used=takes_back_used) == found
    ordered = [
        found.periods[one.payment_id] for one in sorted(grants, key=lambda g: (g.at, g.payment_id))
    ]
    for earlier, later in pairwise(ordered):
        assert earlier.end <= later.start
    for one in grants:
        period = found.periods[one.payment_id]
        assert one.at <= period.start <= period.end
        if one.returned_at is None:
            assert period.end > period.start


def bought(world: World, name: str, after: timedelta) -> World:
    paid = event_type(EventType.PAID, name, amount=PRICE, email=EMAIL)
    return heard(replace(world, now=NOW + after), paid)


def back(name: str, after: timedelta, *, refund_id: str | None = None) -> PaymentEvent:
    event = event_type(EventType.REFUNDED, name)
    if refund_id is None:
        return replace(event, refunded=PRICE, occurred_at=NOW + after)
    half = Money(PRICE.amount_minor // 2, PRICE.currency)
    return replace(event, refund=Refund(refund_id, half), occurred_at=NOW + after)


def period_days(world: World) -> dict[str, tuple[int, int]]:
    found = {}
    for payment in world.payments.values():
        assert payment.period_start is not None
        assert payment.period_end is not None
        name = payment.ids[0].value
        found[name] = ((payment.period_start - NOW).days, (payment.period_end - NOW).days)
    return found


def days(number: float) -> timedelta:
    return timedelta(days=number)


def test_refunds_in_any_order_end_alike() -> None:
    """FUL-7: three payments, two of them refunded; later periods move up."""
    start = world_with()
    for name, after in (("a", days(0)), ("b", days(5)), ("c", days(6))):
        start = bought(start, name, after)
    assert period_days(start) == {"a": (0, 30), "b": (30, 60), "c": (60, 90)}
    start = replace(start, now=NOW + days(70))
    refunds = [
        back("a", days(10)),
        back("b", days(20), refund_id="b1"),
        back("b", days(50), refund_id="b2"),
    ]
    found = []
    for order in permutations(refunds):
        world = start
        for refund in order:
            world = heard(world, refund)
        found.append((period_days(world), world.subscriptions))
    assert all(one == found[0] for one in found)
    assert found[0][0] == {"a": (0, 10), "b": (10, 40), "c": (40, 70)}, "b was used up by then"


def test_a_lost_dispute_of_january_leaves_april_alone() -> None:
    """FUL-7"""
    world = bought(bought(world_with(), "january", days(0)), "april", days(90))
    world = heard(replace(world, now=NOW + days(95)), back("january", days(95)))
    assert period_days(world) == {"january": (0, 30), "april": (90, 120)}
    (subscription,) = world.subscriptions.values()
    assert subscription.current_period_end == NOW + days(120)


def test_a_payment_that_takes_over_has_the_period_of_the_other() -> None:
    """PAY-7 FUL-7: one order, one period, granted when it was granted first."""
    world = world_with(order_of(Kind.SUBSCRIPTION))
    paid = event_type(EventType.PAID, "a", amount=PRICE, order=REFERENCE)
    world = heard(world, paid)
    world = heard(world, replace(paid, ids=event_type(EventType.PAID, "b").ids))
    world = heard(replace(world, now=NOW + days(10)), replace(back("a", days(10)), order=REFERENCE))
    first, second = world.known_as("a"), world.known_as("b")
    assert first is not None
    assert second is not None
    assert (first.subscription_id, second.period_end) == (None, NOW + PERIOD)
    world = heard(replace(world, now=NOW + days(15)), replace(back("b", days(15)), order=REFERENCE))
    (subscription,) = world.subscriptions.values()
    assert subscription.current_period_end == NOW + days(15)


def test_a_refund_that_turns_out_to_be_partial_gives_the_period_back() -> None:
    """PAY-10 FUL-7: as if it had never been refunded."""
    world = bought(bought(world_with(), "a", days(0)), "b", days(1))
    before = period_days(world)
    world = heard(replace(world, now=NOW + days(10)), back("a", days(10)))
    assert period_days(world) == {"a": (0, 10), "b": (10, 40)}
    larger = replace(PRICE, amount_minor=PRICE.amount_minor * 2)
    world = heard(world, event_type(EventType.PAID, "a", amount=larger, email=EMAIL))
    assert period_days(world) == before


def test_the_time_of_the_completing_refund_counts() -> None:
    """FUL-7: also by totals, and with a cancellation before it."""
    facts = Facts(captured=PRICE, paid_at=NOW)
    half = PRICE.amount_minor // 2
    reported = [
        Facts(refund_total_minor=half, refund_times={f"={half}": NOW + days(1)}),
        Facts(
            refund_total_minor=PRICE.amount_minor,
            refund_times={f"={PRICE.amount_minor}": NOW + days(5)},
        ),
        Facts(
            refund_total_minor=PRICE.amount_minor + 1,
            refund_times={f"={PRICE.amount_minor + 1}": NOW + days(9)},
        ),
    ]
    for order in permutations(reported):
        merged = facts
        for one in order:
            merged = merge(merged, one)
        assert merged.returned_at == NOW + days(5)
    canceled = merge(merged, Facts(canceled_at=NOW + days(2)))
    assert canceled.returned_at == NOW + days(2)
    assert facts.returned_at is None


def test_only_some_times_of_refunds_are_remembered() -> None:
    """FUL-7 REC-6: the earliest ones."""
    merged = Facts()
    for number in range(MAX_REFUND_TIMES + 50):
        merged = merge(merged, Facts(refund_times={f"#{number}": NOW - days(number / 100)}))
    assert len(merged.refund_times) == MAX_REFUND_TIMES
    assert min(merged.refund_times.values()) == NOW - days((MAX_REFUND_TIMES + 49) / 100)


def test_marks_of_settled_refunds_do_not_displace_refunds() -> None:
    """PAY-12 REC-6: each has a limit of its own."""
    foreign = {f"EUR#1#{number}": NOW for number in range(MAX_REFUND_TIMES)}
    settled = settle_foreign_refunds(Facts(captured=PRICE, refund_times=foreign))
    earlier = Facts(refund_currency="EUR", refunds={"e": 1}, refund_times={"#e": NOW - days(1)})
    merged = merge(settled, earlier)
    assert merged.has_foreign_refund
    assert len(merged.refund_times) == 2 * MAX_REFUND_TIMES
    assert not settle_foreign_refunds(merged).has_foreign_refund
