"""What has grown old goes: whole months of events, and rows of other tables page by page.

A table of its own age needs a statement in store/retention.sql and a line in `sweeps`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from paidonce.domain.risk import KNOWN_DAYS, REMEMBERED_DAYS
from paidonce.engine.archiving import Archive
from paidonce.errors import ArchiveError
from paidonce.settings import RetentionSettings
from paidonce.store import months
from paidonce.store.db import is_lock_timeout
from paidonce.store.listings import FIRST_ID, first_id_at
from paidonce.store.queries import Connection
from paidonce.store.retention import sweep
from paidonce.store.schema import partition_name
from paidonce.telemetry import logger

log = logger(__name__)

PAGE_ROWS: Final = 1_000
PAGE_BLOCKS: Final = 128
MAX_PAGES: Final = 100
MAX_MONTHS: Final = 12
HOURLY_S: Final = 3600.0


@dataclass(slots=True)
class OldMonths:
    """Takes out the months that ended `days` ago, except those in which something waits.

    They are dropped, or archived in a folder and then dropped, or left as tables of their own. With
    `days` = 0 none is old; what was begun before is finished all the same.
    """

    days: int
    is_dropped: bool
    archive: Archive | None = None
    name: str = "old months"
    period_s: float = HOURLY_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Take out some of them; returns whether there are more."""
        try:
            return await self._take_out(connection, now)
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            log.info("months_in_use", detail="a long transaction uses events; tried again later")
            return False

    async def _take_out(self, connection: Connection, now: datetime) -> bool:
        if self.archive is not None:
            await self.archive.check()
        finished = await months.finish_detaching(connection)
        old = await self._old(connection, now)
        for month in old[:MAX_MONTHS]:
            await months.detach(connection, month, mark=self._mark)
        detached = finished + [partition_name(month) for month in old[:MAX_MONTHS]]
        if detached:
            log.info("months_detached", names=detached)
        has_more = len(old) > MAX_MONTHS
        if self.archive is not None:
            return await self._archive(connection, self.archive) or has_more
        if self.is_dropped:
            await _drop(connection)
        return has_more

    @property
    def _mark(self) -> str | None:
        if self.archive is not None:
            return months.ARCHIVE_MARK
        return months.MARK if self.is_dropped else None

    async def _archive(self, connection: Connection, archive: Archive) -> bool:
        """Archive one month, and drop it then; returns whether there are more.

        One that cannot be archived is kept, and holds up no other.
        """
        found = await months.detached(connection, months.ARCHIVE_MARK, months.MARK)
        for number, name in enumerate(found, 1):
            if await months.put_back_if_waiting(connection, name):
                log.info("months_kept", names=[name], detail="an event in it waits again")
                continue
            try:
                written = await archive.write(connection, name)
            except (ArchiveError, OSError) as error:
                log.error("month_not_archived", name=name, detail=str(error))
                continue
            await months.drop(connection, name)
            log.info("month_archived", name=name, events=written.events, file=written.file)
            return number < len(found)
        return False

    async def _old(self, connection: Connection, now: datetime) -> list[datetime]:
        if self.days == 0:
            return []
        old = await months.old_months(connection, now - timedelta(days=self.days))
        kept = [month for month in old if await months.something_waits(connection, month)]
        if kept:
            names = [partition_name(month) for month in kept]
            log.info("months_kept", names=names, detail="events in them wait, or are dead letters")
        return [month for month in old if month not in kept]


async def _drop(connection: Connection) -> None:
    dropped, put_back = await months.drop_detached(connection)
    if dropped:
        log.info("months_dropped", names=dropped)
    if put_back:
        log.info("months_kept", names=put_back, detail="an event in them waits again")


@dataclass(slots=True)
class Sweep:
    """Deletes the rows of one kind that are older than `days`. It remembers how far it has come."""

    name: str
    days: int
    limit: Callable[[datetime], object]
    """From a time to what the statement compares with."""
    start: object = 0
    page: int = PAGE_ROWS
    period_s: float = HOURLY_S
    _after: object = field(init=False)

    def __post_init__(self) -> None:
        self._after = self.start

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Sweep up to MAX_PAGES pages; returns whether there is more of what it finds."""
        before = self.limit(now - timedelta(days=self.days))
        deleted = 0
        more = True
        for _ in range(MAX_PAGES):
            done = await sweep(
                connection, self.name, after=self._after, before=before, limit=self.page
            )
            deleted += done.deleted
            self._after, more = done.next, done.more
            if not more:
                break
        if deleted:
            log.info("swept", what=self.name, deleted=deleted)
        return more and deleted > 0


def sweeps(retention: RetentionSettings) -> list[Sweep]:
    """The tasks whose age is set; 0 keeps for ever."""
    all_of_them = [
        Sweep("evidence", retention.evidence_days, first_id_at, start=FIRST_ID),
        Sweep("audit", retention.audit_days, _as_it_is),
        Sweep("outbox", retention.outbox_days, _as_it_is),
        Sweep("processed_events", retention.processed_events_days, _as_it_is),
        Sweep("bus_dead_letters", retention.audit_days, _as_it_is),
        Sweep("keys", retention.keys_days, first_id_at, page=PAGE_BLOCKS),
        Sweep("nonces", retention.nonces_days, _as_it_is, page=PAGE_BLOCKS),
        Sweep("bans", REMEMBERED_DAYS, _as_it_is),
        Sweep("known_addresses", KNOWN_DAYS, _as_it_is),
        Sweep("replays", retention.audit_days, first_id_at, start=FIRST_ID),
        Sweep("reconciliations", retention.audit_days, first_id_at, start=FIRST_ID),
        Sweep("reconciliation_findings", retention.audit_days, _as_it_is),
        Sweep("notices", retention.notices_days, _as_it_is),
        Sweep("notice_messages", retention.notices_days, first_id_at, start=FIRST_ID),
    ]
    return [one for one in all_of_them if one.days > 0]


def _as_it_is(time: datetime) -> datetime:
    return time
