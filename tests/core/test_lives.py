"""Every order of arrival of a payment's life ends alike: payment, order, and what was given."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pytest

from paidonce.core.events import Code, EventType, PaymentEvent, Refund
from paidonce.core.facts import PaymentStatus
from paidonce.core.money import Money
from paidonce.core.orders import BookingStatus, Kind, OrderStatus
from tests.core.lives import (
    EMAIL,
    PERIOD,
    PRICE,
    REFERENCE,
    Given,
    Lives,
    World,
    event_type,
    given_by,
    heard,
    is_in_effect,
    names_of,
    order_of,
    status_of,
    world_with,
)

MOST: Final = 6
PART: Final = Money(30_000, "RUB")
LARGER_PART: Final = Money(40_000, "RUB")

LIFE: Final = (
    event_type(EventType.PENDING, minute=0),
    event_type(EventType.PAID, minute=1, amount=PRICE),
    event_type(EventType.FAILED, minute=2),
    event_type(EventType.VOIDED, minute=3),
    event_type(EventType.CANCELED, minute=4),
    event_type(EventType.REFUNDED, minute=5, refunded=PART),
    event_type(EventType.REFUNDED, minute=6, refund=Refund("r-1", LARGER_PART)),
    event_type(EventType.REFUNDED, minute=7, refund=Refund("r-2", LARGER_PART)),
    event_type(EventType.REFUNDED, minute=8, refunded=PRICE),
)


@dataclass(frozen=True)
class Way:
    """One way in which a payment finds what it is for."""

    world: World
    life: tuple[PaymentEvent, ...]
    kind: Kind | None  # None: no order, the e-mail tells whose it is


def told(event: PaymentEvent, **more: object) -> PaymentEvent:
    return replace(event, **more)  # type: ignore[arg-type]


FOR_ORDER: Final = tuple(told(event, order=REFERENCE) for event in LIFE)
ONLY_PAID_NAMES_IT: Final = tuple(
    told(event, order=REFERENCE if event.event_type is EventType.PAID else None) for event in LIFE
)
REFUND_TELLS_ALL: Final = tuple(
    told(event, amount=PRICE) if event.refunded == PRICE or event.refund else event
    for event in FOR_ORDER
    if event.event_type is not EventType.PENDING
)
"""Some gateways tell on a refund what was captured: then it says that there was a payment."""

WAYS: Final = {
    **{kind.value: Way(world_with(order_of(kind)), FOR_ORDER, kind) for kind in Kind},
    "subscription of an address": Way(
        world_with(order_of(Kind.SUBSCRIPTION, user_id=None, email=EMAIL)),
        FOR_ORDER,
        Kind.SUBSCRIPTION,
    ),
    "only paid names the order": Way(
        world_with(order_of(Kind.BOOKING)), ONLY_PAID_NAMES_IT, Kind.BOOKING
    ),
    "refunds tell of the payment": Way(
        world_with(order_of(Kind.WALLET)), REFUND_TELLS_ALL, Kind.WALLET
    ),
    "by e-mail": Way(world_with(), tuple(told(event, email=EMAIL) for event in LIFE), None),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_order_of_up_to_six_events_ends_alike(way: Way) -> None:
    """PAY-2 PAY-3 PAY-6 FUL-1 FUL-2 FUL-3 FUL-4 REL-1: all of them, duplicates too."""
    seen = 0
    for events, ends in Lives(way.world).ends(way.life, MOST):
        found = [observed(world) for world in ends]
        assert all(one == found[0] for one in found), names_of(events)
        assert found[0] == expected(way, events), names_of(events)
        seen += 1
    assert seen > 3_000


@dataclass(frozen=True)
class Observed:
    """A payment's row as far as it counts, and what it gives."""

    status: PaymentStatus
    captured_minor: int
    refunded_minor: int
    times: tuple[object, ...]
    is_in_effect: bool
    review: object
    given: Given


def observed(world: World) -> Observed:
    payment = world.known_as("p-1")
    assert payment is not None
    facts = payment.facts
    times = (facts.paid_at, facts.failed_at, facts.voided_at, facts.canceled_at, facts.refunded_at)
    return Observed(
        facts.status,
        facts.captured_minor,
        facts.refunded_minor,
        times,
        is_in_effect(world, payment),
        payment.review,
        given_by(world),
    )


