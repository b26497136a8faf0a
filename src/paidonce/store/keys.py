"""API keys, of which only hashes are kept."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def add_key(
    connection: Connection, *, key_id: UUID, name: str, hint: str, digest: bytes, scope: str
) -> None:
    """Keep a key's hash. A key that is there already stays as it is."""
    await QUERIES["add_key"].run(
        connection, id=key_id, name=name, hint=hint, hash=digest, scope=scope
    )


async def find_key(connection: Connection, digest: bytes) -> asyncpg.Record | None:
    """The key with this hash, unless it was revoked."""
    return await QUERIES["find_key"].row(connection, hash=digest)


async def touch_key(connection: Connection, key_id: UUID) -> None:
    """Note that the key was used now."""
    await QUERIES["touch_key"].run(connection, id=key_id)


async def list_keys(connection: Connection) -> Sequence[asyncpg.Record]:
    """All keys, revoked ones too."""
    return await QUERIES["list_keys"].rows(connection)


async def revoke_key(connection: Connection, key_id: UUID) -> bool:
    """Whether there was such a key and it was valid until now."""
    return await QUERIES["revoke_key"].row(connection, id=key_id) is not None


async def has_keys(connection: Connection) -> bool:
    """Whether any key was ever made."""
    row = await QUERIES["has_keys"].row(connection)
    return bool(row and row["any_key"])
