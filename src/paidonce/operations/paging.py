"""More than one page of a search, for whoever wants a list and no cursor."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID

from paidonce.operations.desk import MAX_PAGE, Found

T = TypeVar("T")

MAX_PAGES: Final = 10_000


async def all_of(
    search: Callable[..., Awaitable[Found[T]]], *, limit: int, **filters: Any
) -> list[T]:
    """Up to `limit` of what matches, over pages that may be short, to the end of what there is."""
    items: list[T] = []
    cursor: UUID | None = None
    for _ in range(MAX_PAGES):
        left = min(limit - len(items), MAX_PAGE)
        found = await search(limit=left, cursor=cursor, **filters)
        items += found.items
        cursor = found.next_cursor
        if cursor is None or len(items) >= limit:
            break
    return items
