"""The queue: a narrow table that holds only what waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import asyncpg
import orjson

from paidonce.domain.events import EventId, SourceId
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A stored event that was taken from the queue, for as long as the transaction lasts."""

    event_id: EventId
    source_id: SourceId
    attempts: int
    received_at: datetime
    request_id: str
    headers: Mapping[str, str]
    body: bytes
    waits_on: bytes | None


async def claim_due(connection: Connection, limit: int) -> list[Claimed]:
    """Up to `limit` events whose time has come."""
    return _claimed(await QUERIES["claim_due"].rows(connection, limit=limit))


async def claim_waiting(
    connection: Connection, waits_on: Sequence[bytes], limit: int
) -> list[Claimed]:
    """Up to `limit` events that wait for one of these, whenever they are due."""
    rows = await QUERIES["claim_waiting"].rows(connection, waits_on=waits_on, limit=limit)
    return _claimed(rows)


async def put_back(connection: Connection, claimed: Claimed, delay: timedelta) -> None:
    """Return a claimed event to the queue, to be due after the delay or when it is woken."""
    await QUERIES["put_back"].run(
        connection, event_id=claimed.event_id, delay=delay, waits_on=claimed.waits_on
    )


async def next_run_in_s(connection: Connection) -> float | None:
    """How long until something is due, or None when nothing waits."""
    row = await QUERIES["next_run"].row(connection)
    return None if row is None else row["in_s"]


def _claimed(rows: Sequence[asyncpg.Record]) -> list[Claimed]:
    """One per event: a woken event may stand in the queue twice."""
    by_event = {
        row["id"]: Claimed(
            event_id=row["id"],
            source_id=row["source_id"],
            attempts=row["attempts"],
            received_at=row["received_at"],
            request_id=row["request_id"],
            headers=orjson.loads(row["headers"]),
            body=row["raw_body"],
            waits_on=row["waits_on"],
        )
        for row in rows
    }
    return [by_event[event_id] for event_id in sorted(by_event)]
