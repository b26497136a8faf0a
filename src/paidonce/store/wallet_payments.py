"""Payments out of a wallet. Their rows change under their own lock, before any wallet is locked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from paidonce.domain.events import SourceId
from paidonce.domain.wallet_payments import Initiation, WalletPayment, WalletPaymentStatus
from paidonce.store.outbox import MAX_COUNTED
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)
ANY_REVIEW: Final = "any"
NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""When a payment was started that nobody has told of before: now counts."""


@dataclass(frozen=True, slots=True)
class Locked:
    """Payments that nobody else can change now, and the database's time after they were locked."""

    payments: Mapping[str, WalletPayment]
    now: datetime | None
    wallet_currencies: Mapping[str, str | None]
    """By payment id; None where there is no such wallet."""


@dataclass(frozen=True, slots=True)
class Question:
    """A payment that its gateway has to be told of, or asked about."""

    payment_id: str
    amount_minor: int
    currency: str
    asked: int
    """How often, this time included."""
    transaction_id: str | None


async def open_payments(
    connection: Connection, asked: Sequence[tuple[Initiation, datetime]]
) -> set[str]:
    """Add those that are not there yet, each with the time of its start; returns their ids."""
    rows = await QUERIES["open"].rows(
        connection,
        payment_id=[one.payment_id for one, _ in asked],
        source_id=[one.source_id for one, _ in asked],
        wallet_id=[one.wallet_id for one, _ in asked],
        amount_minor=[one.amount.amount_minor for one, _ in asked],
        currency=[one.amount.currency for one, _ in asked],
        request_hash=[one.request_hash for one, _ in asked],
        started_at=[started_at for _, started_at in asked],
    )
    return {row["payment_id"] for row in rows}


async def lock(connection: Connection, payment_ids: Iterable[str]) -> Locked:
    """Lock the payments with these ids, in their order."""
    rows = await QUERIES["lock"].rows(connection, payment_id=list(payment_ids))
    currencies = {row["payment_id"]: row["wallet_currency"] for row in rows}
    return Locked(_payments(rows), rows[-1]["now"] if rows else None, currencies)


async def lock_of_transactions(
    connection: Connection, transactions: Iterable[tuple[SourceId, str]]
) -> Locked:
    """Lock the payments that the gateways know by these ids."""
    wanted = sorted(set(transactions))
    rows = await QUERIES["lock_of_transactions"].rows(
        connection,
        source_id=[source_id for source_id, _ in wanted],
        transaction_id=[transaction_id for _, transaction_id in wanted],
    )
    return Locked(_payments(rows), rows[-1]["now"] if rows else None, {})


async def save(
    connection: Connection, changes: Sequence[tuple[WalletPayment, WalletPayment]]
) -> None:
    """Write each payment, as it was seen and as it is now.

    Fails with a serialization failure if one is not as it was seen.
    """
    if not changes:
        return
    changes = sorted(changes, key=lambda change: change[0].payment_id)
    await QUERIES["save"].row(
        connection,
        payment_id=[seen.payment_id for seen, _ in changes],
        seen_status=[seen.status for seen, _ in changes],
        seen_version=[seen.version for seen, _ in changes],
        status=[after.status for _, after in changes],
        transaction_id=[after.transaction_id for _, after in changes],
        failure=[after.failure for _, after in changes],
        review=[after.review for _, after in changes],
        ask_at=[after.ask_at for _, after in changes],
        version=[after.version for _, after in changes],
        updated_at=[after.updated_at for _, after in changes],
        expected=len(changes),
    )


async def claim(connection: Connection, *, limit: int, lease_s: float) -> list[Question]:
    """Take what the gateway has to be asked now, for as long as the lease."""
    rows = await QUERIES["claim"].rows(connection, limit=limit, lease_s=lease_s)
    return [Question(**dict(row)) for row in rows]


async def to_review(connection: Connection) -> dict[str, int]:
    """How many a person should look at, by reason, up to MAX_COUNTED in all."""
    rows = await QUERIES["to_review"].rows(connection, most=MAX_COUNTED)
    return {row["reason"]: row["number"] for row in rows}


async def is_transaction_taken(
    connection: Connection, payment: WalletPayment, transaction_id: str
) -> bool:
    """Whether another payment has this transaction."""
    row = await QUERIES["is_taken"].row(
        connection,
        source_id=payment.source_id,
        transaction_id=transaction_id,
        payment_id=payment.payment_id,
    )
    return row is not None and bool(row["is_so"])


async def find(connection: Connection, payment_id: str) -> asyncpg.Record | None:
    """One payment, as it is shown."""
    return await QUERIES["find"].row(connection, payment_id=payment_id)


async def listed(
    connection: Connection, *, after: str, limit: int, review: str | None
) -> Sequence[asyncpg.Record]:
    """Payments in the order of their ids; with a review, those to be looked at for it, or any."""
    values: dict[str, Any] = {"after": after, "limit": limit}
    query = QUERIES["list"]
    if review is None:
        query = query.without("any_review", "review")
    elif review == ANY_REVIEW:
        query = query.without("review")
    else:
        values["review"] = review
    return await query.rows(connection, **values)


def _payments(rows: Sequence[asyncpg.Record]) -> dict[str, WalletPayment]:
    names = WalletPayment.__slots__
    return {
        row["payment_id"]: WalletPayment(
            **{name: row[name] for name in names if name != "status"},
            status=WalletPaymentStatus(row["status"]),
        )
        for row in rows
    }
