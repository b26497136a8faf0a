"""Replays, and stored events that are processed again."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

import asyncpg
import orjson

from paidonce.core.events import EventId, EventStatus
from paidonce.core.money import format_minor
from paidonce.db.queries import Connection, Query, from_row, load_queries
from paidonce.db.search import FIRST_ID, LAST_ID, Search, first_id_at
from paidonce.events.model import EventFilter
from paidonce.events.store import names_of_payment
from paidonce.replay.model import AppliedPayments, Replay, ReplayStatus

R = TypeVar("R", bound=Replay)

QUERIES: Final = load_queries(__file__)
_PAGE: Final = Search(QUERIES["page"], ("order", "payments", "unusual_status", "source"))
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
    is_given = {
        "order": events.order is not None,
        "payments": events.payment is not None,
        "unusual_status": events.status not in (None, EventStatus.PROCESSED),
        "source": events.source is not None,
    }
    return _PAGE.statement(frozenset(name for name in is_given if is_given[name]))


def _before_first(since: datetime | None) -> UUID:
    return FIRST_ID if since is None else UUID(int=max(first_id_at(since).int - 1, 0))


# Replays


async def find(connection: Connection, record: type[R], replay_id: UUID) -> R | None:
    """One replay, as a Replay or a ReplayState."""
    found = await search(connection, record, replay_id=replay_id)
    return found[0] if found else None


async def search(
    connection: Connection,
    record: type[R],
    *,
    replay_id: UUID | None = None,
    before: UUID | None = None,
    limit: int = 1,
) -> list[R]:
    """Replays, newest first."""
    rows = await QUERIES["replays"].rows(
        connection, replay_id=replay_id, before=before, limit=limit
    )
    return [_replay(record, row) for row in rows]


def _replay(record: type[R], row: asyncpg.Record) -> R:
    texts = ("filter", "counts", "applied", "sample")
    stored = {name: orjson.loads(row[name]) for name in texts}
    sums_minor = stored["applied"].get("sums_minor", {})
    sums = {one: format_minor(sums_minor[one], one) for one in sorted(sums_minor)}
    values = {
        "status": ReplayStatus(row["status"]),
        "applied": AppliedPayments(stored["applied"].get("number", 0), sums),
        "sums_minor": sums_minor,
    }
    return from_row(record, {**row, **stored, **values})
