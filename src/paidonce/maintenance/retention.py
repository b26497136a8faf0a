"""Deletes old rows of tables that are not partitioned, page by page.

A table with a retention age needs a statement in `STATEMENTS` and a line in `sweeps`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import FIRST_ID, first_id_at
from paidonce.guard.bans import REMEMBERED_DAYS, VERIFIED_DAYS
from paidonce.maintenance.partitions import HOURLY_S
from paidonce.queue.senders import PROVEN_DAYS
from paidonce.settings.sections import RetentionSettings
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)

_NUMBERED: Final = QUERIES["sweep_numbered"]
_NUMBERED_ANYHOW: Final = _NUMBERED.without("in order of time")
_DATED: Final = QUERIES["sweep_dated"]
_FINISHED: Final = QUERIES["sweep_finished"]
_BLOCKS: Final = QUERIES["sweep_blocks"]
STATEMENTS: Final = {
    "evidence": QUERIES["sweep_evidence"],
    "audit_log": _DATED.renamed(processed_events="audit_log", processed_at="at"),
    "outbox": QUERIES["sweep_outbox"],
    "processed_events": _DATED,
    # Dead letters that were consumed after all, or discarded.
    "bus_dead_letters": _NUMBERED_ANYHOW.renamed(
        notifications="bus_dead_letters", at="coalesce(consumed_at, discarded_at)"
    ),
    "event_keys": _BLOCKS.without("nonces"),
    "nonces": _BLOCKS.without("keys").renamed(event_keys="nonces"),
    "bans": _DATED.renamed(processed_events="bans", processed_at="until"),
    "verified_senders": _DATED.renamed(
        processed_events="verified_senders", processed_at="verified_at"
    ),
    "lookup_senders": _DATED.renamed(processed_events="lookup_senders", processed_at="seen_at"),
    "replays": _FINISHED,
    "reconciliations": _FINISHED.renamed(replays="reconciliations"),
    "reconciliation_findings": _NUMBERED_ANYHOW.renamed(
        notifications="reconciliation_findings", at="resolved_at"
    ),
    # Sent or not: the pending ones of a removed channel are deleted too.
    "notifications": _NUMBERED,
    "notification_messages": _FINISHED.without("can be unfinished").renamed(
        replays="notification_messages"
    ),
}

PAGE_ROWS: Final = 1_000
PAGE_BLOCKS: Final = 128
MAX_PAGES: Final = 100


def _unchanged(time: datetime) -> datetime:
    return time


@dataclass(slots=True)
class Sweep:
    """Deletes the rows of one kind that are older than `days`. It remembers its position."""

    name: str
    days: int
    limit: Callable[[datetime], object] = _unchanged
    """The value that the statement compares with, from a time."""
    after: object = 0
    page: int = PAGE_ROWS
    period_s: float = HOURLY_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Sweep up to MAX_PAGES pages; returns whether there is more to delete.

        Each page is a transaction of its own.
        """
        before = self.limit(now - timedelta(days=self.days))
        deleted, has_more = 0, True
        for _ in range(MAX_PAGES):
            (row,) = await STATEMENTS[self.name].rows(
                connection, after=self.after, before=before, limit=self.page
            )
            deleted += row["deleted"]
            self.after, has_more = row["next"], row["more"]
            if not has_more:
                break
        if deleted:
            log.info("old_rows_deleted", table=self.name, deleted=deleted)
        return has_more and deleted > 0


def sweeps(retention: RetentionSettings) -> list[Sweep]:
    """A task for each kind of row that has a retention age; 0 keeps it for ever."""
    tasks = [
        Sweep("evidence", retention.evidence_days, first_id_at, after=FIRST_ID),
        Sweep("audit_log", retention.audit_days),
        Sweep("outbox", retention.outbox_days),
        Sweep("processed_events", retention.processed_events_days),
        Sweep("bus_dead_letters", retention.audit_days),
        Sweep("event_keys", retention.dedup_keys_days, first_id_at, page=PAGE_BLOCKS),
        Sweep("nonces", retention.nonces_days, page=PAGE_BLOCKS),
        Sweep("bans", REMEMBERED_DAYS),
        Sweep("verified_senders", VERIFIED_DAYS),
        Sweep("lookup_senders", PROVEN_DAYS),
        Sweep("replays", retention.audit_days, first_id_at, after=FIRST_ID),
        Sweep("reconciliations", retention.audit_days, first_id_at, after=FIRST_ID),
        Sweep("reconciliation_findings", retention.audit_days),
        Sweep("notifications", retention.notifications_days),
        Sweep("notification_messages", retention.notifications_days, first_id_at, after=FIRST_ID),
    ]
    return [one for one in tasks if one.days > 0]
