"""The read model: what is shown of payments out of a wallet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.domain.payment_views import ShownPayment
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class LoggedFact:
    """What the outside was told once, as it is kept."""

    id: UUID
    key: str
    type: str
    version: int
    at: datetime
    body: bytes


async def show(connection: Connection, views: Sequence[ShownPayment]) -> None:
    """Show these, one for each payment, unless something newer is shown already."""
    if views:
        await QUERIES["show"].run(connection, **_columns(views))


async def replace(connection: Connection, views: Sequence[ShownPayment]) -> None:
    """Show these, whatever is shown."""
    if views:
        await QUERIES["replace"].run(connection, **_columns(views))


async def find(connection: Connection, payment_id: str) -> asyncpg.Record | None:
    """What is shown of one payment."""
    return await QUERIES["find"].row(connection, payment_id=payment_id)


async def hold(connection: Connection) -> None:
    """Let nobody show anything until this transaction has ended."""
    await QUERIES["hold"].run(connection)


async def payments_in_log(connection: Connection, after: str, limit: int) -> list[str]:
    """The payments that the log tells of, in the order of their ids."""
    rows = await QUERIES["payments_in_log"].rows(connection, after=after, limit=limit)
    return [row["aggregate_name"] for row in rows]


async def log_of(connection: Connection, payment_ids: Sequence[str]) -> list[LoggedFact]:
    """All that the log tells of these payments, each in the order of its versions."""
    rows = await QUERIES["log_of"].rows(connection, payment_id=payment_ids)
    return [
        LoggedFact(
            id=row["id"],
            key=row["key"],
            type=row["type"],
            version=row["version"],
            at=row["occurred_at"],
            body=row["payload"].encode(),
        )
        for row in rows
    ]


def _columns(views: Sequence[ShownPayment]) -> dict[str, object]:
    return {
        "payment_id": [one.payment_id for one in views],
        "status": [one.status for one in views],
        "amount_minor": [one.amount_minor for one in views],
        "currency": [one.currency for one in views],
        "version": [one.version for one in views],
        "updated_at": [one.updated_at for one in views],
    }
