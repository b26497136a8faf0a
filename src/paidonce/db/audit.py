"""The audit log: what operators did, and what happened to an event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import orjson

from paidonce.db.queries import Connection, Row, load_queries
from paidonce.telemetry import masked

QUERIES: Final = load_queries(__file__)

MAX_TRAIL: Final = 1_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the audit log. Without a time it gets the time of writing."""

    event_id: UUID | None
    actor: str
    action: str
    success: bool
    details: Mapping[str, object]
    at: datetime | None = None
    payment_id: UUID | None = None


async def record_entries(connection: Connection, entries: Sequence[AuditEntry]) -> None:
    """Write entries of the audit log, in one round trip."""
    if entries:
        written = orjson.dumps(list(entries), default=str).decode()
        await QUERIES["record_entries"].run(connection, entries=written)


async def record_action(
    connection: Connection,
    actor: str,
    action: str,
    payment_id: UUID | None = None,
    event_id: UUID | None = None,
    **details: object,
) -> None:
    """Write an operator's action to the audit log. Texts are masked as in the logs."""
    shown = {
        name: masked(value) if isinstance(value, str) else value for name, value in details.items()
    }
    entry = AuditEntry(event_id, actor, action, True, shown, payment_id=payment_id)
    await record_entries(connection, [entry])


async def audit_of_event(connection: Connection, event_id: UUID) -> Sequence[Row]:
    """The entries about an event, the oldest first."""
    rows = await QUERIES["audit_of_event"].rows(connection, event_id=event_id, limit=MAX_TRAIL)
    return [dict(row) for row in rows]
