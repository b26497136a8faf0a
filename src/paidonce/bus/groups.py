"""Consumer groups: their cursors, and the messages that they have consumed (BUS-1)."""

from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from paidonce.bus.model import GroupStatus
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import MAX_COUNTED

QUERIES: Final = load_queries(__file__)


async def register(connection: Connection, consumer: str, aggregate_types: Collection[str]) -> None:
    """Create the group's missing cursors. A new one starts with the oldest stored message."""
    await QUERIES["register"].run(connection, consumer=consumer, types=list(aggregate_types))


async def heartbeat(
    connection: Connection,
    consumer: str,
    aggregate_types: Collection[str],
    lags: Mapping[str, int] | None,
) -> None:
    """Record that the group is active, and its lag by aggregate type.

    Lags are empty if the database counts them. None keeps the last ones.
    """
    values = [(lags or {}).get(one) for one in aggregate_types]
    await QUERIES["heartbeat"].run(
        connection,
        consumer=consumer,
        types=list(aggregate_types),
        lag=values,
        has_lag=lags is not None,
    )


async def claim(connection: Connection, consumer: str, ids: Collection[UUID]) -> set[UUID]:
    """Record messages as consumed; returns the ids of those that were not before.

    Closes the dead letters of these messages. In the transaction of the effect.
    """
    rows = await QUERIES["claim"].rows(connection, consumer=consumer, ids=list(ids))
    return {row["event_id"] for row in rows}


async def list_groups(connection: Connection) -> list[GroupStatus]:
    """The status of every group in each of its topics; lags are counted up to MAX_COUNTED."""
    rows = await QUERIES["list_groups"].rows(connection, most=MAX_COUNTED)
    return [GroupStatus(**row) for row in rows]
