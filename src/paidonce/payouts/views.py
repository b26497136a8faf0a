"""The query service: a read model of payments out of a wallet, built from messages (QRY-1).

The bus consumer marks each message as consumed in the transaction that updates the view. The result
does not depend on the order of messages or on repeats: an older one never replaces a newer one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from paidonce.bus.model import Message, topic_of
from paidonce.core.money import format_minor, money
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, Query, columns_of, load_queries
from paidonce.payouts.messages import WALLET_PAYMENT, read_fields, read_money, read_payment_id
from paidonce.payouts.model import MessageType, WalletPaymentStatus

QUERIES: Final = load_queries(__file__)
GROUP: Final = "query"
AGGREGATE_TYPES: Final = (WALLET_PAYMENT,)
REBUILD_PAGE: Final = 500

_RANKS: Final = {status: rank for rank, status in enumerate(WalletPaymentStatus)}
_STATUS_OF: Final = {MessageType[status.name]: status for status in WalletPaymentStatus} | {
    MessageType.RECOVERED: WalletPaymentStatus.COMPLETED
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
    await _save(connection, QUERIES["save_views"], messages)


async def rebuild(database: Database, progress: Callable[[int], None]) -> int:
    """Rebuild the views from the outbox, page by page; returns the number of payments.

    `progress` is called with the number so far. Views of payments that are no longer in the outbox
    stay.
    """
    after, done = "", 0
    while True:
        async with database.transaction() as connection:
            await QUERIES["lock_views"].run(connection)
            rows = await QUERIES["messages_in_outbox"].rows(
                connection, after=after, limit=REBUILD_PAGE
            )
            messages = [Message(topic=topic_of(WALLET_PAYMENT), **dict(row)) for row in rows]
            await _save(connection, QUERIES["save_views"].without("newer"), messages)
        number = len({one.key for one in messages})
        done += number
        progress(done)
        if number < REBUILD_PAGE:
            return done
        after = messages[-1].key


def latest_views(views: Iterable[PayoutView]) -> list[PayoutView]:
    """The latest view of each payment, whatever their order."""
    latest: dict[str, PayoutView] = {}
    for view in views:
        before = latest.get(view.payment_id)
        if before is None or view.replaces(before):
            latest[view.payment_id] = view
    return list(latest.values())


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


async def _save(connection: Connection, query: Query, messages: Iterable[Message]) -> None:
    """Save what messages say; those of unknown types are ignored."""
    views = latest_views(_read_view(one) for one in messages if one.type in set(MessageType))
    if views:
        await query.run(
            connection,
            **columns_of(views, "payment_id", "status", "currency", "version", "updated_at"),
            amount_minor=[money(one.amount, one.currency).amount_minor for one in views],
        )
