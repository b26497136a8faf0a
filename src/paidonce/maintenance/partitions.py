"""The monthly partitions of webhook_events: created ahead, and removed when they are old.

An old partition is removed in steps, each of which may be interrupted at any moment: it is
detached, archived if that is wanted, and dropped. The comment of the table says what it was
detached for. The next run continues where the last one stopped. Nobody who writes events waits.
"""

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce.db import schema
from paidonce.db.pool import is_lock_timeout
from paidonce.db.queries import Connection, in_schema, load_queries
from paidonce.errors import ArchiveError
from paidonce.maintenance.archive import Archive
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)

HOURLY_S: Final = 3600.0
MAX_MONTHS: Final = 12
DROP_MARK: Final = "Paidonce drops this table: its month is past [retention] payloads_days."
ARCHIVE_MARK: Final = "Paidonce archives and then drops this table: its month is past its age."
MARKS: Final = (DROP_MARK, ARCHIVE_MARK)
_NAME: Final = re.compile(r"webhook_events_(\d{4})_(\d{2})")


class NewPartitions:
    """Creates the partitions of the months ahead."""

    name = "new partitions"
    period_s = HOURLY_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        created = await schema.ensure_partitions(connection, now)
        if created:
            log.info("partitions_created", names=created)
        return False


