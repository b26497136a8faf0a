"""Several payments for one order: one counts, the others are kept until one takes its place."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest

from paidonce.core.events import Code, EventStatus, EventType, PaymentEvent, SourceId
from paidonce.core.facts import PaymentStatus
from paidonce.core.money import Money
from paidonce.core.orders import BookingStatus, Kind, OrderStatus
from tests.core.lives import (
    PERIOD,
    PRICE,
    REFERENCE,
    Lives,
    World,
    event_type,
    given_by,
    heard,
    heard_and_decided,
    names_of,
    order_of,
    world_with,
)

PART: Final = Money(40_000, "RUB")


def paid(name: str, minute: int, amount: Money = PRICE) -> PaymentEvent:
    return event_type(EventType.PAID, name, minute=minute, amount=amount, order=REFERENCE)


def some_back(name: str, minute: int) -> PaymentEvent:
    return event_type(EventType.REFUNDED, name, minute=minute, refunded=PART, order=REFERENCE)


def all_back(name: str, minute: int) -> PaymentEvent:
    return event_type(EventType.REFUNDED, name, minute=minute, refunded=PRICE, order=REFERENCE)


def canceled(name: str, minute: int) -> PaymentEvent:
    return event_type(EventType.CANCELED, name, minute=minute, order=REFERENCE)


TWO: Final = (
    paid("a", 1),
    some_back("a", 3),
    all_back("a", 5),
    canceled("a", 7),
    paid("b", 2),
    some_back("b", 4),
    all_back("b", 6),
    canceled("b", 8),
)
THREE: Final = (
    paid("a", 1),
    all_back("a", 4),
    paid("b", 2),
    canceled("b", 5),
    paid("c", 3),
    some_back("c", 6),
    all_back("c", 7),
)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("events", [TWO, THREE], ids=["two", "three"])
def test_in_every_order_one_payment_pays_the_order_and_the_others_are_listed(
    kind: Kind, events: Sequence[PaymentEvent], request: pytest.FixtureRequest
) -> None:
    """PAY-7 PAY-2 FUL-4: refunds and cancellations of each, before and after their payments."""
    most = 7 if request.config.getoption("--soak") else 5
    for hook_event, ends in Lives(world_with(order_of(kind))).ends(events, most):
        for world in ends:
            check_rivals(world, kind, hook_event)
        told = {given_by(world).order for world in ends}
        if (given_by(ends[0]).order or ())[0] is not OrderStatus.PAID:
            assert len(told) == 1, names_of(hook_event)


def check_rivals(world: World, kind: Kind, hook_event: Sequence[PaymentEvent]) -> None:
    """What PAY-7 says of the order and each of its payments."""
    words = names_of(hook_event)
    status, counting = world.orders[REFERENCE].status, world.counting()
    holding = set(_holding(hook_event))
    assert (status is OrderStatus.PAID) == bool(holding), words
    for payment in world.payments.values():
        name = payment.ids[0].value
        is_left_over = name in holding and payment != counting
        is_missing = payment.facts.captured is None and payment.facts.refunded_minor > 0
        is_missing |= payment.facts.captured is None and payment.facts.canceled_at is not None
        expected = Code.DUPLICATE_PAYMENT if is_left_over else None
        assert payment.review == (Code.PAYMENT_MISSING if is_missing else expected), words
    given = given_by(world)
    is_subscribed = bool(holding) and kind is Kind.SUBSCRIPTION
    assert given.days == (PERIOD if is_subscribed else timedelta(0)), words
    left = counting.facts.captured_minor - counting.facts.refunded_minor if counting else 0
    assert given.wallet_minor == (left if kind is Kind.WALLET else 0), words
    if kind is Kind.BOOKING:
        assert (given.booking is BookingStatus.CONFIRMED) == bool(holding), words
    if not holding:
        assert status in _ends_of(world), words


def _holding(hook_event: Sequence[PaymentEvent]) -> list[str]:
    came = {event.ids[0].value for event in hook_event if event.event_type is EventType.PAID}
    went = {
        event.ids[0].value
        for event in hook_event
        if event.event_type is EventType.CANCELED or event.refunded == PRICE
    }
    return sorted(came - went)


def _ends_of(world: World) -> set[OrderStatus]:
    """What an order may be that nobody's money pays: what became of the money that came."""
    words = {
        PaymentStatus.REFUNDED: OrderStatus.REFUNDED,
        PaymentStatus.CANCELED: OrderStatus.CANCELED,
    }
    paid_ones = [one for one in world.payments.values() if one.facts.captured_minor]
    return {words[one.facts.status] for one in paid_ones} or {OrderStatus.PENDING}


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("back", [all_back("a", 5), canceled("a", 5)], ids=["refund", "cancel"])
def test_when_the_paying_payment_is_refunded_another_takes_its_place(
    kind: Kind, back: PaymentEvent
) -> None:
    """PAY-7: nothing is reversed; and only the last refund takes anything back."""
    world = heard(world_with(order_of(kind)), paid("a", 1))
    before = given_by(world)
    fulfilled_at = world.orders[REFERENCE].fulfilled_at
    world, decision = heard_and_decided(world, paid("b", 2))
    assert decision.outcome.code is Code.DUPLICATE_PAYMENT
    assert not decision.has_applied
    world = heard(replace(world, now=world.now + timedelta(days=1)), back)
    order, counting = world.orders[REFERENCE], world.counting()
    assert counting is not None
    assert counting.ids[0].value == "b"
    assert counting.review is None
    assert order.fulfilled_at == fulfilled_at
    assert order.reversed_at is None
    after = given_by(replace(world, now=world.now - timedelta(days=1)))
    assert (after.days, after.booking, after.wallet_minor) == (
        before.days,
        before.booking,
        before.wallet_minor,
    )
    world = heard(world, all_back("b", 9))
    assert world.orders[REFERENCE].status is not OrderStatus.PAID
    assert given_by(world).days == timedelta(0)
    assert given_by(world).wallet_minor == 0


