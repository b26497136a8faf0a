"""Searches that cost the same however large the tables are.

Each combination of filters is a statement of its own. One filter *leads*: an index that has its
column and then the id gives the rows that match it, the newest first. The other filters are applied
to at most BUDGET of those. So a page may hold fewer rows than asked for, or none, and still say
where to go on.

In the .sql file a line that is there only with a filter ends in `-- filter`, and one that is there
only while it leads in `-- by filter`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from paidonce.store.listings import FIRST_ID, LAST_ID, Row
from paidonce.store.planning import read_in_order
from paidonce.store.queries import Connection, Query

BUDGET: Final = 10_000
"""How many rows are looked at for one page."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of what was searched for, and below which id to go on; None at the end."""

    rows: Sequence[Row]
    next: UUID | None


@dataclass(frozen=True, slots=True)
class Search:
    """A query with marked lines, and the filters that may lead it, the best first."""

    query: Query
    leading: Sequence[str]
    filters: Sequence[str] = ()
    _statements: dict[frozenset[str], Query] = field(default_factory=dict)

    def statement(self, given: frozenset[str]) -> Query:
        """The statement for these filters."""
        if given not in self._statements:
            self._statements[given] = self._composed(given)
        return self._statements[given]

    async def page(
        self,
        connection: Connection,
        *,
        limit: int,
        first_id: UUID = FIRST_ID,
        last_id: UUID = LAST_ID,
        **filters: object,
    ) -> Page:
        """Up to `limit` rows between two ids that match every filter, the newest first."""
        query = self.statement(frozenset(filters))
        bounds = {"first_id": first_id, "last_id": last_id, "limit": limit + 1, "budget": BUDGET}
        values = bounds | filters
        used = {name: values[name] for name in query.parameters}
        async with read_in_order(connection):
            rows = await query.rows(connection, **used)
        return _page([dict(row) for row in rows], limit)

    def _composed(self, given: frozenset[str]) -> Query:
        leader = next((one for one in self.leading if one in given), "id")
        marks = {one for one in (*self.leading, *self.filters) if one not in given - {leader}}
        marks |= {f"by {one}" for one in (*self.leading, "id") if one != leader}
        return self.query.without(*sorted(marks))


def _page(rows: Sequence[Row], limit: int) -> Page:
    """The row at the end of the budget comes even if it does not match: to go on from there."""
    found = [
        {name: value for name, value in row.items() if name not in ("matches", "position")}
        for row in rows
        if row["matches"]
    ]
    if len(found) > limit:
        return Page(found[:limit], found[limit - 1]["id"])
    is_cut_short = bool(rows) and rows[-1]["position"] == BUDGET
    return Page(found, rows[-1]["id"] if is_cut_short else None)
