"""What `decide` reads and what it answers: the rows of a batch in memory, and their changes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from paidonce.domain.events import (
    ExternalId,
    Outcome,
    PaymentId,
    SourceId,
    UserId,
    WalletId,
)
from paidonce.domain.orders import Kind, Order
from paidonce.domain.payments import Payment
from paidonce.domain.plans import PlanBook
from paidonce.domain.subscriptions import Subscription
from paidonce.domain.wallets import Entry, Wallet


@dataclass(frozen=True, slots=True)
class Applied:
    """A payment got its effect, once."""

    payment: Payment


@dataclass(frozen=True, slots=True)
class Reversed:
    """So much of an applied payment was taken back, each unit once."""

    payment: Payment
    amount_minor: int
    is_kept: bool  # the money went back, but what it had paid for stays


Done = Applied | Reversed


@dataclass(frozen=True, slots=True)
class Movement:
    """What a payment moves in a wallet; the entries sum to zero."""

    payment_id: PaymentId
    currency: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What an event changes, and what became of it."""

    outcome: Outcome
    payment_before: Payment | None = None
    payment: Payment | None = None
    subscription_before: Subscription | None = None
    subscription: Subscription | None = None
    order: Order | None = None
    others: tuple[Payment, ...] = ()  # other payments of the order that changed
    absorbed: tuple[Payment, ...] = ()  # these turned out to be this payment, and are no more
    wallet: Wallet | None = None
    movements: tuple[Movement, ...] = ()
    done: tuple[Done, ...] = ()
    awaits: str | None = None  # the name of what has to be there first

    @property
    def applies(self) -> bool:
        """Whether this decision applied a payment."""
        return any(isinstance(one, Applied) for one in self.done)


@dataclass(slots=True)
class State:
    """Every row that a batch touches, as it was when it was locked and as decisions leave it."""

    plans: PlanBook
    new_id: Callable[[], UUID]
    kept: frozenset[Kind] = frozenset()  # the kinds that a refund does not take back
    names: dict[tuple[SourceId, ExternalId], PaymentId] = field(default_factory=dict)
    payments: dict[PaymentId, Payment] = field(default_factory=dict)
    of_orders: dict[str, set[PaymentId]] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)  # by reference
    users: dict[str, UserId] = field(default_factory=dict)  # by e-mail key
    subscriptions: dict[tuple[UserId, str], Subscription] = field(default_factory=dict)
    wallets: dict[WalletId, Wallet] = field(default_factory=dict)

    def payments_known_as(self, source_id: SourceId, ids: Iterable[ExternalId]) -> list[Payment]:
        """The payments that the gateway knows by any of these ids, each once."""
        known = (self.names.get((source_id, one)) for one in ids)
        found = dict.fromkeys(one for one in known if one in self.payments)
        return [self.payments[one] for one in found if one is not None]

    def payments_of(self, order: Order) -> Iterator[Payment]:
        """The payments for the order that are known here: those that have brought money."""
        ids = self.of_orders.get(order.reference, ())
        known = (self.payments.get(one) for one in ids)
        return (one for one in known if one is not None and one.order == order.reference)

    def add(self, payment: Payment) -> None:
        """Know the payment by its ids and its order, in place of what was known of it."""
        self.payments[payment.id] = payment
        for one in payment.ids:
            self.names[payment.source_id, one] = payment.id
        if payment.order is not None:
            self.of_orders.setdefault(payment.order, set()).add(payment.id)

    def remember(self, decision: Decision) -> None:
        """Let the events that follow see what this one decided."""
        for gone in decision.absorbed:
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
