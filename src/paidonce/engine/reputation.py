"""What is thought of an address: whether it is known, and whether it is banned.

All questions are answered from memory. The table is read and written behind that, in one task, so
that a database that is away costs no delivery anything.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from paidonce.awaiting import comes_within
from paidonce.domain.risk import BanPolicy, Suspicion
from paidonce.engine.bans import Bans
from paidonce.engine.known import KnownAddresses
from paidonce.engine.security_log import SecurityLog
from paidonce.store.db import Database
from paidonce.store.notices import Telling
from paidonce.telemetry import logger

log = logger(__name__)

POLL_S: Final = 2.0
"""Within this long every process knows what one of them has decided."""
WRITE_PAUSE_S: Final = 0.1


class Reputation:
    """One for each process that takes deliveries."""

    def __init__(
        self,
        database: Database,
        policy: BanPolicy,
        security_log: SecurityLog,
        told_to: Telling | None = None,
    ) -> None:
        self._database = database
        self._log = security_log
        self._known = KnownAddresses()
        self._bans = Bans(policy, self._lifted, told_to or {})
        self._news = asyncio.Event()
        self._is_well = True
        self.on_lifted: Callable[[str], None] = lambda address: None
        """Called when a ban is lifted, so that nothing else is held against the address."""

    def is_banned(self, address: str) -> bool:
        """Whether its requests are refused."""
        return address in self._bans and address not in self._known

    def banned_s(self, address: str) -> float:
        """For how long they still are."""
        return self._bans.left_s(address)

    def is_known(self, address: str) -> bool:
        """Whether a verified delivery came from there within the last weeks."""
        return address in self._known

    def verified(self, address: str) -> bool:
        """A verified delivery came from there; returns whether that is news."""
        is_news = self._known.note(address)
        if is_news:
            self._news.set()
        return is_news

    def score(self, address: str) -> float:
        """How suspicious it is now, by what this process has seen."""
        return self._bans.score(address)

    def suspect(self, address: str, suspicion: Suspicion) -> None:
        """Something came from there that nobody known sends."""
        if self._bans.suspect(address, suspicion):
            self._news.set()

    async def run(self) -> NoReturn:
        """Exchange what is known with the other processes, until cancelled."""
        while True:
            await self._wait()
            self._log.flush_if_due()
            try:
                await self.run_once()
                self._is_well = True
            except Exception as error:
                if self._is_well:
                    log.warning("reputation_not_shared", error=type(error).__name__)
                self._is_well = False

    async def run_once(self) -> None:
        """Write what is new here, and read what is new there. Raises DatabaseAwayError."""
        async with self._database.connection() as connection:
            await self._known.sync(connection)
        await self._bans.sync(self._database)

    async def _wait(self) -> None:
        await asyncio.sleep(WRITE_PAUSE_S if self._is_well else POLL_S)
        if not await comes_within(self._news, POLL_S):
            return
        self._news.clear()

    def _lifted(self, address: str) -> None:
        self.on_lifted(address)
