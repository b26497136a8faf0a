"""Money that is known only from deliveries that came too late is listed, and never applied."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations
from typing import Final

import pytest

from paidonce.core.events import Code, EventType, ExternalId, PaymentEvent, Refund
from paidonce.core.money import Money
from paidonce.core.orders import Kind, OrderStatus
from paidonce.core.payments import Payment
from paidonce.processing.items import Link, apply_link
from paidonce.reconciliation.model import Difference, compare
from tests.core.lives import (
    EMAIL,
    NOW,
    PRICE,
    REFERENCE,
    USER,
    World,
    accepted,
    event_type,
    given_by,
    heard,
    order_of,
    revisited,
    with_order,
    with_order_closed,
    with_user,
    world_with,
)

MOST: Final = 4
PAID: Final = event_type(EventType.PAID, minute=1, amount=PRICE, email=EMAIL)
PENDING: Final = event_type(EventType.PENDING, minute=0, email=EMAIL)
FAILED: Final = event_type(EventType.FAILED, minute=2, email=EMAIL)
SOME_BACK: Final = event_type(
    EventType.REFUNDED, minute=3, refund=Refund("r-1", Money(1_000, "RUB"))
)


@dataclass(frozen=True)
class Told:
    """An event, and whether it came in time."""

    event: PaymentEvent
    is_expired: bool = False


def after(world: World, told: Sequence[Told]) -> World:
    for one in told:
        world = heard(world, one.event, is_expired=one.is_expired)
    return world


def money(world: World, name: str = "p-1") -> Payment:
    payment = world.known_as(name)
    assert payment is not None
    return payment


def seen(world: World) -> tuple[object, ...]:
    """What counts of the payment, and what it gives."""
    payment, given = money(world), given_by(world)
    return (payment.facts, payment.review, payment.applied_at, payment.reversed_minor, given)


def multisets(alphabet: Sequence[Told]) -> Iterator[tuple[Told, ...]]:
    for size in range(1, MOST + 1):
        yield from combinations_with_replacement(alphabet, size)


TO_ORDER: Final = world_with(order_of(Kind.ORDER))
WAYS: Final = {
    "by e-mail": (world_with(), None),
    "for an order": (TO_ORDER, REFERENCE),
    "for a wallet": (world_with(order_of(Kind.WALLET)), REFERENCE),
}


@pytest.mark.parametrize(("world", "order"), WAYS.values(), ids=WAYS.keys())
def test_every_order_of_arrival_ends_alike_and_expired_money_alone_is_not_applied(
    world: World, order: str | None
) -> None:
    """PRV-8 PAY-2 PAY-3: in time or too late, mixed, and any number of times."""
    late, in_time = Told(replace(PAID, order=order), True), Told(replace(PAID, order=order))
    others = [Told(replace(one, order=order)) for one in (PENDING, FAILED, SOME_BACK)]
    for told in multisets([late, in_time, *others]):
        ends = [seen(after(world, one)) for one in set(permutations(told))]
        assert all(end == ends[0] for end in ends), told
        payment = money(after(world, told))
        assert (payment.applied_at is not None) == (in_time in told)
        assert payment.facts.is_expired == (late in told and in_time not in told)
        is_late = payment.facts.is_expired
        assert (payment.review is Code.TIMESTAMP_EXPIRED) == is_late


def test_an_expired_capture_is_not_applied_by_a_user_an_order_or_a_merge() -> None:
    """PRV-8 PAY-5: whatever is created or said later, what is known is still too late."""
    world = after(World(), [Told(replace(PAID, order=REFERENCE), True)])
    assert money(world).review is Code.TIMESTAMP_EXPIRED
    world = with_order(world, order_of(Kind.ORDER))
    assert money(world).review is Code.TIMESTAMP_EXPIRED
    linked = apply_link(world.state(), money(world), Link(order=REFERENCE), world.now)
    assert money(revisited(world, linked)).review is Code.TIMESTAMP_EXPIRED
    assert world.orders[REFERENCE].status is OrderStatus.PENDING
    world = after(World(), [Told(PAID, True)])
    world = with_user(world, EMAIL, USER)
    assert (money(world).applied_at, money(world).user_id) == (None, USER)
    assert not world.subscriptions


def test_an_accepted_expired_capture_is_applied() -> None:
    """PRV-8 PAY-7: he answers for it. Without its user it waits for one as any other."""
    world = after(world_with(), [Told(PAID, True)])
    done = accepted(world, money(world))
    assert money(done).applied_at is not None
    assert given_by(after(done, [Told(PAID, True)])) == given_by(done) != given_by(world)
    world = after(World(), [Told(PAID, True)])
    world = accepted(world, money(world))
    assert money(world).review is Code.USER_MISSING
    assert money(with_user(world, EMAIL, USER)).applied_at is not None


@pytest.mark.parametrize(
    "other_sum", [Money(1, "RUB"), Money(999_000, "RUB"), Money(1, "USD")], ids=str
)
def test_an_expired_amount_does_not_count_beside_one_in_time(other_sum: Money) -> None:
    """PRV-8 PAY-4: neither does it spoil what is right, nor mend what is wrong."""
    right, wrong = Told(PAID), Told(replace(PAID, amount=other_sum))
    for first, second in permutations([right, replace(wrong, is_expired=True)]):
        payment = money(after(world_with(), [first, second]))
        assert (payment.facts.captured, payment.review) == (PRICE, None)
        assert payment.applied_at is not None
    for first, second in permutations([replace(right, is_expired=True), wrong]):
        world = after(world_with(), [first, second])
        assert money(world).facts.captured == other_sum
        world = revisited(world, money(world))
        assert money(world).applied_at is None
        assert money(world).review in (Code.AMOUNT_MISMATCH, Code.CURRENCY_MISMATCH)


def test_an_expired_capture_does_not_replace_a_returned_payment() -> None:
    """PRV-8 PAY-7"""
    first = replace(PAID, order=REFERENCE)
    second = replace(first, ids=(ExternalId("payment", "p-2"),))
    world = after(TO_ORDER, [Told(first), Told(second, True)])
    all_back = event_type(EventType.REFUNDED, minute=9, refunded=PRICE)
    world = after(world, [Told(all_back)])
    assert world.orders[REFERENCE].status is OrderStatus.REFUNDED
    assert money(world, "p-2").applied_at is None
    assert money(after(world, [Told(second)]), "p-2").applied_at is not None


def test_an_expired_delivery_adds_nothing_to_a_timely_capture() -> None:
    """PRV-8 PAY-1 PAY-5: neither another name, nor what it is for, nor that it is contested."""
    nameless = replace(PAID, email=None)
    late = replace(PAID, ids=(*PAID.ids, ExternalId("payment", "p-2")), order="another")
    world = after(world_with(), [Told(nameless)])
    assert after(world, [Told(late, True)]).payments == world.payments


def test_merged_expired_payments_stay_expired() -> None:
    """PRV-8 PAY-1"""
    charge = ExternalId("payment", "p-2")
    both = replace(PENDING, ids=(*PAID.ids, charge))
    told = [Told(PAID, True), Told(replace(PAID, ids=(charge,)), True), Told(both)]
    for order in permutations(told):
        world = after(world_with(), order)
        assert money(world) == money(world, "p-2")
        assert money(world).review is Code.TIMESTAMP_EXPIRED
        applied = after(world, [Told(PAID)])
        assert money(applied).applied_at is not None
        assert sum(applied.applied.values()) == 1


def test_an_expired_capture_does_not_wait_for_a_closed_order() -> None:
    """PRV-8 FUL-3"""
    world = after(TO_ORDER, [Told(replace(PAID, order=REFERENCE), True)])
    world = with_order_closed(world, REFERENCE)
    assert money(world).review is Code.TIMESTAMP_EXPIRED
    world = after(world, [Told(replace(PAID, order=REFERENCE))])
    assert money(world).review is Code.ORDER_CLOSED


def test_a_confirmed_capture_outranks_an_expired_one() -> None:
    """PRV-8 PAY-9: reconciling repairs it; what it does not know stays for a person."""
    late = money(after(World(), [Told(PAID, True)])).facts
    assert compare(late, PAID, NOW) is Difference.BEHIND
    assert compare(replace(late, is_expired=False), PAID, NOW) is None
    assert compare(late, PENDING, NOW) is Difference.DIFFERS
    assert compare(late, None, NOW) is Difference.MISSING_THERE
