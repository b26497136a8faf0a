"""Searches payments."""

from typing import Final

from paidonce.core.email import email_key
from paidonce.core.facts import PaymentStatus
from paidonce.db.paging import Page
from paidonce.db.queries import Connection, Row, load_queries
from paidonce.db.search import FIRST_ID, LAST_ID, Search, count_rows, last_id_of
from paidonce.payments.model import PaymentQuery

QUERIES: Final = load_queries(__file__)
MAX_IDS_SHOWN: Final = 100
MAX_REASONS: Final = 100
MAX_KINDS: Final = 1_000
"""Under how many sources, each with its kinds of ids, a gateway's id is looked for."""
PAYMENTS: Final = Search(
    QUERIES["payments"],
    leading=(
        "external_payment_id",
        "order",
        "email",
        "review",
        "disputed",
        "owed",
        "unusual_status",
    ),
    fixed={"max_ids": MAX_IDS_SHOWN, "max_kinds": MAX_KINDS},
)


async def search(connection: Connection, query: PaymentQuery) -> Page[Row]:
    """Payments that match every filter, newest first."""
    filters = query.filters()
    if query.status not in (None, PaymentStatus.SUCCEEDED):
        filters["unusual_status"] = filters.pop("status")
    if query.applied is False:
        filters["owed"] = filters.pop("applied")
    if query.disputed is False:
        filters["undisputed"] = filters.pop("disputed")
    if query.review is not None:
        filters["is_to_be_seen"] = True
    if query.email is not None:
        filters["email"] = email_key(query.email)
    last_id = last_id_of(query.cursor)
    return await PAYMENTS.page(connection, limit=query.limit, last_id=last_id, **filters)


async def unapplied_money(connection: Connection) -> list[Row]:
    """Money received and not applied, by currency and reason."""
    return await count_rows(connection, QUERIES["unapplied_money"])


async def to_review(connection: Connection) -> list[Row]:
    """Payments that need a review, by reason: number, and age of the oldest."""
    bounds = {"first_id": FIRST_ID, "last_id": LAST_ID, "max_reasons": MAX_REASONS}
    return await count_rows(connection, QUERIES["to_review"], **bounds)


async def open_disputes(connection: Connection) -> int:
    """The number of payments with a dispute that was not won."""
    (row,) = await count_rows(connection, QUERIES["open_disputes"])
    number: int = row["number"]
    return number
