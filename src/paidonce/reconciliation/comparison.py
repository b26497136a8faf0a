"""One reconciliation: compares a gateway's statement with the stored payments, and repairs.

Payments change while the statement is read, so a payment that seems to differ is checked again.
Each check reads the stored payment first; where the gateway seems to report less, it looks the
payment up at the gateway *after* that. Facts only grow, so a fact that the gateway does not report
then is unknown to it. A run may start again from the beginning, with the same result.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

import orjson

from paidonce.core.events import EventId, ExternalId, PaymentEvent
from paidonce.db.pool import Database
from paidonce.db.queries import Connection
from paidonce.db.search import first_id_at
from paidonce.errors import GatewayError, GatewayMismatchError, GatewayUnreachableError
from paidonce.ids import new_id
from paidonce.lookup.http_client import RateLimitedClient
from paidonce.lookup.lookup import run_query
from paidonce.processing.items import Source
from paidonce.providers.contract import GatewayQuery, StatementApi, StatementPage
from paidonce.reconciliation import model, store
from paidonce.reconciliation.model import REPAIRABLE, Difference, PaymentCheck, RecordedPayment
from paidonce.reconciliation.repairs import Repairs, repair_key
from paidonce.reconciliation.store import QUERIES
from paidonce.runtime.leader import Leadership

MAX_PAGES: Final = 100_000
MAX_PENDING: Final = 500
"""How many payments are collected before they are checked together."""
MAX_REPAIRS: Final = 3
"""How often a payment is repaired if the gateway reports more each time."""
MAX_LOOKUPS: Final = 1_000
"""How many payments are looked up. More means that it is not the right statement."""
MAX_OPEN_FINDINGS: Final = 1_000
"""How many open findings are checked again, the oldest first."""
WALK_PAGE: Final = 1_000
MAX_UNPAID_TIME: Final = timedelta(days=30)
"""How long before it was paid a payment may have been created."""

REASONS: Final = {
    Difference.BEHIND: "the gateway reports more than is stored here",
    Difference.DIFFERS: "the gateway reports less than is stored here, or something else",
    Difference.MISSING_HERE: "no webhook reported it",
    Difference.MISSING_THERE: "the gateway does not know it",
}


@dataclass(slots=True)
class Comparison:
    """One run. `session` is a new fenced connection, for a temporary table."""

    database: Database
    leadership: Leadership
    session: Connection
    source: Source
    statement_api: StatementApi
    run: model.Run
    client: RateLimitedClient
    repairs: Repairs
    counts: model.ComparisonCounts = field(default_factory=model.ComparisonCounts)
    _pending: list[PaymentCheck] = field(default_factory=list)
    _lookups: int = 0

    async def compare_all(self) -> None:
        """Compare all payments, and repair. Raises GatewayError; findings so far are stored."""
        await QUERIES["create_statement_ids"].run(self.session)
        try:
            async for page in self._pages():
                await self._compare_page(page)
                await self._save_progress()
        except GatewayError:
            with contextlib.suppress(GatewayError):
                await self._check_pending()  # a repair that is stored is retried for days
            raise
        await self._check_pending()
        await self._check_stored_payments()
        await self._check_open_findings()

    async def finish(self, error_message: str | None = None) -> None:
        """Store the report. It is DONE, or FAILED if there is a message."""
        async with self.leadership.connection() as connection:
            await QUERIES["finish"].run(
                connection,
                id=self.run.id,
                source_id=self.source.id,
                status="DONE" if error_message is None else "FAILED",
                error_message=error_message,
                compared=self.counts.compared,
                agreed_or_repaired=self.counts.agreed,
                unreadable=self.counts.unreadable,
                sums=orjson.dumps(self.counts.totals).decode(),
            )

    # Which payments to check

    async def _pages(self) -> AsyncIterator[StatementPage]:
        next_page: Callable[[], GatewayQuery[StatementPage]] | None = partial(
            self.statement_api.statement, self.run.since, self.run.until
        )
        for _ in range(MAX_PAGES):
            if next_page is None:
                return
            page = await run_query(next_page, self.client)
            yield page
            next_page = page.next_page
        raise GatewayUnreachableError(f"its statement has more than {MAX_PAGES} pages")

    async def _compare_page(self, page: StatementPage) -> None:
        self.counts.unreadable += page.unreadable
        ids = [entry.ids[0] for entry in page.entries]
        new = await store.add_statement_ids(self.session, ids) if ids else set()
        entries = {entry.ids[0]: entry for entry in page.entries if entry.ids[0] in new}
        recorded = await self._recorded([one for entry in entries.values() for one in entry.ids])
        for entry in entries.values():
            self.counts.add_reported(entry)
            if self._compare(_first(entry.ids, recorded), entry) is None:
                self.counts.add_agreed(entry)
            else:
                self._pending.append(PaymentCheck(entry.ids, entry, entry))
        if len(self._pending) >= MAX_PENDING:
            await self._check_pending()

    async def _check_stored_payments(self) -> None:
        """Check stored payments of the period that the statement lacks."""
        after: UUID | None = first_id_at(self.run.since - MAX_UNPAID_TIME)
        while after is not None:
            rows = await QUERIES["payments_not_in_statement"].rows(
                self.session,
                source_id=self.source.id,
                since=self.run.since,
                until=self.run.until,
                after=after,
                limit=WALK_PAGE,
            )
            missing = [tuple(ExternalId(*one) for one in row["ids"] or ()) for row in rows]
            self._pending = [PaymentCheck(ids) for ids in missing if ids]
            self.counts.compared += len(self._pending)
            await self._check_pending()
            after = rows[-1]["id"] if len(rows) == WALK_PAGE else None

    async def _check_open_findings(self) -> None:
        """Check findings again that are open and were not seen by this run.

        They may be of any period, and do not show that the statement is wrong: so they do not count
        for MAX_LOOKUPS.
        """
        rows = await QUERIES["open_findings_before"].rows(
            self.session, source_id=self.source.id, before=self.run.now, limit=MAX_OPEN_FINDINGS
        )
        self._pending = [
            PaymentCheck(
                (ExternalId(kind, value),), is_in_window=False, is_counted=not is_in_statement
            )
            for kind, value, is_in_statement in rows
        ]
        self.counts.compared += sum(one.is_counted for one in self._pending)
        await self._check_pending()

    # Checks

    async def _check_pending(self) -> None:
        checks, self._pending = self._pending, []
        for start in range(0, len(checks), MAX_PENDING):
            await self._check_all(checks[start : start + MAX_PENDING])
        await self._save_progress()

    async def _check_all(self, checks: Sequence[PaymentCheck]) -> None:
        """Repair what can be repaired, and store the other differences."""
        to_repair = await self._check_and_save(checks)
        for _ in range(MAX_REPAIRS):
            to_repair = await self._check_and_save(to_repair)  # webhooks may have arrived since
            if not to_repair:
                return
            to_repair = await self._check_and_save(await self._repair(to_repair))
        for check in to_repair:
            await self._save(check)

    async def _check_and_save(self, checks: Sequence[PaymentCheck]) -> list[PaymentCheck]:
        """Returns those that are to be repaired; stores the results of the others."""
        to_repair = []
        for check in checks:
            checked = await self._check(check)
            if self._is_to_be_repaired(checked):
                to_repair.append(checked)
            else:
                await self._save(checked)
        return to_repair

    async def _check(self, check: PaymentCheck) -> PaymentCheck:
        """Compare the payment now. The gateway is asked after the stored payment is read.

        Facts that it reported earlier still hold: it is asked only if some seem to be missing.
        """
        recorded = _first(check.ids, await self._recorded(check.ids))
        if check.entry is not None:
            difference = self._compare(recorded, check.entry)
            if difference is None or difference in REPAIRABLE:
                return replace(check, recorded=recorded, difference=difference)
        try:
            entry = await self._look_up(check)
        except GatewayMismatchError as error:
            return replace(
                check, recorded=recorded, difference=Difference.DIFFERS, reason=str(error)
            )
        difference = self._compare(recorded, entry)
        return replace(check, entry=entry, recorded=recorded, difference=difference, reason="")

    def _compare(
        self, recorded: RecordedPayment | None, entry: PaymentEvent | None
    ) -> Difference | None:
        return model.compare(recorded.facts if recorded else None, entry, self.run.now)

    def _is_to_be_repaired(self, check: PaymentCheck) -> bool:
        """Whether it can be, and the same repair was not tried before."""
        if not self.run.repairs or check.difference not in REPAIRABLE or check.entry is None:
            return False
        tried = check.repair
        return tried is None or repair_key(tried.entry) != repair_key(check.entry)

    async def _look_up(self, check: PaymentCheck) -> PaymentEvent | None:
        self._lookups += check.is_in_window
        if self._lookups > MAX_LOOKUPS:
            raise GatewayUnreachableError(
                f"its statement does not agree with more than {MAX_LOOKUPS} payments that are "
                "stored here; is it of the same account?"
            )
        return await run_query(partial(self.statement_api.look_up, check.ids), self.client)

    async def _repair(self, checks: Sequence[PaymentCheck]) -> list[PaymentCheck]:
        """Process the gateway's entries. The findings are stored before: a crash may follow."""
        repairs = []
        for check in checks:
            assert check.entry is not None
            repair = model.Repair(EventId(new_id()), check.entry)
            repairs.append(repair)
            await self._save(replace(check, repair=repair))
        self.leadership.require()
        event_ids = await self.repairs.store(repairs)
        results = await self.repairs.wait(event_ids)
        return [
            replace(
                check,
                repair=replace(repair, event_id=event_id),
                reason=f"its repair ended as {results.get(event_id, 'nothing')}",
            )
            for check, repair, event_id in zip(checks, repairs, event_ids, strict=True)
        ]

    async def _save(self, check: PaymentCheck) -> None:
        """Store the difference; resolve earlier findings that no longer hold."""
        if check.difference is not None and not check.reason:
            check = replace(check, reason=REASONS[check.difference])
        async with self.leadership.connection() as connection, connection.transaction():
            await store.save(connection, self.run.id, self.source.id, check)
        if check.difference is None and check.is_counted:
            self.counts.add_agreed(check.statement_entry)

    async def _recorded(self, ids: Sequence[ExternalId]) -> dict[ExternalId, RecordedPayment]:
        if not ids:
            return {}
        async with self.database.connection() as connection:
            return await store.recorded_payments(connection, self.source.id, ids)

    async def _save_progress(self) -> None:
        async with self.leadership.connection() as connection:
            counts = self.counts
            await QUERIES["save_progress"].run(
                connection, id=self.run.id, compared=counts.compared, agreed=counts.agreed
            )


def _first(
    ids: Sequence[ExternalId], recorded: Mapping[ExternalId, RecordedPayment]
) -> RecordedPayment | None:
    return next((recorded[one] for one in ids if one in recorded), None)
