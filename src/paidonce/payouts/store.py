"""Payments out of a wallet and callbacks of their gateway, in the database.

A payment is locked before its callbacks, and those before its wallet.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.core.callbacks import CALLBACK_DELAYS_S, GatewayStatus
from paidonce.core.money import Money
from paidonce.db.paging import ListQuery
from paidonce.db.queries import Connection, Query, columns_of, from_row, load_queries
from paidonce.db.search import last_id_of
from paidonce.payouts import model
from paidonce.payouts.model import DeadCallback, GatewayReport, TransactionKey, WalletPayment

QUERIES: Final = load_queries(__file__)
ANY_REVIEW: Final = "any"

_PARTS: Final = {"payment_id", "transaction", "page", "any_review", "review", "lock"}


@dataclass(frozen=True, slots=True)
class LockedPayments:
    """Locked payments, and the database's time after the lock; None if none was found."""

    payments: Mapping[str, WalletPayment]
    now: datetime | None
    wallet_currencies: Mapping[str, str | None]
    """By payment id; None if the wallet does not exist."""


async def add(connection: Connection, requests: Collection[model.Initiation]) -> set[str]:
    """Add the payments that do not exist; returns their ids."""
    names = ("payment_id", "wallet_id", "source_id", "amount_minor", "currency", "request_hash")
    rows = await QUERIES["add"].rows(connection, **columns_of(requests, *names, "started_at"))
    return {row["payment_id"] for row in rows}


def payments_query(*parts: str) -> Query:
    """The query `payments` with only these of its marked parts."""
    return QUERIES["payments"].without(*sorted(_PARTS - set(parts)))


async def lock(connection: Connection, payment_ids: Iterable[str]) -> LockedPayments:
    """Lock payments in the order of their ids."""
    query = payments_query("payment_id", "lock")
    return _locked(await query.rows(connection, payment_id=list(payment_ids)))


async def lock_by_transaction(
    connection: Connection, transactions: Iterable[TransactionKey]
) -> LockedPayments:
    """Lock the payments that have these transactions."""
    query = payments_query("transaction", "lock")
    return _locked(await query.rows(connection, **_transaction_columns(transactions)))


async def save(
    connection: Connection, changes: Sequence[tuple[WalletPayment, WalletPayment]]
) -> None:
    """Write payments, each given before and after its change.

    Raises a serialization failure if a stored payment is not as before.
    """
    if not changes:
        return
    changes = sorted(changes, key=lambda change: change[0].payment_id)
    names = ("payment_id", "status", "transaction_id", "failure", "review", "next_attempt_at")
    await QUERIES["save"].row(
        connection,
        status_before=[before.status for before, _ in changes],
        version_before=[before.version for before, _ in changes],
        **columns_of([after for _, after in changes], *names, "version", "updated_at"),
        expected=len(changes),
    )


async def claim(connection: Connection, *, limit: int, lease_s: float) -> list[WalletPayment]:
    """Claim payments for which the gateway has to be called now, until the lease ends."""
    rows = await QUERIES["claim"].rows(connection, limit=limit, lease_s=lease_s)
    return [_payment(row) for row in rows]


async def has_other_payment(
    connection: Connection, payment: WalletPayment, transaction_id: str
) -> bool:
    """Whether another payment has this transaction."""
    found = await QUERIES["has_other_payment"].value(
        connection,
        source_id=payment.source_id,
        transaction_id=transaction_id,
        payment_id=payment.payment_id,
    )
    return bool(found)


async def find(connection: Connection, payment_id: str) -> WalletPayment | None:
    """A payment, without a lock."""
    row = await payments_query("payment_id").row(connection, payment_id=[payment_id])
    return None if row is None else _payment(row)


async def search(connection: Connection, query: model.WalletPaymentQuery) -> list[WalletPayment]:
    """Up to `limit + 1` payments in the order of their ids."""
    parts = filters = query.filters()
    if query.review == ANY_REVIEW:
        parts, filters = {"any_review": True}, {}
    rows = await payments_query("page", *parts).rows(
        connection, after=query.cursor or "", limit=query.limit + 1, **filters
    )
    return [_payment(row) for row in rows]


async def pending_transactions(connection: Connection, ids: Iterable[UUID]) -> set[TransactionKey]:
    """The transactions of those callbacks that are pending."""
    rows = await QUERIES["pending_transactions"].rows(connection, id=list(ids))
    return {_transaction_key(row) for row in rows}


async def due_callbacks(connection: Connection, limit: int) -> dict[UUID, TransactionKey]:
    """The callbacks to try again now, with their transactions."""
    rows = await QUERIES["due_callbacks"].rows(connection, limit=limit)
    return {row["id"]: _transaction_key(row) for row in rows}


async def lock_callbacks(
    connection: Connection, transactions: Iterable[TransactionKey]
) -> list[tuple[UUID, TransactionKey, GatewayReport]]:
    """Lock the callbacks of these transactions that were not applied; their payments are locked."""
    rows = await QUERIES["lock_callbacks"].rows(connection, **_transaction_columns(transactions))
    return [(row["id"], _transaction_key(row), _report(row)) for row in rows]


async def finish_callbacks(connection: Connection, applied: Mapping[UUID, str]) -> None:
    """Mark callbacks as applied, each to the payment with this id."""
    if applied:
        await QUERIES["finish_callbacks"].run(
            connection, id=list(applied), payment_id=list(applied.values())
        )


async def postpone_callbacks(
    connection: Connection, ids: Iterable[UUID], max_attempts: int
) -> list[DeadCallback]:
    """Schedule the next attempt; returns the callbacks whose attempts are used up."""
    rows = await QUERIES["postpone_callbacks"].rows(
        connection, id=list(ids), max_attempts=max_attempts, delays_s=CALLBACK_DELAYS_S
    )
    return [_dead_callback(row) for row in rows if row["ended_at"] is not None]


async def dead_callbacks(connection: Connection, query: ListQuery) -> list[DeadCallback]:
    """Up to `limit + 1` callbacks whose attempts are used up, newest first."""
    rows = await QUERIES["dead_callbacks"].rows(
        connection, last_id=last_id_of(query.cursor), limit=query.limit + 1
    )
    return [_dead_callback(row) for row in rows]


def _locked(rows: Sequence[asyncpg.Record]) -> LockedPayments:
    return LockedPayments(
        {row["payment_id"]: _payment(row) for row in rows},
        rows[-1]["now"] if rows else None,
        {row["payment_id"]: row["wallet_currency"] for row in rows},
    )


def _payment(row: asyncpg.Record) -> WalletPayment:
    return from_row(WalletPayment, row, status=model.WalletPaymentStatus(row["status"]))


def _report(row: asyncpg.Record) -> GatewayReport:
    minor = row["amount_minor"]
    paid = None if minor is None else Money(minor, row["currency"])
    return GatewayReport(GatewayStatus(row["gateway_status"]), paid)


def _dead_callback(row: asyncpg.Record) -> DeadCallback:
    return from_row(DeadCallback, row, gateway_status=GatewayStatus(row["gateway_status"]))


def _transaction_key(row: asyncpg.Record) -> TransactionKey:
    return TransactionKey(row["source_id"], row["transaction_id"])


def _transaction_columns(transactions: Iterable[TransactionKey]) -> dict[str, list[object]]:
    return columns_of(sorted(set(transactions)), *TransactionKey._fields)
