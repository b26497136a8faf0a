"""Searches stored events, and reads what was delivered."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import orjson

from paidonce.core.events import EventStatus
from paidonce.db.paging import Page
from paidonce.db.queries import Connection, Row, load_queries
from paidonce.db.search import FIRST_ID, LAST_ID, Search, count_rows, first_id_at, last_id_of
from paidonce.events.model import EventQuery

QUERIES: Final = load_queries(__file__)
MAX_FAILING_HANDLERS: Final = 100
EVENTS: Final = Search(
    QUERIES["events"],
    leading=("payment", "payments", "order", "error_code", "unusual_status", "is_test", "source"),
)
MAX_IDS_OF_PAYMENT: Final = 32


async def search(connection: Connection, query: EventQuery) -> Page[Row]:
    """Events that match every filter, newest first. Ids are in the order of arrival."""
    filters = query.filters()
    since, until = filters.pop("since", None), filters.pop("until", None)
    if query.status not in (None, EventStatus.PROCESSED):
        filters["unusual_status"] = filters.pop("status")
    if query.test:
        filters["is_test"] = filters.pop("test")
    if query.payment is not None:
        names = await names_of_payment(connection, query.payment)
        if len(names) > 1:
            filters["payments"] = names
            del filters["payment"]
    return await EVENTS.page(
        connection,
        limit=query.limit,
        first_id=FIRST_ID if since is None else first_id_at(since),
        last_id=min(last_id_of(query.cursor), LAST_ID if until is None else first_id_at(until)),
        **filters,
    )


async def deliveries(
    connection: Connection, event_ids: Sequence[UUID]
) -> dict[UUID, tuple[dict[str, str], bytes]]:
    """The stored headers and the raw body of each delivery."""
    if not event_ids:
        return {}
    rows = await QUERIES["deliveries"].rows(
        connection, event_id=event_ids, first_id=min(event_ids), last_id=max(event_ids)
    )
    return {row["id"]: (orjson.loads(row["headers"]), row["raw_body"]) for row in rows}


async def evidence(connection: Connection, event_id: UUID, limit: int) -> Row | None:
    """The stored headers of a delivery, and the first `limit` bytes of its body."""
    row = await QUERIES["evidence"].row(connection, event_id=event_id, limit=limit)
    return None if row is None else {**row, "headers": orjson.loads(row["headers"])}


async def backlog(connection: Connection) -> list[Row]:
    """Unfinished events by status: number, and age of the oldest."""
    return await count_rows(connection, QUERIES["backlog"], first_id=FIRST_ID, last_id=LAST_ID)


async def names_of_payment(connection: Connection, payment: str) -> list[str]:
    """The gateway ids of a payment that is given by one of them, or by our own id."""
    try:
        payment_id = UUID(payment)
    except ValueError:
        return [payment]
    rows = await QUERIES["ids_of_payment"].rows(
        connection, payment_id=payment_id, limit=MAX_IDS_OF_PAYMENT
    )
    return [payment, *(row["external_id"] for row in rows)]


async def failing_handlers(connection: Connection) -> dict[str, float]:
    """For how many seconds each handler has failed that has not worked since."""
    rows = await QUERIES["failing_handlers"].rows(connection, limit=MAX_FAILING_HANDLERS)
    return {row["handler"]: row["failing_s"] for row in rows}
