"""API keys; only their hashes are stored."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import asyncpg

from paidonce.db.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


Row = Mapping[str, Any]


class HashMethod(StrEnum):
    """The method of a hash."""

    SHA256 = "sha256"
    HMAC_SHA256 = "hmac-sha256"  # with the pepper


async def add_key(
    connection: Connection,
    *,
    key_id: UUID,
    name: str,
    hint: str,
    digest: bytes,
    hash_method: HashMethod,
    scope: str,
) -> None:
    """Store the hash of a key, unless it exists."""
    await QUERIES["add_key"].run(
        connection,
        id=key_id,
        name=name,
        hint=hint,
        hash=digest,
        hash_method=hash_method,
        scope=scope,
    )


async def find_keys(connection: Connection, digests: Sequence[bytes]) -> list[Row]:
    """Keys with one of these hashes, also revoked ones."""
    return [dict(row) for row in await QUERIES["find_keys"].rows(connection, hashes=digests)]


async def touch_key(connection: Connection, key_id: UUID) -> None:
    """Record that the key was used now."""
    await QUERIES["touch_key"].run(connection, id=key_id)


async def list_keys(
    connection: Connection, after: UUID | None, limit: int
) -> Sequence[asyncpg.Record]:
    """Keys after this one, oldest first, also revoked ones."""
    return await QUERIES["list_keys"].rows(connection, after=after, limit=limit)


async def revoke_key(connection: Connection, key_id: UUID) -> bool:
    """Revoke a key; returns whether it was valid."""
    return await QUERIES["revoke_key"].row(connection, id=key_id) is not None


async def has_keys(connection: Connection) -> bool:
    """Whether any key was ever created."""
    row = await QUERIES["has_keys"].row(connection)
    return bool(row and row["any_key"])
