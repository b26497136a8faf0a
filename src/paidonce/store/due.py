"""The queue: a narrow table that holds only what waits."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Final

import orjson

from paidonce.domain.events import EventId, EventStatus, SourceId
from paidonce.store.db import Database
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
CHANNEL: Final = "paidonce_due"
LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
CHEAP_LOOK_S: Final = 0.005
HINT_FACTOR: Final = 20
EMPTY_HINT_FACTOR: Final = 4
LONGEST_HINT_S: Final = 5.0
"""After a look at everything that was not cheap, there is none for so many times what it took."""


class Lane(IntEnum):
    """Who takes an event from the queue."""

    SETTLE = 0
    ASK = 1  # what it means has to be asked of the gateway first
    HANDLE = 2  # it has handlers of the user's own


@dataclass(frozen=True, slots=True)
class Claimed:
    """A stored event that was taken from the queue, for as long as the transaction lasts."""

    event_id: EventId
    source_id: SourceId
    attempts: int
    faults: int  # how many of the attempts failed for a fault of ours
    received_at: datetime
    request_id: str
    headers: Mapping[str, str]
    body: bytes
    waits_on: bytes | None
    lane: Lane
    status: EventStatus
    error_code: str | None
    signature_method: str
    is_test: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """What was taken. Events that are final already are not listed, but were taken."""

    number: int
    events: list[Claimed]


class DueClaims:
    """Takes what is due in a lane, the oldest first. What is to be asked is not taken like this.

    Usually that is the beginning of an index. While a snapshot is held open somewhere, though, the
    rows that were claimed before cannot be cleaned away, and each claim has to step over all of
    them. So when looking at everything was slow, the next claims begin where it found something,
    for so long that looking costs little; less long when they find nothing there. What became due
    before that point, or was given back by a worker that died, waits for the next look.
    """

    def __init__(self, lane: Lane = Lane.SETTLE) -> None:
        self._lane = lane
        self._not_before = LONG_AGO
        self._looked_s = 0.0
        self._look_took_s = 0.0
        self._is_empty = False

    async def take(self, connection: Connection, limit: int) -> Claim:
        """Up to `limit` events whose time has come."""
        return await _claim(connection, await self._find(connection, limit))

    async def take_marked(self, connection: Connection, database: Database) -> tuple[Claim, int]:
        """One event, and how often it was taken like this without coming to an end.

        That it is taken is committed at once, on another connection: whatever happens to this
        process is seen by the next one. Coming to an end takes the mark away.
        """
        found = await self._find(connection, 1)
        if not found:
            return Claim(0, []), 0
        async with database.connection() as other:
            marked = await QUERIES["mark_start"].row(other, event_id=found[0])
        assert marked is not None
        return await _claim(connection, found), marked["starts"]

    async def next_run_in_s(self, connection: Connection) -> float | None:
        """How long until something is due, or everything is looked at; None when nothing waits."""
        row = await QUERIES["next_run"].row(connection, lane=self._lane, not_before=self.not_before)
        known = [] if row is None else [float(row["in_s"])]
        hinted_s = self.hinted_for_s
        return min([*known, hinted_s] if hinted_s > 0.0 else known, default=None)

    @property
    def not_before(self) -> datetime:
        """Where to begin."""
        return self._not_before if self.hinted_for_s > 0.0 else LONG_AGO

    @property
    def hinted_for_s(self) -> float:
        """How long it is until everything is looked at again."""
        if self._look_took_s <= CHEAP_LOOK_S:
            return 0.0
        factor = EMPTY_HINT_FACTOR if self._is_empty else HINT_FACTOR
        lasts_s = min(factor * self._look_took_s, LONGEST_HINT_S)
        return max(self._looked_s + lasts_s - time.monotonic(), 0.0)

    async def _find(self, connection: Connection, limit: int) -> list[EventId]:
        not_before, started_s = self.not_before, time.monotonic()
        rows = await QUERIES["take_due"].rows(
            connection, lane=self._lane, limit=limit, not_before=not_before
        )
        if not_before is LONG_AGO:
            self._looked_s = time.monotonic()
            self._look_took_s = self._looked_s - started_s
        self._is_empty = not rows
        if rows:
            self._not_before = rows[0]["run_at"]
        return [EventId(row["event_id"]) for row in rows]


async def claim_waiting(connection: Connection, waits_on: Sequence[bytes], limit: int) -> Claim:
    """Up to `limit` events that wait for one of these, whenever they are due."""
    rows = await QUERIES["take_waiting"].rows(connection, waits_on=waits_on, limit=limit)
    return await _claim(connection, [row["event_id"] for row in rows])


async def claim_events(connection: Connection, event_ids: Sequence[EventId]) -> Claim:
    """These events, whenever they are due, without those that somebody has in hand."""
    rows = await QUERIES["take_events"].rows(connection, event_id=event_ids)
    return await _claim(connection, [row["event_id"] for row in rows])


async def unmark(database: Database, event_id: EventId) -> None:
    """The process has survived what it tried, although that came to no end."""
    async with database.connection() as connection:
        await QUERIES["unmark_start"].run(connection, event_id=event_id)


async def put_back(
    connection: Connection, claimed: Claimed, delay: timedelta, lane: Lane | None = None
) -> None:
    """Return a claimed event to the queue, to be due after the delay or when it is woken.

    It goes to the lane it came from, unless another one is given.
    """
    await QUERIES["put_back"].run(
        connection,
        event_id=claimed.event_id,
        delay=delay,
        faults=claimed.faults,
        waits_on=claimed.waits_on,
        lane=claimed.lane if lane is None else lane,
        source_id=claimed.source_id,
    )


async def ring(connection: Connection) -> None:
    """Tell all who listen that something is due."""
    await QUERIES["ring"].run(connection)


async def listen(database: Database, on_ring: Callable[[], None]) -> None:
    """Call back on every ring; returns when the connection is lost."""
    lost = asyncio.Event()
    connection = await database.dedicated()
    try:
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(CHANNEL, lambda *_: on_ring())
        await lost.wait()
    finally:
        connection.terminate()


async def _claim(connection: Connection, event_ids: Sequence[Any]) -> Claim:
    """Take all that stands in the queue for the events, which the caller has locked."""
    if not event_ids:
        return Claim(0, [])
    ids = set(event_ids)
    rows = await QUERIES["claim"].rows(
        connection, event_id=list(ids), first_id=min(ids), last_id=max(ids)
    )
    events = [
        Claimed(
            event_id=row["id"],
            source_id=row["source_id"],
            attempts=row["attempts"],
            faults=row["faults"],
            received_at=row["received_at"],
            request_id=row["request_id"],
            headers=orjson.loads(row["headers"]),
            body=row["raw_body"],
            waits_on=row["waits_on"],
            lane=Lane(row["lane"]),
            status=EventStatus(row["status"]),
            error_code=row["error_code"],
            signature_method=row["signature_method"],
            is_test=row["is_test"],
        )
        for row in rows
    ]
    return Claim(len(ids), events)
