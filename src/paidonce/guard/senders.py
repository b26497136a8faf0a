"""What is known about senders: whether an address is verified, and whether it is banned.

All questions are answered from memory. A background service exchanges it with the database, so an
unavailable database delays no delivery.
"""

from collections.abc import Callable
from typing import Final

from paidonce.db.pool import Database
from paidonce.guard.bans import Bans
from paidonce.guard.risk import BanPolicy, Suspicion
from paidonce.guard.security_log import SecurityLog
from paidonce.guard.verified_senders import VerifiedSenders
from paidonce.notifications.model import Routes
from paidonce.runtime.service import Service

POLL_S: Final = 2.0
"""Within this time every process knows the bans of the others."""
WRITE_PAUSE_S: Final = 0.1


class SenderRecords(Service):
    """Verified senders and bans. One for each process that receives deliveries."""

    def __init__(
        self,
        database: Database,
        policy: BanPolicy,
        security_log: SecurityLog,
        routes: Routes | None = None,
    ) -> None:
        super().__init__("sender records")
        self._database = database
        self._log = security_log
        self._verified = VerifiedSenders()
        self._bans = Bans(policy, self._lifted, routes or {})
        self.on_lifted: Callable[[str], None] = lambda address: None
        """Called when a ban is lifted, to reset the limits of the address."""

    def is_banned(self, address: str) -> bool:
        """Whether its requests are rejected."""
        return address in self._bans and address not in self._verified

    def ban_left_s(self, address: str) -> float:
        """How long it is still banned."""
        return self._bans.left_s(address)

    def is_verified_sender(self, address: str) -> bool:
        """Whether it sent a verified delivery within VERIFIED_DAYS."""
        return address in self._verified

    def verified(self, address: str) -> bool:
        """Record a verified delivery; returns whether the sender is new today."""
        is_news = self._verified.add(address)
        if is_news:
            self._listener.wake()
        return is_news

    def score(self, address: str) -> float:
        """Its risk score in this process."""
        return self._bans.score(address)

    def suspect(self, address: str, suspicion: Suspicion) -> None:
        """Add to its risk score."""
        if self._bans.suspect(address, suspicion):
            self._listener.wake()

    async def run(self) -> None:
        """Exchange news with the other processes, until asked to finish."""
        try:
            while not self.is_finishing:
                await self.pause(WRITE_PAUSE_S)
                await self._listener.wait(POLL_S)
                self._log.flush_if_due()
                await self.run_once()
        finally:
            self._log.flush()

    async def run_once(self) -> None:
        """Exchange news with the other processes. Raises DatabaseUnavailableError."""
        async with self._database.connection() as connection:
            await self._verified.sync(connection)
        await self._bans.sync(self._database)

    def _lifted(self, address: str) -> None:
        self.on_lifted(address)
