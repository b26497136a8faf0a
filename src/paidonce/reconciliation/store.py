"""Reconciliations: runs, what they compare, and their findings."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import orjson

from paidonce.core.events import EventId, ExternalId, SourceId
from paidonce.core.money import Money
from paidonce.core.payments import Facts
from paidonce.db.queries import Connection, Row, load_queries
from paidonce.reconciliation.model import (
    ComparisonCounts,
    PaymentCheck,
    ReconciliationQuery,
    RecordedPayment,
    Run,
)

QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A finding that an earlier run left open."""

    id: ExternalId
    is_in_statement: bool


async def add(
    connection: Connection,
    *,
    run_id: UUID,
    source_id: SourceId,
    since: datetime,
    until: datetime,
    repairs: bool,
    actor: str,
) -> None:
    """Add a run."""
    await QUERIES["add"].run(
        connection,
        id=run_id,
        source_id=source_id,
        since=since,
        until=until,
        repairs=repairs,
        actor=actor,
    )


async def add_scheduled(
    connection: Connection,
    *,
    run_id: UUID,
    source_id: SourceId,
    every: timedelta,
    retry_after: timedelta,
    window: timedelta,
    delay: timedelta,
) -> bool:
    """Add the next scheduled run of a source, if it is due; returns whether it was."""
    tag = await QUERIES["add_scheduled"].run(
        connection,
        id=run_id,
        source_id=source_id,
        every=every,
        retry_after=retry_after,
        window=window,
        delay=delay,
    )
    return tag.endswith(" 1")


async def sources_with_work(connection: Connection) -> set[SourceId]:
    """Sources with an unfinished run."""
    rows = await QUERIES["sources_with_work"].rows(connection)
    return {SourceId(row["source_id"]) for row in rows}


async def begin(connection: Connection, source_id: SourceId) -> Run | None:
    """Start the oldest unfinished run. The source must be locked."""
    row = await QUERIES["begin"].row(connection, source_id=source_id)
    return None if row is None else Run(**dict(row))


async def release(connection: Connection, run_id: UUID) -> None:
    """Make it pending again, as if it had not started."""
    await QUERIES["release"].run(connection, id=run_id)


async def uncount_starts(connection: Connection, run_ids: Collection[UUID]) -> None:
    """Count one start less of each run."""
    await QUERIES["uncount_starts"].run(connection, id=list(run_ids))


async def save_progress(connection: Connection, run_id: UUID, counts: ComparisonCounts) -> None:
    """Store how far it is."""
    await QUERIES["save_progress"].run(
        connection, id=run_id, compared=counts.compared, agreed=counts.agreed
    )


async def finish(
    connection: Connection,
    run_id: UUID,
    source_id: SourceId,
    counts: ComparisonCounts,
    error_message: str | None = None,
) -> None:
    """Store its counts. It is DONE, or FAILED if there is a message."""
    sums = {
        currency: {"reported_minor": one.reported_minor, "explained_minor": one.explained_minor}
        for currency, one in counts.totals.items()
    }
    await QUERIES["finish"].run(
        connection,
        id=run_id,
        source_id=source_id,
        status="DONE" if error_message is None else "FAILED",
        error_message=error_message,
        compared=counts.compared,
        agreed_or_repaired=counts.agreed,
        unreadable=counts.unreadable,
        sums=orjson.dumps(sums).decode(),
    )


async def recorded_payments(
    connection: Connection, source_id: SourceId, ids: Sequence[ExternalId]
) -> dict[ExternalId, RecordedPayment]:
    """The stored payments that have one of these ids."""
    rows = await QUERIES["recorded_payments"].rows(
        connection,
        source_id=source_id,
        kind=[one.kind for one in ids],
        external_id=[one.value for one in ids],
    )
    return {ExternalId(row["kind"], row["external_id"]): _recorded(dict(row)) for row in rows}


async def start_statement(connection: Connection) -> None:
    """Start a list of the ids in a statement. It lives as long as this session."""
    await QUERIES["create_statement_ids"].run(connection)
    await QUERIES["clear_statement_ids"].run(connection)


async def add_statement_ids(connection: Connection, ids: Sequence[ExternalId]) -> set[ExternalId]:
    """Add ids of the statement; returns those that are new."""
    rows = await QUERIES["add_statement_ids"].rows(
        connection, kind=[one.kind for one in ids], external_id=[one.value for one in ids]
    )
    return {ExternalId(row["kind"], row["external_id"]) for row in rows}


