"""What stands of a payment is what was paid, in every order of arrival, also with two sums."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import permutations, product
from typing import Final

import pytest

from paidonce.core.events import Code, EventType, PaymentEvent, Refund
from paidonce.core.facts import MAX_CAPTURES, merge
from paidonce.core.money import Money
from paidonce.core.orders import BookingStatus, Kind, OrderStatus
from paidonce.core.payments import Payment
from paidonce.core.state import Applied, Reinstated, Reversed
from paidonce.errors import ConflictError
from paidonce.processing.items import Link, apply_link
from tests.core.lives import (
    EMAIL,
    PERIOD,
    PRICE,
    REFERENCE,
    Lives,
    World,
    accepted,
    event_type,
    given_by,
    heard,
    heard_and_decided,
    names_of,
    order_of,
    revisited,
    with_order,
    with_order_closed,
    world_with,
)

LARGER: Final = Money(148_500, "RUB")
"""Half as much again as the price."""
HALF: Final = Money(49_500, "RUB")


def paid(amount: Money, minute: int = 1, name: str = "p-1") -> PaymentEvent:
    return event_type(EventType.PAID, name, minute=minute, amount=amount, order=REFERENCE)


def refunded(amount: Money, minute: int = 5, name: str = "p-1") -> PaymentEvent:
    return event_type(EventType.REFUNDED, name, minute=minute, refunded=amount, order=REFERENCE)


LIFE: Final = (
    paid(PRICE),
    paid(LARGER, minute=2),
    refunded(HALF),
    refunded(PRICE, minute=6),
    event_type(EventType.REFUNDED, minute=7, refund=Refund("dispute:d", HALF), order=REFERENCE),
    refunded(LARGER, minute=8),
    event_type(EventType.DISPUTED, minute=3, order=REFERENCE),
    event_type(EventType.CANCELED, minute=9, order=REFERENCE),
)
MOST: Final = 5
KINDS: Final = (*Kind, None)


def start(kind: Kind | None, **more: object) -> World:
    return world_with(order_of(kind), **more) if kind else world_with(**more)


def told(kind: Kind | None, event: PaymentEvent) -> PaymentEvent:
    return event if kind else replace(event, order=None, email=EMAIL)


def known(world: World, name: str = "p-1") -> Payment:
    payment = world.known_as(name)
    assert payment is not None
    return payment


@dataclass(frozen=True)
class Rule:
    """Rule 2 as it is written, of a set of events."""

    captured: int
    applied: int
    remaining: int
    excess: int
    review: Code | None


def rule(events: Iterable[PaymentEvent]) -> Rule:
    events = list(events)
    sums = [one.amount.amount_minor for one in events if one.amount]
    captured = max(sums, default=0)
    lost = {one.refund.id: one.refund.amount.amount_minor for one in events if one.refund}
    totals = [one.refunded.amount_minor for one in events if one.refunded]
    back = max(totals, default=0) + sum(lost.values())
    is_canceled = any(one.event_type is EventType.CANCELED for one in events)
    held = 0 if is_canceled else max(0, captured - back)
    applied = PRICE.amount_minor if PRICE.amount_minor in sums else 0
    remaining = min(applied, held)
    excess = held - remaining if remaining else 0
    is_back = back > 0 or is_canceled
    reviews = {
        Code.PAYMENT_MISSING: captured == 0 and is_back,
        Code.EXCESS: excess > 0,
        Code.AMOUNT_MISMATCH: held > 0 and applied == 0,
        Code.REFUND_EXCESS: 0 < captured < back,
    }
    review = next((code for code, is_so in reviews.items() if is_so), None)
    return Rule(captured, applied, remaining, excess, review)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_is_what_was_paid_in_every_order_of_arrival(kind: Kind | None) -> None:
    """PAY-2 PAY-10 FUL-4 REL-1: two sums, refunds, a lost dispute, a cancellation."""
    seen = 0
    life = tuple(told(kind, event) for event in LIFE)
    for events, ends in Lives(start(kind)).ends(life, MOST):
        expected = rule(events)
        for world in ends:
            check(kind, known(world), world, expected, names_of(events))
        first = ends[0]
        assert all(given_by(one) == given_by(first) for one in ends), names_of(events)
        assert len({known(one).review for one in ends}) == 1, names_of(events)
        seen += 1
    assert seen > 1_000


def check(
    kind: Kind | None, payment: Payment, world: World, expected: Rule, names: Sequence[str]
) -> None:
    stands = expected.remaining > 0
    assert payment.is_in_effect == stands, names
    assert payment.facts.captured_minor == expected.captured, names
    assert payment.excess_minor == expected.excess, names
    assert payment.review is expected.review, names
    given = given_by(world)
    if kind is Kind.WALLET:
        assert given.wallet_minor == expected.remaining, names
    if kind is Kind.BOOKING:
        assert (given.booking is BookingStatus.CONFIRMED) == stands, names
    if kind in (Kind.SUBSCRIPTION, None):
        assert given.days == (PERIOD if stands else timedelta(0)), names
    if kind is not None:
        assert (world.orders[REFERENCE].status is OrderStatus.PAID) == stands, names


@pytest.mark.parametrize("kind", Kind)
def test_an_order_that_comes_last_finds_the_sum_that_pays_it(kind: Kind) -> None:
    """PAY-2 PAY-5: whatever other sums were reported before it existed."""
    for events in permutations([paid(PRICE), paid(LARGER, minute=2), refunded(PRICE, minute=6)]):
        world = world_with()
        for event in events:
            world = heard(world, event)
        world = with_order(world, order_of(kind))
        check(kind, known(world), world, rule(events), names_of(events))


def test_what_comes_back_is_an_effect_of_its_own() -> None:
    """PAY-10: once, with the amount that stands again."""
    world = world_with(order_of(Kind.WALLET))
    found = []
    for event in (paid(PRICE), refunded(PRICE, minute=6), paid(LARGER, minute=2), paid(LARGER)):
        world, decision = heard_and_decided(world, event)
        found += [(type(one), getattr(one, "amount_minor", None)) for one in decision.effects]
    price = PRICE.amount_minor
    assert found == [(Applied, None), (Reversed, price), (Reinstated, price // 2)]
    assert given_by(world).wallet_minor == price // 2


@pytest.mark.parametrize("kind", Kind)
def test_a_payment_does_not_come_back_to_an_order_that_another_one_pays(kind: Kind) -> None:
    """PAY-7 PAY-10: it is listed, and takes over when that one is refunded."""
    world = world_with(order_of(kind))
    for event in (paid(PRICE), refunded(PRICE, minute=6), paid(PRICE, 7, "p-2")):
        world = heard(world, event)
    world = heard(world, paid(LARGER, minute=2))
    late = known(world)
    assert not late.is_in_effect
    assert (late.review, late.excess_minor) == (Code.DUPLICATE_PAYMENT, HALF.amount_minor)
    assert world.counting() == known(world, "p-2")
    world, decision = heard_and_decided(world, refunded(PRICE, 9, "p-2"))
    assert [type(one) for one in decision.effects] == [Reversed, Reinstated]
    assert world.counting() == known(world)
    assert given_by(world).wallet_minor == (HALF.amount_minor if kind is Kind.WALLET else 0)


def test_a_payment_does_not_come_back_to_a_closed_order() -> None:
    """FUL-3 PAY-10"""
    world = world_with(order_of(Kind.WALLET))
    for event in (paid(PRICE), refunded(PRICE, minute=6)):
        world = heard(world, event)
    order = replace(world.orders[REFERENCE], closed_at=world.now)
    world = heard(replace(world, orders={REFERENCE: order}), paid(LARGER, minute=2))
    assert known(world).review is Code.ORDER_CLOSED
    assert given_by(world).wallet_minor == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_accepted_excess_is_applied(kind: Kind | None) -> None:
    """PAY-10 PAY-11: a wallet is credited with it; for everything else the listing ends."""
    world = start(kind)
    for event in (paid(PRICE), paid(LARGER, minute=2)):
        world = heard(world, told(kind, event))
    assert (known(world).review, known(world).excess_minor) == (Code.EXCESS, HALF.amount_minor)
    before = given_by(world)
    world = accepted(world, known(world))
    payment = known(world)
    assert (payment.review, payment.excess_minor) == (None, 0)
    assert (payment.applied_minor, payment.standing_minor) == (LARGER.amount_minor,) * 2
    credited = given_by(world).wallet_minor - before.wallet_minor
    assert credited == (HALF.amount_minor if kind is Kind.WALLET else 0)
    assert replace(given_by(world), wallet_minor=0) == replace(before, wallet_minor=0)
    assert accepted(world, payment, by="bob", reason="again") == world, "a repeat changes nothing"


def test_a_refunded_excess_is_not_listed_any_more() -> None:
    """PAY-10: and takes nothing back."""
    world = world_with(order_of(Kind.WALLET))
    for event in (paid(PRICE), paid(LARGER, minute=2), refunded(HALF)):
        world = heard(world, event)
    assert (known(world).review, known(world).excess_minor) == (None, 0)
    assert given_by(world).wallet_minor == PRICE.amount_minor


@pytest.mark.parametrize("kind", KINDS)
def test_an_excess_is_listed_until_exactly_all_of_it_is_refunded(kind: Kind | None) -> None:
    """PAY-10: with a wallet, a booking and a plan as with an order; then nothing was taken back."""
    world = start(kind)
    for event in (paid(PRICE), paid(LARGER, minute=2)):
        world = heard(world, told(kind, event))
    given = given_by(world)
    reviews = []
    for number, back in enumerate((1, HALF.amount_minor - 1, HALF.amount_minor)):
        event = refunded(Money(back, "RUB"), minute=5 + number)
        world = heard(world, told(kind, event))
        reviews.append((known(world).review, known(world).excess_minor))
        assert given_by(world) == given
    assert reviews == [(Code.EXCESS, HALF.amount_minor - 1), (Code.EXCESS, 1), (None, 0)]
    world = heard(world, told(kind, refunded(LARGER, minute=9)))
    assert (known(world).review, known(world).is_in_effect) == (None, False)
    more = refunded(Money(LARGER.amount_minor + 1, "RUB"), minute=10)
    assert known(heard(world, told(kind, more))).review is Code.REFUND_EXCESS


@pytest.mark.parametrize("kind", list(Kind))
def test_a_payment_that_takes_over_is_listed_for_its_own_excess(kind: Kind) -> None:
    """PAY-10 PAY-7"""
    world = heard(start(kind), paid(PRICE, name="p-2"))
    for event in (paid(PRICE), paid(LARGER, minute=2)):
        world = heard(world, event)
    assert known(world).review is Code.DUPLICATE_PAYMENT
    world = heard(world, refunded(PRICE, name="p-2"))
    assert (known(world).review, known(world).excess_minor) == (Code.EXCESS, HALF.amount_minor)
    assert known(world, "p-2").review is None
    assert known(heard(world, refunded(HALF, minute=7))).review is None


def short(kind: Kind | None = Kind.ORDER) -> World:
    return heard(start(kind), told(kind, paid(Money(100, "RUB"))))


def linked(world: World, link: Link) -> World:
    return revisited(world, apply_link(world.state(), known(world), link, world.now))


def test_an_acceptance_is_for_one_order_only() -> None:
    """PAY-11: 1.00 that was accepted for one order does not pay another one."""
    world = with_order(short(), order_of(Kind.ORDER, "other"))
    state, payment = world.state(), known(world)
    accepting = accepted(world, payment)
    acceptance = known(accepting).acceptance
    assert acceptance is not None
    assert (acceptance.by, acceptance.reason, acceptance.amount, acceptance.target) == (
        "ann",
        "agreed",
        Money(100, "RUB"),
        f"order:{REFERENCE}",
    )
    assert accepting.orders[REFERENCE].status is OrderStatus.PAID
    waiting = replace(payment, acceptance=acceptance)
    moved = apply_link(state, waiting, Link(order="other"), world.now)
    after = revisited(world, replace(moved, acceptance=acceptance))
    assert moved.acceptance is None
    assert after.orders["other"].status is OrderStatus.PENDING
    assert known(after).review is Code.AMOUNT_MISMATCH


def test_an_acceptance_is_for_one_user_of_a_plan() -> None:
    """PAY-11: it lapses when the link changes."""
    world = replace(short(None), users={})
    waiting = accepted(world, replace(known(world), user_id=None, email="nobody@example.com"))
    assert known(waiting).review is Code.USER_MISSING
    user_id = known(world).user_id
    assert user_id is not None
    assert known(linked(waiting, Link(user_id=user_id))).review is Code.AMOUNT_MISMATCH


def test_an_acceptance_is_for_one_sum_only() -> None:
    """PAY-11: it lapses when another sum becomes known before it was applied."""
    world = heard(world_with(order_of(Kind.ORDER)), paid(PRICE, name="p-2"))
    world = heard(world, paid(Money(100, "RUB")))
    world = accepted(world, known(world))
    assert known(world).review is Code.DUPLICATE_PAYMENT
    world = heard(world, paid(Money(200, "RUB"), minute=2))
    world = heard(world, refunded(PRICE, name="p-2"))
    assert world.orders[REFERENCE].status is OrderStatus.REFUNDED
    assert known(world).applied_at is None


def test_accepting_what_expired_does_not_accept_its_amount() -> None:
    """PRV-8 PAY-11: the second decision, with a reason of its own, does."""
    world = heard(world_with(order_of(Kind.ORDER)), paid(Money(100, "RUB")), is_expired=True)
    world = accepted(world, known(world), reason="an outage")
    assert known(world).review is Code.AMOUNT_MISMATCH
    again = accepted(world, known(world), reason="an outage")
    assert again.orders[REFERENCE].status is OrderStatus.PENDING, "a repeat accepts nothing more"
    again = accepted(world, known(world), reason="an old price")
    assert again.orders[REFERENCE].status is OrderStatus.PAID


def _contested(world: World) -> World:
    return heard(heard(world, paid(PRICE)), replace(paid(PRICE), order="another"))


def _contested_unapplied(world: World) -> World:
    short_of = paid(Money(100, "RUB"))
    return heard(heard(world, short_of), replace(short_of, order="another"))


def _stranger(world: World) -> World:
    return heard(world, replace(paid(PRICE), order=None, email="nobody@example.com"))


def _planless(world: World) -> World:
    return heard(world, replace(paid(PRICE), order=None, email=EMAIL, plan_id="golden"))


def _for_refund(world: World) -> World:
    return linked(heard(world, paid(Money(100, "RUB"))), Link(is_for_refund=True))


def _duplicate(world: World) -> World:
    return heard(heard(world, paid(PRICE, name="p-2")), paid(PRICE))


def _applied(world: World) -> World:
    return heard(world, paid(PRICE))


def _foreign(world: World) -> World:
    return heard(world, paid(Money(99_000, "USD")))


def _orphan(world: World) -> World:
    return heard(world, replace(paid(PRICE), order="missing"))


def _unlinked(world: World) -> World:
    return heard(world, replace(paid(PRICE), order=None))


def _returned(world: World) -> World:
    return heard(heard(world, paid(Money(100, "RUB"))), refunded(Money(100, "RUB")))


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (_contested, "link it"),
        (_for_refund, "unmark-for-refund"),
        (_duplicate, "another payment pays its order"),
        (_applied, "no excess"),
        (_foreign, "another currency"),
        (_orphan, "create the order"),
        (_unlinked, "link it"),
        (_returned, "no money"),
    ],
)
def test_nothing_else_can_be_accepted(make: Callable[[World], World], remedy: str) -> None:
    """PAY-11: the error names what fits."""
    world = make(world_with(order_of(Kind.ORDER)))
    with pytest.raises(ConflictError, match=remedy) as raised:
        accepted(world, known(world))
    assert raised.value.code == "NOT_ACCEPTABLE"


@pytest.mark.parametrize("returned_by", [EventType.REFUNDED, EventType.CANCELED])
@pytest.mark.parametrize(
    ("make", "review"),
    [
        (lambda world: heard(world, paid(Money(100, "RUB"))), Code.AMOUNT_MISMATCH),
        (lambda world: heard(world, paid(Money(99_000, "USD"))), Code.CURRENCY_MISMATCH),
        (_duplicate, Code.DUPLICATE_PAYMENT),
        (lambda world: heard(with_order_closed(world, REFERENCE), paid(PRICE)), Code.ORDER_CLOSED),
        (_for_refund, Code.REFUND_WANTED),
        (_orphan, Code.ORDER_MISSING),
        (_unlinked, Code.UNLINKED_PAYMENT),
        (_stranger, Code.USER_MISSING),
        (_planless, Code.PLAN_UNKNOWN),
        (lambda world: heard(world, paid(PRICE), is_expired=True), Code.TIMESTAMP_EXPIRED),
        (_contested_unapplied, Code.LINK_CONFLICT),
    ],
    ids=lambda one: str(one) if isinstance(one, Code) else "",
)
def test_money_that_was_never_applied_needs_no_review_when_it_is_back(
    make: Callable[[World], World], review: Code, returned_by: EventType
) -> None:
    """PAY-10 PAY-8: a part of it is not enough."""
    world = make(world_with(order_of(Kind.ORDER)))
    payment = known(world)
    captured = payment.facts.captured
    assert captured is not None
    assert (payment.review, payment.applied_at) == (review, None)
    part = Money(captured.amount_minor - 1, captured.currency)
    world = heard(world, replace(refunded(part), order=payment.order))
    assert known(world).review is review
    back = event_type(returned_by, minute=9, order=payment.order)
    if returned_by is EventType.REFUNDED:
        back = replace(back, refunded=captured)
    assert known(heard(world, back)).review is None


OPERATORS: Final = ("accept", "link", "mark", "unmark")


def histories() -> Iterator[tuple[Sequence[PaymentEvent], Sequence[tuple[int, str]]]]:
    """Each order of four events, with one or two actions of an operator at any moment."""
    for events in permutations(LIFE[:5], 4):
        for action, moment in product(OPERATORS, range(1, 5)):
            yield events, [(moment, action)]
        for moment in range(1, 5):
            yield events, [(moment, "mark"), (moment, "unmark")]
            yield events, [(moment, "link"), (4, "accept")]


def act(world: World, action: str) -> World:
    links = {
        "link": Link(order=REFERENCE),
        "mark": Link(is_for_refund=True),
        "unmark": Link(is_for_refund=False),
    }
    try:
        return accepted(world, known(world)) if action == "accept" else linked(world, links[action])
    except ConflictError:
        return world


@pytest.mark.parametrize("kind", Kind)
def test_operators_at_any_moment_leave_everything_consistent(kind: Kind) -> None:
    """PAY-8 PAY-10: what stands follows from what was applied, captured and refunded."""
    for events, actions in histories():
        world = world_with(order_of(kind))
        for moment, event in enumerate(events, 1):
            world = heard(world, event)
            for when, action in actions:
                world = act(world, action) if when == moment else world
        payment = known(world)
        held, applied = payment.facts.held_minor, payment.applied_minor
        remaining = min(applied, held)
        assert payment.is_in_effect == (remaining > 0), (names_of(events), actions)
        if kind is Kind.WALLET:
            assert given_by(world).wallet_minor == remaining, (names_of(events), actions)
        assert applied in (0, PRICE.amount_minor, LARGER.amount_minor)
        if rule(events).remaining and not payment.is_for_refund:
            assert payment.is_in_effect, (names_of(events), actions)


def test_only_some_sums_are_remembered() -> None:
    """REC-6: the largest ones, whatever the order."""
    payment = known(heard(world_with(), paid(PRICE)))
    facts = [replace(payment.facts, captured=Money(one, "RUB")) for one in range(1, 41)]
    up, down = facts[0], facts[-1]
    for one in facts[1:]:
        up = merge(up, one)
    for one in reversed(facts[:-1]):
        down = merge(down, one)
    assert up == down
    assert len(up.other_captures) == MAX_CAPTURES - 1
    assert min(up.other_captures) == Money(41 - MAX_CAPTURES, "RUB")


def test_more_refunded_than_captured_needs_review() -> None:
    """PAY-12: in every order, as when a refunded payment is disputed and lost."""
    events = [paid(PRICE), refunded(PRICE, minute=6), LIFE[4]]
    for kind in KINDS:
        for order in permutations(events):
            world = start(kind)
            for event in order:
                world = heard(world, told(kind, event))
            assert known(world).review is Code.REFUND_EXCESS, (kind, names_of(order))
