"""Which events a replay is of, and how far it has come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NewType
from uuid import UUID

import asyncpg
import orjson

from paidonce.domain.events import EventId, EventStatus
from paidonce.store.event_search import names_of_payment
from paidonce.store.listings import FIRST_ID, LAST_ID, first_id_at
from paidonce.store.queries import Connection, Query, load_queries

QUERIES: Final = load_queries(__file__)
_LEADING: Final = ("order", "payments", "unusual_status", "source", "id")
_STATEMENTS: Final = {
    leader: QUERIES["page"].without(*(f"by {other}" for other in _LEADING if other != leader))
    for leader in _LEADING
}
SCAN: Final = 2_000
"""How many events one statement looks at, matching or not."""

ReplayId = NewType("ReplayId", UUID)


class ReplayStatus(StrEnum):
    """Where a replay stands. The schema ties each to its timestamps."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_active(self) -> bool:
        """Whether somebody has to run it."""
        return self in (ReplayStatus.PENDING, ReplayStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events; all that is given has to match. Times are those of their arrival."""

    source: str | None = None
    status: EventStatus | None = None
    error_code: str | None = None
    order: str | None = None
    payment: str | None = None  # by a gateway's id, or ours
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of the events."""
        return not any(value is not None for value in asdict(self).values())

    def as_json(self) -> dict[str, Any]:
        """What is given of it."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in given.items()
        }


def filter_of(said: Mapping[str, Any]) -> EventFilter:
    """The filter that was written `as_json`."""
    read: dict[str, Callable[[str], Any]] = {
        "status": EventStatus,
        "since": datetime.fromisoformat,
        "until": datetime.fromisoformat,
    }
    return EventFilter(**{name: read.get(name, str)(value) for name, value in said.items()})


@dataclass(frozen=True, slots=True)
class Page:
    """A few events that match, and where to go on after them."""

    ids: list[EventId]
    cursor: UUID

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.cursor == LAST_ID


@dataclass(frozen=True, slots=True)
class Progress:
    """What a replay has come to: how many events ended how, and what of it a person is shown."""

    counts: Mapping[str, int] = field(default_factory=dict)
    applied: Mapping[str, Any] = field(default_factory=dict)
    sample: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, as it stands."""

    id: ReplayId
    status: ReplayStatus
    filter: EventFilter
    is_dry_run: bool
    rate: int
    actor: str
    cursor: UUID | None
    left_over: list[EventId]
    total: int | None
    done: int
    progress: Progress
    error: str | None
    version: int
    starts: int
    created_at: datetime
    started_at: datetime | None
    paused_at: datetime | None
    finished_at: datetime | None
    wait_s: float  # until its rate allows more


async def page(connection: Connection, chosen: EventFilter, after: UUID | None, limit: int) -> Page:
    """Up to `limit` events that match, after this one, of the next SCAN that might."""
    payments = None
    if chosen.payment is not None:
        payments = await names_of_payment(connection, chosen.payment)
    row = await page_statement(chosen).row(
        connection,
        source=chosen.source,
        status=chosen.status,
        error_code=chosen.error_code,
        order=chosen.order,
        payments=payments,
        after=after or _before_first(chosen.since),
        before=LAST_ID if chosen.until is None else first_id_at(chosen.until),
        scan=SCAN,
        limit=limit,
    )
    assert row is not None
    ids: list[EventId] = row["ids"]
    if len(ids) == limit:
        return Page(ids, ids[-1])
    return Page(ids, row["last"] if row["looked"] == SCAN else LAST_ID)


def page_statement(chosen: EventFilter) -> Query:
    """The statement that looks at the fewest events."""
    return _STATEMENTS[_leader(chosen)]


async def create(
    connection: Connection,
    *,
    replay_id: ReplayId,
    chosen: EventFilter,
    is_dry_run: bool,
    rate: int,
    actor: str,
) -> None:
    """Add a replay for somebody to run."""
    await QUERIES["create"].run(
        connection,
        id=replay_id,
        filter=_json(chosen.as_json()),
        is_dry_run=is_dry_run,
        rate=rate,
        actor=actor,
    )


async def find(connection: Connection, replay_id: UUID) -> Replay | None:
    """One replay."""
    row = await QUERIES["replays"].row(connection, replay_id=replay_id, before=None, limit=1)
    return None if row is None else _replay(row)


async def newest(connection: Connection, before: UUID | None, limit: int) -> list[Replay]:
    """Replays, the newest first, after the one named `before`."""
    rows = await QUERIES["replays"].rows(connection, replay_id=None, before=before, limit=limit)
    return [_replay(row) for row in rows]


async def active(connection: Connection, limit: int) -> list[ReplayId]:
    """Replays that somebody has to run, the oldest first."""
    return [row["id"] for row in await QUERIES["active"].rows(connection, limit=limit)]


async def begin(connection: Connection, replay_id: ReplayId) -> int | None:
    """Take it up; returns how often that was done without any progress. None: it is not active."""
    row = await QUERIES["begin"].row(connection, replay_id=replay_id)
    return None if row is None else int(row["starts"])


async def give_back_start(connection: Connection, replay_id: ReplayId) -> None:
    """Whoever has taken it up leaves it in good order."""
    await QUERIES["give_back_start"].run(connection, replay_id=replay_id)


async def set_total(connection: Connection, replay_id: ReplayId, total: int) -> None:
    """Say how many events there are to do."""
    await QUERIES["set_total"].run(connection, replay_id=replay_id, total=total)


async def advance(
    connection: Connection,
    replay: Replay,
    *,
    cursor: UUID,
    left_over: Sequence[EventId],
    done: int,
    asking_s: float,
    progress: Progress,
) -> bool:
    """Say how far it has come. False if nothing of what was done for it may stay."""
    row = await QUERIES["advance"].row(
        connection,
        replay_id=replay.id,
        version=replay.version,
        cursor=cursor,
        left_over=left_over,
        done=done,
        asking_s=asking_s,
        counts=_json(progress.counts),
        applied=_json(progress.applied),
        sample=_json(progress.sample),
        is_over=is_over(cursor, left_over),
    )
    return row is not None


def is_over(cursor: UUID, left_over: Sequence[EventId]) -> bool:
    """Whether there is nothing left to do for a replay that has come so far."""
    return cursor == LAST_ID and not left_over


async def fail(connection: Connection, replay_id: ReplayId, error: str) -> bool:
    """End it; False if it is not active."""
    return await QUERIES["fail"].row(connection, replay_id=replay_id, error=error) is not None


async def change(connection: Connection, replay_id: UUID, how: str) -> bool:
    """`pause`, `resume` or `cancel` it; False if it does not stand so that it can be."""
    return await QUERIES[how].row(connection, replay_id=replay_id) is not None


def _leader(chosen: EventFilter) -> str:
    if chosen.order is not None:
        return "order"
    if chosen.payment is not None:
        return "payments"
    if chosen.status not in (None, EventStatus.PROCESSED):
        return "unusual_status"
    return "id" if chosen.source is None else "source"


def _before_first(since: datetime | None) -> UUID:
    return FIRST_ID if since is None else UUID(int=max(first_id_at(since).int - 1, 0))


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _replay(row: asyncpg.Record) -> Replay:
    counts, applied, sample = (orjson.loads(row[name]) for name in ("counts", "applied", "sample"))
    return Replay(
        id=row["id"],
        status=ReplayStatus(row["status"]),
        filter=filter_of(orjson.loads(row["filter"])),
        is_dry_run=row["is_dry_run"],
        rate=row["rate"],
        actor=row["actor"],
        cursor=row["cursor"],
        left_over=row["left_over"],
        total=row["total"],
        done=row["done"],
        progress=Progress(counts, applied, sample),
        error=row["error"],
        version=row["version"],
        starts=row["starts"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        paused_at=row["paused_at"],
        finished_at=row["finished_at"],
        wait_s=row["wait_s"],
    )