def test_a_second_payment_is_neither_lost_nor_retried_for_ever() -> None:
    """PAY-7: its event is finished, its money is on the list."""
    world = heard(world_with(order_of(Kind.ORDER)), paid("a", 1))
    world, decision = heard_and_decided(world, paid("b", 2))
    assert decision.outcome.status in (EventStatus.FAILED_FINAL, EventStatus.PROCESSED)
    second = world.known_as("b")
    assert second is not None
    assert (second.applied_at, second.review) == (None, Code.DUPLICATE_PAYMENT)
    assert second.has_funds


MISFITS: Final = {
    "another sum": (paid("b", 2, Money(1, "RUB")), SourceId(1), Code.AMOUNT_MISMATCH),
    "another currency": (paid("b", 2, Money(99_000, "USD")), SourceId(1), Code.CURRENCY_MISMATCH),
    "another source": (paid("b", 2), SourceId(2), None),
}


@pytest.mark.parametrize(("misfit", "source", "code"), MISFITS.values(), ids=MISFITS.keys())
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_mismatching_payment_never_takes_the_place(
    misfit: PaymentEvent, source: SourceId, code: Code | None, first: bool
) -> None:
    """PAY-4 PAY-7: nor does it stand in the way of what fits."""
    world = world_with(order_of(Kind.BOOKING, sources=(SourceId(1),)))
    events = [(paid("a", 1), SourceId(1)), (misfit, source)]
    for event, by in events[::-1] if first else events:
        world, _ = heard_and_decided(world, event, source=by)
    other = world.known_as("b")
    assert other is not None
    assert (other.applied_at, world.orders[REFERENCE].status) == (None, OrderStatus.PAID)
    assert other.review is not None
    assert code in (None, other.review)
    world = heard(world, all_back("a", 5))
    assert world.orders[REFERENCE].status is OrderStatus.REFUNDED
    assert given_by(world).booking is BookingStatus.CANCELED
