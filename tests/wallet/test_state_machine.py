"""The wallet against a model of it: whatever is done, in whatever order (WAL-1 WAL-2 FUL-4)."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from uuid_utils.compat import uuid7

from paidonce.bootstrap.services import Services
from paidonce.core.events import EventType, OrderId, WalletId
from paidonce.core.money import Money
from paidonce.core.orders import Kind, Order
from paidonce.db.pool import Database, open_database
from paidonce.db.queries import Connection
from paidonce.linking.linker import Linker
from paidonce.processing.items import Incoming, ResultKind
from paidonce.processing.transactions import Processor
from paidonce.wallet import store
from paidonce.wallet.commands import WalletBatch
from paidonce.wallet.reservations import (
    Command,
    CommandResult,
    Commit,
    Expire,
    LateCapture,
    Release,
    Reserve,
)
from tests.support.batches import Stage, stage
from tests.support.postgres import SCHEMA
from tests.wallet.model import Model, Purse

T = TypeVar("T")

RUNS: Final = 50
STEPS: Final = 50
SOAK_RUNS: Final = 1_000
SOAK_STEPS: Final = 100
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
PURSES: Final = ("a", "b")
SLIPS: Final = 6
"""How many payment ids a run has: few, so that commands meet each other."""

SNAPSHOT: Final = """
SELECT jsonb_build_object(
    'wallets', (SELECT jsonb_agg(to_jsonb(w) ORDER BY w.id) FROM wallets AS w
                 WHERE w.id = ANY ($1::uuid[])),
    'reservations', (SELECT jsonb_agg(to_jsonb(r) ORDER BY r.payment_id) FROM reservations AS r
                      WHERE r.payment_id = ANY ($2::text[])),
    'entries', (SELECT jsonb_agg(to_jsonb(e) ORDER BY e.id) FROM ledger_entries AS e
                 WHERE e.account = ANY ($3::text[])))
