"""Fill a database with a history that is difficult for searches."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce.db.queries import Connection, load_queries
from paidonce.db.schema import ensure_partitions

QUERIES: Final = load_queries(__file__)
SPAN: Final = timedelta(days=120)
SETS_OF: Final = 20_000
DELTAS: Final = 5_000


async def fill(connection: Connection, rows: int, advance: Callable[[int], None]) -> None:
    """Create the history, over several months, and report progress."""
    await connection.execute("SET synchronous_commit = off; SET jit = off")
    now = datetime.now(UTC)
    for time in (now - SPAN, now - SPAN / 2, now):
        await ensure_partitions(connection, time)
    await QUERIES["add_sources"].run(connection)
    for first in range(0, rows, SETS_OF):
        last = min(first + SETS_OF, rows)
        await QUERIES["add_history"].run(connection, first=first, last=last, total=rows, span=SPAN)
        advance(last - first)
    await QUERIES["add_counts"].run(connection, deltas=DELTAS)
    await connection.execute("VACUUM (ANALYZE)")
