"""The ledger: what explains the wallets, read page by page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.store.planning import read_in_order
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
LAST_ENTRY: Final = 2**63 - 1
NEARBY: Final = 10_000
"""How far apart the ids of one movement's entries may be: others write at the same time."""


@dataclass(frozen=True, slots=True)
class Unbalanced:
    """A movement whose entries, as far as they were read, do not sum to zero."""

    movement_id: UUID
    currency: str
    sum_minor: int
    first_id: int


async def wallet_at(connection: Connection, wallet_id: UUID, at: datetime) -> asyncpg.Record | None:
    """The wallet as it was at a time."""
    return await QUERIES["wallet_at"].row(connection, id=wallet_id, at=at)


async def entries_of(
    connection: Connection, wallet_id: UUID, *, before: int | None, limit: int
) -> Sequence[asyncpg.Record]:
    """A page of a wallet's entries, the newest first."""
    async with read_in_order(connection):
        return await QUERIES["entries"].rows(
            connection,
            accounts=[f"wallet:{wallet_id}", f"receivable:{wallet_id}"],
            before=LAST_ENTRY if before is None else before,
            limit=limit,
        )


async def wallets_explained(
    connection: Connection, after: UUID, limit: int
) -> Sequence[asyncpg.Record]:
    """A page of wallets in the order of their ids, beside what explains them."""
    return await QUERIES["wallets_explained"].rows(connection, after=after, limit=limit)


async def unbalanced(
    connection: Connection, after: int, limit: int
) -> tuple[list[Unbalanced], int | None]:
    """What does not sum to zero in a page of entries, and its last id; None after the end."""
    row = await QUERIES["unbalanced"].row(connection, after=after, limit=limit)
    assert row is not None
    return [Unbalanced(*cells) for cells in row["movements"]], row["last_id"]


async def movement_sum(connection: Connection, one: Unbalanced) -> int:
    """What the whole movement sums to."""
    row = await QUERIES["movement"].row(
        connection,
        first_id=one.first_id - NEARBY,
        last_id=one.first_id + NEARBY,
        movement_id=one.movement_id,
        currency=one.currency,
    )
    assert row is not None
    return int(row["minor"])


async def size(connection: Connection) -> tuple[int, int]:
    """About how many wallets there are, and the last entry's id."""
    row = await QUERIES["size"].row(connection)
    assert row is not None
    return row["wallets"], row["entries"]
