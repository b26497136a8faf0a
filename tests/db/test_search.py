"""Every filter of a list has its line in the query."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, get_args
from uuid import UUID

import pytest

from paidonce.audit import store as audit_store
from paidonce.audit.model import AuditQuery
from paidonce.db.paging import ListQuery
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.events import store as events_store
from paidonce.events.model import EventQuery
from paidonce.orders import store as orders_store
from paidonce.orders.model import OrderQuery
from paidonce.payments import store as payments_store
from paidonce.payments.model import PaymentQuery

SearchFunction = Callable[[Connection, Any], Awaitable[object]]
SEARCHES: Final[list[tuple[type[ListQuery], SearchFunction]]] = [
    (EventQuery, events_store.search),
    (PaymentQuery, payments_store.search),
    (OrderQuery, orders_store.search),
    (AuditQuery, audit_store.search),
]
VALUES: Final[dict[object, object]] = {
    str: "x",
    bool: False,
    UUID: UUID(int=7),
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
}
FILTERS: Final = [
    pytest.param(query, search, name, id=f"{query.__name__}.{name}")
    for query, search in SEARCHES
    for name in query.model_fields
    if name not in ListQuery.model_fields
]


def example(annotation: Any) -> object:
    """A value of the type of a filter."""
    for kind in (annotation, *get_args(annotation)):
        plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        if isinstance(plain, type) and issubclass(plain, Enum):
            return next(iter(plain))
        if plain in VALUES:
            return VALUES[plain]
    return VALUES[datetime]  # pydantic's AwareDatetime


@pytest.mark.parametrize(("query", "search", "name"), FILTERS)
async def test_a_filter_is_not_ignored(
    module_database: Database, query: type[ListQuery], search: SearchFunction, name: str
) -> None:
    """OPS-2: a field of the query without a line in the .sql file would list everything."""
    wanted = query(**{name: example(query.model_fields[name].annotation)})
    async with module_database.connection() as connection:
        await search(connection, wanted)


def test_a_filter_that_the_query_does_not_know_is_an_error() -> None:
    """OPS-2"""
    with pytest.raises(TypeError, match="colour"):
        payments_store.PAYMENTS.statement(frozenset({"colour"}))
