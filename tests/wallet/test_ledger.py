"""`verify`: each kind of damage is found, and what moves meanwhile is none."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.bootstrap.services import Services
from paidonce.core.callbacks import GatewayStatus
from paidonce.db.pool import Database
from paidonce.payouts.gateway import GatewayAnswer
from paidonce.wallet import ledger
from paidonce.wallet.commands import WalletCommands, execute
from paidonce.wallet.reservations import Commit, Reserve
from tests.payouts.harness import initiated, open_harness
from tests.support.batches import NO_RULES, somebody_waits
from tests.support.tools import rows
from tests.wallet.scenarios import funded_wallet

# The triggers that refuse this are what somebody who damages a ledger has got around.
UNGUARDED: Final = "SET LOCAL session_replication_role = replica; "
LOST_ENTRY: Final = "DELETE FROM ledger_entries WHERE id = (SELECT min(id) FROM ledger_entries)"
DAMAGE: Final = {
    "balance": "UPDATE wallets SET balance_minor = balance_minor + 1",
    "receivable": "UPDATE wallets SET receivable_minor = receivable_minor + 1",
    "reserved": "UPDATE wallets SET reserved_minor = reserved_minor + 1",
    "movement": "UPDATE ledger_entries SET amount_minor = amount_minor - 1"
    " WHERE account LIKE 'gateway:%'",
}


@pytest_asyncio.fixture(loop_scope="session")
async def services(database: Database) -> AsyncIterator[Services]:
    made = Services(database, NO_RULES)
    yield made
    await made.wallet_commands.stop()


async def damaged(database: Database, statement: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(UNGUARDED + statement)


@pytest.mark.parametrize("what", DAMAGE)
async def test_verify_finds_each_kind_of_damage(
    database: Database, services: Services, what: str
) -> None:
    """WAL-2: with what is recorded, and what should be."""
    wallet_id = await funded_wallet(database, 500)
    await services.wallets.reserve(wallet_id, "p-1", "2.00")
    assert await services.wallets.verify() == []
    await damaged(database, DAMAGE[what])
    (discrepancy,) = await services.wallets.verify()
    assert (discrepancy.kind, discrepancy.currency) == (what, "EUR")
    told = {
        "balance": (wallet_id, "5.01", "5.00"),
        "receivable": (wallet_id, "0.01", "0.00"),
        "reserved": (wallet_id, "2.01", "2.00"),
        "movement": (discrepancy.id, "-0.01", "0.00"),
    }
    assert (discrepancy.id, discrepancy.recorded, discrepancy.expected) == told[what]


async def test_a_lost_entry_is_found_twice(database: Database, services: Services) -> None:
    """WAL-2: its wallet is not explained, and its movement does not sum to zero."""
    await funded_wallet(database, 500)
    await damaged(database, LOST_ENTRY)
    assert {discrepancy.kind for discrepancy in await services.wallets.verify()} == {
        "balance",
        "movement",
    }


async def test_a_reservation_that_was_ended_by_hand_is_found(
    database: Database, services: Services
) -> None:
    """WAL-2: the wallet still holds what nobody has reserved."""
    await services.wallets.reserve(await funded_wallet(database, 500), "p-1", "2.00")
    await damaged(database, "UPDATE reservations SET status = 'RELEASED', ended_at = now()")
    (discrepancy,) = await services.wallets.verify()
    assert (discrepancy.kind, discrepancy.recorded, discrepancy.expected) == (
        "reserved",
        "2.00",
        "0.00",
    )


@pytest.mark.parametrize("page", [1, 2, 3, 7, 1_000])
async def test_verify_does_not_depend_on_the_page_size(
    database: Database, services: Services, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """WAL-2: movements that a page cuts are put together again."""
    ids = [await funded_wallet(database, minor) for minor in (0, 100, 200, 300, 400)]
    await damaged(database, f"UPDATE wallets SET balance_minor = 7 WHERE id = '{ids[3]}'")
    monkeypatch.setattr(ledger, "PAGE_WALLETS", page)
    monkeypatch.setattr(ledger, "PAGE_ENTRIES", page)
    told: list[tuple[str, int]] = []
    discrepancies = await services.wallets.verify(lambda what, done, _: told.append((what, done)))
    assert [(discrepancy.kind, discrepancy.id) for discrepancy in discrepancies] == [
        ("balance", ids[3])
    ]
    assert max(done for what, done in told if what == "wallets") == len(ids)


async def test_a_movement_that_is_committed_between_two_pages_is_no_discrepancy(
    database: Database, services: Services
) -> None:
    """WAL-2: ids are not commit order, so only the other half of it may have been seen."""
    await funded_wallet(database, 100)
    late = (
        "INSERT INTO ledger_entries (id, movement_id, account, currency, amount_minor, at)"
        " OVERRIDING SYSTEM VALUE VALUES (0, $1, 'gateway:1', 'EUR', -5, now()),"
        " (100, $1, 'spent:EUR', 'EUR', 5, now())"
    )
    told: list[int] = []

    def tell(what: str, done: int, total: int) -> None:
        if what == "entries" and done and not told:
            rows(database.url, late, uuid7())
            told.append(done)

    assert await services.wallets.verify(tell) == []
    assert told == [2]


async def test_concurrent_movements_are_no_discrepancy(
    database: Database, services: Services
) -> None:
    """WAL-2: each page is looked at as it is at one instant."""
    ids = [await funded_wallet(database, 10_000) for _ in range(4)]
    service = WalletCommands(database)

    async def spend(wallet_id: UUID) -> None:
        for _ in range(40):
            payment = uuid4().hex
            await service.execute(Reserve(payment, wallet_id, 5))  # type: ignore[arg-type]
            await service.execute(Commit(payment, 3))

    spending = [asyncio.create_task(spend(wallet_id)) for wallet_id in ids]
    looks = 0
    while not all(one.done() for one in spending):
        assert await services.wallets.verify() == []
        looks += 1
    await asyncio.gather(*spending)
    await service.stop()
    assert looks > 1


async def test_the_number_of_discrepancies_is_limited(
    database: Database, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-8"""
    for _ in range(4):
        await funded_wallet(database, 100)
    await damaged(database, DAMAGE["balance"])
    monkeypatch.setattr(ledger, "MAX_DISCREPANCIES", 3)
    assert len(await services.wallets.verify()) == 3


