"""Random histories of several payments, orders and users agree with a small model of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from paidonce.core.events import Code, EventType, PaymentEvent, Refund, SourceId, UserId
from paidonce.core.money import Money
from paidonce.core.orders import BookingStatus, Kind, Order, OrderStatus, booking_status
from paidonce.core.wallets import Wallet
from tests.core.lives import (
    PERIOD,
    PRICE,
    WALLET,
    World,
    event_type,
    heard_and_decided,
    is_in_effect,
    order_of,
    status_of,
    with_order,
    with_order_closed,
    with_user,
)

EMAILS: Final = ("a@example.com", "b@example.com")
USERS: Final = {email: UserId(UUID(int=50 + n)) for n, email in enumerate(EMAILS)}
WRONG: Final = Money(50_000, "RUB")
FOREIGN: Final = Money(99_000, "USD")
PART: Final = Money(30_000, "RUB")
SOURCES: Final = (SourceId(1), SourceId(2))

ORDERS: Final = {
    "order": order_of(Kind.ORDER, "order"),
    "picky": order_of(Kind.BOOKING, "picky", sources=(SourceId(1),)),
    "booking": order_of(Kind.BOOKING, "booking"),
    "wallet": order_of(Kind.WALLET, "wallet"),
    "top-up": order_of(Kind.WALLET, "top-up"),
    "period": order_of(Kind.SUBSCRIPTION, "period", user_id=None, email=EMAILS[0]),
    "month": order_of(Kind.SUBSCRIPTION, "month", user_id=None, email=EMAILS[1]),
}


@dataclass(frozen=True)
class About:
    """What all events of a payment say it is for."""

    name: str
    order: str | None
    email: str | None
    source: SourceId
    amount: Money


def _about(number: int, order: str | None, email: str | None, source: int, amount: Money) -> About:
    return About(f"p-{number}", order, email, SOURCES[source], amount)


PAYMENTS: Final = (
    _about(1, "order", None, 0, PRICE),
    _about(2, "order", EMAILS[0], 1, PRICE),
    _about(3, "picky", None, 0, PRICE),
    _about(4, "picky", None, 1, PRICE),
    _about(5, "booking", EMAILS[1], 0, WRONG),
    _about(6, "booking", None, 0, PRICE),
    _about(7, "wallet", None, 0, PRICE),
    _about(8, "wallet", None, 1, PRICE),
    _about(9, "top-up", EMAILS[0], 0, PRICE),
    _about(10, "period", None, 0, PRICE),
    _about(11, "period", None, 1, PRICE),
    _about(12, "month", EMAILS[0], 0, FOREIGN),
    _about(13, "month", None, 0, PRICE),
    _about(14, None, EMAILS[0], 0, PRICE),
    _about(15, None, EMAILS[1], 1, PRICE),
    _about(16, None, EMAILS[1], 0, WRONG),
    _about(17, None, None, 0, PRICE),
)

TOGETHER: Final = (
    ("order", "booking"),
    ("picky",),
    ("wallet",),
    ("wallet", "top-up"),
    ("period", None),
    ("period", "month"),
    ("month", None),
)
"""Which orders, or payments without one, are in one history."""

WHAT: Final = (
    *("paid",) * 4,
    "pending",
    "failed",
    "voided",
    "canceled",
    "part",
    "by-id-1",
    "by-id-2",
    "all",
    "disputed",
    "dispute_won",
)


@dataclass(frozen=True)
class Hears:
    """An event of one of the payments."""

    about: About
    what: str
    minute: int

    def event(self) -> PaymentEvent:
        about = self.about
        event = event_type(EventType.PENDING, about.name, minute=self.minute, order=about.order)
        event = replace(event, email=about.email)
        match self.what:
            case "paid":
                return replace(event, event_type=EventType.PAID, amount=about.amount)
            case "part":
                part = Money(PART.amount_minor, about.amount.currency)
                return replace(event, event_type=EventType.REFUNDED, refunded=part)
            case "all":
                return replace(event, event_type=EventType.REFUNDED, refunded=about.amount)
            case "by-id-1" | "by-id-2":
                refund = Refund(f"{about.name}-{self.what}", Money(20_000, about.amount.currency))
                return replace(event, event_type=EventType.REFUNDED, refund=refund)
            case _:
                return replace(event, event_type=EventType(self.what))


@dataclass(frozen=True)
class Creates:
    """An order or a user is created, unless it is there."""

    name: str


@dataclass(frozen=True)
class Closes:
    """An order is closed, unless it is paid or not there."""

    reference: str


@dataclass(frozen=True)
class Spends:
    """The wallet's owner spends all that is there."""


