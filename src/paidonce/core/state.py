"""The unit of work of a batch: every row that it touches, as loaded and as decided so far."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from paidonce.core.events import (
    Code,
    ExternalId,
    OrderId,
    Outcome,
    PaymentId,
    SourceId,
    SubscriptionId,
    UserId,
    WalletId,
)
from paidonce.core.orders import Kind, Order
from paidonce.core.payments import Payment
from paidonce.core.plans import PlanBook
from paidonce.core.subscriptions import Grant, Subscription
from paidonce.core.wallets import LedgerEntry, Wallet

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Applied:
    """A payment was applied. This happens once."""

    payment: Payment


@dataclass(frozen=True, slots=True)
class Reversed:
    """Less of an applied payment stands than before."""

    payment: Payment
    amount_minor: int
    effect_kept: bool  # the money went back, but what it paid for stays


@dataclass(frozen=True, slots=True)
class Reinstated:
    """More of an applied payment stands than before."""

    payment: Payment
    amount_minor: int


Effect = Applied | Reversed | Reinstated


@dataclass(frozen=True, slots=True)
class Movement:
    """What a payment moves in a wallet; the entries sum to zero."""

    payment_id: PaymentId
    currency: str
    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of an event, and the rows that it changes."""

    outcome: Outcome
    payment_before: Payment | None = None
    payment: Payment | None = None
    subscription_before: Subscription | None = None
    subscription: Subscription | None = None
    order: Order | None = None
    others: tuple[Payment, ...] = ()  # other changed payments of the order
    merged: tuple[Payment, ...] = ()  # payments that are merged into this one and deleted
    wallet: Wallet | None = None
    movements: tuple[Movement, ...] = ()
    effects: tuple[Effect, ...] = ()
    blocked_on: str | None = None  # the name of what has to exist first

    @property
    def has_applied(self) -> bool:
        """Whether this decision applied a payment."""
        return any(isinstance(one, Applied) for one in self.effects)

    @property
    def has_linked(self) -> bool:
        """Whether the payment waited for what says what it is for, and does so no more."""
        before, after = self.payment_before, self.payment
        if before is None or before.review is not Code.UNLINKED_PAYMENT:
            return False
        return after is not None and after.review is not Code.UNLINKED_PAYMENT


@dataclass(frozen=True, slots=True)
class StoredGrants:
    """What granted the periods of a subscription: payments, and free orders of its user."""

    payments: frozenset[PaymentId]
    free_orders: tuple[tuple[OrderId, str | None, datetime], ...] = ()  # plan, and when


class GrantsMissingError(Exception):
    """All payments that granted periods of this subscription have to be loaded first."""

    def __init__(self, subscription_id: SubscriptionId) -> None:
        super().__init__(subscription_id)
        self.subscription_id = subscription_id


class GrantsLockedError(Exception):
    """Another transaction has locked one of these payments."""


class Rows(dict[K, V]):
    """Rows by key. What changes is the difference to `loaded`."""

    __slots__ = ("loaded",)

    def __init__(self, loaded: Mapping[K, V]) -> None:
        dict.__init__(self, loaded)  # faster than super()
        self.loaded = loaded

    def replaced(self) -> list[V]:
        """New rows, and rows that a decision replaced, even by an equal row."""
        loaded = self.loaded
        return [row for key, row in self.items() if loaded.get(key) is not row]

    def changed(self) -> list[V]:
        """New rows, and rows that differ from what was loaded."""
        loaded = self.loaded
        return [
            row
            for key, row in self.items()
            if (before := loaded.get(key)) is not row and before != row
        ]


def _no_rows() -> "Rows[K, V]":
    return Rows({})


