"""`verify`: each kind of damage is found, and what moves meanwhile is none."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from uuid_utils.compat import uuid7

from paidonce.domain.reservations import Commit, Reserve
from paidonce.domain.wallet_payments import Word
from paidonce.operations import Operations, ledger
from paidonce.services.gateway import Answer
from paidonce.services.wallet import WalletService, obey
from paidonce.store.db import Database
from tests.flow.tools import rows
from tests.services.office import initiated, opened_office
from tests.services.purse import filled
from tests.store.batches import NO_RULES, somebody_waits

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
async def verbs(database: Database) -> AsyncIterator[Operations]:
    made = Operations(database, NO_RULES)
    yield made
    await made.wallets.stop()


async def damaged(database: Database, statement: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(UNGUARDED + statement)


@pytest.mark.parametrize("what", DAMAGE)
async def test_each_kind_of_damage_is_found(
    database: Database, verbs: Operations, what: str
) -> None:
    """WAL-2: with what is recorded, and what should be."""
    wallet_id = await filled(database, 500)
    await verbs.reserve(wallet_id, "p-1", "2.00")
    assert await verbs.verify_wallets() == []
    await damaged(database, DAMAGE[what])
    (flaw,) = await verbs.verify_wallets()
    assert (flaw.what, flaw.currency) == (what, "EUR")
    told = {
        "balance": (wallet_id, "5.01", "5.00"),
        "receivable": (wallet_id, "0.01", "0.00"),
        "reserved": (wallet_id, "2.01", "2.00"),
        "movement": (flaw.id, "-0.01", "0.00"),
    }
    assert (flaw.id, flaw.recorded, flaw.explained) == told[what]


async def test_an_entry_that_was_lost_is_found_twice(database: Database, verbs: Operations) -> None:
    """WAL-2: its wallet is not explained, and its movement does not sum to zero."""
    await filled(database, 500)
    await damaged(database, LOST_ENTRY)
    assert {flaw.what for flaw in await verbs.verify_wallets()} == {"balance", "movement"}


async def test_a_reservation_that_was_ended_by_hand_is_found(
    database: Database, verbs: Operations
) -> None:
    """WAL-2: the wallet still holds what nobody has reserved."""
    await verbs.reserve(await filled(database, 500), "p-1", "2.00")
    await damaged(database, "UPDATE reservations SET status = 'RELEASED', ended_at = now()")
    (flaw,) = await verbs.verify_wallets()
    assert (flaw.what, flaw.recorded, flaw.explained) == ("reserved", "2.00", "0.00")


@pytest.mark.parametrize("page", [1, 2, 3, 7, 1_000])
async def test_pages_of_every_size_find_the_same(
    database: Database, verbs: Operations, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """WAL-2: movements that a page cuts are put together again."""
    ids = [await filled(database, minor) for minor in (0, 100, 200, 300, 400)]
    await damaged(database, f"UPDATE wallets SET balance_minor = 7 WHERE id = '{ids[3]}'")
    monkeypatch.setattr(ledger, "PAGE_WALLETS", page)
    monkeypatch.setattr(ledger, "PAGE_ENTRIES", page)
    told: list[tuple[str, int]] = []
    flaws = await verbs.verify_wallets(lambda what, done, _: told.append((what, done)))
    assert [(flaw.what, flaw.id) for flaw in flaws] == [("balance", ids[3])]
    assert max(done for what, done in told if what == "wallets") == len(ids)


async def test_a_movement_of_which_one_half_came_too_late_for_its_page_is_no_flaw(
    database: Database, verbs: Operations
) -> None:
    """WAL-2: ids are not commit order, so only the other half of it may have been seen."""
    await filled(database, 100)
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

    assert await verbs.verify_wallets(tell) == []
    assert told == [2]


async def test_what_moves_meanwhile_is_no_flaw(database: Database, verbs: Operations) -> None:
    """WAL-2: each page is looked at as it is at one instant."""
    ids = [await filled(database, 10_000) for _ in range(4)]
    service = WalletService(database)

    async def spend(wallet_id: UUID) -> None:
        for _ in range(40):
            payment = uuid4().hex
            await service.do(Reserve(payment, wallet_id, 5))  # type: ignore[arg-type]
            await service.do(Commit(payment, 3))

    spending = [asyncio.create_task(spend(wallet_id)) for wallet_id in ids]
    looks = 0
    while not all(one.done() for one in spending):
        assert await verbs.verify_wallets() == []
        looks += 1
    await asyncio.gather(*spending)
    await service.stop()
    assert looks > 1


async def test_what_is_listed_has_an_end(
    database: Database, verbs: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-8"""
    for _ in range(4):
        await filled(database, 100)
    await damaged(database, DAMAGE["balance"])
    monkeypatch.setattr(ledger, "MAX_FLAWS", 3)
    assert len(await verbs.verify_wallets()) == 3


async def test_a_payment_that_waited_for_its_wallet_comes_after_what_it_waited_for(
    database: Database,
) -> None:
    """WAL-2: or the past of the wallet would hold a balance that never was."""
    office = await opened_office(database)
    wallet_id = await office.wallet()
    await office.take(initiated("p", wallet_id))
    await office.caller.save("p", Answer("tx", Word.PENDING))
    callbacks = await office.told("tx", "succeeded")
    async with database.connection() as first:
        transaction = first.transaction()
        await transaction.start()
        await first.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", wallet_id)
        waiting = asyncio.create_task(office.take(*callbacks))
        async with database.connection() as watcher:
            await somebody_waits(watcher)
        await obey(first, [Reserve("q", wallet_id, 500), Commit("q")])
        await transaction.commit()
        await waiting
    found = await office.rows(
        "SELECT reservation, at FROM ledger_entries WHERE account = $1 ORDER BY at",
        f"wallet:{wallet_id}",
    )
    assert [row["reservation"] for row in found] == [None, "q", "p"]
    await office.caller.close()


async def test_the_past_of_a_wallet_is_what_its_entries_say(
    database: Database, verbs: Operations
) -> None:
    """WAL-2"""
    wallet_id = await filled(database, 500)
    async with database.transaction() as connection:
        await obey(connection, [Reserve("p-1", wallet_id, 200)])
        await obey(connection, [Commit("p-1")])
        between = await connection.fetchval(
            "SELECT max(at) - (max(at) - min(at)) / 2 FROM ledger_entries"
        )
    assert (await verbs.wallet_at(wallet_id, between)).balance == "5.00"
    assert (await verbs.wallet(wallet_id)).balance == "3.00"
