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
from paidonce.db.queries import Connection, Query, Row, from_row, load_queries
from paidonce.db.search import FIRST_ID, LAST_ID, first_id_at
from paidonce.events.model import EventFilter
from paidonce.events.store import names_of_payment
from paidonce.queue.store import event_fields
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
    leader = "id" if events.source is None else "source"
    if events.status not in (None, EventStatus.PROCESSED):
        leader = "unusual_status"
    if events.payment is not None:
        leader = "payments"
    return _STATEMENTS[leader if events.order is None else "order"]


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
    rows = await _replays(connection, replay_id=replay_id)
    return from_row(Replay, rows[0]) if rows else None


async def find_state(connection: Connection, replay_id: ReplayId) -> ReplayState | None:
    """One replay with what its worker needs."""
    rows = await _replays(connection, replay_id=replay_id)
    return from_row(ReplayState, rows[0]) if rows else None


async def search(connection: Connection, query: ListQuery) -> list[Replay]:
    """Replays, newest first; one more than the limit, if there are more."""
    rows = await _replays(connection, before=query.cursor, limit=query.limit + 1)
    return [from_row(Replay, row) for row in rows]


async def _replays(
    connection: Connection,
    replay_id: UUID | None = None,
    before: UUID | None = None,
    limit: int = 1,
) -> list[Row]:
    rows = await QUERIES["replays"].rows(
        connection, replay_id=replay_id, before=before, limit=limit
    )
    return [_fields(row) for row in rows]


def _fields(row: asyncpg.Record) -> Row:
    texts = ("filter", "counts", "applied", "sample")
    fields = dict(row) | {name: orjson.loads(row[name]) for name in texts}
    sums_minor = fields["applied"].get("sums_minor", {})
    sums = {one: format_minor(sums_minor[one], one) for one in sorted(sums_minor)}
    return fields | {
        "status": ReplayStatus(row["status"]),
        "applied": AppliedPayments(fields["applied"].get("number", 0), sums),
        "sums_minor": sums_minor,
        "events": EventFilter(**fields["filter"]),
    }


async def active(connection: Connection, limit: int) -> list[ReplayId]:
    """Replays that a worker has to run, oldest first."""
    return [row["id"] for row in await QUERIES["active"].rows(connection, limit=limit)]


async def begin(connection: Connection, replay_id: ReplayId) -> int | None:
    """Start or continue it; returns how often that was done without progress. None: not active."""
    starts: int | None = await QUERIES["begin"].value(connection, replay_id=replay_id)
    return starts


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
    version = await QUERIES["advance"].value(
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
    return version is not None


def is_finished(cursor: UUID, skipped: Sequence[EventId]) -> bool:
    """Whether a replay at this position has no events left."""
    return cursor == LAST_ID and not skipped


async def change(connection: Connection, replay_id: UUID, action: str, **values: object) -> bool:
    """`pause`, `resume`, `cancel` or `fail` it; False if its status does not allow that."""
    changed = await QUERIES[action].value(connection, replay_id=replay_id, **values)
    return changed is not None


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


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
    return [StoredEvent(**event_fields(row)) for row in rows]


def _range(event_ids: Sequence[EventId]) -> dict[str, object]:
    return {"first_id": min(event_ids), "last_id": max(event_ids)}
