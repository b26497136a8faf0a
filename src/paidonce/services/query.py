"""The query service: what is shown of payments out of a wallet, made of their events (QRY-1).

Its consumer remembers each event in the transaction that shows it. Beyond that nothing depends on
the order in which events come, or on how often: an older one never takes the place of a newer one.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from paidonce.bus.messages import Message, topic_of
from paidonce.domain.payment_views import newest
from paidonce.services.facts import WALLET_PAYMENT, shown_by
from paidonce.store import payment_views
from paidonce.store.db import Database
from paidonce.store.payment_views import LoggedFact
from paidonce.store.queries import Connection

GROUP: Final = "query"
ABOUT: Final = (WALLET_PAYMENT,)
REBUILD_PAGE: Final = 500


async def take(connection: Connection, messages: Sequence[Message]) -> None:
    """Show what the messages tell. Raises MessageRefusedError for what cannot be believed."""
    told = [shown_by(one) for one in messages]
    await payment_views.show(connection, newest(one for one in told if one is not None))


async def rebuild(database: Database) -> AsyncIterator[int]:
    """Make what is shown again from the log, page by page; yields how many payments each had.

    What the log does not tell of any more stays as it is shown.
    """
    after = ""
    while True:
        async with database.transaction() as connection:
            await payment_views.hold(connection)
            page = await payment_views.payments_in_log(connection, after, REBUILD_PAGE)
            log = await payment_views.log_of(connection, page)
            told = [shown_by(_message(row)) for row in log]
            views = newest(one for one in told if one is not None)
            await payment_views.replace(connection, views)
        yield len(page)
        if len(page) < REBUILD_PAGE:
            return
        after = page[-1]


def _message(row: LoggedFact) -> Message:
    return Message(
        id=row.id,
        topic=topic_of(WALLET_PAYMENT),
        key=row.key,
        type=row.type,
        version=row.version,
        time=row.at,
        body=row.body,
    )
