"""Deletes rows that have grown old, a page at a time."""

from dataclasses import dataclass
from typing import Final

from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class Page:
    """What became of one page, and where the next one begins."""

    deleted: int
    next: object
    more: bool


async def sweep(
    connection: Connection, what: str, *, after: object, before: object, limit: int
) -> Page:
    """Delete what is older than `before` in the page after `after`, in a transaction of its own."""
    row = await QUERIES[what].row(connection, after=after, before=before, limit=limit)
    assert row is not None
    return Page(row["deleted"], row["next"], row["more"])
