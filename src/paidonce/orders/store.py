"""Orders as merchants create and read them. Processing writes their payments."""

from typing import Final

from paidonce.core.email import email_key
from paidonce.db.paging import Page
from paidonce.db.queries import Connection, Row, load_queries
from paidonce.db.search import Search, last_id_of
from paidonce.linking import store as linking_store
from paidonce.orders.model import OrderQuery

QUERIES: Final = load_queries(__file__)
ORDERS: Final = Search(QUERIES["orders"], leading=("user_id", "email"))


async def search(connection: Connection, query: OrderQuery) -> Page[Row]:
    """Orders that match every filter, newest first."""
    filters = query.filters()
    if query.user_id is not None:
        user = await linking_store.user_by_id(connection, query.user_id)
        filters["user_id"] = user["id"] if user else query.user_id
    if query.email is not None:
        filters["email"] = email_key(query.email)
    last_id = last_id_of(query.cursor)
    return await ORDERS.page(connection, limit=query.limit, last_id=last_id, **filters)


async def find(connection: Connection, reference: str) -> Row | None:
    """The order with this reference."""
    order_id = await QUERIES["order_id"].value(connection, reference=reference)
    return None if order_id is None else await ORDERS.find(connection, order_id)
