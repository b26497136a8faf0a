"""How much was received, and what became of it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from paidonce.errors import InvalidRequestError
from paidonce.operations.desk import Desk
from paidonce.store import statistics
from paidonce.views import CountsOfDay, CountsOfMethod, CountsOfSource, Statistics

DEFAULT_DAYS: Final = 7
MAX_DAYS: Final = 366

_NUMBERS: Final = ("received", "duplicates", "waiting", "succeeded", "failed")


class StatisticsVerbs(Desk):
    """What can be asked of numbers."""

    async def statistics(
        self, *, days: int = DEFAULT_DAYS, source: str | None = None
    ) -> Statistics:
        """The counts of the last so many UTC days, today included. Raises InvalidRequestError."""
        if not 1 <= days <= MAX_DAYS:
            raise InvalidRequestError(f"days: give 1 to {MAX_DAYS}")
        today = datetime.now(UTC).date()
        all_days = [today - timedelta(days=back) for back in range(days)]
        async with self._database.connection() as connection:
            rows = await statistics.report(
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
    """What the row is of; nothing for the whole."""
    return [name for name in ("day", "source", "signature_method") if row[name] is not None]


def _of(rows: Iterable[Mapping[str, Any]], group: str) -> Sequence[Mapping[str, Any]]:
    return [row for row in rows if _names(row) == [group]]


def _counts(row: Mapping[str, Any], *groups: str) -> dict[str, Any]:
    """The numbers of a row, and how much of what has ended has ended well.

    Where nothing has ended yet, nothing has failed, and the rate is 1.
    """
    ended = row["succeeded"] + row["failed"]
    rate = row["succeeded"] / ended if ended else 1.0
    return {name: row[name] for name in (*_NUMBERS, *groups)} | {"success_rate": rate}
