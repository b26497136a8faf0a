"""Who is banned: scores of this process, and a table that all of them share (SEC-4)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from paidonce import telemetry
from paidonce.domain.risk import KNOWN_DAYS, REMEMBERED_DAYS, BanPolicy, Suspicion
from paidonce.engine.bounded import MAX_ENTRIES, Bounded
from paidonce.store import bans as store
from paidonce.store import listings
from paidonce.store.db import Database
from paidonce.store.queries import Connection

MAX_WRITTEN_AT_ONCE: Final = 100
OVERLAP: Final = timedelta(seconds=30)
"""What was committed later than it was dated is looked for again."""
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)

OnLifted = Callable[[str], None]


class Bans:
    """What this process knows of them; `sync` is how it tells the others and hears of theirs."""

    def __init__(self, policy: BanPolicy, on_lifted: OnLifted) -> None:
        self._policy = policy
        self._on_lifted = on_lifted
        self._scores: Bounded[str, tuple[float, float]] = Bounded()  # and when, in seconds
        self._until_s: Bounded[str, float] = Bounded()
        self._untold: Bounded[str, Suspicion] = Bounded()
        self._lifted_at: Bounded[str, datetime] = Bounded()
        self._since = _LONG_AGO

    def __contains__(self, address: str) -> bool:
        until_s = self._until_s.get(address)
        if until_s is None:
            return False
        if until_s > time.time():
            return True
        self._until_s.pop(address, None)
        return False

    def left_s(self, address: str) -> float:
        """How long the address is still banned."""
        return max(self._until_s.get(address, 0.0) - time.time(), 0.0)

    def suspect(self, address: str, suspicion: Suspicion) -> bool:
        """Add to the score of an address; returns whether it is banned for it, from now on."""
        now_s = time.monotonic()
        before, at_s = self._scores.get(address, (0.0, now_s))
        score = self._policy.score(before, now_s - at_s, suspicion)
        if score < self._policy.threshold or address in self:
            self._scores.put(address, (score, now_s))
            return False
        self._scores.pop(address, None)
        self._until_s.put(address, time.time() + self._policy.length_s(1))
        self._untold.put(address, suspicion)
        return True

    async def sync(self, database: Database) -> None:
        """Write the bans of this process, and read those of others and what was lifted."""
        for address, suspicion in list(self._untold.items())[:MAX_WRITTEN_AT_ONCE]:
            async with database.transaction() as connection:
                until = await self._write(connection, address, suspicion)
            if self._untold.pop(address, None) is None:
                continue  # it was lifted meanwhile
            if until is None:
                self._until_s.pop(address, None)
            else:
                self._until_s.put(address, until.timestamp())
        async with database.connection() as connection:
            await self._read(connection)

    async def _write(
        self, connection: Connection, address: str, suspicion: Suspicion
    ) -> datetime | None:
        """Until when the address is banned, longer than the last time; None if it never is."""
        last = await store.ban_of(connection, address, REMEMBERED_DAYS)
        if last is not None and last["is_banned"]:
            until: datetime = last["until"]  # another process was first
            return until
        times = last["times"] + 1 if last is not None and last["is_remembered"] else 1
        banned_until = await store.ban(
            connection,
            address=address,
            reason=suspicion,
            times=times,
            length_s=self._policy.length_s(times),
            known_days=KNOWN_DAYS,
        )
        if banned_until is not None:
            until_text = banned_until.isoformat()
            await listings.record_action(
                connection,
                "paidonce",
                "address_banned",
                address=address,
                reason=suspicion,
                times=times,
                until=until_text,
            )
            telemetry.log_security(
                "address_banned", address=address, reason=suspicion, times=times, until=until_text
            )
        return banned_until

    async def _read(self, connection: Connection) -> None:
        for row in reversed(await store.changes(connection, self._since, MAX_ENTRIES)):
            self._since = max(self._since, row["changed_at"] - OVERLAP)
            if row["lifted_at"] is None:
                self._until_s.put(row["address"], row["until"].timestamp())
            elif self._lifted_at.get(row["address"]) != row["lifted_at"]:
                self._lifted_at.put(row["address"], row["lifted_at"])
                self._forget(row["address"])

    def _forget(self, address: str) -> None:
        """Its ban was lifted: nothing of it is held against the address any more."""
        for remembered in (self._until_s, self._scores, self._untold):
            remembered.pop(address, None)
        self._on_lifted(address)
        telemetry.log_security("ban_lifted", address=address)
