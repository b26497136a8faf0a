"""Every order of arrival of a payment's events, with operators in between, in a real database.

`tests/core/test_standing.py` walks the same orders in memory. Here each event is a transaction of
its own, which reads what the one before has written. Lives share transactions, and no rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from paidonce.core.actors import HOST
from paidonce.core.events import EventType, OrderId, WalletId
from paidonce.core.masking import Masker
from paidonce.core.money import Money
from paidonce.core.orders import Kind
from paidonce.core.orders import Order as StoredOrder
from paidonce.errors import ConflictError
from paidonce.linking.linker import Linker
from paidonce.payments.model import PaymentView
from paidonce.payments.service import PaymentService
from paidonce.processing.items import Incoming
from paidonce.processing.transactions import Processor
from paidonce.users.service import UserService
from paidonce.wallet import store as wallet_store
from tests.model.check import BOOKINGS, UNBALANCED, UNEXPLAINED
from tests.model.histories import PLANS
from tests.model.model import Acceptance, Fact, Model, Order, Payment, minor
from tests.support.batches import Stage

PRICE, LARGER, HALF = 99_000, 148_500, 49_500
FACTS: Final = {
    "price": Fact("paid", captured=PRICE),
    "larger": Fact("paid", captured=LARGER),
    "half back": Fact("refunded", total=HALF),
    "price back": Fact("refunded", total=PRICE),
    "all back": Fact("refunded", total=LARGER),
    "first part": Fact("refunded", refund=("first", 30_000)),
    "second part": Fact("refunded", refund=("second", 69_000)),
    "lost": Fact("lost", refund=("dispute:d", HALF)),
    "disputed": Fact("disputed", minute=1),
    "canceled": Fact("canceled"),
    "failed": Fact("failed"),
}
TYPES: Final = {
    "lost": EventType.REFUNDED,
    "refunded": EventType.REFUNDED,
    "paid": EventType.PAID,
    "disputed": EventType.DISPUTED,
    "canceled": EventType.CANCELED,
    "failed": EventType.FAILED,
}
LIVES: Final = {
    "totals": ("price", "larger", "half back", "price back", "disputed"),
    "parts": ("price", "larger", "first part", "second part", "failed"),
    "canceled": ("price", "larger", "half back", "canceled", "all back"),
    "a dispute lost": ("price", "larger", "half back", "lost", "price back"),
}
WATCHED: Final = ("price", "larger", "half back", "second part")
OPERATORS: Final = (("accept",), ("mark",), ("mark", "unmark"), ("link",), ("link", "accept"))
KINDS: Final = (*Kind, None)
"""None is a plan that is paid by e-mail."""
SHARE: Final = 11
"""In `make test`, one of so many lives is lived for each kind; in `make soak`, all are."""
BATCH: Final = 100


@dataclass
class Life:
    """One payment for one order, the steps of its life, and what the model knows of it."""

    name: str
    kind: Kind | None
    steps: Sequence[str]
    model: Model
    wallet_id: WalletId | None = None

    @property
    def payment(self) -> Payment:
        return self.model.payments[self.name]


class World:
    """Many lives in one database."""

    def __init__(self, stage: Stage, processor: Processor) -> None:
        self._stage = stage
        self._processor = processor
        self._linker = Linker(stage.database, stage.rules)
        users = UserService(stage.database, self._linker, Masker())
        self._payments = PaymentService(stage.database, self._linker, users)

    async def begin(self, name: str, kind: Kind | None, steps: Sequence[str]) -> Life:
        email, model = f"{name}@example.com", Model(PLANS, "monthly")
        life = Life(name, kind, steps, model)
        await self._stage.user(email)
        model.people.add(email, name)
        model.payments[name] = Payment(name, "shop", email=email)
        if kind is not None:
            model.payments[name].order = f"o-{name}"
            for reference in (f"o-{name}", f"other-{name}")[: 2 if "link" in steps else 1]:
                await self._order(life, kind, reference, email)
        return life

    async def _order(self, life: Life, kind: Kind, reference: str, email: str) -> None:
        known = Order(reference, kind.value, PRICE, email=email)
        if kind is Kind.WALLET and life.wallet_id is None:
            async with self._stage.database.transaction() as connection:
                row, _ = await wallet_store.create_wallet(connection, uuid7(), life.name, "RUB")
            life.wallet_id = WalletId(row["id"])
        stored = StoredOrder(
            OrderId(uuid7()),
            reference,
            kind,
            Money(PRICE, "RUB"),
            email=email if kind is Kind.SUBSCRIPTION else None,
            wallet_id=life.wallet_id,
        )
        await self._linker.create_order(stored, b"same", "somebody")
        life.model.orders[reference] = known

    async def live(self, lives: Sequence[Life]) -> None:
        """The first steps of all, then the second ones, and so on."""
        for number in range(max(len(one.steps) for one in lives)):
            now = [(one, one.steps[number]) for one in lives if number < len(one.steps)]
            told = [self._event(life, step) for life, step in now if step in FACTS]
            for first in range(0, len(told), BATCH):
                await self._processor.process(told[first : first + BATCH])
            for life, step in now:
                if step not in FACTS:
                    await self._act(life, step)

    def _event(self, life: Life, step: str) -> Incoming:
        fact = FACTS[step]
        life.payment.facts.add(fact)
        amount = fact.captured or fact.total or (fact.refund[1] if fact.refund else None)
        said: dict[str, Any] = {"key": f"{life.name}:{step}", "email": f"{life.name}@example.com"}
        if amount is not None:
            said |= {"amount_minor": amount, "currency": "RUB"}
        if fact.refund is not None:
            prefix, _, rest = fact.refund[0].rpartition(":")
            said["refund_id"] = f"{prefix}:{life.name}" if prefix else f"{rest}-{life.name}"
        if life.kind is not None:
            said["order"] = f"o-{life.name}"
        return self._stage.event(TYPES[fact.kind], life.name, **said)

    async def _act(self, life: Life, step: str) -> None:
        """What an operator does, and what is learned from the answer."""
        payment, row = life.payment, await self._stage.payment(life.name)
        try:
            shown = await self._asked(life, step, row["id"])
        except ConflictError:
            return
        if step == "link" and life.kind is not None:
            payment.acceptance = None if payment.order != shown.order else payment.acceptance
            if payment.order is not None and payment.order != shown.order:
                life.model.left.add(payment.order)
            payment.order = shown.order
        if step in ("mark", "unmark"):
            payment.is_marked = step == "mark"
        if step == "accept" and shown.accepted is not None:
            amount = minor(shown.accepted["amount"], "RUB")
            was_applied = shown.applied_at is not None
            payment.acceptance = Acceptance(amount, "", was_applied)

    async def _asked(self, life: Life, step: str, payment_id: UUID) -> PaymentView:
        match step:
            case "accept":
                return await self._payments.accept(payment_id, HOST, "agreed")
            case "mark":
                return await self._payments.mark_for_refund(payment_id, HOST, "sold out")
            case "unmark":
                return await self._payments.unmark_for_refund(payment_id, HOST, "found one")
            case _ if life.kind is None:
                email = f"{life.name}@example.com"
                return await self._payments.link(payment_id, HOST, email=email)
            case _:
                return await self._payments.link(payment_id, HOST, order=f"other-{life.name}")

    async def check(self, lives: Sequence[Life]) -> None:
        """All of the schema's invariants, and each life by the model."""
        assert await self._stage.rows(UNBALANCED) == []
        assert await self._stage.rows(UNEXPLAINED) == []
        rows = {one["name"]: one for one in await self._stage.rows(_PAYMENTS)}
        orders = {one["reference"]: one for one in await self._stage.rows(_ORDERS)}
        told = [line for one in lives for line in differences(one, rows[one.name], orders)]
        assert told == []


