"""The queries of `paidonce doctor`. The database may be in any state."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from paidonce.db.queries import Connection, load_queries
from paidonce.db.schema import next_month, partition_name
from paidonce.maintenance.partitions import attached_partitions

QUERIES: Final = load_queries(__file__)


def version(connection: Connection) -> int:
    """The major version of the server."""
    return connection.get_server_version().major


async def clock_skew_s(connection: Connection) -> float:
    """By how much the database's clock is ahead of ours, without the round trip."""
    before_s = time.time()
    row = await QUERIES["clock"].row(connection)
    assert row is not None
    return float(row["now_s"]) - (before_s + time.time()) / 2


async def rights(connection: Connection) -> Mapping[str, Any]:
    """The role, its schema, and its privileges there."""
    row = await QUERIES["rights"].row(connection)
    assert row is not None
    return dict(row)


async def missing_months(connection: Connection, now: datetime) -> list[str]:
    """The partitions of this month and the next that do not exist."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    existing = await attached_partitions(connection)
    wanted = [partition_name(month), partition_name(next_month(month))]
    return [name for name in wanted if name not in existing]


async def registered_sources(connection: Connection) -> dict[str, str]:
    """The provider of every registered source."""
    return {row["name"]: row["provider"] for row in await QUERIES["sources"].rows(connection)}


async def overdue_s(connection: Connection) -> float:
    """For how many seconds the oldest event in the queue is overdue; 0 if none is."""
    row = await QUERIES["overdue"].row(connection)
    return 0.0 if row is None else max(float(row["overdue_s"]), 0.0)
