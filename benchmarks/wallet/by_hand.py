"""A hand-written wallet: one transaction per call, with guarded updates that count rows."""

from typing import Any
from uuid import UUID, uuid4

import asyncpg

POOL_SIZE = 16

RESERVED = """
INSERT INTO paidonce.reservations
       (payment_id, wallet_id, request_hash, amount_minor, status, created_at)
VALUES ($1, $2, $3, $4, 'RESERVED', now())
ON CONFLICT DO NOTHING
RETURNING payment_id
"""
SET_ASIDE = """
UPDATE paidonce.wallets
   SET reserved_minor = reserved_minor + $2, version = version + 1, updated_at = now()
 WHERE id = $1 AND balance_minor - reserved_minor >= $2
"""
COMMITTED = """
UPDATE paidonce.reservations
   SET status = 'COMMITTED', committed_minor = amount_minor, ended_at = now()
 WHERE payment_id = $1 AND status = 'RESERVED'
RETURNING wallet_id, amount_minor
"""
TAKEN = """
UPDATE paidonce.wallets
   SET reserved_minor = reserved_minor - $2, balance_minor = balance_minor - $2,
       version = version + 1, updated_at = now()
 WHERE id = $1
RETURNING currency
"""
EXPLAINED = """
INSERT INTO paidonce.ledger_entries (movement_id, reservation, account, currency, amount_minor, at)
VALUES ($1, $2, $3, $5, -$6::bigint, now()), ($1, $2, $4, $5, $6, now())
"""


class RejectedError(Exception):
    """The funds are insufficient, or nothing is reserved."""


class ByHand:
    """A pool, and one transaction per call."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self._pool = pool

    async def reserve(self, payment_id: str, wallet_id: UUID, amount_minor: int) -> None:
        """Reserve the amount, unless that was done before."""
        async with self._pool.acquire() as connection, connection.transaction():
            new = await connection.fetchval(RESERVED, payment_id, wallet_id, b"hash", amount_minor)
            if new is None:
                return
            if await connection.execute(SET_ASIDE, wallet_id, amount_minor) != "UPDATE 1":
                raise RejectedError

    async def commit(self, payment_id: str) -> None:
        """Commit the reservation."""
        async with self._pool.acquire() as connection, connection.transaction():
            row: Any = await connection.fetchrow(COMMITTED, payment_id)
            if row is None:
                raise RejectedError
            wallet_id, amount_minor = row
            currency = await connection.fetchval(TAKEN, wallet_id, amount_minor)
            accounts = (f"wallet:{wallet_id}", f"spent:{currency}")
            await connection.execute(
                EXPLAINED, uuid4(), payment_id, *accounts, currency, amount_minor
            )

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()


async def by_hand(url: str) -> ByHand:
    """Open one on this database."""
    return ByHand(await asyncpg.create_pool(url, min_size=POOL_SIZE, max_size=POOL_SIZE))
