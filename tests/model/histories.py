"""Random histories: payments, orders and users, and in which order everything is told of them."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from random import Random
from typing import Final

from tests.model.model import Fact, Order, Payment, Plan

PLANS: Final = {
    "monthly": Plan(99_000, "RUB", timedelta(days=30)),
    "weekly": Plan(30_000, "RUB", timedelta(days=7)),
    "trial": Plan(0, "RUB", timedelta(days=3)),
}
KINDS: Final = ("order", "booking", "subscription", "wallet")
VERBS: Final = (
    *("link", "link", "accept", "accept", "accept", "mark", "unmark"),
    *("cancel", "cancel", "spend", "refund", "refund", "refund", "end", "merge", "erase"),
)
"""What operators and the owners of wallets do; `operators.py` and `people_operators.py` say how."""
ABOUT_PEOPLE: Final = ("end", "end", "resume", "merge", "erase", "refund", "accept", "link")
"""What they do in a history that is mostly about subscriptions."""

SAYS: Final = {
    "payments": ("paid",),
    "shop": ("pending", "failed", "voided", "paid", "total"),
    "cards": ("pending", "processing", "failed", "voided", "paid", "total", "dispute"),
    "cn": ("pending", "voided", "paid", "total"),
    "creem": ("paid", "by id", "disputed"),
    "hub": ("failed", "paid", "total"),
    "paddle": ("failed", "voided", "paid"),
    "kr": ("pending", "processing", "failed", "voided", "paid", "total"),
}
"""What each source can say."""
FOR_PLANS: Final = ("payments", "payments", "shop")
FOR_ORDERS: Final = ("shop", "cards", "cards", "cn", "creem", "hub", "paddle", "kr")
TELLS_CAPTURED: Final = ("cards", "cn", "kr")
"""Whose refunds say how much was captured, too."""
SAYS_NOTHING_PAID: Final = ("payments", "shop", "hub", "paddle")
"""Whose events can report a sum of 0."""
EXPIRES: Final = (*[None] * 6, 5, 60, 60, 100_000)
"""In minutes: before all payments, between the early and the late ones, or in the future."""
KEYS_BY_MEANING: Final = ("hub", "kr")
"""Where one event id cannot have two meanings."""


@dataclass(frozen=True)
class Deliver:
    """An event, this often; `twist` is what is wrong with it: forged, malformed or conflicting."""

    payment: str
    source: str
    fact: Fact
    event_id: str
    copies: int = 1
    twist: str = ""


@dataclass(frozen=True)
class CreateUser:
    email: str


@dataclass(frozen=True)
class CreateOrder:
    reference: str


@dataclass(frozen=True)
class Act:
    """What somebody does with a payment, an order or a user."""

    verb: str
    payment: str
    to: str | None = None
    how: str = ""
    amount: int = 0


@dataclass(frozen=True)
class Kill:
    """SIGKILL of a process, which is started again."""


Step = Deliver | CreateUser | CreateOrder | Act | Kill
Batch = tuple[Step, ...]
"""Steps that are done at the same time."""


@dataclass
class History:
    """What can exist, and what happens to it."""

    tag: str
    orders: dict[str, Order] = field(default_factory=dict)
    payments: dict[str, Payment] = field(default_factory=dict)
    emails: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def without(self, dropped: Container[int]) -> "History":
        """The same without the steps with these numbers."""
        numbers = count()
        kept = [tuple(one for one in each if next(numbers) not in dropped) for each in self.batches]
        return replace(self, batches=kept)


def history(seed: int, tag: str, has_kills: bool) -> History:
    """The history of this seed. The tag makes its names unique, and nothing else."""
    return _Writer(Random(seed), History(tag), has_kills).written()


def _concern_one(step: Step, batch: Sequence[Step]) -> bool:
    """Whether an action of the batch concerns the same payment: their order has to be known.

    Those that name no payment may concern any.
    """
    others = {one.payment for one in batch if isinstance(one, Act)}
    if not isinstance(step, Act) or not others:
        return False
    return not step.payment or bool(others & {step.payment, ""})


@dataclass
class _Writer:
    dice: Random
    made: History
    has_kills: bool

    def __post_init__(self) -> None:
        self._is_about_people = self._is(0.4)

    def written(self) -> History:
        self.made.emails = [f"{self.made.tag}-u{n}@example.com" for n in range(2)]
        for number in range(self.dice.choice([1, 1, 2, 2, 3])):
            order = self._order(number)
            self.made.orders[order.reference] = order
        for number in range(self.dice.randint(2, 6)):
            payment = self._payment(number)
            self.made.payments[payment.name] = payment
        self.made.batches = list(self._batches())
        return self.made

    def _is(self, chance: float) -> bool:
        return self.dice.random() < chance

    def _order(self, number: int) -> Order:
        kind, plan = self.dice.choice(KINDS), self.dice.choice([None, *PLANS])
        kind = "subscription" if self._is_about_people else kind
        currency = "KRW" if self._is(0.15) and kind != "subscription" else "RUB"
        amount = 0 if self._is(0.08) else self.dice.choice([99_000, 30_000, 1_000])
        order = Order(f"{self.made.tag}-o{number}", kind, amount, currency)
        order.expires = self.dice.choice(EXPIRES)
        if kind == "subscription":
            order.email, order.plan = self.dice.choice(self.made.emails), plan
        if kind == "wallet":
            order.wallet = f"{self.made.tag}-w-{currency}"
        if self._is(0.1):
            order.sources = ("cards", "shop")
        return order

    def _payment(self, number: int) -> Payment:
        name, way = f"{self.made.tag}-p{number}", self.dice.random()
        if way < (0.45 if self._is_about_people else 0.75):
            return self._for_an_order(name)
        if way < 0.95:
            plan = self.dice.choice([None, None, "monthly", "weekly", "trial", "unknown"])
            email = self.dice.choice(self.made.emails)
            return Payment(name, self.dice.choice(FOR_PLANS), email=email, plan=plan)
        return Payment(name, self.dice.choice(["cards", "shop"]))

    def _for_an_order(self, name: str) -> Payment:
        order = self.dice.choice(list(self.made.orders.values()))
        source = self.dice.choice(FOR_ORDERS)
        if source == "kr" and order.reference in self.made.payments:
            source = "cards"
        currency = "EUR" if self._is(0.04) else order.currency
        named = order.reference if source == "kr" else name
        minute = self.dice.choice([10, 100])
        return Payment(named, source, currency, order=order.reference, minute=minute)

    def _facts(self, payment: Payment) -> Iterator[Fact]:
        says, price = SAYS[payment.source], self._price(payment)
        for minute, kind in enumerate(("pending", "processing", "failed", "voided")):
            if kind in says and self._is(0.15):
                yield Fact(kind, minute)
                if payment.source == "kr" and kind == "voided":
                    return  # its API says one thing at a time, and this is the last one
        if payment.source == "payments" and self._is(0.3):
            yield Fact("ignored", 1)
        sums = self._sums(price, payment.source) if self._is(0.92) else []
        for minute, captured in enumerate(sums, payment.minute):
            yield Fact("paid", minute, captured=captured)
        if payment.source == "cards" and sums and self._is(0.25):
            for ids in ("intent", "charge"):  # two payments, until an event names both
                yield Fact("paid", payment.minute, captured=sums[0], ids=ids)
        largest = max(sums, default=price)
        if not largest:
            return  # nothing was paid, so nothing can be returned
        if self._is(0.55):
            yield from self._refunds(payment, largest)
        if "disputed" in says and self._is(0.2):
            yield Fact("disputed", payment.minute + 20, captured=largest)
        if "dispute" in says and self._is(0.3):
            yield from self._disputes(payment, largest)

    def _price(self, payment: Payment) -> int:
        if payment.order is not None:
            return self.made.orders[payment.order].amount
        return PLANS.get(payment.plan or "monthly", PLANS["monthly"]).price

    def _sums(self, price: int, source: str) -> list[int]:
        if price == 0:
            return [self.dice.choice([0, 0, 1, 500]) if source in SAYS_NOTHING_PAID else 500]
        near = self.dice.choice([price - 1, price + 1, price + 2, price - 2])
        larger, wrong = price + price // 2, self.dice.choice([price // 3, price * 2])
        ways = (
            [[price]] * (40 if self._is_about_people else 9) + [[price, larger]] * 3 + [[wrong]] * 3
        )
        ways += [[near], [wrong, price], [wrong, larger], [price // 2, wrong, price]]
        found = self.dice.choice(ways)
        return found[:1] if source == "kr" else found

    def _refunds(self, payment: Payment, captured: int) -> Iterator[Fact]:
        source = payment.source
        part = captured // self.dice.choice([2, 3, 4])
        ways = [(part,), (captured,), (captured,), (part, captured), (part, part + 1)]
        wanted = self.dice.choice(ways)
        before = 0
        for minute, total in enumerate(wanted, payment.minute + 30):
            if "by id" in SAYS[source]:
                told = total if self._is(0.6) else None
                refund = (f"re-{self.made.tag}-{self.dice.getrandbits(40)}", total - before)
                yield Fact("refunded", minute, captured=captured, total=told, refund=refund)
            elif "total" in SAYS[source]:
                sum_ = captured if source in TELLS_CAPTURED else None
                yield Fact("refunded", minute, captured=sum_, total=total)
            before = total

    def _disputes(self, payment: Payment, captured: int) -> Iterator[Fact]:
        yield Fact("disputed", payment.minute + 40)
        end = self.dice.choice(["won", "lost", ""])
        if end == "won":
            yield Fact("won", payment.minute + 50)
        if end == "lost":
            amount = self.dice.choice([captured, captured // 2])
            yield Fact("lost", payment.minute + 50, refund=(f"du_{payment.name}", amount))

    def _batches(self) -> Iterator[Batch]:
        """All steps in a random order, cut into batches."""
        steps = list(self._steps())
        self.dice.shuffle(steps)
        steps += self._repeats(steps)
        for other in (*self._hostile(steps), *self._acts(steps)):
            steps.insert(self.dice.randint(0, len(steps)), other)
        yield tuple(self._created_first())
        batch: list[Step] = []
        for step in steps:
            is_alone = isinstance(step, Act) and self._is(0.6)
            if is_alone or self._is(0.3) or _concern_one(step, batch):
                yield from self._cut(batch)
                batch = []
            batch.append(step)
            if is_alone:
                yield (batch.pop(),)
        yield from self._cut(batch)

    def _cut(self, batch: Sequence[Step]) -> Iterator[Batch]:
        """A batch, with a kill in some; what operators do is not interrupted."""
        if not batch:
            return
        if self.has_kills and self._is(0.12):
            yield (*[one for one in batch if not isinstance(one, Act)], Kill())
            yield from ((one,) for one in batch if isinstance(one, Act))
        else:
            yield tuple(batch)

    def _created_first(self) -> Iterator[Step]:
        for step in self._creations():
            if self._is(0.55):
                yield step

    def _creations(self) -> Iterator[Step]:
        for email in self.made.emails:
            yield CreateUser(email)
        for reference in self.made.orders:
            yield CreateOrder(reference)

    def _steps(self) -> Iterator[Step]:
        """What is told of each payment, and users and orders, some of them once more."""
        for step in self._creations():
            if self._is(0.85):
                yield step
        for payment in self.made.payments.values():
            for number, fact in enumerate(self._facts(payment)):
                event_id = f"evt-{payment.name}-{payment.source}-{number}"
                copies = self.dice.choice([1, 1, 1, 2, 3])
                told = self._as_told(payment, fact)
                yield Deliver(payment.name, payment.source, told, event_id, copies)

    def _as_told(self, payment: Payment, fact: Fact) -> Fact:
        """PortOne is asked for everything, and says that what is returned in full is canceled."""
        is_all = payment.source == "kr" and fact.total is not None and fact.total == fact.captured
        return replace(fact, kind="canceled") if is_all else fact

    def _repeats(self, steps: Sequence[Step]) -> list[Step]:
        """Repeats and contradictions, after the events themselves."""
        found: list[Step] = []
        for step in steps:
            if not isinstance(step, Deliver):
                continue
            other = self._other_meaning(step.fact)
            if self._is(0.2):
                found.append(replace(step, copies=self.dice.randint(1, 3)))
            elif self._is(0.15) and other and step.source not in KEYS_BY_MEANING:
                found.append(replace(step, fact=other, copies=1, twist="conflicting"))
        return found

    def _hostile(self, steps: Sequence[Step]) -> list[Step]:
        """Forgeries, and what cannot be read, at any time."""
        found: list[Step] = []
        for step in steps:
            if isinstance(step, Deliver) and self._is(0.06):
                found.append(replace(step, copies=1, twist="forged"))
            if isinstance(step, Deliver) and self._is(0.04):
                other = f"{step.event_id}-malformed"
                found.append(replace(step, event_id=other, copies=1, twist="malformed"))
        return found

    def _other_meaning(self, fact: Fact) -> Fact | None:
        if fact.kind == "paid" and fact.captured:
            return replace(fact, captured=fact.captured + 700)
        if fact.kind == "refunded" and fact.total and not fact.refund:
            return replace(fact, total=fact.total + 1)
        return None

    def _acts(self, steps: Sequence[Step]) -> Iterator[Act]:
        split = {one.payment for one in steps if isinstance(one, Deliver) and one.fact.ids != "all"}
        payments = [one for one in self.made.payments if one not in split]
        orders = list(self.made.orders)
        for _ in range(self.dice.randint(1, 7)):
            verb = self.dice.choice(ABOUT_PEOPLE if self._is_about_people else VERBS)
            name = self.dice.choice(payments or [""])
            if not name and verb in ("link", "accept", "mark", "unmark", "refund"):
                continue
            match verb:
                case "refund":
                    yield from self._returns(name)
                case "end" | "resume" | "merge" | "erase":
                    yield from self._about_people(verb)
                case "cancel":
                    yield Act(verb, "", self.dice.choice(orders))
                case "spend":
                    wallets = [one.wallet for one in self.made.orders.values() if one.wallet]
                    if wallets:
                        yield Act(verb, "", self.dice.choice(wallets))
                case "link" if self.made.payments[name].order is None and self._is(0.5):
                    yield Act(verb, name, self.dice.choice(self.made.emails))
                case "link":
                    yield Act(verb, name, self.dice.choice(orders))
                case _:
                    yield Act(verb, name)

    def _returns(self, name: str) -> Iterator[Act]:
        """A refund that an operator records, and maybe once more, as it was or otherwise."""
        price = self._price(self.made.payments[name]) or 500
        amount = self.dice.choice([price, price, price // 2, price // 3, price * 2])
        refund_id = f"{self.made.tag}-re{self.dice.randint(0, 3)}"
        how = self.dice.choice(["inside", "inside", "outside"])
        yield Act("refund", name, refund_id, how, amount)
        if self._is(0.3):
            yield Act("refund", name, refund_id, how, amount)
        if self._is(0.15):
            yield Act("refund", name, refund_id, how, amount + 1)
        if self._is(0.15):
            yield Act("refund", name, refund_id, "outside", amount)

    def _about_people(self, verb: str) -> Iterator[Act]:
        """A subscription that is canceled may be resumed; others are merged or erased."""
        one, other = self.dice.sample(self.made.emails, 2)
        match verb:
            case "end":
                yield Act("end", "", one, self.dice.choice(["now", "period_end"]))
                if self._is(0.5):
                    yield Act("resume", "", one)
            case "merge":
                yield Act("merge", "", one, other)
                if self._is(0.2):
                    yield Act("merge", "", one, other)
            case _:
                yield Act(verb, "", one)
