"""What Paidonce must end in, written from the requirements: a function of facts, not of arrivals.

A payment is the set of facts that its events state. What operators did is kept in its order, with
the answers that they got. Where the requirements leave something open, such as which of two
payments came first, the model names what is allowed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Final

from tests.model.people import People

DECIMALS: Final = {"RUB": 2, "EUR": 2, "KRW": 0}
LINKS_BY_EMAIL: Final = frozenset({"payments", "shop"})
"""PAY-5: sources of the providers tilda and standard."""
TELL_TIMES: Final = frozenset({"shop", "cards", "cn", "paddle", "kr"})
"""FUL-10: what others report is paid when it arrives."""
ARRIVAL: Final = 180
"""The minute of a history at which it is told."""
WAITING: Final = frozenset({"USER_MISSING", "ORDER_MISSING", "UNLINKED_PAYMENT"})


def major(minor: int, currency: str) -> str:
    """As the API writes money."""
    return f"{Decimal(minor).scaleb(-DECIMALS[currency]):f}"


def minor(text: str, currency: str) -> int:
    return int(Decimal(text).scaleb(DECIMALS[currency]))


@dataclass(frozen=True)
class Fact:
    """What one event states of its payment."""

    kind: str
    """pending, processing, failed, voided, paid, refunded, canceled, disputed, won, lost;
    or ignored if the event has no effect."""
    minute: int = 0
    captured: int | None = None
    total: int | None = None
    """All that was refunded so far."""
    refund: tuple[str, int] | None = None
    """One refund, or one lost dispute, by its id."""
    ids: str = "all"
    """Which of the gateway's ids of the payment the event names."""


@dataclass(frozen=True)
class Acceptance:
    """PAY-11: of one sum, for one order or plan."""

    amount: int
    target: str
    was_applied: bool
    """Whether the answer to the operator showed the payment as applied."""


@dataclass(frozen=True)
class Plan:
    price: int
    currency: str
    length: timedelta


@dataclass
class Order:
    """What the merchant expects to be paid for."""

    reference: str
    kind: str
    amount: int
    currency: str = "RUB"
    email: str | None = None
    plan: str | None = None
    wallet: str | None = None
    sources: tuple[str, ...] = ()
    expires: int | None = None
    """FUL-10: after this minute it takes no money."""

    @property
    def is_free(self) -> bool:
        return self.amount == 0

    @property
    def target(self) -> str:
        return f"order:{self.reference}"


@dataclass
class Payment:
    """Money at a gateway: what its events state, and what operators did with it."""

    name: str
    source: str
    currency: str = "RUB"
    order: str | None = None
    email: str | None = None
    plan: str | None = None
    minute: int = 10
    """At which it was paid."""
    facts: set[Fact] = field(default_factory=set)
    returned: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """PAY-13: what operators recorded, by id: the amount, and whether the gateway knows nothing."""
    user: str | None = None
    """The id of the user it belongs to, as the API shows it."""
    is_marked: bool = False
    acceptance: Acceptance | None = None
    was_linked: bool = False
    is_named: bool = True
    """Whether an event has said what it is for."""

    @property
    def sums(self) -> set[int]:
        return {one.captured for one in self.facts if one.captured}

    @property
    def captured(self) -> int:
        return max(self.sums, default=0)

    @property
    def refunded(self) -> int:
        """PAY-13: the larger of what the gateway and operators say, plus what is outside."""
        inside = sum(amount for amount, is_outside in self.returned.values() if not is_outside)
        outside = sum(amount for amount, is_outside in self.returned.values() if is_outside)
        return max(self._refunded_by_gateway, inside) + outside

    @property
    def _refunded_by_gateway(self) -> int:
        """The largest total, or the sum of all refunds by their ids; and all lost disputes."""
        by_id = dict(one.refund for one in self.facts if one.refund and one.kind == "refunded")
        lost = dict(one.refund for one in self.facts if one.refund and one.kind == "lost")
        totals = [one.total for one in self.facts if one.total is not None]
        return max(max(totals, default=0), sum(by_id.values())) + sum(lost.values())

    @property
    def held(self) -> int:
        return 0 if self.has("canceled") else max(0, self.captured - self.refunded)

    def has(self, kind: str) -> bool:
        return any(one.kind == kind for one in self.facts)

    @property
    def is_of_nothing(self) -> bool:
        """FUL-11: paid, with a sum of 0."""
        return not self.captured and any(one.captured == 0 for one in self.facts)

    @property
    def exists(self) -> bool:
        return any(one.kind != "ignored" for one in self.facts)

    @property
    def is_disputed(self) -> bool:
        """PAY-2: won clears it."""
        opened = [one.minute for one in self.facts if one.kind == "disputed"]
        won = [one.minute for one in self.facts if one.kind == "won"]
        return bool(opened) and max(won, default=-1) < max(opened)

    @property
    def status(self) -> str:
        """PAY-2, as it is written there."""
        if not self.captured:
            named = {"voided": "CANCELED", "failed": "FAILED", "processing": "PROCESSING"}
            return next((named[kind] for kind in named if self.has(kind)), "PENDING")
        if self.refunded >= self.captured:
            return "REFUNDED"
        if self.has("canceled"):
            return "CANCELED"
        return "PARTIALLY_REFUNDED" if self.refunded else "SUCCEEDED"


