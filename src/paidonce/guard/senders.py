"""What is known about senders: whether an address is verified, and whether it is banned.

All questions are answered from memory. A background service exchanges it with the database, so an
unavailable database delays no delivery.
"""

from datetime import timedelta
from typing import Final

from paidonce.clock import CLOCK
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.guard.bans import OVERLAP, QUERIES, VERIFIED_DAYS, BanPolicy, Bans, Suspicion
from paidonce.guard.security_log import SecurityLog
from paidonce.notifications.model import Routes
from paidonce.runtime.bounded import MAX_ENTRIES, Bounded
from paidonce.runtime.service import Service

POLL_S: Final = 2.0
"""Within this time every process knows the bans of the others."""
WRITE_PAUSE_S: Final = 0.1
MAX_VERIFIED_AT_ONCE: Final = 1_000
_DAY_S: Final = 86_400.0


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
        self.bans = Bans(policy, routes or {})

    def is_banned(self, address: str) -> bool:
        """Whether its requests are rejected."""
        return address in self.bans and address not in self._verified

    def is_verified_sender(self, address: str) -> bool:
        """Whether it sent a verified delivery within VERIFIED_DAYS."""
        return address in self._verified

    def verified(self, address: str) -> bool:
        """Record a verified delivery; returns whether the sender is new today."""
        is_news = self._verified.add(address)
        if is_news:
            self._listener.wake()
        return is_news

    def suspect(self, address: str, suspicion: Suspicion) -> None:
        """Add to its risk score."""
        if self.bans.suspect(address, suspicion):
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
        await self.bans.sync(self._database)


class VerifiedSenders:
    """Addresses that sent verified deliveries: they have a higher limit and are never banned.

    The senders that this process knows; `sync` exchanges them with the other processes.
    """

    def __init__(self) -> None:
        self._verified_s: Bounded[str, float] = Bounded()
        self._unsaved: Bounded[str, None] = Bounded()
        self._since = CLOCK.now() - timedelta(days=VERIFIED_DAYS)

    def add(self, address: str) -> bool:
        """Record a verified delivery; returns whether the sender is new today."""
        seen_s = self._verified_s.get(address)
        now_s = CLOCK.now_s()
        if seen_s is not None and now_s - seen_s < _DAY_S:
            return False
        self._verified_s.put(address, now_s)
        self._unsaved.put(address, None)
        return True

    def __contains__(self, address: str) -> bool:
        seen_s = self._verified_s.get(address)
        return seen_s is not None and CLOCK.now_s() - seen_s < VERIFIED_DAYS * _DAY_S

    async def sync(self, connection: Connection) -> None:
        """Write new senders of this process, and read those of others."""
        unsaved = list(self._unsaved)[:MAX_VERIFIED_AT_ONCE]
        if unsaved:
            # Sorted, to avoid deadlocks.
            await QUERIES["add_verified_senders"].run(connection, addresses=sorted(unsaved))
            for address in unsaved:
                self._unsaved.pop(address, None)
        since = min(self._since, CLOCK.now() - OVERLAP)  # the clock may have been set back
        rows = await QUERIES["verified_senders"].rows(connection, since=since, limit=MAX_ENTRIES)
        for row in reversed(rows):  # the oldest first
            verified_s = row["verified_at"].timestamp()
            if verified_s > self._verified_s.get(row["address"], 0.0):
                self._verified_s.put(row["address"], verified_s)
            since = max(since, row["verified_at"] - OVERLAP)
        self._since = since
