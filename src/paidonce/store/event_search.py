"""Finds events by what operators know of them."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce.domain.events import EventStatus
from paidonce.store.listings import FIRST_ID, LAST_ID, Row
from paidonce.store.queries import Connection, load_queries
from paidonce.store.searching import Page, Search

QUERIES: Final = load_queries(__file__)
EVENTS: Final = Search(
    QUERIES["events"],
    leading=("payment", "payments", "order", "error_code", "unusual_status", "is_test", "source"),
    filters=("status", "test"),
)
MAX_IDS_OF_PAYMENT: Final = 32


async def search(
    connection: Connection,
    *,
    limit: int,
    first_id: UUID = FIRST_ID,
    last_id: UUID = LAST_ID,
    status: EventStatus | None = None,
    payment: str | None = None,
    test: bool | None = None,
    **filters: str | None,
) -> Page:
    """Events that match every filter given, the newest first. Ids are in the order of arrival.

    Besides those named there are `order`, `error_code` and `source`. A payment is named by a
    gateway's id, or by ours, which stands for all of the gateway's.
    """
    given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if status is not None:
        given["status" if status is EventStatus.PROCESSED else "unusual_status"] = status
    if test is not None:
        given["is_test" if test else "test"] = test
    if payment is not None:
        names = await names_of_payment(connection, payment)
        given |= {"payment": payment} if len(names) == 1 else {"payments": names}
    return await EVENTS.page(connection, limit=limit, first_id=first_id, last_id=last_id, **given)


async def find(connection: Connection, event_id: UUID) -> Row | None:
    """One event."""
    page = await EVENTS.page(connection, limit=1, first_id=event_id, last_id=event_id)
    return page.rows[0] if page.rows else None


async def deliveries(
    connection: Connection, event_ids: Sequence[UUID]
) -> dict[UUID, tuple[dict[str, str], bytes]]:
    """The headers that were kept of each of these deliveries, and its bytes."""
    if not event_ids:
        return {}
    rows = await QUERIES["deliveries"].rows(
        connection, event_id=event_ids, first_id=min(event_ids), last_id=max(event_ids)
    )
    return {row["id"]: (orjson.loads(row["headers"]), row["raw_body"]) for row in rows}


async def names_of_payment(connection: Connection, payment: str) -> list[str]:
    """A payment is named by one of its gateway's ids, or by ours, which stands for all of those."""
    try:
        payment_id = UUID(payment)
    except ValueError:
        return [payment]
    rows = await QUERIES["ids_of_payment"].rows(
        connection, payment_id=payment_id, limit=MAX_IDS_OF_PAYMENT
    )
    return [payment, *(row["external_id"] for row in rows)]