"""

payments = st.integers(0, SLIPS - 1)
amounts = st.integers(1, 60)
purses = st.sampled_from(PURSES)
lasting = st.none() | st.integers(1, 3)
asked = st.one_of(
    st.tuples(st.just("reserve"), payments, purses, amounts, lasting),
    st.tuples(st.just("commit"), payments, st.none() | amounts),
    st.tuples(st.just("release"), payments),
    st.tuples(st.just("expire"), payments),
    st.tuples(st.just("late_capture"), payments),
)


@dataclass(frozen=True)
class House:
    """A database for all runs, and a loop to talk to it."""

    runner: asyncio.Runner
    stage: Stage
    connection: Connection
    processor: Processor
    linker: Linker

    def run(self, work: Awaitable[T]) -> T:
        async def waited() -> T:
            return await work

        return self.runner.run(waited())


class Wallets(RuleBasedStateMachine):
    """Commands as the services give them, top-ups and refunds as gateways tell of them."""

    house: ClassVar[House]

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.unique = uuid4().hex[:12]
        self.ids: dict[str, WalletId] = {}
        self.seen: dict[str, Any] | None = None
        self.is_unchanged = False
        for name in PURSES:
            self.model.purses[name] = Purse()
            self.ids[name] = self.house.run(self._new_wallet(name))

    async def _new_wallet(self, name: str) -> WalletId:
        row, _ = await store.create_wallet(
            self.house.connection, uuid7(), f"{self.unique}-{name}", "RUB"
        )
        return WalletId(row["id"])

    @rule(purse=purses, amount=st.integers(10, 120))
    def top_up(self, purse: str, amount: int) -> None:
        number = len(self.model.top_ups)
        self.house.run(self._paid(number, purse, amount))
        self.model.top_up(purse, amount)

    async def _paid(self, number: int, purse: str, amount: int) -> None:
        reference, price = self._reference(number), Money(amount, "RUB")
        order_id, wallet_id = OrderId(uuid7()), self.ids[purse]
        order = Order(order_id, reference, Kind.WALLET, price, wallet_id=wallet_id)
        await self.house.linker.create_order(order, b"same", "somebody")
        said: dict[str, Any] = {"amount_minor": amount, "currency": "RUB"}
        await self._processed(
            self.house.stage.event(EventType.PAID, reference, order=reference, **said)
        )

    @precondition(lambda self: self.model.top_ups)
    @rule(which=st.integers(0, 1_000), share=st.integers(1, 100))
    def refund(self, which: int, share: int) -> None:
        number = which % len(self.model.top_ups)
        total = max(self.model.top_ups[number].amount * share // 100, 1)
        said: dict[str, Any] = {
            "amount_minor": total,
            "currency": "RUB",
            "key": f"{self._reference(number)}:{total}",
        }
        event = self.house.stage.event(EventType.REFUNDED, self._reference(number), **said)
        self.house.run(self._processed(event))
        self.model.refund(number, total)

    async def _processed(self, item: Incoming) -> None:
        (result,) = (await self.house.processor.process([item])).results
        assert result.kind in (ResultKind.PROCESSED, ResultKind.DUPLICATE), result

    def _reference(self, number: int) -> str:
        return f"{self.unique}-{number}"

    @rule(hours=st.integers(1, 2))
    def time_passes(self, hours: int) -> None:
        self.model.clock += hours

    @rule(batch=st.lists(asked, min_size=1, max_size=4))
    def command(self, batch: list[Any]) -> None:
        before = json.dumps(self.model, default=vars)
        expected = [self._expected(one) for one in batch]
        results = self.house.run(self._obeyed([self._command(one) for one in batch]))
        assert [_answer(one) for one in results] == expected
        self.is_unchanged = json.dumps(self.model, default=vars) == before

    async def _obeyed(self, commands: list[Command]) -> list[CommandResult]:
        """As `obey` does it, by the model's clock."""
        connection, now = self.house.connection, START + timedelta(hours=self.model.clock)
        async with connection.transaction():
            batch = WalletBatch(replace(await store.lock(connection, commands), now=now))
            results = [batch.execute(command) for command in commands]
            await store.write(connection, batch.changes())
        return results

    def _expected(self, one: Any) -> str:
        verb, payment, *others = one
        do: Callable[..., str] = getattr(self.model, verb)
        return do(self._payment(payment), *others)

    def _command(self, one: Any) -> Command:
        verb, number, *others = one
        payment = self._payment(number)
        match verb:
            case "reserve":
                purse, amount, hours = others
                lasts = None if hours is None else timedelta(hours=hours)
                return Reserve(payment, self.ids[purse], amount, lasts)
            case "commit":
                return Commit(payment, *others)
            case "release":
                return Release(payment)
            case "expire":
                return Expire(payment)
            case _:
                return LateCapture(payment)

    def _payment(self, number: int) -> str:
        return f"{self.unique}/{number}"

    @invariant()
    def everything_agrees(self) -> None:
        found = self.house.run(self._snapshot())
        if self.is_unchanged:
            assert found == self.seen, "what was refused, or repeated, has left a trace"
        self.seen, self.is_unchanged = found, False
        for name, wallet_id in self.ids.items():
            self._check_wallet(name, wallet_id, found)
        self._check_reservations(found)
        self._check_conserved(found)

    def _check_wallet(self, name: str, wallet_id: WalletId, found: Any) -> None:
        (row,) = [one for one in found["wallets"] if one["id"] == str(wallet_id)]
        purse = self.model.purses[name]
        assert row["balance_minor"] == purse.inside == _sum(found, f"wallet:{wallet_id}")
        assert row["receivable_minor"] == purse.owed == -_sum(found, f"receivable:{wallet_id}")
        held = [one for one in found["reservations"] or [] if one["wallet_id"] == str(wallet_id)]
        open_minor = sum(one["amount_minor"] for one in held if one["status"] == "RESERVED")
        assert row["reserved_minor"] == self.model.held(name) == open_minor
        assert 0 <= row["reserved_minor"] <= row["balance_minor"]
        assert row["receivable_minor"] >= 0

    def _check_reservations(self, found: Any) -> None:
        rows = {
            one["payment_id"]: (one["status"], one["amount_minor"], one["committed_minor"])
            for one in found["reservations"] or []
        }
        slips = self.model.slips.items()
        assert rows == {name: (one.status, one.amount, one.taken) for name, one in slips}

    def _check_conserved(self, found: Any) -> None:
        """What came in, less what went back and what was spent, is there or is owed."""
        came = sum(one.amount - one.back for one in self.model.top_ups)
        spent = sum(one["committed_minor"] for one in found["reservations"] or [])
        there = sum(one["balance_minor"] - one["receivable_minor"] for one in found["wallets"])
        assert came == spent + there

    async def _snapshot(self) -> Any:
        accounts = [
            f"{kind}:{one}" for one in self.ids.values() for kind in ("wallet", "receivable")
        ]
        names = [self._payment(number) for number in range(SLIPS)]
        text = await self.house.connection.fetchval(
            SNAPSHOT, list(self.ids.values()), names, accounts
        )
        return json.loads(text)


def _answer(results: CommandResult) -> str:
    if results.reject_reason is not None:
        return results.reject_reason
    assert results.reservation is not None
    return results.reservation.status


def _sum(found: Any, account: str) -> int:
    entries = [one for one in found["entries"] or [] if one["account"] == account]
    return sum(one["amount_minor"] for one in entries)


@pytest.fixture
def house(module_database: Database) -> Iterator[House]:
    """The database of the module, talked to from a loop that only this test runs."""
    with asyncio.Runner() as runner:
        made, opened = runner.run(_opened(module_database.url))
        yield House(runner, *made)
        runner.run(made[2].close())
        runner.run(made[1].close())
        runner.run(opened.close())


async def _opened(url: str) -> tuple[tuple[Stage, Connection, Processor, Linker], Database]:
    opened = await open_database(url, SCHEMA)
    made = await stage(opened)
    processor, linker = Processor(opened, made.rules), Linker(opened, made.rules)
    return (made, await opened.dedicated(), processor, linker), opened


def test_the_wallet_agrees_with_its_model(house: House, request: pytest.FixtureRequest) -> None:
    """WAL-1 WAL-2 FUL-4: money is conserved, nothing is negative, the ledger explains the balance,
    open reservations explain what is reserved, and what is refused leaves every row as it was.
    """
    is_soak = request.config.getoption("--soak")
    Wallets.house = house
    run_state_machine_as_test(
        Wallets,
        settings=settings(
            max_examples=SOAK_RUNS if is_soak else RUNS,
            stateful_step_count=SOAK_STEPS if is_soak else STEPS,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            derandomize=not is_soak,
        ),
    )
    verbs = Services(house.stage.database, house.stage.rules)
    assert house.run(verbs.wallets.verify()) == []