@dataclass
class Model:
    """Everything that exists, and what follows from it."""

    plans: dict[str, Plan]
    default_plan: str
    people: People = field(default_factory=People)
    orders: dict[str, Order] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    """The orders that an operator closed, maybe before their creation is recorded here."""
    left: set[str] = field(default_factory=set)
    """The orders from which an operator linked a payment to something else."""
    payments: dict[str, Payment] = field(default_factory=dict)
    refunds: dict[tuple[str, str], str] = field(default_factory=dict)
    """Whose is each id of an operator's refund, by source."""
    spent: dict[str, int] = field(default_factory=dict)
    """By wallet."""

    def price(self, payment: Payment) -> tuple[int, str] | None:
        """What it has to match: of its order, or of its plan."""
        if payment.order is not None:
            order = self.orders.get(payment.order)
            return (order.amount, order.currency) if order else None
        plan = self.plans.get(payment.plan or self.default_plan)
        return (plan.price, plan.currency) if plan else None

    def target(self, payment: Payment) -> str:
        """What an acceptance is for, as the API writes it."""
        if payment.order is not None:
            return f"order:{payment.order}"
        return f"plan:{payment.plan or self.default_plan}"

    def applicable(self, payment: Payment) -> set[int]:
        """PAY-10: the largest sum that matches or was accepted; more than one if it is open."""
        price = self.price(payment)
        if price is None or price[1] != payment.currency:
            return {0}
        tolerance = 1 if DECIMALS[payment.currency] == 2 and price[0] else 0
        matching = max((one for one in payment.sums if abs(one - price[0]) <= tolerance), default=0)
        accepted = payment.acceptance
        if accepted is None or not payment.captured:
            return {matching}
        larger = max(matching, accepted.amount)
        if accepted.was_applied or accepted.amount == payment.captured:
            return {larger}
        return {
            matching,
            larger,
        }  # it lapsed, unless it was applied before the larger sum was known

    def obstacles(self, payment: Payment) -> set[str]:
        """Why its money cannot be applied; other payments of its order apart."""
        found = set(self._link_obstacles(payment))
        if payment.is_marked:
            found.add("REFUND_WANTED")
        price = self.price(payment)
        if price is None:
            return found
        if price[1] != payment.currency:
            return found | {"CURRENCY_MISMATCH"}
        if self.applicable(payment) == {0}:
            found.add("AMOUNT_MISMATCH")
        return found

    def _link_obstacles(self, payment: Payment) -> Iterator[str]:
        if payment.order is None:
            by_email = payment.source in LINKS_BY_EMAIL or payment.was_linked
            if payment.email is None or not by_email:
                yield "UNLINKED_PAYMENT"
            else:
                yield from self._user_obstacles(payment, payment.email)
            if payment.plan is not None and payment.plan not in self.plans:
                yield "PLAN_UNKNOWN"
            return
        order = self.orders.get(payment.order)
        if order is None:
            yield "ORDER_MISSING"
            return
        if order.reference in self.closed:
            yield "ORDER_CLOSED"
        if order.sources and payment.source not in order.sources:
            yield "LINK_CONFLICT"
        if order.is_free:
            yield "DUPLICATE_PAYMENT"
        minute = payment.minute if payment.source in TELL_TIMES else ARRIVAL
        if order.expires is not None and minute > order.expires:
            yield "ORDER_EXPIRED"
        if order.kind == "subscription" and order.email is not None:
            yield from self._user_obstacles(payment, order.email)

    def _user_obstacles(self, payment: Payment, email: str) -> Iterator[str]:
        """PAY-5 FUL-9: whom it is found to belong to stays so, whatever becomes of the address."""
        user = self.people.remaining(payment.user) if payment.user else self.people.owner(email)
        if user is None:
            yield "USER_MISSING"
        elif self.people.is_late(user, payment.name):
            yield "SUBSCRIPTION_CANCELED"

    def is_candidate(self, payment: Payment) -> bool:
        """Whether it may stand: it holds money that fits, and nothing but a rival is in the way."""
        return payment.held > 0 and not self.obstacles(payment) - self._overcome(payment)

    def is_sure(self, payment: Payment) -> bool:
        is_free = payment.held > 0 and not self.obstacles(payment)
        return is_free and 0 not in self.applicable(payment)

    def _overcome(self, payment: Payment) -> set[str]:
        """PAY-7: it takes over a period that was granted before the subscription was canceled."""
        rivals = self.rivals(payment.order) if payment.order is not None else []
        is_granted = any(one.name in self.people.in_time for one in rivals)
        return {"SUBSCRIPTION_CANCELED"} if is_granted else set()

    def rivals(self, reference: str) -> list[Payment]:
        return [one for one in self.payments.values() if one.order == reference and one.exists]

    def order_statuses(self, order: Order, is_paid: bool) -> set[str]:
        """FUL-3: what may be said of an order that this many payments pay."""
        if is_paid or order.is_free:
            return {"PAID"}
        sure, possible = set[str](), set[str]()
        for one in self.rivals(order.reference):
            ways = self.applicable(one)
            if not one.captured or one.held or ways == {0}:
                continue
            end = "REFUNDED" if one.refunded >= one.captured else "CANCELED"
            (possible if 0 in ways or self.obstacles(one) else sure).add(end)
        if order.reference in self.left:
            possible |= {"REFUNDED", "CANCELED"}
        if order.reference in self.closed:
            return sure | possible | {"CANCELED"}
        return sure | possible | (set() if sure else {"PENDING"})
