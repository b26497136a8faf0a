"""Locks by name, so that several processes do not do the same at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

MAX_SILENCE_S: Final = 60.0
"""After that the database may end the session of one that holds a lock and says nothing: a process
that is frozen would hold it for ever."""


@asynccontextmanager
async def held_by_us(connection: Connection, name: str) -> AsyncIterator[bool]:
    """Hold the lock of this name for as long as the body runs; False if somebody else holds it."""
    row = await QUERIES["try_lock"].row(connection, name=name)
    is_ours = row is not None and bool(row["is_ours"])
    try:
        yield is_ours
    finally:
        # A connection that is lost has let go of it.
        if is_ours and not connection.is_closed():
            await QUERIES["unlock"].row(connection, name=name)
