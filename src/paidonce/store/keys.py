"""API keys, of which only hashes are kept."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import asyncpg

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


Row = Mapping[str, Any]


class HashedBy(StrEnum):
    """How a key's hash was made."""

    SHA256 = "sha256"
    HMAC_SHA256 = "hmac-sha256"  # with the pepper


async def add_key(
    connection: Connection,
    *,
    key_id: UUID,
    name: str,
    hint: str,
    digest: bytes,
    hashed_by: HashedBy,
    scope: str,
) -> None:
    """Keep a key's hash. A key that is there already stays as it is."""
    await QUERIES["add_key"].run(
        connection,
        id=key_id,
        name=name,
        hint=hint,
        hash=digest,
        hashed_by=hashed_by,
        scope=scope,
    )


async def find_keys(connection: Connection, digests: Sequence[bytes]) -> list[Row]:
    """The keys with one of these hashes, revoked ones too."""
    return [dict(row) for row in await QUERIES["find_keys"].rows(connection, hashes=digests)]


async def touch_key(connection: Connection, key_id: UUID) -> None:
    """Note that the key was used now."""
    await QUERIES["touch_key"].run(connection, id=key_id)


async def list_keys(
    connection: Connection, after: UUID | None, limit: int
) -> Sequence[asyncpg.Record]:
    """All keys, revoked ones too, the oldest first, after this one."""
    return await QUERIES["list_keys"].rows(connection, after=after, limit=limit)


async def revoke_key(connection: Connection, key_id: UUID) -> bool:
    """Whether there was such a key and it was valid until now."""
    return await QUERIES["revoke_key"].row(connection, id=key_id) is not None


async def has_keys(connection: Connection) -> bool:
    """Whether any key was ever made."""
    row = await QUERIES["has_keys"].row(connection)
    return bool(row and row["any_key"])