@dataclass(slots=True)
class OldPartitions:
    """Removes the months that ended `days` ago, except those with pending events.

    They are dropped, or archived and then dropped, or left as detached tables. With `days` = 0 none
    is old; what was begun before is still finished.
    """

    days: int
    is_dropped: bool
    archive: Archive | None = None
    name: str = "old partitions"
    period_s: float = HOURLY_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Remove some of them; returns whether there are more."""
        try:
            return await self._remove(connection, now)
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            log.info("partitions_in_use", detail="a long transaction uses events; retried later")
            return False

    async def _remove(self, connection: Connection, now: datetime) -> bool:
        if self.archive is not None:
            await asyncio.to_thread(self.archive.check)
        finished = await finish_detaching(connection)
        old = await self._find_old(connection, now)
        mark = ARCHIVE_MARK if self.archive is not None else DROP_MARK if self.is_dropped else None
        for month in old[:MAX_MONTHS]:
            await detach(connection, month, mark=mark)
        names = finished + [schema.partition_name(month) for month in old[:MAX_MONTHS]]
        if names:
            log.info("partitions_detached", names=names)
        has_more = len(old) > MAX_MONTHS
        if self.archive is not None:
            return await _archive_next(connection, self.archive) or has_more
        if self.is_dropped:
            await _drop_detached(connection)
        return has_more

    async def _find_old(self, connection: Connection, now: datetime) -> list[datetime]:
        if self.days == 0:
            return []
        before = now - timedelta(days=self.days)
        months = map(_month_of, await attached_partitions(connection))
        old = [one for one in months if one is not None and schema.next_month(one) <= before]
        kept = [month for month in old if await _has_pending("webhook_events", connection, month)]
        if kept:
            names = [schema.partition_name(month) for month in kept]
            log.info("partitions_kept", names=names, detail="pending events, or dead letters")
        return [month for month in old if month not in kept]


async def _archive_next(connection: Connection, archive: Archive) -> bool:
    """Archive one detached month, and drop it; returns whether there are more.

    A month that cannot be archived is kept, and does not stop the others.
    """
    found = await _detached(connection, ARCHIVE_MARK, DROP_MARK)
    for number, name in enumerate(found, 1):
        if await _reattach_if_pending(connection, name):
            continue
        try:
            written = await archive.write(connection, name)
        except (ArchiveError, OSError) as error:
            log.error("partition_not_archived", name=name, detail=str(error))
            continue
        await _run(connection, f"DROP TABLE paidonce.{name}")
        log.info("partition_archived", name=name, events=written.events, file=written.file)
        return number < len(found)
    return False


async def _drop_detached(connection: Connection) -> None:
    """Drop what was detached for it, unless events came before the detach was complete."""
    dropped: list[str] = []
    for name in await _detached(connection, DROP_MARK):
        if not await _reattach_if_pending(connection, name):
            await _run(connection, f"DROP TABLE paidonce.{name}")
            dropped.append(name)
    if dropped:
        log.info("partitions_dropped", names=dropped)


async def detach(connection: Connection, month: datetime, *, mark: str | None) -> None:
    """Make the month a table of its own, with this comment. Not in a transaction.

    It waits for every transaction that uses the events; nobody waits for it. If that takes too
    long, the session's lock_timeout ends it, and `finish_detaching` continues.
    """
    name = schema.partition_name(month)
    try:
        # Before the detach, so that an interrupted one is known to be removed.
        if mark is not None:
            await _comment(connection, name, f"'{mark}'")
        await _alter(connection, f"DETACH PARTITION paidonce.{name} CONCURRENTLY")
    except Exception:
        with suppress(Exception):  # if the session is lost, `finish_detaching` does it
            await _unmark_attached(connection)
        raise


async def finish_detaching(connection: Connection) -> list[str]:
    """Finish interrupted detaches. Not in a transaction. Returns the names of the tables.

    A month that was marked, but whose detach did not begin, loses its mark.
    """
    await _unmark_attached(connection)
    rows = await QUERIES["partitions"].rows(connection, marks=MARKS)
    names = [row["name"] for row in rows if row["is_detaching"]]
    for name in names:
        await _alter(connection, f"DETACH PARTITION paidonce.{name} FINALIZE")
    return names


async def attached_partitions(connection: Connection) -> list[str]:
    """The names of the partitions that are in use, the oldest first."""
    rows = await QUERIES["partitions"].rows(connection, marks=MARKS)
    return [row["name"] for row in rows if not row["is_detaching"]]


async def _detached(connection: Connection, *marks: str) -> list[str]:
    """The months that were detached with one of these marks, the oldest first."""
    rows = await QUERIES["detached_partitions"].rows(connection, marks=marks)
    return [row["name"] for row in rows if _month_of(row["name"]) is not None]


async def _reattach_if_pending(connection: Connection, name: str) -> bool:
    """Attach a detached month again if it has pending events; returns whether it was attached."""
    month = _month_of(name)
    assert month is not None
    if not await _has_pending(name, connection, month):
        return False
    async with connection.transaction():
        # Detaching left a check of the bounds, so that attaching reads no rows.
        await schema.attach_partition(connection, month)
        await _comment(connection, name, "NULL")
    log.info("partitions_kept", names=[name], detail="an event in it is pending again")
    return True


async def _has_pending(table: str, connection: Connection, month: datetime) -> bool:
    """Whether an event of this month still has to be processed, or needs a person."""
    query = QUERIES["has_pending_events"].renamed(webhook_events=table)
    first, end = schema.id_range(month)
    return bool(await query.value(connection, first_id=first, end_id=end))


async def _unmark_attached(connection: Connection) -> None:
    """An operator may detach such a month to keep it: then it must not be dropped."""
    for row in await QUERIES["partitions"].rows(connection, marks=MARKS):
        if row["is_marked"] and not row["is_detaching"]:
            await _comment(connection, row["name"], "NULL")


async def _comment(connection: Connection, name: str, literal: str) -> None:
    await _run(connection, f"COMMENT ON TABLE paidonce.{name} IS {literal}")


async def _alter(connection: Connection, action: str) -> None:
    await _run(connection, f"ALTER TABLE paidonce.webhook_events {action}")


async def _run(connection: Connection, sql: str) -> None:
    await connection.execute(in_schema(sql, connection.schema))


def _month_of(name: str) -> datetime | None:
    """The month of a partition that Paidonce created, by its name."""
    found = _NAME.fullmatch(name)
    if found is None or not 1 <= int(found[2]) <= 12:
        return None
    return datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
