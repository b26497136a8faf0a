"""The query service: a read model of payments out of a wallet, built from messages (QRY-1).

The bus consumer marks each message as consumed in the transaction that updates the view. The result
does not depend on the order of messages or on repeats: an older one never replaces a newer one.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from paidonce.bus.model import Message, topic_of
from paidonce.core.money import format_minor, money
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, load_queries
from paidonce.payouts.messages import WALLET_PAYMENT, read_fields, read_money, read_payment_id
from paidonce.payouts.model import MessageType, WalletPaymentStatus

QUERIES: Final = load_queries(__file__)
GROUP: Final = "query"
AGGREGATE_TYPES: Final = (WALLET_PAYMENT,)
REBUILD_PAGE: Final = 500

_RANKS: Final = {status: rank for rank, status in enumerate(WalletPaymentStatus)}
_STATUS_OF: Final = {
    MessageType.INITIATED: WalletPaymentStatus.INITIATED,
    MessageType.PROCESSING: WalletPaymentStatus.PROCESSING,
    MessageType.COMPLETED: WalletPaymentStatus.COMPLETED,
    MessageType.FAILED: WalletPaymentStatus.FAILED,
    MessageType.RECOVERED: WalletPaymentStatus.COMPLETED,
}


@dataclass(frozen=True, slots=True)
class PayoutView:
    """The state of a payment according to its latest message."""

    payment_id: str
    status: WalletPaymentStatus
    amount: str
    currency: str
    version: int
    updated_at: datetime

    def replaces(self, other: "PayoutView") -> bool:
        """Whether this state is later: by version, by time, and by status.

        COMPLETED is final, and FAILED changes only to COMPLETED.
        """
        is_newer = self.version > other.version and self.updated_at >= other.updated_at
        return is_newer and _RANKS[self.status] > _RANKS[other.status]


async def consume(connection: Connection, messages: Sequence[Message]) -> None:
    """Update the views. Raises InvalidMessageError for an invalid message."""
    await _save(connection, "save_views", latest_views(_read_views(messages)))


async def find_view(connection: Connection, payment_id: str) -> PayoutView | None:
    """The view of a payment."""
    row = await QUERIES["find_view"].row(connection, payment_id=payment_id)
    if row is None:
        return None
    return PayoutView(
        payment_id=row["payment_id"],
        status=WalletPaymentStatus(row["status"]),
        amount=format_minor(row["amount_minor"], row["currency"]),
        currency=row["currency"],
        version=row["version"],
        updated_at=row["updated_at"],
    )


async def rebuild(database: Database) -> AsyncIterator[int]:
    """Rebuild the views from the outbox, page by page; yields the number of payments of each.

    Views of payments that are no longer in the outbox stay.
    """
    after = ""
    while True:
        async with database.transaction() as connection:
            await QUERIES["lock_views"].run(connection)
            page = await QUERIES["payments_in_outbox"].rows(
                connection, after=after, limit=REBUILD_PAGE
            )
            payment_ids = [row["aggregate_name"] for row in page]
            rows = await QUERIES["messages_of"].rows(connection, payment_id=payment_ids)
            views = latest_views(_read_views(map(_message, rows)))
            await _save(connection, "replace_views", views)
        yield len(page)
        if len(page) < REBUILD_PAGE:
            return
        after = payment_ids[-1]


def latest_views(views: Iterable[PayoutView]) -> list[PayoutView]:
    """The latest view of each payment, whatever their order."""
    latest: dict[str, PayoutView] = {}
    for view in views:
        before = latest.get(view.payment_id)
        if before is None or view.replaces(before):
            latest[view.payment_id] = view
    return list(latest.values())


def _read_views(messages: Iterable[Message]) -> list[PayoutView]:
    """The views that messages describe; messages of unknown types are ignored."""
    return [_read_view(one) for one in messages if one.type in set(MessageType)]


def _read_view(message: Message) -> PayoutView:
    fields = read_fields(message)
    amount = read_money(fields)
    return PayoutView(
        payment_id=read_payment_id(message, fields),
        status=_STATUS_OF[MessageType(message.type)],
        amount=format_minor(amount.amount_minor, amount.currency),
        currency=amount.currency,
        version=message.version,
        updated_at=message.time,
    )


async def _save(connection: Connection, query: str, views: Sequence[PayoutView]) -> None:
    if views:
        await QUERIES[query].run(
            connection,
            payment_id=[one.payment_id for one in views],
            status=[one.status for one in views],
            amount_minor=[money(one.amount, one.currency).amount_minor for one in views],
            currency=[one.currency for one in views],
            version=[one.version for one in views],
            updated_at=[one.updated_at for one in views],
        )


def _message(row: asyncpg.Record) -> Message:
    return Message(
        id=row["id"],
        topic=topic_of(WALLET_PAYMENT),
        key=row["aggregate_name"],
        type=row["type"],
        version=row["version"],
        time=row["occurred_at"],
        body=row["payload"].encode(),
    )
