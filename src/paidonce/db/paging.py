"""Lists: what a query holds, and pages of what it finds."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from pydantic import Field

from paidonce.core.input import Input

T = TypeVar("T")
V = TypeVar("V")
Q = TypeVar("Q", bound="ListQuery")

MAX_PAGE: Final = 500
MAX_PAGES: Final = 10_000


class Filter(Input):
    """Which items. Each field of a subclass is a filter; all that are given must match.

    The HTTP API makes query parameters of the fields, or a request body; the command line makes
    options of them, and the store makes SQL of them.
    """

    def filters(self) -> dict[str, Any]:
        """The filters that are given, by name."""
        names = type(self).model_fields.keys() - ListQuery.model_fields.keys()
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class ListQuery(Filter):
    """Which items of a list, and which page."""

    limit: int = Field(50, ge=1, le=MAX_PAGE, description="How many items at most.")
    cursor: UUID | None = Field(None, description="`next_cursor` of the previous page.")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list. `next_cursor` continues it; null at the end.

    A search reads a limited number of rows for each page. If few of them match the filters, a page
    is shorter than `limit`, or empty, and `next_cursor` continues where the search stopped.
    """

    items: list[T]
    next_cursor: str | None = None

    def map(self, view: Callable[[T], V]) -> "Page[V]":
        """The same page with another view of each item."""
        return Page([view(one) for one in self.items], self.next_cursor)


def page_of(rows: Sequence[T], limit: int, cursor: Callable[[T], object]) -> Page[T]:
    """A page of rows that were read with `limit + 1`, to know whether more follow."""
    items = list(rows[:limit])
    return Page(items, str(cursor(items[-1])) if len(rows) > limit else None)


async def all_pages(search: Callable[[Q], Awaitable[Page[T]]], query: Q, limit: int) -> list[T]:
    """Up to `limit` items that match, from as many pages as needed."""
    items: list[T] = []
    for _ in range(MAX_PAGES):
        query = query.model_copy(update={"limit": min(limit - len(items), MAX_PAGE)})
        page = await search(query)
        items += page.items
        if page.next_cursor is None or len(items) >= limit:
            break
        values = query.model_dump() | {"cursor": page.next_cursor}
        query = type(query).model_validate(values)
    return items
