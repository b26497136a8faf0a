"""Wallets with money, commands on them, and their invariants."""

import asyncio
from collections import Counter
from typing import Any, Final
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from paidonce.core.events import WalletId
from paidonce.db.pool import Database
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.reservations import Command, CommandResult, RejectReason

FILL: Final = """
WITH made AS (
    INSERT INTO wallets (id, owner, currency, balance_minor) VALUES ($1, $2, $3, $4)
)
INSERT INTO ledger_entries (movement_id, account, currency, amount_minor, at)
SELECT $5, account, $3, minor, now()
  FROM unnest(ARRAY['wallet:' || $1::uuid, 'gateway:0'], ARRAY[$4, -$4::bigint])
       AS e (account, minor)
 WHERE minor <> 0
"""
WALLET: Final = """
SELECT w.balance_minor, w.reserved_minor, w.version,
       (SELECT coalesce(sum(amount_minor), 0)::bigint FROM ledger_entries
         WHERE account = 'wallet:' || w.id) AS explained,
       (SELECT coalesce(sum(amount_minor), 0)::bigint FROM reservations
         WHERE wallet_id = w.id AND status = 'RESERVED') AS held
  FROM wallets AS w WHERE id = $1
"""


async def funded_wallet(database: Database, minor: int, currency: str = "EUR") -> WalletId:
    """A new wallet with this balance, and its ledger entries."""
    wallet_id = WalletId(uuid7())
    async with database.transaction() as connection:
        await connection.execute(FILL, wallet_id, str(uuid4()), currency, minor, uuid7())
    return wallet_id


async def balances(database: Database, wallet_id: UUID) -> tuple[int, int]:
    """The balance and the reserved amount of a wallet; both have to agree with their rows."""
    (row,) = await rows(database, WALLET, wallet_id)
    assert row["balance_minor"] == row["explained"]
    assert row["reserved_minor"] == row["held"]
    return row["balance_minor"], row["reserved_minor"]


async def rows(database: Database, sql: str, *values: object) -> list[dict[str, Any]]:
    async with database.connection() as connection:
        return [dict(row) for row in await connection.fetch(sql, *values)]


def new_payment_id() -> str:
    """A payment id that is not used yet."""
    return f"pay/{uuid4().hex}"


async def execute_all(
    wallet_services: list[WalletCommands], *commands: Command
) -> list[CommandResult]:
    """Execute commands concurrently, in turn on each of the services."""
    return await asyncio.gather(
        *(
            wallet_services[number % len(wallet_services)].execute(one)
            for number, one in enumerate(commands)
        )
    )


def reject_reasons(results: list[CommandResult]) -> Counter[RejectReason | None]:
    return Counter(one.reject_reason for one in results)