Step = Hears | Creates | Closes | Spends


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """What may happen to a few payments that have to do with each other, and to their orders."""
    references = draw(st.sampled_from(TOGETHER))
    some = [one for one in PAYMENTS if one.order in references]
    hears = st.builds(Hears, st.sampled_from(some), st.sampled_from(WHAT), st.integers(0, 9))
    names = [one for one in references if one is not None]
    begin: list[Step] = [Creates(name) for name in draw(st.sets(st.sampled_from(names)))]
    other: st.SearchStrategy[Step] = st.one_of(
        st.builds(Creates, st.sampled_from([*names, *EMAILS])),
        st.builds(Closes, st.sampled_from(names)),
        st.just(Spends()),
    )
    often = st.integers(0, 5).flatmap(lambda number: hears if number else other)
    number = draw(st.integers(0, 40))  # a list without this would be short nearly always
    return begin + draw(st.lists(often, min_size=number, max_size=number))


@dataclass
class Model:
    """What was heard of each payment, and what there is to be paid for."""

    heard: dict[str, list[PaymentEvent]] = field(default_factory=dict)
    orders: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    spent_minor: int = 0

    def said(self, name: str) -> set[EventType]:
        return {event.event_type for event in self.heard[name]}

    def captured(self, name: str) -> int:
        return max((one.amount.amount_minor for one in self.heard[name] if one.amount), default=0)

    def refunded(self, name: str) -> int:
        single = {
            one.refund.id: one.refund.amount.amount_minor for one in self.heard[name] if one.refund
        }
        totals = [one.refunded.amount_minor for one in self.heard[name] if one.refunded]
        return max([sum(single.values()), *totals])

    def holds(self, name: str) -> bool:
        effect_kept = EventType.CANCELED not in self.said(name)
        return effect_kept and self.captured(name) > self.refunded(name)

    def is_disputed(self, name: str) -> bool:
        """PAY-2: a flag that a dispute raises and winning clears."""
        raised = [
            one.occurred_at for one in self.heard[name] if one.event_type is EventType.DISPUTED
        ]
        won = [
            one.occurred_at for one in self.heard[name] if one.event_type is EventType.DISPUTE_WON
        ]
        return bool(raised) and (not won or max(filter(None, won)) < max(filter(None, raised)))

    def obstacles(self, about: About) -> set[Code]:
        """Why this payment's money cannot be applied, rivals apart."""
        found = set()
        if about.amount == WRONG:
            found.add(Code.AMOUNT_MISMATCH)
        if about.amount == FOREIGN:
            found.add(Code.CURRENCY_MISMATCH)
        if about.order is None:
            if about.email is None:
                found.add(Code.UNLINKED_PAYMENT)
            elif about.email not in self.users:
                found.add(Code.USER_MISSING)
            return found
        if about.order not in self.orders:
            return {Code.ORDER_MISSING}
        order = ORDERS[about.order]
        if about.order in self.closed:
            found.add(Code.ORDER_CLOSED)
        if about.order == "picky" and about.source != SOURCES[0]:
            found.add(Code.LINK_CONFLICT)
        if order.email is not None and order.email not in self.users:
            found.add(Code.USER_MISSING)
        return found


@settings(max_examples=300)
@given(histories())
def test_random_histories_agree_with_the_model(history: Sequence[Step]) -> None:
    """PAY-1 PAY-2 PAY-3 PAY-4 PAY-5 PAY-6 PAY-7 PAY-8 FUL-1 FUL-2 FUL-3 FUL-4"""
    world, model = World(wallets={WALLET: Wallet(WALLET, "buyer", "RUB")}), Model()
    for step in history:
        world = lived(world, model, step)
        check_payments(world, model)
        check_orders(world, model)
        check_what_was_given(world, model)


def lived(world: World, model: Model, step: Step) -> World:
    match step:
        case Hears(about):
            event = step.event()
            model.heard.setdefault(about.name, []).append(event)
            return heard_and_decided(world, event, source=about.source)[0]
        case Creates(name) if name in ORDERS and name not in model.orders:
            model.orders.add(name)
            return with_order(world, ORDERS[name])
        case Creates(name) if name in USERS and name not in model.users:
            model.users.add(name)
            return with_user(world, name, USERS[name])
        case Closes(reference) if reference in model.orders:
            if world.orders[reference].status is OrderStatus.PAID:
                return world
            model.closed.add(reference)
            return with_order_closed(world, reference)
        case Spends():
            return _spent(world, model)
        case _:
            return world


