"""Old months of events: taken out without making anybody who writes wait, then dropped.

A month leaves in two steps, each of which may be cut short at any moment: it is detached, and what
was detached in order to be dropped, which its comment says, is dropped. The next run goes on where
the last one stopped.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from paidonce.store.listings import first_id_at
from paidonce.store.queries import Connection, load_queries
from paidonce.store.schema import next_month, partition_name

QUERIES: Final = load_queries(__file__)

MARK: Final = "Paidonce drops this table: its month is past [retention] payloads_days."
_NAME: Final = re.compile(r"webhook_events_(\d{4})_(\d{2})")


async def old_months(connection: Connection, before: datetime) -> list[datetime]:
    """The months that ended by then and still have their partition, the oldest first."""
    rows = await QUERIES["months"].rows(connection)
    found = [month_of(row["name"]) for row in rows if not row["is_pending"]]
    return [month for month in found if month is not None and next_month(month) <= before]


async def something_waits(connection: Connection, month: datetime) -> bool:
    """Whether an event of this month still has to be dealt with, by us or by a person."""
    return await _waits_in("webhook_events", connection, month)


async def detach(connection: Connection, month: datetime, *, to_drop: bool) -> None:
    """Make the month a table of its own; with `to_drop`, one that `drop_detached` will find.

    Not in a transaction. It waits for every transaction that uses the events, and nobody waits for
    it. When that takes too long the session's lock_timeout ends it, and `finish_detaching` goes on.
    """
    name = partition_name(month)
    if to_drop:
        await _comment(connection, name, f"'{MARK}'")
    await connection.execute(f"ALTER TABLE webhook_events DETACH PARTITION {name} CONCURRENTLY")


async def finish_detaching(connection: Connection) -> list[str]:
    """End what an earlier `detach` has begun. Not in a transaction. Returns the tables' names."""
    rows = await QUERIES["months"].rows(connection)
    pending = [row["name"] for row in rows if row["is_pending"]]
    for name in pending:
        await connection.execute(f"ALTER TABLE webhook_events DETACH PARTITION {name} FINALIZE")
    return pending


async def drop_detached(connection: Connection) -> tuple[Sequence[str], Sequence[str]]:
    """Drop what was detached for it; returns the names of those dropped and of those put back.

    One is put back when something in it waits after all: it came before the detach was complete.
    """
    dropped: list[str] = []
    put_back: list[str] = []
    for row in await QUERIES["detached_to_drop"].rows(connection, mark=MARK):
        name: str = row["name"]
        month = month_of(name)
        if month is None:
            continue
        if await _waits_in(name, connection, month):
            await _attach(connection, name, month)
            put_back.append(name)
        else:
            await connection.execute(f"DROP TABLE {name}")
            dropped.append(name)
    return dropped, put_back


def month_of(name: str) -> datetime | None:
    """The month of a partition that we made, by its name."""
    found = _NAME.fullmatch(name)
    if found is None or not 1 <= int(found[2]) <= 12:
        return None
    return datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)


async def _waits_in(table: str, connection: Connection, month: datetime) -> bool:
    row = (
        await QUERIES["something_waits"]
        .on(table, instead_of="webhook_events")
        .row(connection, first_id=first_id_at(month), end_id=first_id_at(next_month(month)))
    )
    return row is not None and bool(row["is_so"])


async def _attach(connection: Connection, name: str, month: datetime) -> None:
    """Detaching has left a check of the bounds, so that nothing has to be read to attach it."""
    first, end = first_id_at(month), first_id_at(next_month(month))
    async with connection.transaction():
        await connection.execute(
            f"ALTER TABLE webhook_events ATTACH PARTITION {name} "
            f"FOR VALUES FROM ('{first}') TO ('{end}')"
        )
        await _comment(connection, name, "NULL")


async def _comment(connection: Connection, name: str, literal: str) -> None:
    await connection.execute(f"COMMENT ON TABLE {name} IS {literal}")
