"""Plans that cannot go wrong, for questions whose cost must not depend on statistics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@asynccontextmanager
async def read_in_order(connection: Connection) -> AsyncIterator[None]:
    """A transaction that changes nothing, in which rows are read in the order of an index."""
    async with connection.transaction(readonly=True):
        await QUERIES["in_order"].row(connection)
        yield