def expected(way: Way, events: Sequence[PaymentEvent]) -> Observed:
    """What the specification says of these events, in whatever order."""
    said = {event.event_type for event in events}
    is_paid = any(event.amount is not None for event in events)
    refunds = {
        event.refund.id: event.refund.amount.amount_minor for event in events if event.refund
    }
    totals = [event.refunded.amount_minor for event in events if event.refunded]
    captured = PRICE.amount_minor if is_paid else 0
    refunded = max([sum(refunds.values()), *totals])
    status = status_of(captured, refunded, said)
    times = (
        earliest(event for event in events if event.amount),
        *(earliest(one for one in events if one.event_type is what) for what in _TIMED),
    )
    paid_at, _, _, canceled_at, refunded_at = times
    holds = captured > refunded and EventType.CANCELED not in said
    order_status = {
        PaymentStatus.SUCCEEDED: OrderStatus.PAID,
        PaymentStatus.PARTIALLY_REFUNDED: OrderStatus.PAID,
        PaymentStatus.REFUNDED: OrderStatus.REFUNDED,
        PaymentStatus.CANCELED: OrderStatus.CANCELED if captured else OrderStatus.PENDING,
    }.get(status, OrderStatus.PENDING)
    order = (
        order_status,
        paid_at,
        canceled_at if order_status is OrderStatus.CANCELED else None,
        refunded_at if order_status is OrderStatus.REFUNDED else None,
    )
    booking = {
        OrderStatus.PAID: BookingStatus.CONFIRMED,
        OrderStatus.PENDING: BookingStatus.PENDING,
    }.get(order_status, BookingStatus.CANCELED)
    subscribed = way.kind in (Kind.SUBSCRIPTION, None)
    given = Given(
        order if way.kind else None,
        booking if way.kind is Kind.BOOKING else None,
        PERIOD if subscribed and holds else timedelta(0),
        captured - refunded if way.kind is Kind.WALLET and holds else 0,
    )
    is_missing = captured == 0 and (refunded > 0 or EventType.CANCELED in said)
    review = Code.PAYMENT_MISSING if is_missing else None
    return Observed(status, captured, refunded, times, holds, review, given)


_TIMED: Final = (EventType.FAILED, EventType.VOIDED, EventType.CANCELED, EventType.REFUNDED)


def earliest(events: Iterable[PaymentEvent]) -> datetime | None:
    return min((event.occurred_at for event in events if event.occurred_at), default=None)


def test_what_is_kept_on_refund_is_not_reversed() -> None:
    """FUL-4: the order is refunded all the same."""
    paid, refunded = FOR_ORDER[1], FOR_ORDER[-1]
    for kept, booking in (
        (frozenset({Kind.BOOKING}), BookingStatus.CONFIRMED),
        (frozenset({Kind.WALLET}), BookingStatus.CANCELED),
    ):
        world = world_with(order_of(Kind.BOOKING), kept=kept)
        world = heard(heard(world, paid), refunded)
        assert world.orders[REFERENCE].status is OrderStatus.REFUNDED
        assert given_by(world).booking is booking


def test_a_subscription_that_was_longer_loses_only_what_the_payment_granted() -> None:
    """FUL-4"""
    by_mail = WAYS["by e-mail"].life[1]
    world = heard(world_with(order_of(Kind.SUBSCRIPTION)), by_mail)
    other = told(FOR_ORDER[1], ids=event_type(EventType.PAID, "p-2").ids)
    world = heard(world, other)
    assert given_by(world).days == 2 * PERIOD
    back = told(other, event_type=EventType.REFUNDED, amount=None, refunded=PRICE)
    assert given_by(heard(world, back)).days == PERIOD


def test_an_uncovered_debit_is_receivable_until_the_next_credit() -> None:
    """FUL-4: never negative."""
    world = heard(world_with(order_of(Kind.WALLET), order_of(Kind.WALLET, "order-2")), FOR_ORDER[1])
    ((wallet_id, wallet),) = world.wallets.items()
    spent = replace(wallet, balance_minor=10_000)
    accounts = {**world.accounts, f"wallet:{wallet_id}": 10_000}
    world = replace(world, wallets={wallet_id: spent}, accounts=accounts)
    world = heard(world, FOR_ORDER[-1])
    (wallet,) = world.wallets.values()
    assert (wallet.balance_minor, wallet.receivable_minor) == (0, 89_000)
    world = heard(world, event_type(EventType.PAID, "p-2", amount=PRICE, order="order-2"))
    (wallet,) = world.wallets.values()
    assert (wallet.balance_minor, wallet.receivable_minor) == (10_000, 0)
