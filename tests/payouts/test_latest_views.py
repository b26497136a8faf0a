"""What is shown of payments, whatever order their events come in."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from paidonce.payouts.model import WalletPaymentStatus as Status
from paidonce.payouts.views import PayoutView, latest_views

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
LIVES = (
    (Status.INITIATED,),
    (Status.INITIATED, Status.PROCESSING),
    (Status.INITIATED, Status.FAILED),
    (Status.INITIATED, Status.PROCESSING, Status.FAILED),
    (Status.INITIATED, Status.PROCESSING, Status.COMPLETED),
    (Status.INITIATED, Status.PROCESSING, Status.FAILED, Status.COMPLETED),
)


def told(payment_id: str, life: tuple[Status, ...], gaps_s: list[int]) -> list[PayoutView]:
    """The events of a payment; some of them at the same instant."""
    at, events = NOW, []
    for version, status in enumerate(life, 1):
        at += timedelta(seconds=gaps_s[version - 1])
        events.append(PayoutView(payment_id, status, "10.00", "RUB", version, at))
    return events


@st.composite
def histories(draw: st.DrawFn) -> list[list[PayoutView]]:
    gaps = st.lists(st.integers(0, 2), min_size=4, max_size=4)
    return [
        told(f"p-{number}", draw(st.sampled_from(LIVES)), draw(gaps))
        for number in range(draw(st.integers(1, 4)))
    ]


@given(data=st.data(), lives=histories())
def test_messages_in_any_order_give_the_latest_view_of_each_payment(
    data: st.DataObject, lives: list[list[PayoutView]]
) -> None:
    """QRY-1: duplicated and shuffled; the last one is what the payment came to."""
    events = [event for life in lives for event in life]
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=10))
    shuffled = data.draw(st.permutations(repeated))
    assert {one.payment_id: one for one in latest_views(shuffled)} == {
        life[-1].payment_id: life[-1] for life in lives
    }


def test_completed_is_final() -> None:
    """QRY-1: S1's COMPLETED that would be INITIATED again."""
    done = PayoutView("p", Status.COMPLETED, "10.00", "RUB", 3, NOW)
    for status in (Status.INITIATED, Status.PROCESSING, Status.FAILED):
        newer = PayoutView("p", status, "10.00", "RUB", 9, NOW + timedelta(days=1))
        assert latest_views([done, newer]) == [done]


def test_a_newer_version_with_an_older_time_is_ignored() -> None:
    """QRY-1: the time of an event guards too."""
    going = PayoutView("p", Status.PROCESSING, "10.00", "RUB", 2, NOW)
    older = PayoutView("p", Status.COMPLETED, "10.00", "RUB", 3, NOW - timedelta(seconds=1))
    assert latest_views([going, older]) == [going]
