"""The queue before the wallets: one command that cannot be obeyed holds up no other."""

import asyncio
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from paidonce.db.pool import Database
from paidonce.errors import DatabaseUnavailableError, QueueFullError
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.reservations import CommandResult, Reserve
from tests.wallet.scenarios import balances, funded_wallet, new_payment_id, reject_reasons

MANY: Final = 64
NOW: Final = datetime.now(UTC)


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
async def test_a_lost_race_is_never_reported_as_insufficient_funds(
    module_database: Database, wallets: WalletCommands, state: str
) -> None:
    """WAL-2: it is tried again, then the database is away; nothing is remembered of it."""
    wallet_id = await funded_wallet(module_database, 100)
    command = Reserve(new_payment_id(), wallet_id, 10)
    async with module_database.connection() as connection:
        await connection.execute(
            f"CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RAISE EXCEPTION 'lost' USING ERRCODE = '{state}'; END $$;"
            f"CREATE TRIGGER lost BEFORE INSERT ON reservations"
            f" FOR EACH ROW WHEN (NEW.payment_id = '{command.payment_id}')"
            f" EXECUTE FUNCTION lose()"
        )
        with pytest.raises(DatabaseUnavailableError):
            await wallets.execute(command)
        other, results = await asyncio.gather(
            wallets.execute(Reserve(new_payment_id(), wallet_id, 10)),
            wallets.execute(command),
            return_exceptions=True,
        )
        assert isinstance(results, DatabaseUnavailableError)
        assert isinstance(other, CommandResult)
        assert other.reject_reason is None, "who shares its batch does not suffer for it"
        await connection.execute("DROP FUNCTION lose() CASCADE")
    assert (await wallets.execute(command)).reject_reason is None
    assert await balances(module_database, wallet_id) == (100, 20)


async def test_a_locked_wallet_does_not_delay_other_wallets(
    module_database: Database, wallets: WalletCommands
) -> None:
    """WAL-2: his commands are answered too, in the end, and may be given again."""
    held, free = (
        await funded_wallet(module_database, 100),
        await funded_wallet(module_database, 100),
    )
    waiting = Reserve(new_payment_id(), held, 10)
    async with module_database.transaction() as connection:
        await connection.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", held)
        first, *others = await asyncio.gather(
            wallets.execute(waiting),
            *(wallets.execute(Reserve(new_payment_id(), free, 10)) for _ in range(4)),
            return_exceptions=True,
        )
        assert isinstance(first, DatabaseUnavailableError)
        assert [isinstance(one, CommandResult) and one.reject_reason for one in others] == [
            None
        ] * 4
    assert (await wallets.execute(waiting)).reject_reason is None


async def test_a_command_that_the_database_rejects_fails_alone(
    module_database: Database, wallets: WalletCommands
) -> None:
    """WAL-1: a text that no column holds, which the door does not let in."""
    wallet_id = await funded_wallet(module_database, 100)
    answers = await asyncio.gather(
        wallets.execute(Reserve("\x00", wallet_id, 10)),
        wallets.execute(Reserve(new_payment_id(), wallet_id, 10)),
        return_exceptions=True,
    )
    assert isinstance(answers[0], asyncpg.PostgresError)
    assert isinstance(answers[1], CommandResult)
    assert await balances(module_database, wallet_id) == (100, 10)


async def test_a_command_whose_caller_is_gone_is_skipped(
    module_database: Database, wallets: WalletCommands
) -> None:
    """WAL-1: nothing was promised to him."""
    wallet_id = await funded_wallet(module_database, 100)
    asked = asyncio.create_task(wallets.execute(Reserve(new_payment_id(), wallet_id, 10)))
    asked.get_loop().call_soon(asked.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await wallets.execute(Reserve(new_payment_id(), wallet_id, 5))).reject_reason is None
    assert await balances(module_database, wallet_id) in [(100, 5), (100, 15)]


async def test_a_full_queue_rejects_commands(module_database: Database) -> None:
    """SEC-8: memory does not grow with what waits."""
    wallet_id = await funded_wallet(module_database, 100)
    wallets = WalletCommands(module_database, max_waiting=8)
    answers = await asyncio.gather(
        *(wallets.execute(Reserve(new_payment_id(), wallet_id, 1)) for _ in range(12)),
        return_exceptions=True,
    )
    await wallets.stop()
    assert [isinstance(one, QueueFullError) for one in answers] == [False] * 8 + [True] * 4


async def test_stopping_executes_queued_commands_and_rejects_new_ones(
    module_database: Database,
) -> None:
    """REC-2: what was accepted is finished."""
    wallet_id = await funded_wallet(module_database, 1_000)
    wallets = WalletCommands(module_database)
    asked = [
        asyncio.create_task(wallets.execute(Reserve(new_payment_id(), wallet_id, 1)))
        for _ in range(200)
    ]
    await asyncio.sleep(0)
    await wallets.stop()
    assert reject_reasons(await asyncio.gather(*asked)) == {None: 200}
    with pytest.raises(DatabaseUnavailableError):
        await wallets.execute(Reserve(new_payment_id(), wallet_id, 1))


async def test_a_lost_connection_is_replaced(
    module_database: Database, wallets: WalletCommands
) -> None:
    """REL-1"""
    wallet_id = await funded_wallet(module_database, 100)
    await wallets.execute(Reserve(new_payment_id(), wallet_id, 1))
    (session,) = wallets._idle
    (await session._connection.get()).terminate()
    await asyncio.gather(
        *(wallets.execute(Reserve(new_payment_id(), wallet_id, 1)) for _ in range(3)),
        return_exceptions=True,
    )
    assert (await wallets.execute(Reserve(new_payment_id(), wallet_id, 1))).reject_reason is None
