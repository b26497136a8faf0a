"""What operators look at: the trail of an event, and what waits."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce import telemetry
from paidonce.store.planning import read_in_order
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

Row = Mapping[str, Any]

FIRST_ID: Final = UUID(int=0)
LAST_ID: Final = UUID(int=2**128 - 1)
MAX_TRAIL: Final = 1_000
MAX_COUNTED: Final = 100_000
"""How many of one kind are counted at a scrape; where there are more, this is the number told."""
MAX_REASONS: Final = 100


async def unapplied_payments_of_email(
    connection: Connection, email_key: str, source_ids: Sequence[int], limit: int
) -> list[UUID]:
    """Payments with this address that nobody has got anything for and that belong to nobody."""
    rows = await QUERIES["unapplied_payments_of_email"].rows(
        connection, email_key=email_key, source_ids=source_ids, limit=limit
    )
    return [row["id"] for row in rows]


async def evidence_of_event(connection: Connection, event_id: UUID, limit: int) -> Row | None:
    """An event's headers and the beginning of its body, as they arrived."""
    row = await QUERIES["evidence_of_event"].row(connection, event_id=event_id, limit=limit)
    return None if row is None else {**row, "headers": orjson.loads(row["headers"])}


async def audit_of_event(connection: Connection, event_id: UUID) -> list[Row]:
    """What was recorded of an event beyond its own columns, the oldest first."""
    rows = await QUERIES["audit_of_event"].rows(connection, event_id=event_id, limit=MAX_TRAIL)
    return [dict(row) for row in rows]


async def backlog(connection: Connection) -> list[Row]:
    """How many events wait, by status, and since when."""
    return await _measured(connection, "backlog", first_id=FIRST_ID, last_id=LAST_ID)


async def unapplied_money(connection: Connection) -> list[Row]:
    """Money that was received and not applied, by currency and reason."""
    return await _measured(connection, "unapplied_money")


async def to_review(connection: Connection) -> list[Row]:
    """What a person should look at, by reason: how many, and since when."""
    return await _measured(
        connection, "to_review", first_id=FIRST_ID, last_id=LAST_ID, max_reasons=MAX_REASONS
    )


async def _measured(connection: Connection, name: str, **values: object) -> list[Row]:
    """What is asked again and again: the oldest of it, and no more than MAX_COUNTED."""
    async with read_in_order(connection):
        rows = await QUERIES[name].rows(connection, **values, max_counted=MAX_COUNTED)
    return [dict(row) for row in rows]


async def record_action(
    connection: Connection,
    actor: str,
    action: str,
    payment_id: UUID | None = None,
    event_id: UUID | None = None,
    **details: object,
) -> None:
    """Write what an operator did to the audit log, masked as a line of the log is."""
    said = {
        name: telemetry.masked(value) if isinstance(value, str) else value
        for name, value in details.items()
    }
    await QUERIES["record_action"].run(
        connection,
        event_id=event_id,
        payment_id=payment_id,
        actor=actor,
        action=action,
        details=orjson.dumps(said).decode(),
    )


def first_id_at(time: datetime) -> UUID:
    """The smallest id of an event that arrived in that millisecond."""
    return UUID(int=max(int(time.timestamp() * 1000), 0) << 80)


async def ping(connection: Connection) -> None:
    """The smallest question."""
    await QUERIES["ping"].row(connection)
