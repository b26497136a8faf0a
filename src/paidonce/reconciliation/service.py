"""What operators can do with reconciliations."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.audit.store import record_action
from paidonce.clock import CLOCK
from paidonce.core.actors import Actor
from paidonce.db.paging import Page, page_of
from paidonce.db.pool import Database
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.ids import new_id
from paidonce.processing.items import Rules, Source
from paidonce.reconciliation import model, store
from paidonce.reconciliation.model import ReconciliationReport, ReconciliationSummary
from paidonce.reconciliation.store import QUERIES
from paidonce.reconciliation.worker import MIN_AGE

MAX_FINDINGS: Final = 500
"""How many findings a report lists; it counts all of them."""


class ReconciliationService:
    """Requests and shows reconciliations."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def start(
        self, request: model.ReconciliationRequest, actor: Actor
    ) -> ReconciliationReport:
        """Request a reconciliation; a worker runs it. Payments of the last minutes are left out.

        Raises InvalidRequestError, or NotFoundError for an unknown source.
        """
        source = self._source(request.source)
        since, latest = request.since, CLOCK.now() - MIN_AGE
        until = latest if request.until is None else min(request.until, latest)
        if since >= until:
            raise InvalidRequestError(
                "since: give a time before until, and more than "
                f"{MIN_AGE.seconds // 60} minutes ago"
            )
        run_id = new_id()
        async with self._database.transaction() as connection:
            await QUERIES["add"].run(
                connection,
                id=run_id,
                source_id=source.id,
                since=since,
                until=until,
                repairs=not request.dry_run,
                actor=actor.name,
            )
            await record_action(
                connection,
                actor.name,
                "reconciliation_started",
                reconciliation=str(run_id),
                source=source.name,
                since=since.isoformat(),
                until=until.isoformat(),
                dry_run=request.dry_run,
            )
        return await self.get(run_id)

    async def search(self, query: model.ReconciliationQuery) -> Page[ReconciliationSummary]:
        """Reconciliations, newest first."""
        async with self._database.connection() as connection:
            rows = await QUERIES["reconciliations"].rows(
                connection, before=query.cursor, id=None, source=query.source, limit=query.limit + 1
            )
        found = [model.summary(ReconciliationSummary, row) for row in rows]
        return page_of(found, query.limit, lambda one: one.id)

    async def get(self, run_id: UUID) -> ReconciliationReport:
        """One with its findings. Raises NotFoundError."""
        async with self._database.snapshot() as connection:
            row = await QUERIES["reconciliations"].row(
                connection, before=None, id=run_id, source=None, limit=1
            )
            if row is None:
                raise NotFoundError(f"there is no reconciliation {run_id}")
            found = await store.findings(connection, run_id, MAX_FINDINGS)
        return model.summary(ReconciliationReport, row, findings=found)

    async def open_findings(self) -> Sequence[asyncpg.Record]:
        """The number of open findings, by source and kind."""
        async with self._database.connection() as connection:
            return await QUERIES["open_findings"].rows(connection)

    async def last_reconciled(self) -> Sequence[asyncpg.Record]:
        """How long ago each source was last reconciled."""
        async with self._database.connection() as connection:
            return await QUERIES["last_done"].rows(connection)

    def _source(self, name: str) -> Source:
        sources = {source.name: source for source in self._rules.sources.values()}
        if name not in sources:
            raise NotFoundError(f"there is no source {name}; known are {', '.join(sources)}")
        provider = sources[name].provider
        if provider.statement_api() is None:
            raise InvalidRequestError(
                f"source {name}: {provider.name} has no list of payments to reconcile with"
            )
        return sources[name]
