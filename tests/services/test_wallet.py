"""Reserving, committing and releasing, on a real database, by many at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import (
    Command,
    Commit,
    Expire,
    Judged,
    Refusal,
    Release,
    ReservationStatus,
    Reserve,
    TakeAfterAll,
)
from paidonce.engine.janitor import Janitor
from paidonce.errors import DatabaseAwayError, IntakeFullError, InvalidRequestError
from paidonce.operations import Operations
from paidonce.services.books import Books
from paidonce.services.expiring import PAGE, Expiry
from paidonce.services.wallet import WalletService, obey
from paidonce.settings import RetentionSettings, WalletSettings
from paidonce.store import reservations
from paidonce.store.db import Database
from tests.services.purse import filled, rows, standing
from tests.store.batches import NO_RULES, somebody_waits

MANY: Final = 64
NOW: Final = datetime.now(UTC)


@pytest_asyncio.fixture(loop_scope="session")
async def service(module_database: Database) -> AsyncIterator[WalletService]:
    made = WalletService(module_database)
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def services(module_database: Database) -> AsyncIterator[list[WalletService]]:
    """Two that know nothing of each other, as two processes have them."""
    made = [WalletService(module_database), WalletService(module_database)]
    yield made
    for one in made:
        await one.stop()


def name() -> str:
    return f"pay/{uuid4().hex}"


async def together(services: list[WalletService], *commands: Command) -> list[Judged]:
    """All commands at once, dealt out to the services in turn."""
    return await asyncio.gather(
        *(services[number % len(services)].do(one) for number, one in enumerate(commands))
    )


def refusals(judged: list[Judged]) -> Counter[Refusal | None]:
    return Counter(one.refusal for one in judged)


async def test_64_reserves_of_a_wallet_that_can_pay_for_10(
    module_database: Database, services: list[WalletService]
) -> None:
    """WAL-2: exactly ten succeed, whoever they are, and the others are told why not."""
    wallet_id = await filled(module_database, 1_000)
    commands = [Reserve(name(), wallet_id, 100) for _ in range(MANY)]
    judged = await together(services, *commands)
    assert refusals(judged) == {None: 10, Refusal.INSUFFICIENT_FUNDS: MANY - 10}
    assert await standing(module_database, wallet_id) == (1_000, 1_000)
    again = await together(services, *reversed(commands))
    assert [one.refusal for one in reversed(again)] == [one.refusal for one in judged]
    assert not any(one.is_new for one in again)


async def test_64_reserves_under_one_payment_id(
    module_database: Database, services: list[WalletService]
) -> None:
    """WAL-1: one reservation, and everybody gets it."""
    wallet_id = await filled(module_database, 1_000)
    judged = await together(services, *[Reserve(name(), wallet_id, 100)] * MANY)
    assert refusals(judged) == {None: MANY}
    assert [one.is_new for one in judged].count(True) == 1
    assert await standing(module_database, wallet_id) == (1_000, 100)


async def test_64_commits_of_one_reservation_are_one_movement(
    module_database: Database, services: list[WalletService]
) -> None:
    """WAL-1: repeats are no-ops."""
    wallet_id = await filled(module_database, 1_000)
    payment = name()
    await services[0].do(Reserve(payment, wallet_id, 300))
    judged = await together(services, *[Commit(payment)] * MANY)
    assert refusals(judged) == {None: MANY}
    assert await standing(module_database, wallet_id) == (700, 0)
    found = await rows(
        module_database, "SELECT * FROM ledger_entries WHERE reservation = $1", payment
    )
    assert sorted(row["amount_minor"] for row in found) == [-300, 300]
    assert len({row["movement_id"] for row in found}) == 1


@pytest.mark.parametrize("round_number", range(8))
async def test_commit_against_release_has_one_winner(
    module_database: Database, services: list[WalletService], round_number: int
) -> None:
    """WAL-1: and a clear error for the loser, also when he asks again."""
    wallet_id = await filled(module_database, 1_000)
    payment = name()
    await services[0].do(Reserve(payment, wallet_id, 300))
    commands: list[Command] = [Commit(payment), Release(payment)]
    judged = await together(services[:: (-1) ** round_number], *commands)
    losses = {one.refusal for one in judged} - {None}
    assert len(losses) == 1
    won = losses == {Refusal.ALREADY_COMMITTED}
    assert losses <= {Refusal.ALREADY_COMMITTED, Refusal.ALREADY_RELEASED}
    assert await standing(module_database, wallet_id) == (700 if won else 1_000, 0)
    again = await together(services, *commands)
    assert [one.refusal for one in again] == [one.refusal for one in judged]


async def test_commands_of_one_batch_see_each_other(
    module_database: Database, service: WalletService
) -> None:
    """WAL-1: they are obeyed in their order, and each row is written once."""
    wallet_id = await filled(module_database, 100)
    first, second = name(), name()
    judged = await together(
        [service],
        Reserve(first, wallet_id, 100),
        Reserve(second, wallet_id, 100),
        Commit(first, 30),
        Reserve(second, wallet_id, 100),
        TakeAfterAll(second),
        Reserve(first, wallet_id, 99),
    )
    funds = Refusal.INSUFFICIENT_FUNDS
    conflict = Refusal.IDEMPOTENCY_CONFLICT
    assert [one.refusal for one in judged] == [None, funds, None, funds, funds, conflict]
    assert await standing(module_database, wallet_id) == (70, 0)


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


async def test_what_somebody_changes_is_audited_once(
    module_database: Database, service: WalletService
) -> None:
    """SEC-6: what changes nothing is not; what nobody is named for neither."""
    wallet_id = await filled(module_database, 100)
    payment = name()
    for command in (Reserve(payment, wallet_id, 10), Commit(payment, 7), Release(payment)):
        await service.do(command, actor="key:shop")
        await service.do(command, actor="key:shop")
    await service.do(Reserve(name(), wallet_id, 10))
    found = await rows(
        module_database,
        "SELECT actor, action, details ->> 'amount' AS amount FROM audit_log"
        " WHERE details ->> 'wallet_id' = $1 ORDER BY id",
        str(wallet_id),
    )
    assert [tuple(row.values()) for row in found] == [
        ("key:shop", "wallet_reserved", "0.10"),
        ("key:shop", "wallet_committed", "0.07"),
    ]


async def aged(database: Database, wallet_id: WalletId, number: int) -> list[str]:
    """So many reservations of 1 whose time is over."""
    names = sorted(name() for _ in range(number))
    async with database.transaction() as connection:
        await obey(connection, [Reserve(one, wallet_id, 1, timedelta(days=1)) for one in names])
        await connection.execute(
            "UPDATE reservations SET expires_at = now() - interval '1 second'"
            " WHERE payment_id = ANY ($1::text[])",
            names,
        )
    return names


async def test_the_janitor_lets_go_of_what_is_over_page_by_page(module_database: Database) -> None:
    """WAL-2: and of nothing else."""
    wallet_id = await filled(module_database, 1_000)
    over = await aged(module_database, wallet_id, PAGE + 5)
    async with module_database.transaction() as connection:
        await obey(connection, [Commit(over[0]), TakeAfterAll(over[1])])
        await obey(connection, [Reserve(name(), wallet_id, 7, timedelta(days=1))])
        await obey(connection, [Reserve(name(), wallet_id, 8)])
    janitor = Janitor(module_database, RetentionSettings(), [Expiry()])
    await janitor.run_once(NOW)
    assert await standing(module_database, wallet_id) == (999, 15)
    found = await rows(
        module_database,
        "SELECT status, count(*) AS number FROM reservations WHERE payment_id = ANY ($1)"
        " GROUP BY status",
        over,
    )
    assert {row["status"]: row["number"] for row in found} == {"COMMITTED": 1, "EXPIRED": PAGE + 4}


async def test_expiry_against_taking_after_all_has_one_winner(
    module_database: Database, service: WalletService
) -> None:
    """WAL-2: the janitor goes through the same guard."""
    wallet_id = await filled(module_database, 1_000)
    over = await aged(module_database, wallet_id, 20)
    janitor = Janitor(module_database, RetentionSettings(), [Expiry()])
    judged, _ = await asyncio.gather(
        together([service], *(TakeAfterAll(one) for one in over)), janitor.run_once(NOW)
    )
    assert refusals(judged) == {None: 20}, "taken before it expired, or after it"
    assert await standing(module_database, wallet_id) == (980, 0)


@pytest.mark.parametrize("command", [Commit, Release, Expire, TakeAfterAll])
async def test_what_was_never_reserved_leaves_no_trace(
    module_database: Database, service: WalletService, command: Any
) -> None:
    """WAL-1"""
    payment = name()
    judged = await service.do(command(payment))
    assert (judged.refusal, judged.reservation) == (Refusal.RESERVATION_MISSING, None)
    assert (await service.do(Reserve(payment, WalletId(uuid4()), 1))).refusal is (
        Refusal.WALLET_MISSING
    )
    found = await rows(module_database, "SELECT 1 FROM reservations WHERE payment_id = $1", payment)
    assert found == []


async def test_what_is_read_again_equals_what_was_answered(
    module_database: Database, service: WalletService
) -> None:
    """WAL-1"""
    wallet_id = await filled(module_database, 100)
    payment = name()
    await service.do(Reserve(payment, wallet_id, 10, timedelta(hours=1)))
    committed = await service.do(Commit(payment, 4))
    again = await service.do(Commit(payment))
    assert again.reservation == committed.reservation
    assert again.reservation is not None
    assert again.reservation.status is ReservationStatus.COMMITTED


async def test_a_setting_says_how_long_reservations_last(module_database: Database) -> None:
    """WAL-2: unless one says otherwise itself."""
    lasting = Operations(module_database, NO_RULES, None, WalletSettings(reservation_expires_s=0))
    wallet_id = await filled(module_database, 100)
    made, is_new = await lasting.reserve(wallet_id, name(), "0.10")
    assert (made.expires_at, is_new) == (None, True)
    made, _ = await lasting.reserve(wallet_id, name(), "0.10", expires_in_s=60)
    assert made.expires_at == made.created_at + timedelta(seconds=60)
    with pytest.raises(InvalidRequestError, match="expires_in_s"):
        await lasting.reserve(wallet_id, name(), "0.10", expires_in_s=-1)
    await lasting.wallets.stop()
