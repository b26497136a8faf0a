"""Replays, and stored events that are processed again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from paidonce.core.events import EventId, EventStatus
from paidonce.core.money import format_minor
from paidonce.db.paging import ListQuery
from paidonce.db.queries import Connection, Query, load_queries
from paidonce.db.search import FIRST_ID, LAST_ID, first_id_at
from paidonce.events.model import EventFilter
from paidonce.events.store import names_of_payment
from paidonce.processing.items import QueueName
from paidonce.replay.model import (
    AppliedPayments,
    Replay,
    ReplayId,
    ReplayProgress,
    ReplayRequest,
    ReplayState,
    ReplayStatus,
    StoredEvent,
)

QUERIES: Final = load_queries(__file__)
_LEADING: Final = ("order", "payments", "unusual_status", "source", "id")
_STATEMENTS: Final = {
    leader: QUERIES["page"].without(*(f"by {other}" for other in _LEADING if other != leader))
    for leader in _LEADING
}
_EVENTS_WITHOUT_LOCKS: Final = QUERIES["events"].without("locks")
SCAN: Final = 2_000
"""How many events one statement reads, matching or not."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events that match, and where to continue after them."""

    ids: list[EventId]
    cursor: UUID

    @property
    def is_last(self) -> bool:
        return self.cursor == LAST_ID


# The events of a filter


async def page(
    connection: Connection, events: EventFilter, after: UUID | None, limit: int
) -> EventPage:
    """Up to `limit` events that match, of the next SCAN after this id."""
    payments = None
    if events.payment is not None:
        payments = await names_of_payment(connection, events.payment)
    row = await page_statement(events).row(
        connection,
        source=events.source,
        status=events.status,
        error_code=events.error_code,
        order=events.order,
        payments=payments,
        after=after or _before_first(events.since),
        before=LAST_ID if events.until is None else first_id_at(events.until),
        scan=SCAN,
        limit=limit,
    )
    assert row is not None
    ids: list[EventId] = row["ids"]
    if len(ids) == limit:
        return EventPage(ids, ids[-1])
    return EventPage(ids, row["last"] if row["looked"] == SCAN else LAST_ID)


def page_statement(events: EventFilter) -> Query:
    """The statement that reads the fewest events."""
    return _STATEMENTS[_leader(events)]


def _leader(events: EventFilter) -> str:
    if events.order is not None:
        return "order"
    if events.payment is not None:
        return "payments"
    if events.status not in (None, EventStatus.PROCESSED):
        return "unusual_status"
    return "id" if events.source is None else "source"


def _before_first(since: datetime | None) -> UUID:
    return FIRST_ID if since is None else UUID(int=max(first_id_at(since).int - 1, 0))


# Replays


async def create(
    connection: Connection, replay_id: ReplayId, request: ReplayRequest, rate: int, actor: str
) -> None:
    """Add a replay for a worker to run."""
    await QUERIES["create"].run(
        connection,
        id=replay_id,
        filter=_json(filter_json(request.filter)),
        is_dry_run=request.dry_run,
        rate=rate,
        actor=actor,
    )


def filter_json(events: EventFilter) -> dict[str, Any]:
    """The filter as it is stored and shown."""
    return events.model_dump(mode="json", exclude_none=True)


async def find(connection: Connection, replay_id: UUID) -> Replay | None:
    """One replay."""
    row = await QUERIES["replays"].row(connection, replay_id=replay_id, before=None, limit=1)
    return None if row is None else Replay(**_fields(row))


async def find_state(connection: Connection, replay_id: ReplayId) -> ReplayState | None:
    """One replay with what its worker needs."""
    row = await QUERIES["replays"].row(connection, replay_id=replay_id, before=None, limit=1)
    if row is None:
        return None
    fields = _fields(row)
    return ReplayState(
        **fields,
        events=EventFilter(**fields["filter"]),
        cursor=row["cursor"],
        skipped=row["skipped"],
        sums_minor=orjson.loads(row["applied"]).get("sums_minor", {}),
        version=row["version"],
        wait_s=row["wait_s"],
    )


async def search(connection: Connection, query: ListQuery) -> list[Replay]:
    """Replays, newest first; one more than the limit, if there are more."""
    rows = await QUERIES["replays"].rows(
        connection, replay_id=None, before=query.cursor, limit=query.limit + 1
    )
    return [Replay(**_fields(row)) for row in rows]


async def active(connection: Connection, limit: int) -> list[ReplayId]:
    """Replays that a worker has to run, oldest first."""
    return [row["id"] for row in await QUERIES["active"].rows(connection, limit=limit)]


async def begin(connection: Connection, replay_id: ReplayId) -> int | None:
    """Start or continue it; returns how often that was done without progress. None: not active."""
    row = await QUERIES["begin"].row(connection, replay_id=replay_id)
    return None if row is None else int(row["starts"])


