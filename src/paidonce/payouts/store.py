"""Payments out of a wallet and callbacks of their gateway, in the database.

A payment is locked before its callbacks, and those before its wallet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.core.callbacks import CALLBACK_DELAYS_S, GatewayStatus
from paidonce.core.money import Money
from paidonce.db.paging import last_id_of
from paidonce.db.queries import Connection, load_queries
from paidonce.db.search import MAX_COUNTED
from paidonce.payouts.model import (
    DeadCallback,
    GatewayReport,
    Initiation,
    TransactionKey,
    WalletPayment,
    WalletPaymentQuery,
    WalletPaymentStatus,
)

QUERIES: Final = load_queries(__file__)
ANY_REVIEW: Final = "any"
NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of a payment without a message: the current time counts."""


@dataclass(frozen=True, slots=True)
class LockedPayments:
    """Locked payments, and the database's time after the lock; None if none was found."""

    payments: Mapping[str, WalletPayment]
    now: datetime | None
    wallet_currencies: Mapping[str, str | None]
    """By payment id; None if the wallet does not exist."""


@dataclass(frozen=True, slots=True)
class LockedCallback:
    """A callback that was not applied yet."""

    id: UUID
    transaction: TransactionKey
    report: GatewayReport


async def add(connection: Connection, requests: Sequence[tuple[Initiation, datetime]]) -> set[str]:
    """Add the payments that do not exist, with the time of their start; returns their ids."""
    rows = await QUERIES["add"].rows(
        connection,
        payment_id=[one.payment_id for one, _ in requests],
        source_id=[one.source_id for one, _ in requests],
        wallet_id=[one.wallet_id for one, _ in requests],
        amount_minor=[one.amount.amount_minor for one, _ in requests],
        currency=[one.amount.currency for one, _ in requests],
        request_hash=[one.request_hash for one, _ in requests],
        started_at=[started_at for _, started_at in requests],
    )
    return {row["payment_id"] for row in rows}


async def lock(connection: Connection, payment_ids: Iterable[str]) -> LockedPayments:
    """Lock payments in the order of their ids."""
    query = QUERIES["lock"].without("transaction")
    return _locked(await query.rows(connection, payment_id=list(payment_ids)))


async def lock_by_transaction(
    connection: Connection, transactions: Iterable[TransactionKey]
) -> LockedPayments:
    """Lock the payments that have these transactions."""
    query = QUERIES["lock"].without("payment_id")
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
    await QUERIES["save"].row(
        connection,
        payment_id=[before.payment_id for before, _ in changes],
        status_before=[before.status for before, _ in changes],
        version_before=[before.version for before, _ in changes],
        status=[after.status for _, after in changes],
        transaction_id=[after.transaction_id for _, after in changes],
        failure=[after.failure for _, after in changes],
        review=[after.review for _, after in changes],
        next_attempt_at=[after.next_attempt_at for _, after in changes],
        version=[after.version for _, after in changes],
        updated_at=[after.updated_at for _, after in changes],
        expected=len(changes),
    )


async def claim(connection: Connection, *, limit: int, lease_s: float) -> list[WalletPayment]:
    """Claim payments for which the gateway has to be called now, until the lease ends."""
    rows = await QUERIES["claim"].rows(connection, limit=limit, lease_s=lease_s)
    return [_payment(row) for row in rows]


async def count_reviews(connection: Connection) -> dict[str, int]:
    """The number of payments to review by reason, up to MAX_COUNTED in all."""
    rows = await QUERIES["count_reviews"].rows(connection, most=MAX_COUNTED)
    return {row["reason"]: row["number"] for row in rows}


async def has_other_payment(
    connection: Connection, payment: WalletPayment, transaction_id: str
) -> bool:
    """Whether another payment has this transaction."""
    row = await QUERIES["has_other_payment"].row(
        connection,
        source_id=payment.source_id,
        transaction_id=transaction_id,
        payment_id=payment.payment_id,
    )
    return row is not None and bool(row["found"])


async def find(connection: Connection, payment_id: str) -> WalletPayment | None:
    """A payment, without a lock."""
    query = QUERIES["search"].without("after", "any_review", "review")
    row = await query.row(connection, payment_id=payment_id, limit=1)
    return None if row is None else _payment(row)


