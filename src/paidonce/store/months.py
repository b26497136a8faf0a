"""Old months of events: taken out without making anybody who writes wait, then dropped.

A month leaves in steps, each of which may be cut short at any moment: it is detached, archived if
that was wanted, and dropped. The comment of the table says what it was detached for. The next run
goes on where the last one stopped.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from paidonce.store.listings import FIRST_ID, first_id_at
from paidonce.store.queries import Connection, load_queries
from paidonce.store.schema import next_month, partition_name

QUERIES: Final = load_queries(__file__)

MARK: Final = "Paidonce drops this table: its month is past [retention] payloads_days."
ARCHIVE_MARK: Final = "Paidonce archives and then drops this table: its month is past its age."
MARKS: Final = (MARK, ARCHIVE_MARK)
PAGE_EVENTS: Final = 256
"""How many events are read at a time to be archived; each may be as large as a body may."""
_NAME: Final = re.compile(r"webhook_events_(\d{4})_(\d{2})")


async def old_months(connection: Connection, before: datetime) -> list[datetime]:
    """The months that ended by then and still have their partition, the oldest first."""
    rows = await QUERIES["months"].rows(connection, marks=MARKS)
    found = [month_of(row["name"]) for row in rows if not row["is_pending"]]
    return [month for month in found if month is not None and next_month(month) <= before]


async def something_waits(connection: Connection, month: datetime) -> bool:
    """Whether an event of this month still has to be dealt with, by us or by a person."""
    return await _waits_in("webhook_events", connection, month)


async def detach(connection: Connection, month: datetime, *, mark: str | None) -> None:
    """Make the month a table of its own; with a mark, one that `detached` will find by it.

    Not in a transaction. It waits for every transaction that uses the events, and nobody waits for
    it. When that takes too long the session's lock_timeout ends it, and `finish_detaching` goes on.
    """
    name = partition_name(month)
    try:
        # Before, so that whoever is cut off in the middle leaves a month that is known to go.
        if mark is not None:
            await _comment(connection, name, f"'{mark}'")
        await connection.execute(f"ALTER TABLE webhook_events DETACH PARTITION {name} CONCURRENTLY")
    except Exception:
        with suppress(Exception):  # the session may be gone; `finish_detaching` does it then
            await _unmark_attached(connection)
        raise


async def finish_detaching(connection: Connection) -> list[str]:
    """End what an earlier `detach` has begun. Not in a transaction. Returns the tables' names.

    One that has not come to begin is undone: the month has no mark any more.
    """
    await _unmark_attached(connection)
    rows = await QUERIES["months"].rows(connection, marks=MARKS)
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
    for name in await detached(connection, MARK):
        if await put_back_if_waiting(connection, name):
            put_back.append(name)
        else:
            await drop(connection, name)
            dropped.append(name)
    return dropped, put_back


async def detached(connection: Connection, *marks: str) -> list[str]:
    """The months that were detached with one of these marks, the oldest first."""
    rows = await QUERIES["detached"].rows(connection, marks=marks)
    return [row["name"] for row in rows if month_of(row["name"]) is not None]


async def put_back_if_waiting(connection: Connection, name: str) -> bool:
    """Make the table a month again if something in it waits; returns whether it is one."""
    month = month_of(name)
    assert month is not None
    if not await _waits_in(name, connection, month):
        return False
    await _attach(connection, name, month)
    return True


async def drop(connection: Connection, name: str) -> None:
    """Drop a month that was detached."""
    assert month_of(name) is not None
    await connection.execute(f"DROP TABLE {name}")


async def event_lines(
    connection: Connection, name: str
) -> AsyncIterator[Sequence[tuple[str, str]]]:
    """All events of a detached month in the order of their ids, page by page: id, and JSON."""
    query = QUERIES["events_after"].on(name, instead_of="webhook_events")
    after = FIRST_ID
    while True:
        rows = await query.rows(connection, after=after, limit=PAGE_EVENTS)
        if rows:
            yield [(str(row["id"]), row["line"]) for row in rows]
            after = rows[-1]["id"]
        if len(rows) < PAGE_EVENTS:
            return


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


async def _unmark_attached(connection: Connection) -> None:
    """An operator may detach such a month to keep it: it must not go then."""
    for row in await QUERIES["months"].rows(connection, marks=MARKS):
        if row["is_marked"] and not row["is_pending"]:
            await _comment(connection, row["name"], "NULL")


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
