"""Users and their subscriptions."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.db.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def user_by_id(connection: Connection, user_id: UUID) -> asyncpg.Record | None:
    """The user with this id."""
    return await QUERIES["user_by_id"].row(connection, id=user_id)


async def subscriptions(connection: Connection, user_id: UUID) -> Sequence[asyncpg.Record]:
    """The user's subscriptions, one per product."""
    return await QUERIES["subscriptions"].rows(connection, user_id=user_id)