async def search(connection: Connection, query: WalletPaymentQuery) -> list[WalletPayment]:
    """Up to `limit + 1` payments in the order of their ids."""
    filters = query.filters()
    unused = ["payment_id"]
    if query.review in (None, ANY_REVIEW):
        filters.pop("review", None)
        unused += ["review"] if query.review else ["review", "any_review"]
    statement = QUERIES["search"].without(*unused)
    rows = await statement.rows(
        connection, after=query.cursor or "", limit=query.limit + 1, **filters
    )
    return [_payment(row) for row in rows]


async def pending_transactions(connection: Connection, ids: Iterable[UUID]) -> set[TransactionKey]:
    """The transactions of those callbacks that are pending."""
    rows = await QUERIES["pending_transactions"].rows(connection, id=list(ids))
    return {(row["source_id"], row["transaction_id"]) for row in rows}


async def due_callbacks(connection: Connection, limit: int) -> dict[UUID, TransactionKey]:
    """The callbacks to try again now, with their transactions."""
    rows = await QUERIES["due_callbacks"].rows(connection, limit=limit)
    return {row["id"]: (row["source_id"], row["transaction_id"]) for row in rows}


async def lock_callbacks(
    connection: Connection, transactions: Iterable[TransactionKey]
) -> list[LockedCallback]:
    """Lock the callbacks of these transactions that were not applied; their payments are locked."""
    rows = await QUERIES["lock_callbacks"].rows(connection, **_transaction_columns(transactions))
    return [
        LockedCallback(row["id"], (row["source_id"], row["transaction_id"]), _report(row))
        for row in rows
    ]


async def finish_callbacks(connection: Connection, applied: Sequence[tuple[UUID, str]]) -> None:
    """Mark callbacks as applied, each to the payment with this id."""
    if applied:
        await QUERIES["finish_callbacks"].run(
            connection,
            id=[callback_id for callback_id, _ in applied],
            payment_id=[payment_id for _, payment_id in applied],
        )


async def postpone_callbacks(
    connection: Connection, ids: Iterable[UUID], max_attempts: int
) -> list[DeadCallback]:
    """Schedule the next attempt; returns the callbacks whose attempts are used up."""
    rows = await QUERIES["postpone_callbacks"].rows(
        connection, id=list(ids), max_attempts=max_attempts, delays_s=CALLBACK_DELAYS_S
    )
    return [_dead_callback(row) for row in rows if row["ended_at"] is not None]


async def dead_callbacks(
    connection: Connection, cursor: UUID | None, limit: int
) -> list[DeadCallback]:
    """Callbacks whose attempts are used up, newest first."""
    rows = await QUERIES["dead_callbacks"].rows(connection, last_id=last_id_of(cursor), limit=limit)
    return [_dead_callback(row) for row in rows]


async def count_dead_callbacks(connection: Connection) -> int:
    """The number of dead callbacks, up to MAX_COUNTED."""
    row = await QUERIES["count_dead_callbacks"].row(connection, most=MAX_COUNTED)
    assert row is not None
    return int(row["number"])


async def retry_callback(connection: Connection, callback_id: UUID) -> bool:
    """Try a dead callback again; False if there is none."""
    return await QUERIES["retry_callback"].row(connection, id=callback_id) is not None


def _locked(rows: Sequence[asyncpg.Record]) -> LockedPayments:
    return LockedPayments(
        {row["payment_id"]: _payment(row) for row in rows},
        rows[-1]["now"] if rows else None,
        {row["payment_id"]: row["wallet_currency"] for row in rows},
    )


def _payment(row: asyncpg.Record) -> WalletPayment:
    fields = {name: row[name] for name in WalletPayment.__slots__}
    return WalletPayment(**fields | {"status": WalletPaymentStatus(fields["status"])})


def _report(row: asyncpg.Record) -> GatewayReport:
    minor = row["amount_minor"]
    paid = None if minor is None else Money(minor, row["currency"])
    return GatewayReport(GatewayStatus(row["gateway_status"]), paid)


def _dead_callback(row: asyncpg.Record) -> DeadCallback:
    fields = dict(row)
    return DeadCallback(**fields | {"gateway_status": GatewayStatus(fields["gateway_status"])})


def _transaction_columns(transactions: Iterable[TransactionKey]) -> dict[str, list[object]]:
    keys = sorted(set(transactions))
    return {
        "source_id": [source_id for source_id, _ in keys],
        "transaction_id": [transaction_id for _, transaction_id in keys],
    }
