"""Counts of what was received: deltas that batches write, folded into a row for each day."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from paidonce.domain.tally import TallyRow
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def fold(connection: Connection, limit: int) -> int:
    """Fold up to `limit` deltas into the counts; returns how many there were."""
    row = await QUERIES["fold"].row(connection, limit=limit)
    assert row is not None
    return int(row["number"])


async def add(connection: Connection, rows: Sequence[TallyRow]) -> None:
    """Count what no batch has counted."""
    await QUERIES["add"].run(connection, counts=rows)


async def report(
    connection: Connection, *, first_day: date, last_day: date, source: str | None = None
) -> list[Mapping[str, Any]]:
    """The counts of these days: one row without a group, and rows that name what they are of."""
    rows = await QUERIES["report"].rows(
        connection, first_day=first_day, last_day=last_day, source=source
    )
    return [dict(row) for row in rows]
