"""What was scheduled while the database's clock was ahead is due at the right time again."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from paidonce.clock import CLOCK
from paidonce.db.queries import Connection, load_queries
from paidonce.telemetry import logger

log = logger(__name__)

QUERIES: Final = load_queries(__file__)
_EARLIER: Final = QUERIES["schedule_earlier"]
SCHEDULES: Final = {
    "event_queue": _EARLIER,
    "gateway_callbacks": _EARLIER.renamed(
        event_queue="gateway_callbacks", run_at="next_attempt_at"
    ),
    "wallet_payments": _EARLIER.renamed(event_queue="wallet_payments", run_at="next_attempt_at"),
    "notifications": _EARLIER.renamed(event_queue="notifications", run_at="not_before"),
    "notification_messages": _EARLIER.renamed(
        event_queue="notification_messages", run_at="next_attempt_at"
    ),
    "replays": _EARLIER.renamed(event_queue="replays", run_at="next_batch_at"),
    "bans": QUERIES["ban_earlier"],
}
"""Each table with times of the future, and the statement that makes them earlier."""

PERIOD_S: Final = 30.0
SMALLEST_S: Final = 60.0
"""What waits for less than this is left alone."""
PAGE_ROWS: Final = 1_000
MAX_PAGES: Final = 100


@dataclass(slots=True)
class ClockJumps:
    """Corrects schedules after the database's clock was set back.

    Times of the future are earlier by as much, if they are further away than that. A row that was
    scheduled for so late on purpose is tried too early, which does no harm.
    """

    name: str = "clock jumps"
    period_s: float = PERIOD_S

    async def run_once(self, connection: Connection, now: datetime) -> bool:
        """Correct all schedules if the clock was set back since the last run."""
        back_s = CLOCK.take_back_s()
        if back_s < SMALLEST_S:
            return False
        try:
            for table in SCHEDULES:
                await _correct(connection, table, timedelta(seconds=back_s))
        except BaseException:
            CLOCK.give_back_s(back_s)
            raise
        return False


async def _correct(connection: Connection, table: str, step: timedelta) -> None:
    changed = 0
    for _ in range(MAX_PAGES):
        rows = await SCHEDULES[table].rows(
            connection, step=step, tolerance=timedelta(seconds=2 * PERIOD_S), limit=PAGE_ROWS
        )
        changed += len(rows)
        if len(rows) < PAGE_ROWS:
            break
    if changed:
        log.warning("schedule_corrected", table=table, rows=changed, step_s=step.total_seconds())
