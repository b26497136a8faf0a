"""Reservations whose time is over."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import (
    Commit,
    Reserve,
    TakeAfterAll,
)
from paidonce.engine.janitor import Janitor
from paidonce.errors import InvalidRequestError
from paidonce.operations import Operations
from paidonce.services.expiring import PAGE, Expiry
from paidonce.services.wallet import WalletService, obey
from paidonce.settings import RetentionSettings, WalletSettings
from paidonce.store.db import Database
from tests.services.purse import filled, name, refusals, rows, standing, together
from tests.store.batches import NO_RULES

MANY: Final = 64
NOW: Final = datetime.now(UTC)


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
