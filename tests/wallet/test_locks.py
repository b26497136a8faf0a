"""What others change between a look at a wallet and what is written of it."""

import asyncio
from typing import Final

import asyncpg
import pytest

from paidonce.db.pool import Database
from paidonce.wallet import store
from paidonce.wallet.commands import WalletBatch, WalletCommands, execute
from paidonce.wallet.reservations import CommandResult, Commit, RejectReason, Reserve
from tests.support.batches import somebody_waits
from tests.wallet.scenarios import balances, funded_wallet, new_payment_id, reject_reasons, rows

MANY: Final = 64


async def test_wallets_are_locked_in_the_order_of_their_ids(module_database: Database) -> None:
    """WAL-2: two transactions that take the same wallets crosswise do not deadlock."""
    ids = sorted([await funded_wallet(module_database, 1_000) for _ in range(2)])
    commands = [Reserve(new_payment_id(), wallet_id, 1) for wallet_id in ids]
    async with module_database.connection() as holder, module_database.connection() as other:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", ids[0])

        async def obeyed() -> None:
            async with other.transaction():
                await execute(other, list(reversed(commands)))

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


async def test_a_wallet_is_read_after_it_is_locked(module_database: Database) -> None:
    """WAL-2: whoever waited for a wallet judges by what it holds when the wait is over."""
    wallet_id = await funded_wallet(module_database, 100)
    late = Reserve(new_payment_id(), wallet_id, 100)
    async with module_database.connection() as first, module_database.connection() as second:
        transaction = first.transaction()
        await transaction.start()
        await execute(first, [Reserve(new_payment_id(), wallet_id, 100)])

        async def obeyed() -> list[CommandResult]:
            async with second.transaction():
                return await execute(second, [late])

        waiting = asyncio.create_task(obeyed())
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
        await transaction.commit()
        assert reject_reasons(await waiting) == {RejectReason.INSUFFICIENT_FUNDS: 1}
    assert await balances(module_database, wallet_id) == (100, 100)


async def test_a_reservation_created_before_the_lock_fails_the_transaction(
    module_database: Database,
) -> None:
    """WAL-1: its wallet was not there to be locked when the wallets were looked up."""
    wallet_id, other = (
        await funded_wallet(module_database, 100),
        await funded_wallet(module_database, 100),
    )
    payment = new_payment_id()
    async with module_database.connection() as first, module_database.connection() as second:
        transaction = first.transaction()
        await transaction.start()
        await first.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", other)

        async def obeyed() -> None:
            async with second.transaction():
                await execute(second, [Reserve(new_payment_id(), other, 1), Commit(payment)])

        waiting = asyncio.create_task(obeyed())
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
            async with watcher.transaction():
                await execute(watcher, [Reserve(payment, wallet_id, 10)])
        await transaction.rollback()
        with pytest.raises(asyncpg.SerializationError):
            await waiting
    assert await balances(module_database, wallet_id) == (100, 10)


async def test_a_payment_id_that_another_transaction_uses_is_a_conflict(
    module_database: Database,
) -> None:
    """WAL-1: two wallets, one payment id: the unique key decides, and the other is in conflict."""
    mine, others = (
        await funded_wallet(module_database, 100),
        await funded_wallet(module_database, 100),
    )
    payment = new_payment_id()
    service = WalletCommands(module_database)
    async with module_database.connection() as first:
        transaction = first.transaction()
        await transaction.start()
        await execute(first, [Reserve(payment, others, 10)])
        waiting = asyncio.create_task(service.execute(Reserve(payment, mine, 10)))
        async with module_database.connection() as watcher:
            await somebody_waits(watcher)
        await transaction.commit()
        assert (await waiting).reject_reason is RejectReason.IDEMPOTENCY_CONFLICT
    await service.stop()
    assert await balances(module_database, mine) == (100, 0)
    assert await balances(module_database, others) == (100, 10)


@pytest.mark.parametrize("column", ["version", "status"])
async def test_what_changed_since_it_was_read_is_not_overwritten(
    module_database: Database, column: str
) -> None:
    """WAL-1: the affected rows are counted, of wallets by version, of reservations by status."""
    wallet_id = await funded_wallet(module_database, 100)
    payment = new_payment_id()
    async with module_database.connection() as connection:
        async with connection.transaction():
            await execute(connection, [Reserve(payment, wallet_id, 10)])
        loaded = await store.load(connection, [Commit(payment)])
        batch = WalletBatch(loaded)
        batch.execute(Commit(payment))
        if column == "version":
            await connection.execute("UPDATE wallets SET version = version + 1")
        else:
            await connection.execute(
                "UPDATE reservations SET status = 'RELEASED', ended_at = now()"
                " WHERE payment_id = $1",
                payment,
            )
        with pytest.raises(asyncpg.SerializationError):
            await store.write(connection, batch.changes())
    found = await rows(
        module_database, "SELECT 1 FROM ledger_entries WHERE reservation = $1", payment
    )
    assert found == []
