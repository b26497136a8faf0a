"""Reconciles sources with the statements of their gateways: on request, and by a timer (PAY-9).

One process at a time works on a source, as leader. When it is killed or frozen, the next one starts
the run again. The table of runs tells when the timer is due.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from paidonce.clock import CLOCK
from paidonce.core.events import SourceId
from paidonce.core.notifications import NotificationKind
from paidonce.db.pool import Database, Trouble, trouble
from paidonce.errors import GatewayError
from paidonce.ids import new_id
from paidonce.lookup.http_client import SHARE_OF_RATE, HttpClient, HttpTimeouts, RateLimitedClient
from paidonce.notifications import store as notifications_store
from paidonce.notifications.model import Notification
from paidonce.processing.items import MAX_MESSAGE, Rules, Source
from paidonce.providers.contract import StatementApi
from paidonce.reconciliation import store
from paidonce.reconciliation.comparison import Comparison
from paidonce.reconciliation.model import ReconciliationFinding, Run
from paidonce.reconciliation.repairs import Repairs
from paidonce.reconciliation.store import QUERIES
from paidonce.runtime.leader import Leader, Leadership, LeadershipLostError
from paidonce.runtime.service import Service
from paidonce.runtime.wakeup import Wakeup
from paidonce.telemetry import logger, masked

log = logger(__name__)

POLL_S: Final = 2.0
RELEASE_TIMEOUT_S: Final = 1.0
MAX_STARTS: Final = 3
"""How often a run may crash its process before it fails."""
MIN_AGE: Final = timedelta(minutes=10)
"""Webhooks of younger payments may still be on the way: they are not compared."""
RETRY_AFTER: Final = timedelta(hours=1)
"""When a scheduled run that failed is repeated."""
TIMEOUTS: Final = HttpTimeouts(call_s=30.0, pauses_s=(1.0, 5.0, 20.0))
"""A page of a statement takes longer than a lookup, and nobody waits for it."""
MAX_NOTIFIED: Final = 20


@dataclass(frozen=True, slots=True)
class Timer:
    """How often a source is reconciled, and how far back."""

    every: timedelta
    window: timedelta


class ReconciliationWorker(Service):
    """Runs the requested reconciliations, one after the other."""

    def __init__(
        self,
        database: Database,
        rules: Rules,
        wakeup: Wakeup,
        timers: Mapping[SourceId, Timer] | None = None,
        timeouts: HttpTimeouts = TIMEOUTS,
        leader: Leader | None = None,
    ) -> None:
        super().__init__("reconciliation worker")
        self._database = database
        self._rules = rules
        self._wakeup = wakeup
        self._timers = timers or {}
        self._leader = leader or Leader(database)
        self._http = HttpClient(timeouts)
        self._interrupted: set[UUID] = set()

    async def run(self) -> None:
        """Work until asked to finish. A run that is cancelled is begun again later."""
        try:
            while not self.is_finishing:
                if await self.run_once() == 0:
                    await self.pause(POLL_S)
        finally:
            await self.close()

    async def run_once(self) -> int:
        """Run what is requested or due; returns how many reconciliations were finished."""
        await self._uncount_starts()
        await self._add_scheduled()
        async with self._database.connection() as connection:
            rows = await QUERIES["sources_with_work"].rows(connection)
        pending = {row["source_id"] for row in rows}
        sources = [one for one in self._rules.sources.values() if one.id in pending]
        apis = [(source, source.provider.statement_api()) for source in sources]
        return sum([await self._work_on(source, api) for source, api in apis if api is not None])

    async def close(self) -> None:
        """Close the HTTP client."""
        await self._http.close()

    async def _add_scheduled(self) -> None:
        for source_id, timer in self._timers.items():
            async with self._database.connection() as connection:
                await QUERIES["add_scheduled"].run(
                    connection,
                    id=new_id(),
                    source_id=source_id,
                    every=timer.every,
                    retry_after=min(RETRY_AFTER, timer.every),
                    window=timer.window,
                    delay=MIN_AGE,
                )

    async def _work_on(self, source: Source, statement_api: StatementApi) -> bool:
        """Run one; False if another process leads, or none is pending."""
        try:
            async with self._leader.lead(f"reconciliation {source.id}") as leadership:
                return leadership is not None and await self._lead(
                    source, statement_api, leadership
                )
        except LeadershipLostError as error:
            log.warning("leadership_lost", source=source.name, detail=str(error))
            return False

    async def _lead(
        self, source: Source, statement_api: StatementApi, leadership: Leadership
    ) -> bool:
        session = await leadership.session()
        try:
            row = await QUERIES["begin"].row(session, source_id=source.id)
            if row is None:
                return False
            run = Run(**row)
            client = RateLimitedClient(self._http, source.lookup_rate * SHARE_OF_RATE)
            client.require = leadership.require
            repairs = Repairs(self._database, self._rules, source, statement_api, self._wakeup, run)
            work = Comparison(
                self._database, leadership, session, source, statement_api, run, client, repairs
            )
            await self._finish(work)
            return True
        finally:
            session.terminate()

    async def _finish(self, work: Comparison) -> None:
        """Run it to its end, unless the database is unavailable or the service stops."""
        run, leadership = work.run, work.leadership
        try:
            message = await self._compare(work)
            await work.finish(message)
        except asyncio.CancelledError:
            if leadership.is_held:
                await self._release(run.id)
            raise
        except Exception:
            if leadership.is_held:
                self._interrupted.add(run.id)
            raise
        log.info("reconciled", source=work.source.name, reconciliation=str(run.id), error=message)
        await self._notify(work)

    async def _compare(self, work: Comparison) -> str | None:
        """Compare and repair; returns the error message if that failed."""
        run = work.run
        if run.starts > MAX_STARTS:
            return f"its process ended {run.starts - 1} times"
        try:
            await work.compare_all()
        except GatewayError as error:
            return f"gateway: {error}"[:MAX_MESSAGE]
        except LeadershipLostError:
            raise
        except Exception as error:
            if trouble(error) is Trouble.AWAY:
                raise
            log.error("reconciliation_failed", reconciliation=str(run.id), exc_info=error)
            return "internal error; the log has the details"
        return None

    async def _uncount_starts(self) -> None:
        """Starts that ended because the database was unavailable do not count as crashes."""
        if self._interrupted:
            async with self._database.connection() as connection:
                await QUERIES["uncount_starts"].run(connection, id=list(self._interrupted))
            self._interrupted.clear()

    async def _release(self, run_id: UUID) -> None:
        with contextlib.suppress(Exception):
            async with (
                asyncio.timeout(RELEASE_TIMEOUT_S),
                self._database.connection() as connection,
            ):
                await QUERIES["release"].run(connection, id=run_id)

    async def _notify(self, work: Comparison) -> None:
        """Notify people of new findings that were not repaired."""
        async with work.leadership.connection() as connection, connection.transaction():
            found = await store.findings(connection, work.run.id, MAX_NOTIFIED)
            new = [one for one in found if one.new and one.resolution is None]
            notifications = [_notification(work.source, work.run.id, one) for one in new]
            await notifications_store.add(connection, self._rules.routes, *notifications)
        for one in notifications:
            log.warning("reconciliation_finding", source=work.source.name, **one.details)


def _notification(source: Source, run_id: UUID, finding: ReconciliationFinding) -> Notification:
    fields = {
        "reconciliation": run_id,
        "external_payment_id": finding.external_payment_id,
        "kind": finding.kind,
        "reason": finding.reason,
    }
    return Notification(
        kind=NotificationKind.FINDING,
        at=CLOCK.now(),
        source=source.name,
        payment_id=finding.payment_id,
        details={name: masked(str(value)) for name, value in fields.items()},
    )
