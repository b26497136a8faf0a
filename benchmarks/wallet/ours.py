"""The wallet service, called as its API calls it."""

from uuid import UUID

from benchmarks.wallet.by_hand import RejectedError
from paidonce.core.events import WalletId
from paidonce.db.pool import Database, open_database
from paidonce.db.queries import SCHEMA
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.reservations import Commit, Reserve


class Ours:
    """The wallet service and its database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._service = WalletCommands(database)

    async def reserve(self, payment_id: str, wallet_id: UUID, amount_minor: int) -> None:
        """Reserve the amount, unless that was done before."""
        result = await self._service.execute(Reserve(payment_id, WalletId(wallet_id), amount_minor))
        if result.reject_reason is not None:
            raise RejectedError

    async def commit(self, payment_id: str) -> None:
        """Commit the reservation."""
        if (await self._service.execute(Commit(payment_id))).reject_reason is not None:
            raise RejectedError

    async def close(self) -> None:
        """Close the connections."""
        await self._service.stop()
        await self._database.close()


async def ours(url: str) -> Ours:
    """Open one on this database."""
    return Ours(await open_database(url, SCHEMA))
