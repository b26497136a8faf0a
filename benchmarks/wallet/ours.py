"""The wallet service, called as its API calls it."""

from uuid import UUID

from benchmarks.wallet.by_hand import RefusedError
from paidonce.domain.events import WalletId
from paidonce.domain.reservations import Commit, Reserve
from paidonce.services.wallet import WalletService
from paidonce.store.db import Database, open_database


class Ours:
    """A service, and the database under it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._service = WalletService(database)

    async def reserve(self, payment_id: str, wallet_id: UUID, amount_minor: int) -> None:
        """Set so much aside, unless that was done before."""
        judged = await self._service.do(Reserve(payment_id, WalletId(wallet_id), amount_minor))
        if judged.refusal is not None:
            raise RefusedError

    async def commit(self, payment_id: str) -> None:
        """Take what was set aside."""
        if (await self._service.do(Commit(payment_id))).refusal is not None:
            raise RefusedError

    async def close(self) -> None:
        """Let go of the connections."""
        await self._service.stop()
        await self._database.close()


async def ours(url: str) -> Ours:
    """One on this database."""
    return Ours(await open_database(url))
