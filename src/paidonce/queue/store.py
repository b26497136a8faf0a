"""The event queue: a narrow table that holds only pending events."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import orjson

from paidonce.core.events import EventId, EventStatus, SourceId
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, Query, load_queries
from paidonce.processing.items import QueueName
from paidonce.processing.waiting import NOT_WAITING, Lane, Waiting
from paidonce.providers.contract import Delivery

QUERIES: Final = load_queries(__file__)
_EVENTS_WITHOUT_LOCKS: Final = QUERIES["events"].without("locks")
_CLAIM_ALL: Final = QUERIES["claim"].without("pending")
_KEPT: Final = tuple(one.name for one in fields(Waiting))
LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
CHEAP_SCAN_S: Final = 0.005
HINT_FACTOR: Final = 20
EMPTY_HINT_FACTOR: Final = 4
LONGEST_HINT_S: Final = 5.0
"""After a slow full scan there is none for this many times its duration, and at most for 5 s."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A stored event that this transaction took from the queue."""

    event_id: EventId
    source_id: SourceId
    attempts: int
    received_at: datetime
    request_id: str
    headers: Mapping[str, str]
    body: bytes
    blocked_on: bytes | None
    queue_name: QueueName
    status: EventStatus
    error_code: str | None
    signature_method: str
    is_test: bool
    was_processed: bool = field(default=False, kw_only=True)  # before its present status
    waiting: Waiting = field(default=NOT_WAITING, kw_only=True)

    @property
    def delivery(self) -> Delivery:
        """The request as it arrived, as far as it is stored."""
        return Delivery(self.headers, self.body, self.received_at)


@dataclass(frozen=True, slots=True)
class StoredEvent(Claimed):
    """A stored event, whatever its status, as if it was claimed from the queue."""

    key: str | None  # None: it was refused, and is evidence only
    conflicts_with: EventId | None
    processed_at: datetime | None
    remote_address: str | None
    is_erased: bool

    @property
    def is_accepted(self) -> bool:
        """Whether the event has claimed its key. An event that has not is evidence of a refusal."""
        return self.key is not None and self.conflicts_with is None


@dataclass(frozen=True, slots=True)
class Claim:
    """The claimed events. `number` includes events that are final already."""

    number: int
    events: list[Claimed]


class ClaimQueue:
    """Claims due events of a queue, the oldest first. The lookup queue is not claimed like this.

    Usually a claim reads the beginning of an index. But while a snapshot is held open somewhere,
    VACUUM cannot remove the rows claimed before, and each claim has to step over all of them. So
    after a slow full scan, the next claims begin at the first row that it found, for so long that
    full scans cost little in total; shorter when they find nothing. An event that becomes due
    before that point, or that a killed worker released, waits for the next full scan.
    """

    def __init__(self, queue_name: QueueName = QueueName.PROCESS) -> None:
        self._queue_name = queue_name
        self._not_before = LONG_AGO
        self._scanned_at_s = 0.0
        self._scan_took_s = 0.0
        self._is_empty = False

    async def claim(self, connection: Connection, limit: int) -> Claim:
        """Claim up to `limit` due events."""
        return await _claim(connection, await self._find(connection, limit))

    async def claim_guarded(self, connection: Connection, database: Database) -> tuple[Claim, int]:
        """Claim one event; returns it, and how often it was started without an end.

        The start is committed at once, on another connection: if this process dies, the next one
        sees it. Processing the event deletes the record.
        """
        found = await self._find(connection, 1)
        if not found:
            return Claim(0, []), 0
        async with database.connection() as other:
            starts = await QUERIES["record_start"].value(other, event_id=found[0])
        return await _claim(connection, found), starts

    async def next_run_in_s(self, connection: Connection) -> float | None:
        """Seconds until an event is due or a full scan follows; None when the queue is empty."""
        due_s: float | None = await QUERIES["next_run"].value(
            connection, queue_name=self._queue_name, not_before=self.not_before
        )
        hinted_s = self.hinted_for_s or None
        return min((one for one in (due_s, hinted_s) if one is not None), default=None)

    @property
    def not_before(self) -> datetime:
        """The lower bound of the scan."""
        return self._not_before if self.hinted_for_s > 0.0 else LONG_AGO

    @property
    def hinted_for_s(self) -> float:
        """Seconds until the next full scan."""
        if self._scan_took_s <= CHEAP_SCAN_S:
            return 0.0
        factor = EMPTY_HINT_FACTOR if self._is_empty else HINT_FACTOR
        lasts_s = min(factor * self._scan_took_s, LONGEST_HINT_S)
        return max(self._scanned_at_s + lasts_s - time.monotonic(), 0.0)

    async def _find(self, connection: Connection, limit: int) -> list[EventId]:
        not_before, started_s = self.not_before, time.monotonic()
        rows = await QUERIES["find_due"].rows(
            connection, queue_name=self._queue_name, limit=limit, not_before=not_before
        )
        if not_before is LONG_AGO:
            self._scanned_at_s = time.monotonic()
            self._scan_took_s = self._scanned_at_s - started_s
        self._is_empty = not rows
        if rows:
            self._not_before = rows[0]["run_at"]
        return [EventId(row["event_id"]) for row in rows]


