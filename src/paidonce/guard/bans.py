"""Bans: risk scores of this process, and a table that all processes share (SEC-4)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from paidonce.audit.model import OURSELVES
from paidonce.audit.store import record_action
from paidonce.clock import CLOCK
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.db.queries import Connection, load_queries
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes
from paidonce.runtime.bounded import MAX_ENTRIES, Bounded
from paidonce.telemetry import log_security

QUERIES: Final = load_queries(__file__)

MAX_WRITTEN_AT_ONCE: Final = 100
OVERLAP: Final = timedelta(seconds=30)
"""Rows that were committed later than their timestamp are read again."""
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)
REMEMBERED_DAYS: Final = 7
"""A ban that ended longer ago does not make the next one longer."""
VERIFIED_DAYS: Final = 30
"""An address that sent a verified delivery is not banned for this long."""


class Suspicion(StrEnum):
    """What adds to the risk score."""

    BAD_SIGNATURE = "bad_signature"
    MALFORMED = "malformed"  # before it could be verified
    UNKNOWN_SOURCE = "unknown_source"  # may be a mistake in the gateway's settings
    INSISTENCE = "insistence"  # a flood of requests over the limit


POINTS: Final = {
    Suspicion.BAD_SIGNATURE: 1.0,
    Suspicion.MALFORMED: 1.0,
    Suspicion.UNKNOWN_SOURCE: 0.5,
    Suspicion.INSISTENCE: 0.5,
}
"""What each adds to the score."""


@dataclass(frozen=True, slots=True)
class BanPolicy:
    """When an address is banned, and for how long."""

    threshold: float
    half_life_s: float
    first_s: float
    longest_s: float

    def decayed(self, score: float, age_s: float) -> float:
        """A score after some time."""
        return float(score * 0.5 ** (max(age_s, 0.0) / self.half_life_s))

    def length_s(self, times: int) -> float:
        """The length of the n-th ban of an address, from 1."""
        doublings = min(times - 1, 30)
        return min(self.first_s * 2.0**doublings, self.longest_s)


class Bans:
    """The bans that this process knows; `sync` exchanges them with the other processes."""

    def __init__(self, policy: BanPolicy, routes: Routes) -> None:
        self._policy = policy
        self._routes = routes
        self.on_lifted: Callable[[str], None] = lambda address: None
        """Called when a ban is lifted, to reset the limits of the address."""
        self._scores: Bounded[str, tuple[float, float]] = Bounded()  # and when, in seconds
        self._until_s: Bounded[str, float] = Bounded()  # by the monotonic clock
        self._unsaved: Bounded[str, tuple[Suspicion, float]] = Bounded()  # and the score
        self._lifted_at: Bounded[str, datetime] = Bounded()
        self._since = _LONG_AGO

    def __contains__(self, address: str) -> bool:
        return address in self._until_s and self.left_s(address) > 0

    def left_s(self, address: str) -> float:
        """How long the address is still banned."""
        return max(self._until_s.get(address, 0.0) - time.monotonic(), 0.0)

    def score(self, address: str) -> float:
        """The current risk score of the address."""
        score, at_s = self._scores.get(address, (0.0, 0.0))
        return self._policy.decayed(score, time.monotonic() - at_s)

    def suspect(self, address: str, suspicion: Suspicion) -> bool:
        """Add to the score of an address; returns whether it is banned now."""
        score, now_s = self.score(address) + POINTS[suspicion], time.monotonic()
        if score < self._policy.threshold or address in self:
            self._scores.put(address, (score, now_s))
            return False
        self._scores.pop(address, None)
        self._until_s.put(address, now_s + self._policy.length_s(1))
        self._unsaved.put(address, (suspicion, score))
        return True

    async def sync(self, database: Database) -> None:
        """Write the bans of this process; read those of others, and lifted ones."""
        for address, (suspicion, score) in list(self._unsaved.items())[:MAX_WRITTEN_AT_ONCE]:
            async with database.transaction() as connection:
                until = await self._write(connection, address, suspicion, score)
            if self._unsaved.pop(address, None) is None:
                continue  # lifted meanwhile
            if until is None:
                self._until_s.pop(address, None)
            else:
                self._until_s.put(address, self._ends_s(until))
        async with database.connection() as connection:
            await self._read(connection)

    async def _write(
        self, connection: Connection, address: str, suspicion: Suspicion, score: float
    ) -> datetime | None:
        """Until when the address is banned, longer each time; None for a verified sender."""
        last = await QUERIES["last_ban"].row(
            connection, address=address, remembered_days=REMEMBERED_DAYS
        )
        if last is not None and last["is_banned"]:
            until: datetime = last["until"]  # another process was first
            return until
        times = last["times"] + 1 if last is not None and last["is_remembered"] else 1
        banned = {"address": address, "reason": suspicion, "score": score, "times": times}
        length_s = self._policy.length_s(times)
        row = await QUERIES["ban"].row(
            connection, **banned, length_s=length_s, verified_days=VERIFIED_DAYS
        )
        if row is None:
            return None
        until = row["until"]
        details: dict[str, Any] = banned | {"score": round(score, 1), "until": until.isoformat()}
        await record_action(connection, OURSELVES, "address_banned", **details)
        notification = Notification(NotificationKind.BAN, CLOCK.now(), details=details)
        await notifications_store.add(connection, self._routes, notification)
        log_security("address_banned", **details)
        return until

    async def _read(self, connection: Connection) -> None:
        since = min(self._since, CLOCK.now() - OVERLAP)  # the clock may have been set back
        rows = await QUERIES["changes"].rows(connection, since=since, limit=MAX_ENTRIES)
        for row in reversed(rows):  # the oldest first
            since = max(since, row["changed_at"] - OVERLAP)
            if row["lifted_at"] is None:
                self._until_s.put(row["address"], self._ends_s(row["until"]))
            elif self._lifted_at.get(row["address"]) != row["lifted_at"]:
                self._lifted_at.put(row["address"], row["lifted_at"])
                self._forget(row["address"])
        self._since = since

    def _ends_s(self, until: datetime) -> float:
        """When a ban ends by the monotonic clock, however the clocks jumped since it began."""
        left_s = (until - CLOCK.now()).total_seconds()
        return time.monotonic() + min(left_s, self._policy.longest_s)

    def _forget(self, address: str) -> None:
        """Reset everything about an address whose ban was lifted."""
        for remembered in (self._until_s, self._scores, self._unsaved):
            remembered.pop(address, None)
        self.on_lifted(address)
        log_security("ban_lifted", address=address)
