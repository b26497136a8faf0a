"""Writes and searches the audit log. Texts are masked as in the logs, with their addresses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce.audit.model import (
    FREQUENT,
    OURSELVES,
    AuditEntry,
    AuditQuery,
    Position,
    TrailItem,
    trail_item,
)
from paidonce.db.paging import Page
from paidonce.db.queries import Connection, Row, load_queries
from paidonce.db.search import Search
from paidonce.telemetry import masked

QUERIES: Final = load_queries(__file__)
MAX_TRAIL: Final = 1_000
"""How many entries a trail has at most: the newest."""

FIRST: Final = Position(datetime(1, 1, 2, tzinfo=UTC), 0)
LAST: Final = Position(datetime(9999, 12, 30, tzinfo=UTC), 2**63 - 1)
AUDIT: Final = Search(
    QUERIES["audit"],
    leading=("event", "payment", "order", "user", "unusual_action", "operator"),
    cursor=lambda row: str(Position(row["at"], row["id"])),
)


async def record_action(
    connection: Connection,
    actor: str,
    action: str,
    *,
    payment_id: UUID | None = None,
    order: str | None = None,
    user_id: UUID | None = None,
    event_id: UUID | None = None,
    reason: str | None = None,
    **details: object,
) -> None:
    """Write an operator's action to the audit log."""
    entry = AuditEntry(
        actor,
        action,
        payment_id=payment_id,
        order=order,
        user_id=user_id,
        event_id=event_id,
        reason=reason,
        details=details,
    )
    await record_entries(connection, [entry])


async def record_entries(connection: Connection, entries: Sequence[AuditEntry]) -> None:
    """Write entries of the audit log, in one round trip."""
    if entries:
        written = orjson.dumps([_masked_entry(one) for one in entries], default=str).decode()
        await QUERIES["record_entries"].run(connection, entries=written)


async def search(connection: Connection, query: AuditQuery) -> Page[Row]:
    """Entries that match every filter, newest first."""
    filters = query.filters()
    since, until = filters.pop("since", None), filters.pop("until", None)
    if query.user is not None:
        remaining = await QUERIES["remaining_user"].value(connection, id=query.user)
        filters["user"] = remaining or query.user
    if query.order is not None:
        filters["order"] = audit_name(query.order)
    if query.actor is not None and query.actor != OURSELVES:
        filters["operator"] = audit_name(filters.pop("actor"))
    if query.action not in (None, *FREQUENT):
        filters["unusual_action"] = filters.pop("action")
    last = LAST if until is None else Position(until, -1)
    if query.cursor is not None:
        position = Position.parse(query.cursor)
        last = min(last, Position(position.at, position.id - 1))
    return await _page(
        connection, FIRST if since is None else Position(since, 0), last, query.limit, filters
    )


async def trail(connection: Connection, **of: object) -> list[TrailItem]:
    """The entries of one event, payment or order, the oldest first."""
    page = await _page(connection, FIRST, LAST, MAX_TRAIL, of)
    return [trail_item(row) for row in reversed(page.items)]


async def trail_of_order(connection: Connection, reference: str) -> list[TrailItem]:
    """The entries of an order and of its payments, the oldest first."""
    return await trail(connection, order=audit_name(reference))


def audit_name(name: str) -> str:
    """An actor or the reference of an order as the audit log has it.

    A masked one has a digest, so that it stays unique.
    """
    shown = masked(name)
    if shown == name:
        return name
    return f"{shown}#{blake2b(name.encode(), digest_size=8).hexdigest()}"


async def _page(
    connection: Connection, first: Position, last: Position, limit: int, filters: Mapping[str, Any]
) -> Page[Row]:
    times = {"first_at": first.at, "last_at": last.at}
    return await AUDIT.page(
        connection, limit=limit, first_id=first.id, last_id=last.id, bounds=times, **filters
    )


def _masked_entry(entry: AuditEntry) -> AuditEntry:
    return replace(
        entry,
        actor=audit_name(entry.actor),
        order=None if entry.order is None else audit_name(entry.order),
        reason=None if entry.reason is None else masked(entry.reason),
        details=_masked_value(entry.details),
    )


def _masked_value(value: Any) -> Any:
    match value:
        case str():
            return masked(value)
        case Mapping():
            return {name: _masked_value(one) for name, one in value.items()}
        case list() | tuple():
            return [_masked_value(one) for one in value]
        case _:
            return value
