"""The queue before the wallets: one command that cannot be obeyed holds up no other."""

import asyncio
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from paidonce.domain.reservations import (
    Judged,
    Reserve,
)
from paidonce.errors import DatabaseAwayError, IntakeFullError
from paidonce.services.wallet import WalletService
from paidonce.store.db import Database
from tests.services.purse import filled, name, refusals, standing

MANY: Final = 64
NOW: Final = datetime.now(UTC)


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
async def test_a_lost_race_is_never_told_as_insufficient_funds(
    module_database: Database, service: WalletService, state: str
) -> None:
    """WAL-2: it is tried again, then the database is away; nothing is remembered of it."""
    wallet_id = await filled(module_database, 100)
    command = Reserve(name(), wallet_id, 10)
    async with module_database.connection() as connection:
        await connection.execute(
            f"CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RAISE EXCEPTION 'lost' USING ERRCODE = '{state}'; END $$;"
            f"CREATE TRIGGER lost BEFORE INSERT ON reservations"
            f" FOR EACH ROW WHEN (NEW.payment_id = '{command.payment_id}')"
            f" EXECUTE FUNCTION lose()"
        )
        with pytest.raises(DatabaseAwayError):
            await service.do(command)
        other, judged = await asyncio.gather(
            service.do(Reserve(name(), wallet_id, 10)),
            service.do(command),
            return_exceptions=True,
        )
        assert isinstance(judged, DatabaseAwayError)
        assert isinstance(other, Judged)
        assert other.refusal is None, "who shares its batch does not suffer for it"
        await connection.execute("DROP FUNCTION lose() CASCADE")
    assert (await service.do(command)).refusal is None
    assert await standing(module_database, wallet_id) == (100, 20)


async def test_a_wallet_that_somebody_holds_does_not_hold_up_the_others(
    module_database: Database, service: WalletService
) -> None:
    """WAL-2: his commands are answered too, in the end, and may be given again."""
    held, free = await filled(module_database, 100), await filled(module_database, 100)
    waiting = Reserve(name(), held, 10)
    async with module_database.transaction() as connection:
        await connection.execute("SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE", held)
        first, *others = await asyncio.gather(
            service.do(waiting),
            *(service.do(Reserve(name(), free, 10)) for _ in range(4)),
            return_exceptions=True,
        )
        assert isinstance(first, DatabaseAwayError)
        assert [isinstance(one, Judged) and one.refusal for one in others] == [None] * 4
    assert (await service.do(waiting)).refusal is None


async def test_what_the_database_refuses_fails_alone(
    module_database: Database, service: WalletService
) -> None:
    """WAL-1: a text that no column holds, which the door does not let in."""
    wallet_id = await filled(module_database, 100)
    answers = await asyncio.gather(
        service.do(Reserve("\x00", wallet_id, 10)),
        service.do(Reserve(name(), wallet_id, 10)),
        return_exceptions=True,
    )
    assert isinstance(answers[0], asyncpg.PostgresError)
    assert isinstance(answers[1], Judged)
    assert await standing(module_database, wallet_id) == (100, 10)


async def test_whoever_went_away_before_his_turn_is_left_out(
    module_database: Database, service: WalletService
) -> None:
    """WAL-1: nothing was promised to him."""
    wallet_id = await filled(module_database, 100)
    asked = asyncio.create_task(service.do(Reserve(name(), wallet_id, 10)))
    asked.get_loop().call_soon(asked.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await service.do(Reserve(name(), wallet_id, 5))).refusal is None
    assert await standing(module_database, wallet_id) in [(100, 5), (100, 15)]


async def test_a_full_queue_takes_no_more(module_database: Database) -> None:
    """SEC-8: memory does not grow with what waits."""
    wallet_id = await filled(module_database, 100)
    service = WalletService(module_database, max_waiting=8)
    answers = await asyncio.gather(
        *(service.do(Reserve(name(), wallet_id, 1)) for _ in range(12)), return_exceptions=True
    )
    await service.stop()
    assert [isinstance(one, IntakeFullError) for one in answers] == [False] * 8 + [True] * 4


async def test_a_service_that_stops_obeys_what_waits_and_takes_nothing_new(
    module_database: Database,
) -> None:
    """REC-2: what was accepted is finished."""
    wallet_id = await filled(module_database, 1_000)
    service = WalletService(module_database)
    asked = [asyncio.create_task(service.do(Reserve(name(), wallet_id, 1))) for _ in range(200)]
    await asyncio.sleep(0)
    await service.stop()
    assert refusals(await asyncio.gather(*asked)) == {None: 200}
    with pytest.raises(DatabaseAwayError):
        await service.do(Reserve(name(), wallet_id, 1))


async def test_a_lost_connection_is_a_database_that_is_away_and_is_made_anew(
    module_database: Database, service: WalletService
) -> None:
    """REL-1"""
    wallet_id = await filled(module_database, 100)
    await service.do(Reserve(name(), wallet_id, 1))
    (session,) = service._idle
    assert session._connection is not None
    session._connection.terminate()
    await asyncio.gather(
        *(service.do(Reserve(name(), wallet_id, 1)) for _ in range(3)), return_exceptions=True
    )
    assert (await service.do(Reserve(name(), wallet_id, 1))).refusal is None
