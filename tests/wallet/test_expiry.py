"""Reservations whose time is over."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from paidonce.bootstrap.services import Services
from paidonce.core.events import WalletId
from paidonce.db.pool import Database
from paidonce.errors import InvalidRequestError
from paidonce.maintenance.janitor import Janitor
from paidonce.runtime.leader import Leader
from paidonce.settings.sections import WalletSettings
from paidonce.wallet.commands import EXPIRY_PAGE, ReservationExpiry, WalletCommands, execute
from paidonce.wallet.reservations import Commit, LateCapture, Reserve
from tests.support.batches import NO_RULES
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


async def aged(database: Database, wallet_id: WalletId, number: int) -> list[str]:
    """So many reservations of 1 whose time is over."""
    names = sorted(new_payment_id() for _ in range(number))
    async with database.transaction() as connection:
        await execute(connection, [Reserve(one, wallet_id, 1, timedelta(days=1)) for one in names])
        await connection.execute(
            "UPDATE reservations SET expires_at = now() - interval '1 second'"
            " WHERE payment_id = ANY ($1::text[])",
            names,
        )
    return names


async def test_the_janitor_releases_expired_reservations_page_by_page(
    module_database: Database,
) -> None:
    """WAL-2: and of nothing else."""
    wallet_id = await funded_wallet(module_database, 1_000)
    over = await aged(module_database, wallet_id, EXPIRY_PAGE + 5)
    async with module_database.transaction() as connection:
        await execute(connection, [Commit(over[0]), LateCapture(over[1])])
        await execute(connection, [Reserve(new_payment_id(), wallet_id, 7, timedelta(days=1))])
        await execute(connection, [Reserve(new_payment_id(), wallet_id, 8)])
    janitor = Janitor([ReservationExpiry()], Leader(module_database))
    await janitor.run_once(NOW)
    assert await balances(module_database, wallet_id) == (999, 15)
    found = await rows(
        module_database,
        "SELECT status, count(*) AS number FROM reservations WHERE payment_id = ANY ($1)"
        " GROUP BY status",
        over,
    )
    assert {row["status"]: row["number"] for row in found} == {
        "COMMITTED": 1,
        "EXPIRED": EXPIRY_PAGE + 4,
    }


async def test_expiry_and_late_capture_have_one_winner(
    module_database: Database, wallets: WalletCommands
) -> None:
    """WAL-2: the janitor goes through the same guard."""
    wallet_id = await funded_wallet(module_database, 1_000)
    over = await aged(module_database, wallet_id, 20)
    janitor = Janitor([ReservationExpiry()], Leader(module_database))
    results, _ = await asyncio.gather(
        execute_all([wallets], *(LateCapture(one) for one in over)), janitor.run_once(NOW)
    )
    assert reject_reasons(results) == {None: 20}, "taken before it expired, or after it"
    assert await balances(module_database, wallet_id) == (980, 0)


async def test_a_setting_is_the_default_expiry(module_database: Database) -> None:
    """WAL-2: unless one says otherwise itself."""
    lasting = Services(module_database, NO_RULES, None, WalletSettings(reservation_expires_s=0))
    wallet_id = await funded_wallet(module_database, 100)
    made, is_new = await lasting.wallets.reserve(wallet_id, new_payment_id(), "0.10")
    assert (made.expires_at, is_new) == (None, True)
    made, _ = await lasting.wallets.reserve(wallet_id, new_payment_id(), "0.10", expires_in_s=60)
    assert made.expires_at == made.created_at + timedelta(seconds=60)
    with pytest.raises(InvalidRequestError, match="expires_in_s"):
        await lasting.wallets.reserve(wallet_id, new_payment_id(), "0.10", expires_in_s=-1)
    await lasting.wallet_commands.stop()
