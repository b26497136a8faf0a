"""Banned addresses and verified senders."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg

from paidonce.db.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def ban_of(
    connection: Connection, address: str, remembered_days: int
) -> asyncpg.Record | None:
    """The last ban of an address, locked."""
    return await QUERIES["ban_of"].row(connection, address=address, remembered_days=remembered_days)


async def ban(
    connection: Connection,
    *,
    address: str,
    reason: str,
    score: float,
    times: int,
    length_s: float,
    verified_days: int,
) -> datetime | None:
    """Ban an address; returns until when, or None for a verified sender, which is not banned."""
    row = await QUERIES["ban"].row(
        connection,
        address=address,
        reason=reason,
        score=score,
        times=times,
        length_s=length_s,
        verified_days=verified_days,
    )
    return row["until"] if row else None


async def lift(connection: Connection, address: str) -> bool:
    """Lift a ban; returns whether the address was banned."""
    return await QUERIES["lift"].row(connection, address=address) is not None


async def changes(connection: Connection, since: datetime, limit: int) -> Sequence[asyncpg.Record]:
    """Bans that were created or lifted since then, newest first."""
    return await QUERIES["changes"].rows(connection, since=since, limit=limit)


async def list_bans(
    connection: Connection, after: str | None, limit: int
) -> Sequence[asyncpg.Record]:
    """Banned addresses after this one, in order."""
    return await QUERIES["list"].rows(connection, after=after, limit=limit)


async def count_bans(connection: Connection) -> int:
    """How many addresses are banned now."""
    row = await QUERIES["count"].row(connection)
    return int(row["number"]) if row else 0


async def add_verified_senders(connection: Connection, addresses: Sequence[str]) -> None:
    """Record the senders of verified deliveries. Sorted, to avoid deadlocks."""
    await QUERIES["add_verified_senders"].run(connection, addresses=sorted(set(addresses)))


async def verified_senders(
    connection: Connection, since: datetime, limit: int
) -> Sequence[asyncpg.Record]:
    """Verified senders since then, newest first."""
    return await QUERIES["verified_senders"].rows(connection, since=since, limit=limit)