def differences(life: Life, row: dict[str, Any], orders: dict[str, dict[str, Any]]) -> list[str]:
    payment, model, found = life.payment, life.model, []
    stands = row["applied_at"] is not None and payment.held > 0 and not payment.is_marked
    seen = (row["status"], row["captured_minor"], row["refunded_minor"])
    if seen != (expected := (payment.status, payment.captured, payment.refunded)):
        found.append(f"is {seen}, expected {expected}")
    if stands != model.is_sure(payment) and model.applicable(payment) - {0} != set():
        found.append(f"stands: {stands}")
    sums = model.applicable(payment) if stands else {0}
    remaining = {min(one, payment.held) for one in sums}
    if life.kind is Kind.WALLET and row["given_minor"] not in remaining:
        found.append(f"the wallet has {row['given_minor']}, expected one of {remaining}")
    if row["told_minor"] not in (remaining if life.kind is Kind.WALLET else sums):
        found.append(f"the messages leave {row['told_minor']}, expected one of {sums}")
    review = {"EXCESS" if one < payment.held else None for one in sums} if stands else None
    if review is not None and row["review"] not in review:
        found.append(f"has review {row['review']}, expected one of {review}")
    if life.kind in (Kind.SUBSCRIPTION, None) and row["is_subscribed"] != stands:
        found.append(f"has a period: {row['is_subscribed']}, stands: {stands}")
    for reference, order in model.orders.items():
        is_paid = stands and payment.order == reference
        status, booking = orders[reference]["status"], orders[reference]["booking"]
        if status not in (statuses := model.order_statuses(order, is_paid)):
            found.append(f"{reference} is {status}, expected one of {statuses}")
        if life.kind is Kind.BOOKING and (booking == "CONFIRMED") != (BOOKINGS[status] == booking):
            found.append(f"booking {reference} is {booking}, its order {status}")
    return [f"{life.name} {life.kind} {life.steps}: {one}" for one in found]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "life",
    list(LIVES),
)
async def test_every_order_of_events_ends_alike_in_the_database(
    shop: Stage, processor: Processor, kind: Kind | None, life: str, pytestconfig: pytest.Config
) -> None:
    """REL-3 PAY-2 PAY-10 FUL-4 WAL-2: with two sums, refunds, disputes and a cancellation."""
    ways = list(permutations(LIVES[life]))
    await _lived(World(shop, processor), kind, ways, pytestconfig)


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_operators_at_any_moment_leave_what_was_paid(
    shop: Stage, processor: Processor, kind: Kind | None, pytestconfig: pytest.Config
) -> None:
    """REL-3 PAY-8 PAY-10 PAY-11: they link, accept, mark and unmark between the events."""
    ways = [
        (*events[:moment], *actions, *events[moment:])
        for events in permutations(WATCHED)
        for moment in range(1, len(WATCHED) + 1)
        for actions in OPERATORS
    ]
    await _lived(World(shop, processor), kind, ways, pytestconfig)


