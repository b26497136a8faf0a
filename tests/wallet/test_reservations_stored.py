"""Reserving, committing and releasing, on a real database, by many at once."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest

from paidonce.core.events import WalletId
from paidonce.db.pool import Database
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.reservations import (
    Command,
    Commit,
    Expire,
    LateCapture,
    RejectReason,
    Release,
    ReservationStatus,
    Reserve,
)
from tests.wallet.scenarios import (
    balances,
    execute_all,
    funded_wallet,
    new_payment_id,
    reject_reasons,
    rows,
)

MANY: Final = 64
NOW: Final = datetime.now(UTC)


async def test_64_reserves_of_a_wallet_that_can_pay_for_10(
    module_database: Database, wallet_services: list[WalletCommands]
) -> None:
    """WAL-2: exactly ten succeed, whoever they are, and the others are told why not."""
    wallet_id = await funded_wallet(module_database, 1_000)
    commands = [Reserve(new_payment_id(), wallet_id, 100) for _ in range(MANY)]
    results = await execute_all(wallet_services, *commands)
    assert reject_reasons(results) == {None: 10, RejectReason.INSUFFICIENT_FUNDS: MANY - 10}
    assert await balances(module_database, wallet_id) == (1_000, 1_000)
    again = await execute_all(wallet_services, *reversed(commands))
    assert [one.reject_reason for one in reversed(again)] == [one.reject_reason for one in results]
    assert not any(one.is_new for one in again)


async def test_64_reserves_under_one_payment_id(
    module_database: Database, wallet_services: list[WalletCommands]
) -> None:
    """WAL-1: one reservation, and everybody gets it."""
    wallet_id = await funded_wallet(module_database, 1_000)
    results = await execute_all(
        wallet_services, *[Reserve(new_payment_id(), wallet_id, 100)] * MANY
    )
    assert reject_reasons(results) == {None: MANY}
    assert [one.is_new for one in results].count(True) == 1
    assert await balances(module_database, wallet_id) == (1_000, 100)


async def test_64_commits_of_one_reservation_are_one_movement(
    module_database: Database, wallet_services: list[WalletCommands]
) -> None:
    """WAL-1: repeats are no-ops."""
    wallet_id = await funded_wallet(module_database, 1_000)
    payment = new_payment_id()
    await wallet_services[0].execute(Reserve(payment, wallet_id, 300))
    results = await execute_all(wallet_services, *[Commit(payment)] * MANY)
    assert reject_reasons(results) == {None: MANY}
    assert await balances(module_database, wallet_id) == (700, 0)
    found = await rows(
        module_database, "SELECT * FROM ledger_entries WHERE reservation = $1", payment
    )
    assert sorted(row["amount_minor"] for row in found) == [-300, 300]
    assert len({row["movement_id"] for row in found}) == 1


@pytest.mark.parametrize("round_number", range(8))
async def test_commit_and_release_have_one_winner(
    module_database: Database, wallet_services: list[WalletCommands], round_number: int
) -> None:
    """WAL-1: and a clear error for the loser, also when he asks again."""
    wallet_id = await funded_wallet(module_database, 1_000)
    payment = new_payment_id()
    await wallet_services[0].execute(Reserve(payment, wallet_id, 300))
    commands: list[Command] = [Commit(payment), Release(payment)]
    results = await execute_all(wallet_services[:: (-1) ** round_number], *commands)
    losses = {one.reject_reason for one in results} - {None}
    assert len(losses) == 1
    won = losses == {RejectReason.ALREADY_COMMITTED}
    assert losses <= {RejectReason.ALREADY_COMMITTED, RejectReason.ALREADY_RELEASED}
    assert await balances(module_database, wallet_id) == (700 if won else 1_000, 0)
    again = await execute_all(wallet_services, *commands)
    assert [one.reject_reason for one in again] == [one.reject_reason for one in results]


async def test_commands_of_one_batch_see_each_other(
    module_database: Database, wallets: WalletCommands
) -> None:
    """WAL-1: they are obeyed in their order, and each row is written once."""
    wallet_id = await funded_wallet(module_database, 100)
    first, second = new_payment_id(), new_payment_id()
    results = await execute_all(
        [wallets],
        Reserve(first, wallet_id, 100),
        Reserve(second, wallet_id, 100),
        Commit(first, 30),
        Reserve(second, wallet_id, 100),
        LateCapture(second),
        Reserve(first, wallet_id, 99),
    )
    funds = RejectReason.INSUFFICIENT_FUNDS
    conflict = RejectReason.IDEMPOTENCY_CONFLICT
    assert [one.reject_reason for one in results] == [None, funds, None, funds, funds, conflict]
    assert await balances(module_database, wallet_id) == (70, 0)


async def test_a_change_is_audited_once(module_database: Database, wallets: WalletCommands) -> None:
    """SEC-6: what changes nothing is not; what nobody is named for neither."""
    wallet_id = await funded_wallet(module_database, 100)
    payment = new_payment_id()
    for command in (Reserve(payment, wallet_id, 10), Commit(payment, 7), Release(payment)):
        await wallets.execute(command, actor="key:shop")
        await wallets.execute(command, actor="key:shop")
    await wallets.execute(Reserve(new_payment_id(), wallet_id, 10))
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


@pytest.mark.parametrize("command", [Commit, Release, Expire, LateCapture])
async def test_a_command_without_a_reservation_writes_nothing(
    module_database: Database, wallets: WalletCommands, command: Any
) -> None:
    """WAL-1"""
    payment = new_payment_id()
    results = await wallets.execute(command(payment))
    assert (results.reject_reason, results.reservation) == (RejectReason.RESERVATION_MISSING, None)
    assert (await wallets.execute(Reserve(payment, WalletId(uuid4()), 1))).reject_reason is (
        RejectReason.WALLET_MISSING
    )
    found = await rows(module_database, "SELECT 1 FROM reservations WHERE payment_id = $1", payment)
    assert found == []


async def test_the_stored_reservation_equals_the_answer(
    module_database: Database, wallets: WalletCommands
) -> None:
    """WAL-1"""
    wallet_id = await funded_wallet(module_database, 100)
    payment = new_payment_id()
    await wallets.execute(Reserve(payment, wallet_id, 10, timedelta(hours=1)))
    committed = await wallets.execute(Commit(payment, 4))
    again = await wallets.execute(Commit(payment))
    assert again.reservation == committed.reservation
    assert again.reservation is not None
    assert again.reservation.status is ReservationStatus.COMMITTED