async def uncount_start(connection: Connection, replay_id: ReplayId) -> None:
    """The process stops in good order: its start does not count."""
    await QUERIES["uncount_start"].run(connection, replay_id=replay_id)


async def set_total(connection: Connection, replay_id: ReplayId, total: int) -> None:
    """Store how many events the replay has."""
    await QUERIES["set_total"].run(connection, replay_id=replay_id, total=total)


async def advance(
    connection: Connection,
    replay: ReplayState,
    *,
    cursor: UUID,
    skipped: Sequence[EventId],
    done: int,
    lookup_s: float,
    progress: ReplayProgress,
) -> bool:
    """Store the position. False: the transaction must roll back."""
    row = await QUERIES["advance"].row(
        connection,
        replay_id=replay.id,
        version=replay.version,
        cursor=cursor,
        skipped=skipped,
        done=done,
        lookup_s=lookup_s,
        counts=_json(progress.counts),
        applied=_json(progress.applied),
        sample=_json(progress.sample),
        is_finished=is_finished(cursor, skipped),
    )
    return row is not None


def is_finished(cursor: UUID, skipped: Sequence[EventId]) -> bool:
    """Whether a replay at this position has no events left."""
    return cursor == LAST_ID and not skipped


async def fail(connection: Connection, replay_id: ReplayId, error: str) -> bool:
    """End it; False if it is not active."""
    return await QUERIES["fail"].row(connection, replay_id=replay_id, error=error) is not None


async def change(connection: Connection, replay_id: UUID, action: str) -> bool:
    """`pause`, `resume` or `cancel` it; False if its status does not allow that."""
    return await QUERIES[action].row(connection, replay_id=replay_id) is not None


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _fields(row: asyncpg.Record) -> dict[str, Any]:
    applied = orjson.loads(row["applied"])
    names = "id rate total done actor error created_at started_at paused_at finished_at"
    return {name: row[name] for name in names.split()} | {
        "status": ReplayStatus(row["status"]),
        "filter": orjson.loads(row["filter"]),
        "dry_run": row["is_dry_run"],
        "counts": orjson.loads(row["counts"]),
        "applied": AppliedPayments(
            applied.get("number", 0),
            {
                currency: format_minor(minor, currency)
                for currency, minor in sorted(applied.get("sums_minor", {}).items())
            },
        ),
        "sample": orjson.loads(row["sample"]),
    }


# Stored events


async def lock(connection: Connection, event_ids: Sequence[EventId]) -> list[StoredEvent]:
    """Lock these events until the transaction ends. Events that others have locked are left out."""
    return await _events(connection, QUERIES["events"], event_ids)


async def read(connection: Connection, event_ids: Sequence[EventId]) -> list[StoredEvent]:
    """These events, without locks."""
    return await _events(connection, _EVENTS_WITHOUT_LOCKS, event_ids)


async def dequeue(connection: Connection, locked: Sequence[StoredEvent]) -> list[StoredEvent]:
    """Remove these events from the queue."""
    if not locked:
        return []
    rows = await QUERIES["dequeue"].rows(connection, event_id=[one.event_id for one in locked])
    blocked_on = {row["event_id"]: row["blocked_on"] for row in rows}
    return [replace(one, blocked_on=blocked_on.get(one.event_id)) for one in locked]


async def delay(connection: Connection, delays: Mapping[EventId, timedelta]) -> None:
    """Set when queued events, which are locked, are due: this long from now."""
    await QUERIES["delay"].run(connection, event_id=list(delays), delay=list(delays.values()))


async def discard(
    connection: Connection, event_ids: Sequence[EventId], message: str
) -> dict[EventId, str]:
    """Discard those that are dead letters; returns them with their error codes."""
    if not event_ids:
        return {}
    rows = await QUERIES["discard"].rows(
        connection, event_id=event_ids, message=message, **_range(event_ids)
    )
    return {EventId(row["id"]): row["error_code"] for row in rows}


async def _events(
    connection: Connection, query: Query, event_ids: Sequence[EventId]
) -> list[StoredEvent]:
    if not event_ids:
        return []
    rows = await query.rows(connection, event_id=event_ids, **_range(event_ids))
    return [_stored_event(row) for row in rows]


def _range(event_ids: Sequence[EventId]) -> dict[str, object]:
    return {"first_id": min(event_ids), "last_id": max(event_ids)}


def _stored_event(row: asyncpg.Record) -> StoredEvent:
    fields = dict(row)
    return StoredEvent(
        event_id=fields.pop("id"),
        status=EventStatus(fields.pop("status")),
        headers=orjson.loads(fields.pop("headers")),
        body=fields.pop("raw_body"),
        faults=0,
        blocked_on=None,
        queue_name=QueueName.PROCESS,
        **fields,
    )