@dataclass(slots=True)
class State:
    """The rows of a batch. `decide` reads them; `save` records its decision for later events."""

    plans: PlanBook
    new_id: Callable[[], UUID]
    kept_on_refund: frozenset[Kind] = frozenset()
    takes_back_used: bool = False  # a refunded period is taken back whole, also what was used
    grants: Mapping[SubscriptionId, "StoredGrants"] | None = None
    """What granted periods, of subscriptions for which it is loaded. None: of all of them."""
    payment_ids: Rows[tuple[SourceId, ExternalId], PaymentId] = field(default_factory=_no_rows)
    payments: Rows[PaymentId, Payment] = field(default_factory=_no_rows)
    orders: Rows[str, Order] = field(default_factory=_no_rows)  # by reference
    users: Mapping[str, UserId] = field(default_factory=dict)  # by e-mail key
    subscriptions: Rows[tuple[UserId, str], Subscription] = field(default_factory=_no_rows)
    wallets: Rows[WalletId, Wallet] = field(default_factory=_no_rows)
    payments_by_order: dict[str, set[PaymentId]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for payment in self.payments.values():
            self._index_order(payment)

    def find_payments(self, source_id: SourceId, ids: Iterable[ExternalId]) -> list[Payment]:
        """The payments that the gateway knows by any of these ids, each once."""
        found = dict.fromkeys(self.payment_ids.get((source_id, one)) for one in ids)
        return [self.payments[one] for one in found if one is not None and one in self.payments]

    def payments_of(self, order: Order) -> Iterator[Payment]:
        """The loaded payments of the order: those that captured money."""
        ids = self.payments_by_order.get(order.reference, ())
        payments = (self.payments.get(one) for one in ids)
        return (one for one in payments if one is not None and one.order == order.reference)

    def grants_of(self, subscription_id: SubscriptionId) -> list[Payment]:
        """The payments that granted periods of the subscription, as they are now.

        They are loaded only when a period is taken back or given again. Raises GrantsMissingError,
        GrantsLockedError.
        """
        is_stored = any(one.id == subscription_id for one in self.subscriptions.loaded.values())
        if self.grants is not None and is_stored:  # a new one has only grants of this batch
            stored = self.grants.get(subscription_id)
            if stored is None:
                raise GrantsMissingError(subscription_id)
            if not stored.payments <= self.payments.loaded.keys():
                raise GrantsLockedError
        found = self.payments.values()
        return [one for one in found if one.subscription_id == subscription_id]

    def free_grants_of(self, subscription: Subscription) -> list[Grant]:
        """The periods that free orders granted."""
        stored = (self.grants or {}).get(subscription.id)
        grants = []
        for order_id, plan_id, at in stored.free_orders if stored else ():
            plan = self.plans.find(plan_id, at)
            if plan is not None and plan.product == subscription.product:
                grants.append(Grant(order_id, at, plan.duration))
        return grants

    def save(self, decision: Decision) -> None:
        """Make the decision visible to the events that follow."""
        for gone in decision.merged:
            del self.payments[gone.id]
        if decision.payment is not None:
            self.add(decision.payment)
        for other in decision.others:
            self.add(other)
        if decision.subscription is not None:
            after = decision.subscription
            self.subscriptions[after.user_id, after.product] = after
        if decision.order is not None:
            self.orders[decision.order.reference] = decision.order
        if decision.wallet is not None:
            self.wallets[decision.wallet.id] = decision.wallet

    def add(self, payment: Payment) -> None:
        """Store the payment, its ids, and the order it belongs to."""
        self.payments[payment.id] = payment
        for one in payment.ids:
            self.payment_ids[payment.source_id, one] = payment.id
        self._index_order(payment)

    def merged_payments(self) -> list[tuple[Payment, PaymentId]]:
        """The loaded payments that are gone, each with the payment that has its ids now."""
        return [
            (gone, self.payment_ids[gone.source_id, gone.ids[0]])
            for key, gone in self.payments.loaded.items()
            if key not in self.payments
        ]

    def new_payment_ids(self) -> list[tuple[SourceId, ExternalId, PaymentId]]:
        """The ids that are not stored yet."""
        loaded = self.payment_ids.loaded
        return [(*key, owner) for key, owner in self.payment_ids.items() if key not in loaded]

    def changed_orders(self, changed_payments: Iterable[Payment]) -> list[Order]:
        """Changed orders, and unchanged orders of changed payments.

        Writing an order also checks its version: a transaction that decided by the same payments
        fails.
        """
        references = {one.reference for one in self.orders.changed()}
        references.update(one.order for one in changed_payments if one.order is not None)
        return [self.orders[one] for one in references if one in self.orders]

    def unchecked_owners(
        self, payments: Iterable[Payment], subscriptions: Iterable[Subscription]
    ) -> set[UserId]:
        """The users that changed payments name for the first time, and that nothing else checks.

        An order or a subscription of the user is written with its version, or with a foreign key:
        that fails if the user was merged into another one meanwhile. A payment without an order
        gets its period together with its user.
        """
        found: set[UserId] = set()
        for payment in payments:
            user_id = payment.user_id
            if user_id is None or (payment.order is None and payment.subscription_id is not None):
                continue
            order = self.orders.get(payment.order) if payment.order is not None else None
            before = self.payments.loaded.get(payment.id)
            is_known = before is not None and before.user_id == user_id
            if not is_known and (order is None or order.user_id != user_id):
                found.add(user_id)
        return found - {one.user_id for one in subscriptions} if found else found

    def _index_order(self, payment: Payment) -> None:
        if payment.order is not None:
            self.payments_by_order.setdefault(payment.order, set()).add(payment.id)
