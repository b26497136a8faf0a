"""Lives of payments in memory: a small world that events change, one value for each instant of it.

A world is a value, so that what an event does to it can be remembered: all orders of arrival of
many events are then walked in a second, though there are hundreds of thousands of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations_with_replacement
from typing import Final
from uuid import UUID

from paidonce.core.accept import AcceptRequest, accept
from paidonce.core.apply import ApplyContext, apply
from paidonce.core.decide import decide
from paidonce.core.email import email_key
from paidonce.core.events import (
    EventType,
    ExternalId,
    OrderId,
    PaymentEvent,
    PaymentId,
    ReceivedEvent,
    SourceId,
    UserId,
    WalletId,
)
from paidonce.core.facts import PaymentStatus
from paidonce.core.money import Money
from paidonce.core.orders import BookingStatus, Kind, Order, OrderStatus, booking_status
from paidonce.core.payments import Payment
from paidonce.core.plans import Plan, plan_book
from paidonce.core.state import Applied, Decision, Rows, State
from paidonce.core.subscriptions import Subscription
from paidonce.core.wallets import Wallet

NOW: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)
PERIOD: Final = timedelta(days=30)
PRICE: Final = Money(99_000, "RUB")
SOURCE: Final = SourceId(1)
USER: Final = UserId(UUID(int=77))
EMAIL: Final = "buyer@example.com"
WALLET: Final = WalletId(UUID(int=88))
REFERENCE: Final = "order-1"
PLANS: Final = plan_book(
    [Plan("monthly", PRICE, "default", PERIOD.days, 0, True, NOW - timedelta(days=900))]
)


@dataclass(frozen=True)
class World:
    """All rows at one instant, and what was done so far."""

    payments: Mapping[PaymentId, Payment] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)
    users: Mapping[str, UserId] = field(default_factory=dict)
    subscriptions: Mapping[tuple[UserId, str], Subscription] = field(default_factory=dict)
    wallets: Mapping[WalletId, Wallet] = field(default_factory=dict)
    accounts: Mapping[str, int] = field(default_factory=dict)  # the ledger, summed up
    applied: Mapping[UUID, int] = field(default_factory=dict)  # how often each payment was
    kept: frozenset[Kind] = frozenset()
    takes_back_used: bool = False
    now: datetime = NOW
    ids: int = 0

    def state(self) -> State:
        """The rows as `decide` reads them."""
        made = iter(range(self.ids + 1, self.ids + 100))
        state = State(
            PLANS,
            lambda: UUID(int=next(made)),
            kept_on_refund=self.kept,
            takes_back_used=self.takes_back_used,
            orders=Rows(self.orders),
            users=dict(self.users),
            subscriptions=Rows(self.subscriptions),
            wallets=Rows(self.wallets),
        )
        for payment in self.payments.values():
            state.add(payment)
        return state

    def known_as(self, name: str) -> Payment | None:
        """The payment that the gateway knows by this id."""
        found = [one for one in self.payments.values() if ExternalId("payment", name) in one.ids]
        assert len(found) <= 1, "one payment has one row"
        return found[0] if found else None

    def counting(self, reference: str = REFERENCE) -> Payment | None:
        """The payment that pays the order now."""
        payment_id = self.orders[reference].applied_payment_id
        return None if payment_id is None else self.payments[payment_id]


def heard(
    world: World, event: PaymentEvent, *, link_by_email: bool = True, is_expired: bool = False
) -> World:
    """The world after an event. What always has to be true is checked."""
    return heard_and_decided(world, event, link_by_email=link_by_email, is_expired=is_expired)[0]


def heard_and_decided(
    world: World,
    event: PaymentEvent,
    *,
    source: SourceId = SOURCE,
    link_by_email: bool = True,
    is_expired: bool = False,
) -> tuple[World, Decision]:
    """The world after an event, and what was decided."""
    state = world.state()
    arrived = ReceivedEvent(source, event, world.now, link_by_email, is_expired=is_expired)
    decision = decide(state, arrived, world.now)
    return _after(world, state, decision), decision


def revisited(world: World, payment: Payment, *, link_by_email: bool = True) -> World:
    """The world after a payment was looked at again, as when what it waited for was created."""
    state = world.state()
    terms = ApplyContext(None, link_by_email)
    decision = apply(state, world.payments[payment.id], payment, terms, world.now)
    return _after(world, state, decision)


def accepted(world: World, payment: Payment, *, by: str = "ann", reason: str = "agreed") -> World:
    """The world after an operator accepted the payment. Raises ConflictError."""
    request = AcceptRequest(by, reason)
    return revisited(world, accept(world.state(), payment, request, world.now))


def with_order(world: World, order: Order) -> World:
    """The world after an order was created, with what was paid for it before."""
    assert order.reference not in world.orders
    world = replace(world, orders={**world.orders, order.reference: order})
    for payment in _unapplied(world):
        if payment.order == order.reference:
            world = revisited(world, world.payments[payment.id])
    return world


def with_user(world: World, email: str, user_id: UserId) -> World:
    """The world after a user was created, with what was paid under the address before."""
    world = replace(world, users={**world.users, email_key(email): user_id})
    for payment in _unapplied(world):
        order = world.orders.get(payment.order) if payment.order else None
        address = order.email if order else payment.email
        if address == email:
            world = revisited(world, world.payments[payment.id])
    return world


def with_order_closed(world: World, reference: str) -> World:
    """The world after an order was closed, which one that is paid cannot be."""
    order = world.orders[reference]
    assert order.status is not OrderStatus.PAID
    closed = replace(order, status=OrderStatus.CANCELED, closed_at=world.now, canceled_at=world.now)
    world = replace(world, orders={**world.orders, reference: closed})
    for payment in _unapplied(world):
        if payment.order == reference:
            world = revisited(world, world.payments[payment.id])
    return world


def _unapplied(world: World) -> list[Payment]:
    found = (one for one in world.payments.values() if one.applied_at is None)
    return sorted((one for one in found if one.facts.captured_minor), key=lambda one: one.id)


def _after(world: World, state: State, decision: Decision) -> World:
    accounts, applied = Counter(world.accounts), Counter(world.applied)
    for movement in decision.movements:
        assert sum(entry.amount_minor for entry in movement.entries) == 0
        for entry in movement.entries:
            accounts[entry.account] += entry.amount_minor
    for effect in decision.effects:
        applied[effect.payment.id] += isinstance(effect, Applied)
    state.save(decision)
    after = replace(
        world,
        payments=dict(state.payments),
        orders=dict(state.orders),
        subscriptions=dict(state.subscriptions),
        wallets=dict(state.wallets),
        accounts={name: minor for name, minor in accounts.items() if minor},
        applied=dict(applied),
        ids=state.new_id().int - 1,
    )
    check(after)
    return after


def check(world: World) -> None:
    """What is true after each step, whatever happened."""
    for payment in world.payments.values():
        _check_payment(world, payment)
    for order in world.orders.values():
        _check_order(world, order)
    for wallet in world.wallets.values():
        assert wallet.balance_minor >= wallet.reserved_minor >= 0
        assert wallet.receivable_minor >= 0
        reserved = wallet.receivable_minor == 0 or wallet.available_minor == 0
        assert reserved, "who owes something has nothing left"
        assert world.accounts.get(f"wallet:{wallet.id}", 0) == wallet.balance_minor
        assert world.accounts.get(f"receivable:{wallet.id}", 0) == -wallet.receivable_minor


def _check_payment(world: World, payment: Payment) -> None:
    assert world.applied.get(payment.id, 0) == (payment.applied_at is not None)
    assert 0 <= payment.reversed_minor <= payment.applied_minor <= payment.facts.captured_minor
    if payment.applied_at is None:
        assert payment.applied_minor == 0
    else:
        assert not payment.facts.is_expired, "what came too late is never applied by itself"


def _check_order(world: World, order: Order) -> None:
    """PAID is said exactly when a payment that holds money counts for it."""
    assert (order.status is OrderStatus.PAID) == (order.applied_payment_id is not None)
    if order.applied_payment_id is not None:
        counting = world.payments[order.applied_payment_id]
        assert counting.has_funds
        assert counting.order == order.reference
        assert counting.applied_at is not None
        assert order.paid_at == counting.facts.paid_at
        assert order.canceled_at is None
        assert order.refunded_at is None


@dataclass(frozen=True)
class Given:
    """What counts for whoever paid."""

    order: tuple[object, ...] | None
    booking: BookingStatus | None
    days: timedelta  # how long the subscription goes on from now
    wallet_minor: int  # what is there, minus what is owed


def given_by(world: World, reference: str = REFERENCE) -> Given:
    """What the world gives now to whoever paid for the order, or without one."""
    order = world.orders.get(reference)
    told = None
    if order is not None:
        told = (order.status, order.paid_at, order.canceled_at, order.refunded_at)
    ends = [one.current_period_end for one in world.subscriptions.values()]
    booking = None
    if order is not None and order.kind is Kind.BOOKING:
        booking = booking_status(is_fulfilled=order.is_fulfilled, status=order.status)
    return Given(
        told,
        booking,
        max([end - world.now for end in ends if end and end > world.now], default=timedelta(0)),
        sum(one.balance_minor - one.receivable_minor for one in world.wallets.values()),
    )


def is_in_effect(world: World, payment: Payment) -> bool:
    """Whether somebody has something from the payment now."""
    order = world.orders.get(payment.order) if payment.order else None
    if order is not None:
        return order.applied_payment_id == payment.id
    return payment.applied_at is not None and payment.reversed_minor < payment.applied_minor


def status_of(captured: int, refunded: int, said: set[EventType]) -> PaymentStatus:
    """PAY-2's table, of a payment that was never only processing."""
    if captured == 0:
        if EventType.VOIDED in said:
            return PaymentStatus.CANCELED
        return PaymentStatus.FAILED if EventType.FAILED in said else PaymentStatus.PENDING
    if refunded >= captured:
        return PaymentStatus.REFUNDED
    if EventType.CANCELED in said:
        return PaymentStatus.CANCELED
    return PaymentStatus.PARTIALLY_REFUNDED if refunded else PaymentStatus.SUCCEEDED


