"""Fill a database with the rows that processing many events would have left."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from benchmarks.workload import email_of
from paidonce.core.events import SourceId
from paidonce.db.queries import Connection, load_queries
from paidonce.db.schema import ensure_partitions

QUERIES: Final = load_queries(__file__)
PAYMENTS_PER_USER: Final = 2
PRODUCT: Final = "default"
SPAN: Final = timedelta(days=120)
SETS_OF: Final = 20_000
OWNER_SEED: Final = 20240229

# Whoever fills need not wait for the disk; and stale statistics must not lead to scans.
SESSION: Final = "SET synchronous_commit = off; SET enable_seqscan = off; SET jit = off"


async def fill(
    connection: Connection, source_id: SourceId, rows: int, advance: Callable[[int], None]
) -> None:
    """Create a history of this many events over several months, and report progress."""
    await connection.execute(SESSION)
    for now in (datetime.now(UTC) - SPAN, datetime.now(UTC)):
        await ensure_partitions(connection, now)
    users = users_of(rows)
    for first, last in _sets(users):
        emails = [email_of(user) for user in range(first, last)]
        await QUERIES["add_users"].run(connection, email=emails, product=PRODUCT)
    owners = random.Random(OWNER_SEED)
    for first, last in _sets(rows):
        await QUERIES["add_history"].run(
            connection,
            owner=[email_of(owners.randrange(users)) for _ in range(first, last)],
            first=first,
            total=rows,
            span=SPAN,
            source_id=source_id,
        )
        await churn(connection, last - first)
        advance(last - first)
    await connection.execute("VACUUM (ANALYZE)")


async def churn(connection: Connection, rows: int) -> None:
    """Insert this many rows into the queue and delete them again."""
    await connection.execute(SESSION)
    for first, last in _sets(rows):
        row = await QUERIES["enqueue"].row(connection, number=last - first)
        assert row is not None
        await QUERIES["dequeue"].run(connection, first_id=row["first_id"])


async def count_applied(connection: Connection) -> int:
    """How many payments were applied, filled ones included."""
    row = await QUERIES["applied"].row(connection)
    assert row is not None
    return int(row["applied"])


def users_of(rows: int) -> int:
    """How many users a history of this many events has."""
    return max(rows // PAYMENTS_PER_USER, 1)


def _sets(rows: int) -> Iterator[tuple[int, int]]:
    for first in range(0, rows, SETS_OF):
        yield first, min(first + SETS_OF, rows)
