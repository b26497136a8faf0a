"""What others change between a look at a wallet and what is written of it."""

import asyncio
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from paidonce.domain.reservations import (
    Commit,
    Judged,
    Refusal,
    Reserve,
)
from paidonce.services.books import Books
from paidonce.services.wallet import WalletService, obey
from paidonce.store import reservations
from paidonce.store.db import Database
from tests.services.purse import filled, name, refusals, rows, standing
from tests.store.batches import somebody_waits

MANY: Final = 64
NOW: Final = datetime.now(UTC)


async def test_wallets_are_locked_in_the_order_of_their_ids(module_database: Database) -> None:
    """WAL-2: two transactions that take the same wallets crosswise do not deadlock."""
    ids = sorted([await filled(module_database, 1_000) for _ in range(2)])
    commands = [Reserve(name(), wallet_id, 1) for wallet_id in ids]
    async with module_database.connection() as holder, module_database.connection() as other:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", ids[0])

        async def obeyed() -> None:
            async with other.transaction():
                await obey(other, list(reversed(commands)))

        waiting = asyncio.create_task(obeyed())
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
            free = await watcher.fetchval(
                "SELECT count(*) FROM (SELECT 1 FROM wallets WHERE id = $1"
                " FOR UPDATE SKIP LOCKED) AS it",
                ids[1],
            )
        assert free == 1, "the second is not locked while the first is waited for"
        await transaction.rollback()
        await waiting


async def test_what_is_seen_before_the_lock_does_not_count(module_database: Database) -> None:
    """WAL-2: whoever waited for a wallet judges by what it holds when the wait is over."""
    wallet_id = await filled(module_database, 100)
    late = Reserve(name(), wallet_id, 100)
    async with module_database.connection() as first, module_database.connection() as second:
        transaction = first.transaction()
        await transaction.start()
        await obey(first, [Reserve(name(), wallet_id, 100)])

        async def obeyed() -> list[Judged]:
            async with second.transaction():
                return await obey(second, [late])

        waiting = asyncio.create_task(obeyed())
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
        await transaction.commit()
        assert refusals(await waiting) == {Refusal.INSUFFICIENT_FUNDS: 1}
    assert await standing(module_database, wallet_id) == (100, 100)


async def test_a_reservation_that_comes_up_in_between_is_run_again(
    module_database: Database,
) -> None:
    """WAL-1: its wallet was not there to be locked when the wallets were looked up."""
    wallet_id, other = await filled(module_database, 100), await filled(module_database, 100)
    payment = name()
    async with module_database.connection() as first, module_database.connection() as second:
        transaction = first.transaction()
        await transaction.start()
        await first.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", other)

        async def obeyed() -> None:
            async with second.transaction():
                await obey(second, [Reserve(name(), other, 1), Commit(payment)])

        waiting = asyncio.create_task(obeyed())
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
            async with watcher.transaction():
                await obey(watcher, [Reserve(payment, wallet_id, 10)])
        await transaction.rollback()
        with pytest.raises(asyncpg.SerializationError):
            await waiting
    assert await standing(module_database, wallet_id) == (100, 10)


async def test_a_taken_payment_id_is_run_again(module_database: Database) -> None:
    """WAL-1: two wallets, one payment id: the unique key decides, and the other is in conflict."""
    mine, others = await filled(module_database, 100), await filled(module_database, 100)
    payment = name()
    service = WalletService(module_database)
    async with module_database.connection() as first:
        transaction = first.transaction()
        await transaction.start()
        await obey(first, [Reserve(payment, others, 10)])
        waiting = asyncio.create_task(service.do(Reserve(payment, mine, 10)))
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
        await transaction.commit()
        assert (await waiting).refusal is Refusal.IDEMPOTENCY_CONFLICT
    await service.stop()
    assert await standing(module_database, mine) == (100, 0)
    assert await standing(module_database, others) == (100, 10)


@pytest.mark.parametrize("column", ["version", "status"])
async def test_what_changed_since_it_was_read_is_not_overwritten(
    module_database: Database, column: str
) -> None:
    """WAL-1: the affected rows are counted, of wallets by version, of reservations by status."""
    wallet_id = await filled(module_database, 100)
    payment = name()
    async with module_database.connection() as connection:
        async with connection.transaction():
            await obey(connection, [Reserve(payment, wallet_id, 10)])
        loaded = await reservations.look(connection, [Commit(payment)])
        books = Books(loaded, NOW)
        books.judge(Commit(payment))
        if column == "version":
            await connection.execute("UPDATE wallets SET version = version + 1")
        else:
            await connection.execute(
                "UPDATE reservations SET status = 'RELEASED', ended_at = now()"
                " WHERE payment_id = $1",
                payment,
            )
        with pytest.raises(asyncpg.SerializationError):
            await reservations.write(connection, books.changes())
    found = await rows(
        module_database, "SELECT 1 FROM ledger_entries WHERE reservation = $1", payment
    )
    assert found == []
