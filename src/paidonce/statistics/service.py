"""Counts of deliveries by day, source and signature method."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from paidonce.db.pool import Database
from paidonce.errors import InvalidRequestError
from paidonce.statistics import store
from paidonce.statistics.model import CountsOfDay, CountsOfMethod, CountsOfSource, Statistics

DEFAULT_DAYS: Final = 7
MAX_DAYS: Final = 366

_NUMBERS: Final = ("received", "duplicates", "waiting", "succeeded", "failed")


class StatisticsService:
    """Reports the statistics."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(self, *, days: int = DEFAULT_DAYS, source: str | None = None) -> Statistics:
        """The counts of the last UTC days, today included. Raises InvalidRequestError."""
        if not 1 <= days <= MAX_DAYS:
            raise InvalidRequestError(f"days: give 1 to {MAX_DAYS}")
        today = datetime.now(UTC).date()
        all_days = [today - timedelta(days=back) for back in range(days)]
        async with self._database.connection() as connection:
            rows = await store.report(
                connection, first_day=all_days[-1], last_day=today, source=source
            )
        (whole,) = [row for row in rows if not _names(row)]
        by_day = {row["day"]: row for row in _of(rows, "day")}
        nothing = dict.fromkeys(_NUMBERS, 0)
        return Statistics(
            **_counts(whole),
            days=days,
            by_source=[CountsOfSource(**_counts(one, "source")) for one in _of(rows, "source")],
            by_signature_method=[
                CountsOfMethod(**_counts(one, "signature_method"))
                for one in _of(rows, "signature_method")
            ],
            by_day=[
                CountsOfDay(**_counts(by_day.get(day, nothing | {"day": day}), "day"))
                for day in reversed(all_days)
            ],
        )


def _names(row: Mapping[str, Any]) -> list[str]:
    """The groups that the row belongs to; none for the total."""
    return [name for name in ("day", "source", "signature_method") if row[name] is not None]


def _of(rows: Iterable[Mapping[str, Any]], group: str) -> Sequence[Mapping[str, Any]]:
    return [row for row in rows if _names(row) == [group]]


def _counts(row: Mapping[str, Any], *groups: str) -> dict[str, Any]:
    """The numbers of a row with their success rate, which is 1 while nothing has ended."""
    ended = row["succeeded"] + row["failed"]
    rate = row["succeeded"] / ended if ended else 1.0
    return {name: row[name] for name in (*_NUMBERS, *groups)} | {"success_rate": rate}
