"""Orders as the merchant makes and reads them. What pays them is in `settlement`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.domain.email import email_key
from paidonce.domain.events import SourceId, UserId, WalletId
from paidonce.domain.money import Money
from paidonce.domain.orders import Kind
from paidonce.errors import ConflictError, NotFoundError
from paidonce.store.queries import Connection, load_queries
from paidonce.store.searching import Search

QUERIES: Final = load_queries(__file__)
ORDERS: Final = Search(QUERIES["orders"], leading=("user_id", "email"), filters=("status", "kind"))


@dataclass(frozen=True, slots=True)
class NewOrder:
    """An order to be made. The hash tells it from another one with the same reference."""

    id: UUID
    reference: str
    kind: Kind
    amount: Money
    request_hash: bytes
    user_id: UserId | None = None
    email: str | None = None
    plan_id: str | None = None
    wallet_id: WalletId | None = None
    sources: Sequence[SourceId] | None = None


async def create_order(connection: Connection, order: NewOrder) -> bool:
    """Add the order, and say whether it is new. Raises ConflictError."""
    row = await QUERIES["create_order"].row(
        connection,
        id=order.id,
        reference=order.reference,
        kind=order.kind,
        amount_minor=order.amount.amount_minor,
        currency=order.amount.currency,
        user_id=order.user_id,
        email=order.email,
        email_key=email_key(order.email) if order.email else None,
        plan_id=order.plan_id,
        wallet_id=order.wallet_id,
        sources=order.sources,
        request_hash=order.request_hash,
    )
    if row is not None:
        return True
    assert await is_known(connection, order.reference, order.request_hash)
    return False


async def is_known(connection: Connection, reference: str, request_hash: bytes) -> bool:
    """Whether there is this very order. Raises ConflictError when there is another one."""
    known = await QUERIES["request_hash"].row(connection, reference=reference)
    if known is not None and known["request_hash"] != request_hash:
        raise ConflictError(f"there is another order {reference}, with other content")
    return known is not None


async def find_order(connection: Connection, reference: str) -> asyncpg.Record | None:
    """The order with this reference."""
    return await QUERIES["order"].row(connection, reference=reference)


async def close_order(connection: Connection, reference: str) -> UUID:
    """Close it, and tell its id. Raises NotFoundError, or ConflictError when it is paid."""
    row = await QUERIES["close_order"].row(connection, reference=reference)
    if row is not None:
        order_id: UUID = row["id"]
        return order_id
    if await find_order(connection, reference) is None:
        raise NotFoundError(f"there is no order {reference}")
    raise ConflictError(f"order {reference} is paid; what was paid has to be refunded first")


async def unapplied_payments_of_order(
    connection: Connection, reference: str, limit: int
) -> list[UUID]:
    """Payments for this order that nobody has got anything for."""
    rows = await QUERIES["unapplied_payments_of_order"].rows(
        connection, reference=reference, limit=limit
    )
    return [row["id"] for row in rows]
