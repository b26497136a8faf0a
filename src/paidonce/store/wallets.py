"""Wallets as their owners make and read them. What moves them is in `settlement`."""

from typing import Final
from uuid import UUID

import asyncpg

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


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


async def wallet_by_id(connection: Connection, wallet_id: UUID) -> asyncpg.Record | None:
    """The wallet with this id."""
    return await QUERIES["wallet"].row(connection, id=wallet_id)
