"""What operators look at: payments, events with their trail, and what waits."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce import telemetry
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

Row = Mapping[str, Any]

FIRST_ID: Final = UUID(int=0)
LAST_ID: Final = UUID(int=2**128 - 1)
MAX_TRAIL: Final = 1_000


async def payments(
    connection: Connection,
    *,
    limit: int,
    before: UUID | None = None,
    payment_id: UUID | None = None,
    source: str | None = None,
    status: str | None = None,
    applied: bool | None = None,
    email_key: str | None = None,
    order_reference: str | None = None,
    review: str | None = None,
) -> list[Row]:
    """Payments that match every filter given, the newest first, after the one named `before`."""
    rows = await QUERIES["payments"].rows(
        connection,
        before=before,
        payment_id=payment_id,
        source=source,
        status=status,
        applied=applied,
        email_key=email_key,
        order_reference=order_reference,
        review=review,
        limit=limit,
    )
    return [dict(row) for row in rows]


async def unapplied_payments_of_email(
    connection: Connection, email_key: str, source_ids: Sequence[int], limit: int
) -> list[UUID]:
    """Payments with this address that nobody has got anything for and that belong to nobody."""
    rows = await QUERIES["unapplied_payments_of_email"].rows(
        connection, email_key=email_key, source_ids=source_ids, limit=limit
    )
    return [row["id"] for row in rows]


async def events(
    connection: Connection,
    *,
    limit: int,
    first_id: UUID = FIRST_ID,
    last_id: UUID = LAST_ID,
    source: str | None = None,
    status: str | None = None,
    error_code: str | None = None,
    order_reference: str | None = None,
    payment: str | None = None,
) -> list[Row]:
    """Events that match every filter given, the newest first. Ids are in the order of arrival."""
    rows = await QUERIES["events"].rows(
        connection,
        first_id=first_id,
        last_id=last_id,
        source=source,
        status=status,
        error_code=error_code,
        order_reference=order_reference,
        payments=await _external_ids(connection, payment),
        limit=limit,
    )
    return [dict(row) for row in rows]


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
    return [dict(row) for row in await QUERIES["backlog"].rows(connection)]


async def unapplied_money(connection: Connection) -> list[Row]:
    """Money that was received and not applied, by currency and reason."""
    return [dict(row) for row in await QUERIES["unapplied_money"].rows(connection)]


async def to_review(connection: Connection) -> list[Row]:
    """What a person should look at, by reason: how many, and since when."""
    return [dict(row) for row in await QUERIES["to_review"].rows(connection)]


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


async def _external_ids(connection: Connection, payment: str | None) -> list[str] | None:
    """A payment is named by a gateway's id, or by ours, which stands for all of the gateway's."""
    if payment is None:
        return None
    try:
        payment_id = UUID(payment)
    except ValueError:
        return [payment]
    rows = await QUERIES["ids_of_payment"].rows(connection, payment_id=payment_id)
    return [payment, *(row["external_id"] for row in rows)]


async def ping(connection: Connection) -> None:
    """The smallest question."""
    await QUERIES["ping"].row(connection)