class Lives:
    """All worlds that events can lead to, each way of each world walked once."""

    def __init__(self, start: World) -> None:
        self.start = start
        self.known: dict[str, World] = {}
        self.ways: dict[tuple[int, int], World] = {}

    def ends(
        self, alphabet: Sequence[PaymentEvent], most: int
    ) -> Iterator[tuple[tuple[PaymentEvent, ...], list[World]]]:
        """Each multiset of up to `most` events, and every world that any order of it ends in."""
        start = self._only(self.start)
        ends: dict[tuple[int, ...], list[World]] = {(): [start]}
        for size in range(1, most + 1):
            for chosen in combinations_with_replacement(range(len(alphabet)), size):
                worlds: dict[int, World] = {}
                for last in dict.fromkeys(chosen):
                    position = chosen.index(last)
                    before = ends[chosen[:position] + chosen[position + 1 :]]
                    for world in before:
                        after = self._step(world, last, alphabet[last])
                        worlds[id(after)] = after
                ends[chosen] = list(worlds.values())
                yield tuple(alphabet[one] for one in chosen), ends[chosen]

    def _step(self, world: World, number: int, event: PaymentEvent) -> World:
        way = (id(world), number)
        if way not in self.ways:
            self.ways[way] = self._only(heard(world, event))
        return self.ways[way]

    def _only(self, world: World) -> World:
        """The same value that was met before, if it was."""
        return self.known.setdefault(_spelled(world), world)


