"""Finds payments by what operators know of them."""

from typing import Any, Final
from uuid import UUID

from paidonce.domain.payments import PaymentStatus
from paidonce.store.listings import FIRST_ID, LAST_ID, Row
from paidonce.store.queries import Connection, load_queries
from paidonce.store.searching import Page, Search

QUERIES: Final = load_queries(__file__)
PAYMENTS: Final = Search(
    QUERIES["payments"],
    leading=("order", "email", "review", "owed", "unusual_status"),
    filters=("is_to_be_seen", "applied", "status", "source"),
)
MAX_IDS_SHOWN: Final = 100


async def search(
    connection: Connection,
    *,
    limit: int,
    last_id: UUID = LAST_ID,
    status: PaymentStatus | None = None,
    applied: bool | None = None,
    review: str | None = None,
    **filters: str | None,
) -> Page:
    """Payments that match every filter given, the newest first.

    Besides those named there are `order`, `email` (its key) and `source`. `applied=False` is money
    that was received and not applied.
    """
    given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    if status is not None:
        given["status" if status is PaymentStatus.SUCCEEDED else "unusual_status"] = status
    if applied is not None:
        given["applied" if applied else "owed"] = applied
    if review is not None:
        given |= {"review": review, "is_to_be_seen": True}
    return await _page(connection, limit=limit, last_id=last_id, **given)


async def find(connection: Connection, payment_id: UUID) -> Row | None:
    """One payment."""
    page = await _page(connection, limit=1, first_id=payment_id, last_id=payment_id)
    return page.rows[0] if page.rows else None


async def _page(
    connection: Connection, *, limit: int, first_id: UUID = FIRST_ID, last_id: UUID, **given: Any
) -> Page:
    return await PAYMENTS.page(
        connection,
        limit=limit,
        first_id=first_id,
        last_id=last_id,
        max_ids=MAX_IDS_SHOWN,
        **given,
    )