async def claim_blocked(connection: Connection, blocked_on: Sequence[bytes], limit: int) -> Claim:
    """Claim up to `limit` events that are blocked on one of these, due or not."""
    rows = await QUERIES["find_blocked"].rows(connection, blocked_on=blocked_on, limit=limit)
    return await _claim(connection, [row["event_id"] for row in rows])


async def claim_events(connection: Connection, event_ids: Sequence[EventId]) -> Claim:
    """Claim these events, due or not, except those that another transaction has claimed."""
    rows = await QUERIES["find_events"].rows(connection, event_id=event_ids)
    return await _claim(connection, [row["event_id"] for row in rows])


async def lock(connection: Connection, event_ids: Sequence[EventId]) -> list[StoredEvent]:
    """Lock these events until the transaction ends. Events that others have locked are left out."""
    return await _load(connection, QUERIES["events"], event_ids)


async def read(connection: Connection, event_ids: Sequence[EventId]) -> list[StoredEvent]:
    """These events, without locks."""
    return await _load(connection, _EVENTS_WITHOUT_LOCKS, event_ids)


async def dequeue(connection: Connection, locked: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Remove these events from the queue; returns them with what the queue kept of them."""
    if not locked:
        return []
    rows = await _CLAIM_ALL.rows(connection, **_ids([one.event_id for one in locked]))
    kept = {row["event_id"]: (row["blocked_on"], _waiting(row)) for row in rows}
    nothing = (None, NOT_WAITING)
    found = [(one, *kept.get(one.event_id, nothing)) for one in locked]
    return [replace(one, blocked_on=on, waiting=waiting) for one, on, waiting in found]


async def forget_start(database: Database, event_id: EventId) -> None:
    """Undo `record_start`: the attempt failed, but the process survived."""
    async with database.connection() as connection:
        await QUERIES["forget_start"].run(connection, event_id=event_id)


async def put_back(
    connection: Connection, claimed: Claimed, delay: timedelta, queue_name: QueueName | None = None
) -> None:
    """Return a claimed event to its queue, or to another one, to be due after the delay."""
    await QUERIES["put_back"].run(
        connection,
        event_id=claimed.event_id,
        delay=delay,
        blocked_on=claimed.blocked_on,
        queue_name=claimed.queue_name if queue_name is None else queue_name,
        source_id=claimed.source_id,
        **{name: getattr(claimed.waiting, name) for name in _KEPT},
    )


async def _claim(connection: Connection, event_ids: Sequence[Any]) -> Claim:
    """Delete the queue rows of the events, which the caller has locked, and load the events."""
    if not event_ids:
        return Claim(0, [])
    ids = set(event_ids)
    rows = await QUERIES["claim"].rows(connection, **_ids(ids))
    return Claim(len(ids), [Claimed(**_event_fields(row)) for row in rows])


async def _load(
    connection: Connection, query: Query, event_ids: Sequence[EventId]
) -> list[StoredEvent]:
    if not event_ids:
        return []
    rows = await query.rows(connection, **_ids(event_ids))
    return [StoredEvent(**_event_fields(row)) for row in rows]


def _ids(event_ids: Collection[EventId]) -> dict[str, object]:
    """The parameters for these events. The bounds choose the partitions."""
    return {"event_id": list(event_ids), "first_id": min(event_ids), "last_id": max(event_ids)}


def _event_fields(row: asyncpg.Record) -> dict[str, Any]:
    """The fields of a stored event, from a row with columns of the same names."""
    found = dict(row)
    found["headers"] = orjson.loads(found["headers"])
    found["queue_name"] = QueueName(found["queue_name"])
    found["status"] = EventStatus(found["status"])
    if _KEPT[0] in found:
        found["waiting"] = _waiting(row)
        for name in _KEPT:
            del found[name]
    return found


def _waiting(row: asyncpg.Record) -> Waiting:
    kept = {name: row[name] for name in _KEPT}
    return Waiting(**kept | {"lane": Lane(row["lane"])})
