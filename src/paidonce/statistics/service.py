"""Counts of deliveries by day, source and signature method."""

from datetime import timedelta
from typing import Any, Final

from paidonce.clock import CLOCK
from paidonce.db.pool import Database
from paidonce.db.queries import from_row
from paidonce.errors import InvalidRequestError
from paidonce.statistics.counting import QUERIES
from paidonce.statistics.model import CountsOfDay, CountsOfMethod, CountsOfSource, Statistics

DEFAULT_DAYS: Final = 7
MAX_DAYS: Final = 366

_NOTHING: Final[dict[str, Any]] = {
    **dict.fromkeys(("received", "duplicates", "rejected", "waiting", "succeeded", "failed"), 0),
    "success_rate": 1.0,
}


class StatisticsService:
    """Reports the statistics."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, *, days: int = DEFAULT_DAYS, source: str | None = None) -> Statistics:
        """The counts of the last UTC days, today included. Raises InvalidRequestError."""
        if not 1 <= days <= MAX_DAYS:
            raise InvalidRequestError(f"days: give 1 to {MAX_DAYS}")
        today = CLOCK.now().date()
        first = today - timedelta(days=days - 1)
        async with self._database.connection() as connection:
            total, *groups = await QUERIES["report"].rows(
                connection, first_day=first, last_day=today, source=source
            )
        by_day = {row["day"]: row for row in groups}
        all_days = [first + timedelta(days=number) for number in range(days)]
        return from_row(
            Statistics,
            total,
            days=days,
            by_source=[
                from_row(CountsOfSource, row) for row in groups if row["source"] is not None
            ],
            by_signature_method=[
                from_row(CountsOfMethod, row)
                for row in groups
                if row["signature_method"] is not None
            ],
            by_day=[from_row(CountsOfDay, by_day.get(day, _NOTHING), day=day) for day in all_days],
        )
