"""Reserving, committing and releasing, on a real database, by many at once."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import (
    Command,
    Commit,
    Expire,
    Refusal,
    Release,
    ReservationStatus,
    Reserve,
    TakeAfterAll,
)
from paidonce.services.wallet import WalletService
from paidonce.store.db import Database
from tests.services.purse import filled, name, refusals, rows, standing, together

MANY: Final = 64
NOW: Final = datetime.now(UTC)


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
