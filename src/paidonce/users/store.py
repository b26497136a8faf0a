"""Searches users and subscriptions."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.core.events import PaymentId
from paidonce.db.queries import Connection, from_row, load_queries
from paidonce.db.search import last_id_of
from paidonce.errors import NotFoundError
from paidonce.linking.store import MAX_EMAILS
from paidonce.users.model import PeriodView, SubscriptionDetail

QUERIES: Final = load_queries(__file__)

MAX_SUBSCRIPTIONS: Final = 500
"""Of one user: one for each product."""
MAX_PERIODS: Final = 1_000
MAX_PAYMENTS: Final = 100
"""How many payments are applied when a subscription is resumed."""


async def users(
    connection: Connection, limit: int, cursor: UUID | None
) -> Sequence[asyncpg.Record]:
    """Users, newest first."""
    return await QUERIES["users"].rows(
        connection, last_id=last_id_of(cursor), limit=limit, max_emails=MAX_EMAILS
    )


async def subscriptions(connection: Connection, **wanted: UUID) -> Sequence[asyncpg.Record]:
    """Subscriptions by `user_id`, or the one with this `id`."""
    query = QUERIES["subscriptions"].without(*{"user_id", "id"} - wanted.keys())
    return await query.rows(connection, **wanted, limit=MAX_SUBSCRIPTIONS)


async def lock_subscription(connection: Connection, subscription_id: UUID) -> asyncpg.Record:
    """Raises NotFoundError."""
    row = await QUERIES["lock_subscription"].row(connection, id=subscription_id)
    if row is None:
        raise NotFoundError(f"there is no subscription {subscription_id}")
    return row


async def payments_of_canceled(connection: Connection, user_id: UUID) -> list[PaymentId]:
    """Payments that were not applied because the subscriptions of the user were canceled."""
    rows = await QUERIES["payments_of_canceled"].rows(
        connection, user_id=user_id, limit=MAX_PAYMENTS
    )
    return [row["id"] for row in rows]


async def with_periods(
    connection: Connection, subscriptions: Sequence[asyncpg.Record]
) -> list[SubscriptionDetail]:
    """The subscriptions with their periods, at most MAX_PERIODS together."""
    ids = [row["id"] for row in subscriptions]
    found = await QUERIES["periods"].rows(connection, subscription_id=ids, limit=MAX_PERIODS + 1)
    periods = [(row["subscription_id"], from_row(PeriodView, row)) for row in found[:MAX_PERIODS]]
    return [
        from_row(
            SubscriptionDetail,
            row,
            periods=[period for owner, period in periods if owner == row["id"]],
            truncated=len(found) > MAX_PERIODS,
        )
        for row in subscriptions
    ]