def _spent(world: World, model: Model) -> World:
    wallet = world.wallets[WALLET]
    model.spent_minor += wallet.balance_minor
    accounts = {
        name: sum_ for name, sum_ in world.accounts.items() if not name.startswith("wallet")
    }
    return replace(world, wallets={WALLET: replace(wallet, balance_minor=0)}, accounts=accounts)


def check_payments(world: World, model: Model) -> None:
    assert len(world.payments) == len(model.heard)
    for about in PAYMENTS:
        if about.name not in model.heard:
            continue
        payment = world.known_as(about.name)
        assert payment is not None
        name, facts = about.name, payment.facts
        captured, refunded = model.captured(name), model.refunded(name)
        assert facts.status is status_of(captured, refunded, model.said(name))
        assert (facts.captured_minor, facts.refunded_minor) == (captured, refunded)
        assert facts.is_disputed == model.is_disputed(name)
        obstacles = model.obstacles(about)
        if not model.holds(name):
            is_missing = captured == 0 and (refunded > 0 or EventType.CANCELED in model.said(name))
            assert payment.review is (Code.PAYMENT_MISSING if is_missing else None)
        elif is_in_effect(world, payment):
            assert not obstacles - {Code.ORDER_CLOSED}
            assert payment.review is None
        elif obstacles:
            assert payment.review in obstacles
        else:
            assert payment.review is Code.DUPLICATE_PAYMENT
            assert about.order is not None
            assert world.orders[about.order].status is OrderStatus.PAID


def check_orders(world: World, model: Model) -> None:
    for reference, order in world.orders.items():
        rivals = [one for one in PAYMENTS if one.order == reference and one.name in model.heard]
        fitting = [one for one in rivals if not model.obstacles(one)]
        pays = any(model.holds(one.name) for one in fitting)
        assert (order.status is OrderStatus.PAID) == pays
        if reference in model.closed:
            assert order.status is OrderStatus.CANCELED
        elif not pays:
            assert order.status in _ends(model, rivals)
        if order.kind is Kind.BOOKING:
            booking = booking_status(is_fulfilled=order.is_fulfilled, status=order.status)
            assert (booking is BookingStatus.CONFIRMED) == pays


UNFIT: Final = {Code.AMOUNT_MISMATCH, Code.CURRENCY_MISMATCH, Code.LINK_CONFLICT}


def _ends(model: Model, rivals: Sequence[About]) -> set[OrderStatus]:
    """An order that nothing pays is what became of the money that could pay it."""
    ends = set()
    for one in rivals:
        if not model.captured(one.name) or model.holds(one.name):
            continue
        if model.obstacles(one) & {
            Code.AMOUNT_MISMATCH,
            Code.CURRENCY_MISMATCH,
            Code.LINK_CONFLICT,
        }:
            continue
        is_refunded = model.refunded(one.name) >= model.captured(one.name)
        ends.add(OrderStatus.REFUNDED if is_refunded else OrderStatus.CANCELED)
    return ends or {OrderStatus.PENDING}


def check_what_was_given(world: World, model: Model) -> None:
    """Periods of each user, and all wallets: each payment that counts gives once."""
    periods = dict.fromkeys(USERS.values(), 0)
    credited = 0
    for about in PAYMENTS:
        payment = world.known_as(about.name)
        if payment is None or not is_in_effect(world, payment):
            continue
        order = ORDERS.get(about.order or "")
        email = _subscriber(order, about)
        if email is not None:
            periods[USERS[email]] += 1
        if order is not None and order.kind is Kind.WALLET:
            credited += model.captured(about.name) - model.refunded(about.name)
    for user_id, number in periods.items():
        subscription = world.subscriptions.get((user_id, "default"))
        end = subscription.current_period_end if subscription else None
        assert (end - world.now if end else timedelta(0)) == number * PERIOD
    (wallet,) = world.wallets.values()
    assert wallet.balance_minor - wallet.receivable_minor == credited - model.spent_minor


def _subscriber(order: Order | None, about: About) -> str | None:
    if order is None:
        return about.email
    return order.email if order.kind is Kind.SUBSCRIPTION else None
