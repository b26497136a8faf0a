"""Wallets that hold something, commands on them, and what has to be true of them at any time."""

import asyncio
from collections import Counter
from typing import Any, Final
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import Command, Judged, Refusal
from paidonce.services.wallet import WalletService
from paidonce.store.db import Database

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


async def filled(database: Database, minor: int, currency: str = "EUR") -> WalletId:
    """A new wallet with so much in it, and the movement that explains it."""
    wallet_id = WalletId(uuid7())
    async with database.transaction() as connection:
        await connection.execute(FILL, wallet_id, str(uuid4()), currency, minor, uuid7())
    return wallet_id


async def standing(database: Database, wallet_id: UUID) -> tuple[int, int]:
    """The wallet's balance and what is reserved of it, after both were added up again."""
    (row,) = await rows(database, WALLET, wallet_id)
    assert row["balance_minor"] == row["explained"]
    assert row["reserved_minor"] == row["held"]
    return row["balance_minor"], row["reserved_minor"]


async def rows(database: Database, sql: str, *values: object) -> list[dict[str, Any]]:
    """What the database says now."""
    async with database.connection() as connection:
        return [dict(row) for row in await connection.fetch(sql, *values)]


def name() -> str:
    """The id of a payment that nobody has heard of."""
    return f"pay/{uuid4().hex}"


async def together(services: list[WalletService], *commands: Command) -> list[Judged]:
    """All commands at once, dealt out to the services in turn."""
    return await asyncio.gather(
        *(services[number % len(services)].do(one) for number, one in enumerate(commands))
    )


def refusals(judged: list[Judged]) -> Counter[Refusal | None]:
    return Counter(one.refusal for one in judged)
