"""Tells people when signatures of verified senders begin to fail: the secret is wrong (SEC-11).

Failures in a row are counted for each source, over all processes. A verified delivery ends a row.
"""

from dataclasses import dataclass
from datetime import UTC
from typing import Final

from paidonce.clock import CLOCK
from paidonce.core.events import SourceId
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.guard.bans import QUERIES
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification, Routes
from paidonce.processing.items import Source
from paidonce.telemetry import logger, metrics

log = logger(__name__)

ENOUGH: Final = 3
"""After this many failures in a row people are told. One may be anybody's who shares an address."""
QUIET_S: Final = 3_600.0
"""How long they are not told again of the same source."""


@dataclass(slots=True)
class _Failing:
    source: Source
    address: str
    failures: int = 0


class FailingSources:
    """What this process counted since the last `sync`, and which sources fail in any process."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._counted: dict[SourceId, _Failing] = {}
        self._failing: set[SourceId] = set()
        self._recovered: set[SourceId] = set()

    def failed(self, address: str, source: Source) -> None:
        """Count a wrong signature from a verified sender of the source."""
        metrics.bound(metrics.SENDERS_REJECTED, source.name).inc()
        counted = self._counted.setdefault(source.id, _Failing(source, address))
        counted.address, counted.failures = address, counted.failures + 1

    def verified(self, source_id: SourceId) -> None:
        """A verified delivery: the secret is right."""
        if source_id in self._counted or source_id in self._failing:
            self._counted.pop(source_id, None)
            self._failing.discard(source_id)
            self._recovered.add(source_id)

    async def sync(self, database: Database) -> None:
        """Add what was counted here to what all processes counted, and tell people if it is due."""
        async with database.connection() as connection:
            if recovered := sorted(self._recovered):
                await QUERIES["reset_failures"].run(connection, source_ids=recovered)
                self._recovered.difference_update(recovered)
            rows = await QUERIES["failing_sources"].rows(connection)
            self._failing = {SourceId(row["source_id"]) for row in rows} - self._recovered
        for source_id in sorted(self._counted):
            await self._tell(database, source_id)

    async def _tell(self, database: Database, source_id: SourceId) -> None:
        counted = self._counted.pop(source_id, None)
        if counted is None:  # a verified delivery came meanwhile
            return
        try:
            async with database.transaction() as connection:
                told = await self._write(connection, counted)
        except BaseException:
            again = self._counted.setdefault(source_id, counted)
            if again is not counted:
                again.failures += counted.failures
            raise
        self._failing.add(source_id)
        if told is not None:
            log.warning("signatures_fail", **told)

    async def _write(self, connection: Connection, counted: _Failing) -> dict[str, object] | None:
        """Store the count; the details of the notification if people are told now."""
        source = counted.source
        row = await QUERIES["count_failures"].row(
            connection,
            source_id=source.id,
            failures=counted.failures,
            address=counted.address,
            enough=ENOUGH,
            quiet_s=QUIET_S,
        )
        assert row is not None
        if not row["is_due"]:
            return None
        since = row["first_at"].astimezone(UTC).isoformat(timespec="seconds")
        details: dict[str, object] = {
            "source": source.name,
            "address": counted.address,
            "failures": row["failures"],
            "message": _remedy(source.name, since.replace("+00:00", "Z")),
        }
        now = CLOCK.now()
        notification = Notification(NotificationKind.SIGNATURES, now, source.name, details=details)
        await notifications_store.add(connection, self._routes, notification)
        await QUERIES["set_told"].run(connection, source_id=source.id)
        return details


def _remedy(source: str, since: str) -> str:
    return (
        f"this address sent authentic deliveries before, so sources.{source}.secrets is probably "
        "wrong: correct it, run `paidonce reload`, and then `paidonce events reprocess --refused "
        f"--source {source} --since {since}`"
    )
