"""Counts of deliveries: batches write deltas, which are folded into a row for each day."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from paidonce.core.tally import TallyRow
from paidonce.db.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


async def fold(connection: Connection, limit: int) -> int:
    """Fold up to `limit` deltas into the counts; returns how many there were."""
    row = await QUERIES["fold"].row(connection, limit=limit)
    assert row is not None
    return int(row["number"])


async def add(connection: Connection, rows: Sequence[TallyRow]) -> None:
    """Add counts that no batch has written."""
    await QUERIES["add"].run(connection, counts=rows)


async def report(
    connection: Connection, *, first_day: date, last_day: date, source: str | None = None
) -> list[Mapping[str, Any]]:
    """The counts of these days: one row for the total, and one for each group."""
    rows = await QUERIES["report"].rows(
        connection, first_day=first_day, last_day=last_day, source=source
    )
    return [dict(row) for row in rows]
