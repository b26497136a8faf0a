"""What `paidonce doctor` asks of a database, in whatever state that is."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from paidonce.store import months
from paidonce.store.queries import Connection, load_queries
from paidonce.store.schema import next_month, partition_name

QUERIES: Final = load_queries(__file__)


def version(connection: Connection) -> int:
    """The major version of the server."""
    return connection.get_server_version().major


async def clock_skew_s(connection: Connection) -> float:
    """By how much the database's clock is ahead of ours, whatever the way there takes."""
    before_s = time.time()
    row = await QUERIES["clock"].row(connection)
    assert row is not None
    return float(row["now_s"]) - (before_s + time.time()) / 2


async def rights(connection: Connection) -> Mapping[str, Any]:
    """The role, its schema, and what it may do there."""
    row = await QUERIES["rights"].row(connection)
    assert row is not None
    return dict(row)


async def missing_months(connection: Connection, now: datetime) -> list[str]:
    """Which of the partitions of this month and the next are not there."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    rows = await months.QUERIES["months"].rows(connection, marks=months.MARKS)
    there = {row["name"] for row in rows if not row["is_pending"]}
    wanted = [partition_name(month), partition_name(next_month(month))]
    return [name for name in wanted if name not in there]


async def known_sources(connection: Connection) -> dict[str, str]:
    """The provider of every source that the database knows."""
    return {row["name"]: row["provider"] for row in await QUERIES["sources"].rows(connection)}


async def overdue_s(connection: Connection) -> float:
    """For how long the event that should have been settled first has been due; 0 if none is."""
    row = await QUERIES["overdue"].row(connection)
    return 0.0 if row is None else max(float(row["overdue_s"]), 0.0)
