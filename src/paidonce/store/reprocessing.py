"""Stored events taken to be processed again, whatever became of them before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import asyncpg
import orjson

from paidonce.domain.events import EventId, EventStatus, SourceId
from paidonce.store.due import Claimed, Lane
from paidonce.store.queries import Connection, Query, load_queries

QUERIES: Final = load_queries(__file__)
_EVENTS_WITHOUT_LOCKS: Final = QUERIES["events"].without("locks")


@dataclass(frozen=True, slots=True)
class Stored:
    """An event as it was kept, and what became of it so far."""

    event_id: EventId
    source_id: SourceId
    status: EventStatus
    key: str | None  # none: it was refused, and is evidence only
    error_code: str | None
    conflicts_with: EventId | None
    signature_valid: bool
    signature_method: str
    is_test: bool
    attempts: int
    received_at: datetime
    processed_at: datetime | None
    remote_address: str | None
    request_id: str
    headers: Mapping[str, str]
    body: bytes
    waits_on: bytes | None = None

    def claimed(self, lane: Lane) -> Claimed:
        """The event as one that was taken from the queue, with all its attempts before it."""
        return Claimed(
            event_id=self.event_id,
            source_id=self.source_id,
            attempts=self.attempts,
            faults=0,
            received_at=self.received_at,
            request_id=self.request_id,
            headers=self.headers,
            body=self.body,
            waits_on=self.waits_on,
            lane=lane,
            status=self.status,
            error_code=self.error_code,
            signature_method=self.signature_method,
            is_test=self.is_test,
        )


@dataclass(frozen=True, slots=True)
class Action:
    """An entry of the audit log. Without a time it is written as of now."""

    event_id: EventId | None
    actor: str
    action: str
    success: bool
    details: Mapping[str, object]
    at: datetime | None = None


async def lock(connection: Connection, event_ids: Sequence[EventId]) -> list[Stored]:
    """Those of these events that nobody else has in hand.

    For as long as the transaction lasts, nobody else settles them.
    """
    return await _events(connection, QUERIES["events"], event_ids)


async def take_due(connection: Connection, locked: Sequence[Stored]) -> list[Stored]:
    """Take from the queue all that stands there for these events."""
    if not locked:
        return []
    rows = await QUERIES["take_due"].rows(connection, event_id=[one.event_id for one in locked])
    waits_on = {row["event_id"]: row["waits_on"] for row in rows}
    return [replace(one, waits_on=waits_on.get(one.event_id)) for one in locked]


async def put_off(connection: Connection, delays: Mapping[EventId, timedelta]) -> None:
    """Let events that stand in the queue, and are locked, be due so long from now."""
    await QUERIES["put_off"].run(connection, event_id=list(delays), delay=list(delays.values()))


async def look(connection: Connection, event_ids: Sequence[EventId]) -> list[Stored]:
    """These events, without taking them."""
    return await _events(connection, _EVENTS_WITHOUT_LOCKS, event_ids)


async def record_actions(connection: Connection, actions: Sequence[Action]) -> None:
    """Write them to the audit log, in one round trip."""
    if not actions:
        return
    await QUERIES["record_actions"].run(
        connection,
        at=[one.at for one in actions],
        event_id=[one.event_id for one in actions],
        actor=[one.actor for one in actions],
        action=[one.action for one in actions],
        success=[one.success for one in actions],
        details=[orjson.dumps(one.details, default=str).decode() for one in actions],
    )


async def discard(
    connection: Connection, event_ids: Sequence[EventId], message: str
) -> dict[EventId, str]:
    """Give up those of these that are dead letters; returns them with their codes."""
    if not event_ids:
        return {}
    rows = await QUERIES["discard"].rows(
        connection, event_id=event_ids, message=message, **_range(event_ids)
    )
    return {EventId(row["id"]): row["error_code"] for row in rows}


async def _events(
    connection: Connection, query: Query, event_ids: Sequence[EventId]
) -> list[Stored]:
    if not event_ids:
        return []
    rows = await query.rows(connection, event_id=event_ids, **_range(event_ids))
    return [_stored(row) for row in rows]


def _range(event_ids: Sequence[EventId]) -> dict[str, object]:
    return {"first_id": min(event_ids), "last_id": max(event_ids)}


def _stored(row: asyncpg.Record) -> Stored:
    return Stored(
        event_id=row["id"],
        source_id=row["source_id"],
        status=EventStatus(row["status"]),
        key=row["key"],
        error_code=row["error_code"],
        conflicts_with=row["conflicts_with"],
        signature_valid=row["signature_valid"],
        signature_method=row["signature_method"],
        is_test=row["is_test"],
        attempts=row["attempts"],
        received_at=row["received_at"],
        processed_at=row["processed_at"],
        remote_address=row["remote_address"],
        request_id=row["request_id"],
        headers=orjson.loads(row["headers"]),
        body=row["raw_body"],
    )