def _spelled(world: World) -> str:
    """The world as text that is equal for equal worlds."""
    rows = (world.payments, world.orders, world.subscriptions, world.wallets, world.accounts)
    told = [sorted((str(key), _spelled_row(row)) for key, row in one.items()) for one in rows]
    return repr((told, sorted(world.applied.items()), world.ids))


def _spelled_row(row: object) -> str:
    if isinstance(row, Payment):
        facts = replace(row.facts, refunds=dict(sorted(row.facts.refunds.items())))
        return repr(replace(row, facts=facts, ids=tuple(sorted(row.ids))))
    return repr(row)


def order_of(kind: Kind, reference: str = REFERENCE, **more: object) -> Order:
    """An order of the usual price, with what its kind needs."""
    needs: dict[Kind, dict[str, object]] = {
        Kind.ORDER: {},
        Kind.BOOKING: {},
        Kind.SUBSCRIPTION: {"user_id": USER, "plan_id": "monthly"},
        Kind.WALLET: {"wallet_id": WALLET},
    }
    order = Order(OrderId(UUID(int=1_000 + sum(reference.encode()))), reference, kind, PRICE)
    return replace(order, **(needs[kind] | more))  # type: ignore[arg-type]


def world_with(*orders: Order, **more: object) -> World:
    """A world with a user, an empty wallet, and these orders."""
    world = World(
        orders={order.reference: order for order in orders},
        users={EMAIL: USER},
        wallets={WALLET: Wallet(WALLET, "buyer", "RUB")},
    )
    return replace(world, **more)  # type: ignore[arg-type]


def event_type(
    what: EventType, name: str = "p-1", *, minute: int = 0, order: str | None = None, **more: object
) -> PaymentEvent:
    """An event of the payment with this name, at a minute of its own."""
    event = PaymentEvent(what, (ExternalId("payment", name),), order=order)
    at = NOW - timedelta(days=1) + timedelta(minutes=minute)
    return replace(event, occurred_at=at, **more)  # type: ignore[arg-type]


def names_of(events: Iterable[PaymentEvent]) -> list[str]:
    """The events in few words, for who reads a failure."""
    return [
        f"{event.event_type} {event.ids[0].value} {event.refunded or event.refund}"
        for event in events
    ]
