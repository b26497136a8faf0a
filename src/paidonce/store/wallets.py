"""Wallets as their owners make and read them. What moves them is in `settlement`."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
MAX_WALLETS: Final = 500
"""Of one owner: more than there are currencies."""


async def create_wallet(
    connection: Connection, wallet_id: UUID, owner: str, currency: str
) -> tuple[asyncpg.Record, bool]:
    """The owner's wallet in this currency, and whether it is a new one."""
    row = await QUERIES["create_wallet"].row(
        connection, id=wallet_id, owner=owner, currency=currency
    )
    if row is not None:
        return row, True
    existing = await QUERIES["wallet_of"].row(connection, owner=owner, currency=currency)
    assert existing is not None
    return existing, False


async def wallets_of(connection: Connection, owner: str) -> Sequence[asyncpg.Record]:
    """The owner's wallets, one for each currency."""
    return await QUERIES["wallets_of"].rows(connection, owner=owner, limit=MAX_WALLETS)


async def wallet_by_id(connection: Connection, wallet_id: UUID) -> asyncpg.Record | None:
    """The wallet with this id."""
    return await QUERIES["wallet"].row(connection, id=wallet_id)
