"""Searches whose cost does not depend on the size of the tables.

Each combination of filters is a statement of its own. One filter *leads*: an index with its column
and then the id returns the rows that match it, the newest first. The other filters are applied to
at most BUDGET of those rows. So a page may have fewer rows than asked for, or none, and still have
a cursor to continue from.

In the .sql file, a line that is needed only with a filter ends in `-- filter`, and a line that is
needed only while the filter leads ends in `-- by filter`.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from paidonce.db.paging import Page
from paidonce.db.queries import Connection, Query, Row, load_queries

QUERIES: Final = load_queries(__file__)

FIRST_ID: Final = UUID(int=0)
LAST_ID: Final = UUID(int=2**128 - 1)
BUDGET: Final = 10_000  # the most rows that are read for one page
_MARK: Final = re.compile(r"-- ((?:by )?\w+)$", re.MULTILINE)
MAX_COUNTED: Final = 100_000  # the most rows of one kind that a metric or a status counts


def first_id_at(time: datetime) -> UUID:
    """The smallest UUIDv7 of that millisecond."""
    return UUID(int=max(int(time.timestamp() * 1000), 0) << 80)


def last_id_of(cursor: UUID | None) -> UUID:
    """The largest id that may follow a page."""
    return LAST_ID if cursor is None else UUID(int=max(cursor.int - 1, 0))


@asynccontextmanager
async def read_in_order(connection: Connection) -> AsyncIterator[None]:
    """A read-only transaction whose plans read rows in index order, whatever the statistics say.

    Within a transaction, that transaction from here on.
    """
    if connection.is_in_transaction():
        await QUERIES["read_in_order"].row(connection)
        yield
        return
    async with connection.transaction(readonly=True):
        await QUERIES["read_in_order"].row(connection)
        yield


async def count_rows(connection: Connection, query: Query, **values: object) -> list[Row]:
    """The rows of a query that counts at most `max_counted` rows of a kind, the oldest first."""
    async with read_in_order(connection):
        rows = await query.rows(connection, **values, max_counted=MAX_COUNTED)
    return [dict(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Search:
    """A query with marked lines, and the filters that may lead it, the best first.

    `fixed` are parameters of the query that always have the same value. `cursor` is the place of a
    row in the order of the search.
    """

    query: Query
    leading: Sequence[str]
    fixed: Mapping[str, object] = field(default_factory=dict)
    cursor: Callable[[Row], str] = lambda row: str(row["id"])
    _statements: dict[frozenset[str], Query] = field(default_factory=dict)

    def statement(self, given: frozenset[str]) -> Query:
        """The statement for these filters. A filter without a marked line is a TypeError."""
        if given not in self._statements:
            self._statements[given] = self._compose(given)
        return self._statements[given]

    async def page(
        self,
        connection: Connection,
        *,
        limit: int,
        first_id: UUID | int = FIRST_ID,
        last_id: UUID | int = LAST_ID,
        bounds: Mapping[str, object] | None = None,
        **filters: object,
    ) -> Page[Row]:
        """Up to `limit` rows between two ids that match every filter, the newest first.

        `bounds` are those of a search that is not ordered by the id alone.
        """
        query = self.statement(frozenset(filters))
        page = {"first_id": first_id, "last_id": last_id, "limit": limit + 1, "budget": BUDGET}
        values = {**page, **(bounds or {}), **self.fixed, **filters}
        used = {name: values[name] for name in query.parameters}
        async with read_in_order(connection):
            rows = await query.rows(connection, **used)
        return self._page([dict(row) for row in rows], limit)

    async def find(self, connection: Connection, item_id: UUID) -> Row | None:
        """The row with this id."""
        page = await self.page(connection, limit=1, first_id=item_id, last_id=item_id)
        return page.items[0] if page.items else None

    def _compose(self, given: frozenset[str]) -> Query:
        marks = set(_MARK.findall(self.query.sql))
        if unmarked := given - {mark.removeprefix("by ") for mark in marks}:
            raise TypeError(f"{self.query.name}: no line is marked {sorted(unmarked)}")
        leader = next((one for one in self.leading if one in given), "id")
        return self.query.without(*sorted(marks - (given - {leader}) - {f"by {leader}"}))

    def _page(self, rows: Sequence[Row], limit: int) -> Page[Row]:
        """The last row of the budget is returned even if it does not match: to continue from it."""
        found: list[Row] = [
            {name: value for name, value in row.items() if name not in ("matches", "position")}
            for row in rows
            if row["matches"]
        ]
        if len(found) > limit:
            return Page(found[:limit], self.cursor(found[limit - 1]))
        is_cut_short = bool(rows) and rows[-1]["position"] == BUDGET
        return Page(found, self.cursor(rows[-1]) if is_cut_short else None)