async def test_entries_are_in_the_order_of_the_wallet_lock(
    database: Database,
) -> None:
    """WAL-2: or the past of the wallet would hold a balance that never was."""
    payouts = await open_harness(database)
    wallet_id = await payouts.wallet()
    await payouts.consume(initiated("p", wallet_id))
    await payouts.caller.save("p", GatewayAnswer("tx", GatewayStatus.PENDING))
    callbacks = await payouts.told("tx", "succeeded")
    async with database.connection() as first:
        transaction = first.transaction()
        await transaction.start()
        await first.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", wallet_id)
        waiting = asyncio.create_task(payouts.consume(*callbacks))
        async with database.connection() as watcher:
            await somebody_waits(watcher)
        await execute(first, [Reserve("q", wallet_id, 500), Commit("q")])
        await transaction.commit()
        await waiting
    found = await payouts.rows(
        "SELECT reservation, at FROM ledger_entries WHERE account = $1 ORDER BY at",
        f"wallet:{wallet_id}",
    )
    assert [row["reservation"] for row in found] == [None, "q", "p"]
    await payouts.caller.close()


async def test_a_past_balance_is_the_sum_of_its_entries(
    database: Database, services: Services
) -> None:
    """WAL-2"""
    wallet_id = await funded_wallet(database, 500)
    async with database.transaction() as connection:
        await execute(connection, [Reserve("p-1", wallet_id, 200)])
        await execute(connection, [Commit("p-1")])
        between = await connection.fetchval(
            "SELECT max(at) - (max(at) - min(at)) / 2 FROM ledger_entries"
        )
    assert (await services.wallets.get(wallet_id, between)).balance == "5.00"
    assert (await services.wallets.get(wallet_id)).balance == "3.00"
