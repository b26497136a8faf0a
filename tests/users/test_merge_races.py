"""Deliveries that are processed while two users are merged leave nothing with the merged one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.bootstrap.services import Services
from paidonce.core.actors import Actor, Scope
from paidonce.core.events import EventType, OrderId, UserId, WalletId
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order
from paidonce.db.pool import Trouble, trouble
from paidonce.db.queries import Connection
from paidonce.errors import ConflictError
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, ResultKind
from paidonce.processing.process import process, process_without_locks
from paidonce.processing.transactions import Processor
from paidonce.queue.worker import Worker
from paidonce.users import merge as merging
from paidonce.users.model import CancelAt
from tests.support.batches import DAYS, Stage, somebody_waits

SOMEBODY = Actor("somebody", Scope.ADMIN)
INTERLEAVINGS = 24
GONE = "gone@example.com"


@dataclass(frozen=True)
class People:
    """Two users of a shop: one is merged into the other."""

    shop: Stage
    services: Services
    gone: UserId
    into: UserId

    async def merge(self) -> None:
        await self.services.users.merge(self.gone, self.into, SOMEBODY, "one person")

    async def order(self, reference: str, kind: Kind, wallet_id: UUID | None = None) -> None:
        order = Order(
            OrderId(uuid7()),
            reference,
            kind,
            Money(99_000, "RUB"),
            self.gone,
            wallet_id=None if wallet_id is None else WalletId(wallet_id),
        )
        await Linker(self.shop.database, self.shop.rules).create_order(order, b"same", "somebody")

    async def wallets(self) -> UUID:
        """A wallet of each; returns that of the merged user."""
        first, _ = await self.services.wallets.create(str(self.gone), "RUB")
        await self.services.wallets.create(str(self.into), "RUB")
        return first.id

    async def pay(self, *items: Incoming) -> None:
        processor = Processor(self.shop.database, self.shop.rules)
        left = list(items)
        for _ in range(500):
            results = (await processor.process(left)).results
            left = [cast("Incoming", one.item) for one in results if one.kind is ResultKind.LOCKED]
            if not left:
                break
        await processor.close()
        assert not left

    async def check(self) -> None:
        """Nothing names the merged user, and the ledger explains every wallet."""
        for table in ("payments", "orders", "subscriptions", "user_emails"):
            left = await self.shop.rows(f"SELECT * FROM {table} WHERE user_id = $1", self.gone)
            assert left == [], table
        wallets = await self.shop.rows(
            "SELECT 1 FROM wallets WHERE owner = $1 AND merged_into IS NULL", str(self.gone)
        )
        assert wallets == []
        assert await self.services.wallets.verify() == []
        assert (
            await self.shop.rows("SELECT 1 FROM webhook_events WHERE error_code = 'INTERNAL'") == []
        )


@pytest_asyncio.fixture(loop_scope="session")
async def people(shop: Stage) -> Any:
    services = Services(shop.database, shop.rules)
    gone, into = await shop.user("gone@example.com"), await shop.user("into@example.com")
    yield People(shop, services, gone, into)
    await services.wallet_commands.stop()


async def new_subscription(people: People) -> Incoming:
    """Neither row has a version: the foreign key notices."""
    return people.shop.paid("p", email="gone@example.com")


async def longer_subscription(people: People) -> Incoming:
    await people.pay(people.shop.paid("before", email="gone@example.com"))
    return people.shop.paid("p", email="gone@example.com")


async def subscriptions_of_both(people: People) -> Incoming:
    await people.pay(people.shop.paid("other", email="into@example.com"))
    return await longer_subscription(people)


async def wrong_amount(people: People) -> Incoming:
    """A new payment that names the user, and nothing else."""
    return people.shop.paid("p", email="gone@example.com", amount_minor=5)


async def part_of_the_money_back(people: People) -> Incoming:
    await people.pay(people.shop.paid("p", email="gone@example.com"))
    return people.shop.event(EventType.REFUNDED, "p", amount_minor=100, currency="RUB")


async def all_of_the_money_back(people: People) -> Incoming:
    await people.pay(people.shop.paid("p", email="gone@example.com"))
    return people.shop.event(EventType.REFUNDED, "p", amount_minor=99_000, currency="RUB")


async def order(people: People) -> Incoming:
    await people.order("o", Kind.ORDER)
    return people.shop.paid("p", email=None, order="o")


async def top_up(people: People) -> Incoming:
    await people.order("o", Kind.WALLET, await people.wallets())
    return people.shop.paid("p", email=None, order="o")


async def top_up_back(people: People) -> Incoming:
    await people.pay(await top_up(people))
    return people.shop.event(EventType.REFUNDED, "p", amount_minor=99_000, currency="RUB")


CASES = [
    new_subscription,
    longer_subscription,
    subscriptions_of_both,
    wrong_amount,
    part_of_the_money_back,
    all_of_the_money_back,
    order,
    top_up,
    top_up_back,
]
Case = Callable[[People], Awaitable[Incoming]]


class BeforeWriting:
    """A connection on which something happens between loading and writing."""

    def __init__(self, connection: Connection, happens: Callable[[], Awaitable[object]]) -> None:
        self._connection = connection
        self._happens = happens

    async def fetch(self, *arguments: Any) -> Any:
        await self._happens()
        return await self._connection.fetch(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("case", CASES)
async def test_a_merge_between_loading_and_writing_is_noticed(people: People, case: Case) -> None:
    """USR-2 PAY-3: without locks, the batch fails as a whole, and is processed again."""
    item = await case(people)
    async with people.shop.database.connection() as connection:
        meanwhile = cast("Connection", BeforeWriting(connection, people.merge))
        [done] = await asyncio.gather(
            process_without_locks(meanwhile, [item], people.shop.rules), return_exceptions=True
        )
    if done is None:  # it has to be processed with locks
        await people.merge()
    else:
        assert isinstance(done, asyncpg.PostgresError), "written for a user that is gone"
        assert trouble(done) is Trouble.RERUN
    await people.pay(item)
    await people.check()


@pytest.mark.parametrize("case", CASES)
async def test_a_merge_waits_for_what_is_being_written(people: People, case: Case) -> None:
    """USR-2 PAY-3: and moves it."""
    item = await case(people)
    async with (
        people.shop.database.connection() as holder,
        people.shop.database.connection() as watcher,
    ):
        transaction = holder.transaction()
        await transaction.start()
        await process(holder, [item], people.shop.rules)
        merging = asyncio.create_task(people.merge())
        await somebody_waits(watcher)
        await transaction.commit()
        await merging
    await people.check()


async def test_an_order_and_a_wallet_that_are_being_created_go_over(people: People) -> None:
    """USR-2: the merge waits for them, or they find the remaining user."""
    done = await asyncio.gather(
        people.merge(),
        *(people.services.wallets.create(str(people.gone), one) for one in ("RUB", "USD", "EUR")),
    )
    assert len(done) == 4
    await people.check()


async def test_a_change_of_address_waits_for_a_merge(people: People) -> None:
    """USR-1 USR-2: the address is that of the remaining user."""
    users = people.services.users
    changed, _ = await asyncio.gather(
        users.change_email(people.gone, "new@example.com", SOMEBODY), people.merge()
    )
    assert changed.id in (people.gone, people.into)
    await people.check()
    (user,) = await users.find_by_email("new@example.com")
    assert user.id == people.into
    addresses = {user.email, *user.former_emails}
    assert addresses == {"gone@example.com", "into@example.com", "new@example.com"}


async def test_payments_and_a_merge_at_the_same_time(people: People, worker: Worker) -> None:
    """USR-2 PAY-3: whatever the interleaving, every payment counts once for the remaining user."""
    shop = people.shop

    async def pay(number: int) -> None:
        email = ("gone@example.com", "into@example.com")[number % 2]
        await people.pay(shop.paid(f"p-{number}", email=email))

    await asyncio.gather(*map(pay, range(INTERLEAVINGS // 2)))
    later = [pay(number) for number in range(INTERLEAVINGS // 2, INTERLEAVINGS)]
    await asyncio.gather(*later, people.merge())
    while await shop.number("event_queue"):  # those that lost too many races
        await worker.run_once()
    await people.check()
    row = await shop.one("SELECT current_period_end, user_id FROM subscriptions")
    first = await shop.one("SELECT min(period_start) AS start FROM payments")
    assert row["user_id"] == people.into
    assert row["current_period_end"] == first["start"] + INTERLEAVINGS * DAYS
    periods = await shop.rows("SELECT period_start, period_end FROM payments ORDER BY period_start")
    ends = [one["period_end"] for one in periods]
    assert [one["period_start"] for one in periods[1:]] == ends[:-1], "without gap or overlap"
    assert await shop.number("outbox") == INTERLEAVINGS


async def test_two_merges_in_opposite_directions_leave_one_user(people: People) -> None:
    """USR-2"""
    users = people.services.users
    done = await asyncio.gather(
        users.merge(people.gone, people.into, SOMEBODY, "one"),
        users.merge(people.into, people.gone, SOMEBODY, "other"),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Exception) for one in done) == 1
    assert await people.shop.number("users") == 1


async def test_periods_are_those_of_all_grants_whatever_the_order_of_refunds(
    people: People,
) -> None:
    """USR-2 FUL-7: a refund before the merge and the same one after it end alike."""
    shop = people.shop
    for name, email in (("a", "gone"), ("b", "into"), ("c", "gone")):
        await people.pay(shop.paid(name, email=f"{email}@example.com"))
    back = shop.event(EventType.REFUNDED, "a", amount_minor=99_000, currency="RUB")
    await people.merge()
    await people.pay(back)
    row = await shop.one("SELECT current_period_end FROM subscriptions")
    granted = await shop.one("SELECT granted_at, applied_at FROM payments WHERE email LIKE 'into%'")
    returned = await shop.payment("a")
    assert returned["period_end"] - returned["period_start"] < DAYS
    assert row["current_period_end"] - returned["period_end"] == 2 * DAYS
    assert granted["applied_at"] is not None


async def test_a_period_that_a_refund_kept_is_kept_by_a_merge(people: People) -> None:
    """USR-2 FUL-7: with `refunds.subscription = "keep"`."""
    shop = replace(
        people.shop, rules=replace(people.shop.rules, kept_on_refund=frozenset({Kind.SUBSCRIPTION}))
    )
    services = Services(shop.database, shop.rules)
    keeping = replace(people, shop=shop, services=services)
    for name, email in (("a", "gone"), ("b", "into")):
        await keeping.pay(shop.paid(name, email=f"{email}@example.com"))
    await keeping.pay(shop.event(EventType.REFUNDED, "a", amount_minor=99_000, currency="RUB"))
    await keeping.merge()
    row = await shop.one("SELECT current_period_end FROM subscriptions")
    first = await shop.one("SELECT min(period_start) AS start FROM payments")
    assert row["current_period_end"] == first["start"] + 2 * DAYS
    await services.wallet_commands.stop()


async def test_users_with_too_many_payments_are_not_merged(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """USR-2: a merge is one transaction of limited size."""
    monkeypatch.setattr(merging, "MAX_ROWS", 1)
    for name in ("a", "b"):
        await people.pay(people.shop.paid(name, email="gone@example.com"))
    with pytest.raises(ConflictError, match="too large"):
        await people.merge()
    assert (await people.services.users.get(people.gone)).id == people.gone


@pytest.mark.parametrize("by_order", [False, True])
async def test_a_payment_that_arrives_while_its_subscription_is_resumed_is_applied(
    people: People, by_order: bool
) -> None:
    """FUL-9: it was decided for a canceled one, so it is not written and is decided again."""
    shop, users = people.shop, people.services.users
    await people.pay(shop.paid("first", email="gone@example.com"))
    found = await shop.one("SELECT id FROM subscriptions")
    await users.cancel_subscription(found["id"], CancelAt.PERIOD_END, SOMEBODY, "asked")
    if by_order:
        await people.order("o", Kind.SUBSCRIPTION)
    item = shop.paid("p", **({"order": "o", "email": None} if by_order else {"email": GONE}))
    async with shop.database.connection() as connection:

        async def resume() -> None:
            await users.resume_subscription(found["id"], SOMEBODY)

        meanwhile = cast("Connection", BeforeWriting(connection, resume))
        [done] = await asyncio.gather(
            process_without_locks(meanwhile, [item], shop.rules), return_exceptions=True
        )
    assert isinstance(done, asyncpg.PostgresError)
    assert trouble(done) is Trouble.RERUN
    await people.pay(item)
    assert (await shop.payment("p"))["review"] is None