async def _lived(
    world: World, kind: Kind | None, ways: Sequence[Sequence[str]], config: pytest.Config
) -> None:
    if not config.getoption("--soak"):
        ways = ways[KINDS.index(kind) :: SHARE]
    lives = [await world.begin(f"p{number}", kind, steps) for number, steps in enumerate(ways)]
    await world.live(lives)
    await world.check(lives)


_PAYMENTS: Final = """
SELECT i.external_id AS name, p.status, p.captured_minor, p.refunded_minor, p.applied_at, p.review,
       coalesce(w.balance_minor - w.receivable_minor, 0) AS given_minor,
       coalesce(s.current_period_end, now()) > now() + interval '1 day' AS is_subscribed,
       coalesce((SELECT sum(CASE m.type WHEN 'payment.reversed' THEN -1 ELSE 1 END
                            * (m.payload->>'amount')::numeric * 100)::bigint
                   FROM outbox AS m
                  WHERE m.aggregate_id = p.id AND m.type LIKE 'payment.%'), 0) AS told_minor
  FROM payments AS p
  JOIN payment_ids AS i ON i.payment_id = p.id
  LEFT JOIN wallets AS w ON w.owner = i.external_id
  LEFT JOIN users AS u ON u.email = i.external_id || '@example.com'
  LEFT JOIN subscriptions AS s ON s.user_id = u.id
"""
_ORDERS: Final = """
SELECT reference, status,
       CASE WHEN fulfilled_at IS NOT NULL AND reversed_at IS NULL THEN 'CONFIRMED' END AS booking
  FROM orders
"""
