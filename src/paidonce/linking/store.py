"""Users and orders that payments wait for."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.core.email import email_key
from paidonce.core.events import PaymentId
from paidonce.core.operator_refunds import OperatorRefund
from paidonce.core.orders import Order
from paidonce.db.queries import Connection, Query, load_queries
from paidonce.errors import ConflictError, NotFoundError

QUERIES: Final = load_queries(__file__)
_USER_BY_ID: Final = QUERIES["users"].without("email")
_USER_BY_EMAIL: Final = QUERIES["users"].without("id", "locks")
_USER_BY_ID_WITHOUT_LOCK: Final = _USER_BY_ID.without("locks")

MAX_READS: Final = 2
MAX_EMAILS: Final = 1_000
"""How many former addresses of a user are shown."""


async def create_user(
    connection: Connection, user_id: UUID, email: str
) -> tuple[asyncpg.Record, bool]:
    """The user with this e-mail address, and whether it is new."""
    key = email_key(email)
    row = await QUERIES["create_user"].row(connection, id=user_id, email=email, email_key=key)
    if row is not None:
        return row, True
    existing = await user_by_email(connection, email)
    assert existing is not None
    return existing, False


async def user_by_email(connection: Connection, email: str) -> asyncpg.Record | None:
    """The user with this e-mail address, current or former, in any letter case."""
    key = email_key(email)
    return await _USER_BY_EMAIL.row(connection, email_key=key, max_emails=MAX_EMAILS)


async def user_by_id(connection: Connection, user_id: UUID) -> asyncpg.Record | None:
    """The user with this id, or the one that it was merged into."""
    return await _user(connection, _USER_BY_ID_WITHOUT_LOCK, user_id)


async def lock_user(connection: Connection, user_id: UUID) -> asyncpg.Record:
    """The same, locked: its addresses do not change. Raises NotFoundError."""
    for _ in range(MAX_READS):
        row = await _user(connection, _USER_BY_ID, user_id)
        if row is not None:  # else there is none, or it was merged while we waited for the lock
            return row
    raise NotFoundError(f"there is no user {user_id}")


async def _user(connection: Connection, query: Query, user_id: UUID) -> asyncpg.Record | None:
    return await query.row(connection, id=user_id, max_emails=MAX_EMAILS)


async def change_email(connection: Connection, user_id: UUID, email: str) -> asyncpg.Record:
    """Make this the current address of the user; the one before stays as a former address.

    Returns the user. Raises NotFoundError, or ConflictError if it is the current address of
    another user, or the user was erased.
    """
    user = await lock_user(connection, user_id)
    if user["erased_at"] is not None:
        raise ConflictError("the user was erased: create a new one")
    names = {"user_id": user["id"], "email_key": email_key(email), "email": email}
    owner = await QUERIES["owner_of_email"].row(connection, email_key=names["email_key"])
    if owner is not None and owner["is_current"] and owner["user_id"] != user["id"]:
        raise ConflictError(
            "another user has this e-mail address: merge the two, or change the other one's first"
        )
    await QUERIES["retire_email"].run(connection, user_id=user["id"])
    await QUERIES["take_email"].run(connection, **names)
    await QUERIES["set_email"].run(connection, user_id=user["id"], email=email)
    return await lock_user(connection, user["id"])


async def create_order(connection: Connection, order: Order, request_hash: bytes) -> bool:
    """Insert the order; returns whether it is new.

    Raises ConflictError when another order has its reference: its request has another hash.
    """
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
        expires_at=order.expires_at,
        request_hash=request_hash,
    )
    if row is not None:
        return True
    assert await exists(connection, order.reference, request_hash)
    return False


async def exists(connection: Connection, reference: str, request_hash: bytes) -> bool:
    """Whether this order exists. Raises ConflictError if another one has its reference."""
    stored = await QUERIES["request_hash"].row(connection, reference=reference)
    if stored is not None and stored["request_hash"] != request_hash:
        raise ConflictError(f"order {reference} exists with other content")
    return stored is not None


async def require_order(connection: Connection, reference: str) -> None:
    """Raises NotFoundError if there is no such order."""
    if await QUERIES["request_hash"].row(connection, reference=reference) is None:
        raise NotFoundError(f"there is no order {reference}")


async def close_order(connection: Connection, reference: str) -> UUID | None:
    """Close the order; returns its user. Raises NotFoundError, or ConflictError if it is paid."""
    row = await QUERIES["close_order"].row(connection, reference=reference)
    if row is None:
        await require_order(connection, reference)
        raise ConflictError(
            f"order {reference} is paid: refund its payment first; a free order stays paid"
        )
    user_id: UUID | None = row["user_id"]
    return user_id


async def payments_with_refund(
    connection: Connection, payment_id: PaymentId, refund: OperatorRefund
) -> set[PaymentId]:
    """The payments of the same source that have a refund with this id of an operator."""
    rows = await QUERIES["payments_with_refund"].rows(
        connection, payment_id=payment_id, refund_id=[refund.refund_id, refund.other_refund_id]
    )
    return {row["payment_id"] for row in rows}


async def unapplied_payments_of_email(
    connection: Connection, email_key: str, source_ids: Sequence[int], limit: int
) -> list[PaymentId]:
    """Payments with this address that are not applied and have no user."""
    rows = await QUERIES["unapplied_payments_of_email"].rows(
        connection, email_key=email_key, source_ids=source_ids, limit=limit
    )
    return [row["id"] for row in rows]


async def unapplied_payments_of_order(
    connection: Connection, reference: str, limit: int
) -> list[PaymentId]:
    """Payments for this order that are not applied."""
    rows = await QUERIES["unapplied_payments_of_order"].rows(
        connection, reference=reference, limit=limit
    )
    return [row["id"] for row in rows]
