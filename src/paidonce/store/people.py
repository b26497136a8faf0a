"""Users and their subscriptions."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.domain.email import email_key
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def create_user(
    connection: Connection, user_id: UUID, email: str
) -> tuple[asyncpg.Record, bool]:
    """The user with this address, and whether it is a new one."""
    key = email_key(email)
    row = await QUERIES["create_user"].row(connection, id=user_id, email=email, email_key=key)
    if row is not None:
        return row, True
    existing = await user_by_email(connection, email)
    assert existing is not None
    return existing, False


async def user_by_email(connection: Connection, email: str) -> asyncpg.Record | None:
    """The user with this address in any letter case."""
    return await QUERIES["user_by_email"].row(connection, email_key=email_key(email))


async def user_by_id(connection: Connection, user_id: UUID) -> asyncpg.Record | None:
    """The user with this id."""
    return await QUERIES["user_by_id"].row(connection, id=user_id)


async def subscriptions(connection: Connection, user_id: UUID) -> Sequence[asyncpg.Record]:
    """The user's subscriptions, one per product."""
    return await QUERIES["subscriptions"].rows(connection, user_id=user_id)