async def payments_not_in_statement(
    connection: Connection,
    source_id: SourceId,
    since: datetime,
    until: datetime,
    after: UUID,
    limit: int,
) -> tuple[list[UUID], UUID | None]:
    """Payments of the period that the statement lacks, and where to continue; None at the end."""
    rows = await QUERIES["payments_not_in_statement"].rows(
        connection, source_id=source_id, since=since, until=until, after=after, limit=limit
    )
    missing = [row["id"] for row in rows if row["is_missing"]]
    return missing, rows[-1]["id"] if len(rows) == limit else None


async def external_ids(
    connection: Connection, payment_ids: Collection[UUID]
) -> dict[UUID, list[ExternalId]]:
    """The ids of each of these payments at the gateway."""
    rows = await QUERIES["external_ids"].rows(connection, payment_id=list(payment_ids))
    found: dict[UUID, list[ExternalId]] = {}
    for row in rows:
        one = ExternalId(row["kind"], row["external_id"])
        found.setdefault(row["payment_id"], []).append(one)
    return found


async def save_finding(
    connection: Connection, run_id: UUID, source_id: SourceId, check: PaymentCheck
) -> None:
    """Store the difference that was found: as a new finding, or as seen again."""
    entry, recorded, repair = check.entry, check.recorded, check.repair
    reported = entry.amount if entry else None
    order = entry.order if entry else recorded.order if recorded else None
    await QUERIES["save_finding"].run(
        connection,
        run_id=run_id,
        source_id=source_id,
        id_kind=check.id.kind,
        external_id=check.id.value,
        kind=check.difference,
        payment_id=recorded.payment_id if recorded else None,
        order_reference=order,
        reported_currency=reported.currency if reported else None,
        reported_minor=reported.amount_minor if reported else None,
        reported_refunded_minor=entry.refunded.amount_minor if entry and entry.refunded else 0,
        recorded_currency=recorded.facts.currency if recorded else None,
        recorded_minor=recorded.facts.captured_minor if recorded else None,
        recorded_refunded_minor=recorded.facts.refunded_minor if recorded else None,
        reason=check.reason,
        repair_event_id=repair.event_id if repair else None,
    )


async def resolve(
    connection: Connection,
    run_id: UUID,
    source_id: SourceId,
    external_id: ExternalId,
    kind: str | None = None,
) -> None:
    """Resolve the open findings of a payment, except one of this kind."""
    await QUERIES["resolve"].run(
        connection,
        run_id=run_id,
        source_id=source_id,
        id_kind=external_id.kind,
        external_id=external_id.value,
        kind=kind,
    )


async def open_findings_before(
    connection: Connection, source_id: SourceId, before: datetime, limit: int
) -> list[OpenFinding]:
    """Open findings that were last seen before then, the oldest first."""
    rows = await QUERIES["open_findings_before"].rows(
        connection, source_id=source_id, before=before, limit=limit
    )
    return [
        OpenFinding(ExternalId(row["id_kind"], row["external_id"]), row["is_in_statement"])
        for row in rows
    ]


async def events(connection: Connection, event_ids: Collection[EventId]) -> dict[EventId, Row]:
    """Status and error code of these events."""
    rows = await QUERIES["events"].rows(
        connection, event_id=list(event_ids), first_id=min(event_ids), last_id=max(event_ids)
    )
    return {EventId(row["id"]): dict(row) for row in rows}


async def search(connection: Connection, query: ReconciliationQuery) -> list[Row]:
    """Reconciliations, newest first; one more than the limit, if there are more."""
    rows = await QUERIES["reconciliations"].rows(
        connection, before=query.cursor, id=None, source=query.source, limit=query.limit + 1
    )
    return [dict(row) for row in rows]


async def find(connection: Connection, run_id: UUID) -> Row | None:
    """One reconciliation."""
    row = await QUERIES["reconciliations"].row(
        connection, before=None, id=run_id, source=None, limit=1
    )
    return None if row is None else dict(row)


async def findings(connection: Connection, run_id: UUID, limit: int) -> list[Row]:
    """The findings of a run, open ones first."""
    rows = await QUERIES["findings"].rows(connection, run_id=run_id, limit=limit)
    return [dict(row) for row in rows]


async def open_findings(connection: Connection) -> list[Row]:
    """The number of open findings, by source and kind."""
    return [dict(row) for row in await QUERIES["open_findings"].rows(connection)]


async def last_done(connection: Connection) -> list[Row]:
    """How long ago each source was last reconciled."""
    return [dict(row) for row in await QUERIES["last_done"].rows(connection)]


def _recorded(row: Row) -> RecordedPayment:
    captured = Money(row["captured_minor"], row["currency"]) if row["captured_minor"] else None
    facts = Facts(
        captured=captured,
        refund_total_minor=row["refunded_minor"],
        refund_currency=None if captured else row["currency"],
        canceled_at=row["canceled_at"],
        is_expired=row["is_expired"],
    )
    return RecordedPayment(row["id"], row["order_reference"], facts)
