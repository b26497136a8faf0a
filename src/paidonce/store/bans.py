"""Addresses that are banned, and addresses that are known for verified deliveries."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def ban_of(
    connection: Connection, address: str, remembered_days: int
) -> asyncpg.Record | None:
    """The last ban of an address, locked: how many there were, and whether it still counts."""
    return await QUERIES["ban_of"].row(connection, address=address, remembered_days=remembered_days)


async def ban(
    connection: Connection,
    *,
    address: str,
    reason: str,
    score: float,
    times: int,
    length_s: float,
    known_days: int,
) -> datetime | None:
    """Ban an address; returns until when, or None for one that is known and never banned."""
    row = await QUERIES["ban"].row(
        connection,
        address=address,
        reason=reason,
        score=score,
        times=times,
        length_s=length_s,
        known_days=known_days,
    )
    return row["until"] if row else None


async def lift(connection: Connection, address: str) -> bool:
    """Whether the address was banned until now."""
    return await QUERIES["lift"].row(connection, address=address) is not None


async def changes(connection: Connection, since: datetime, limit: int) -> Sequence[asyncpg.Record]:
    """Bans that were made or lifted since then, the newest first."""
    return await QUERIES["changes"].rows(connection, since=since, limit=limit)


async def list_bans(
    connection: Connection, after: str | None, limit: int
) -> Sequence[asyncpg.Record]:
    """Addresses that are banned now, in their order, after this one."""
    return await QUERIES["list"].rows(connection, after=after, limit=limit)


async def count_bans(connection: Connection) -> int:
    """How many addresses are banned now."""
    row = await QUERIES["count"].row(connection)
    return int(row["number"]) if row else 0


async def note_known(connection: Connection, addresses: Sequence[str]) -> None:
    """Verified deliveries came from these just now. Sorted, so that nobody waits in a circle."""
    await QUERIES["note_known"].run(connection, addresses=sorted(set(addresses)))


async def known(connection: Connection, since: datetime, limit: int) -> Sequence[asyncpg.Record]:
    """Addresses that were noted since then, the newest first."""
    return await QUERIES["known"].rows(connection, since=since, limit=limit)
