"""What reconciliations compare, and their findings."""

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

import asyncpg

from paidonce.core.events import EventId, ExternalId, SourceId
from paidonce.core.facts import Facts
from paidonce.core.money import Money
from paidonce.db.queries import Connection, load_queries
from paidonce.reconciliation import model

QUERIES: Final = load_queries(__file__)


async def recorded_payments(
    connection: Connection, source_id: SourceId, ids: Sequence[ExternalId]
) -> dict[ExternalId, model.RecordedPayment]:
    """The stored payments that have one of these ids."""
    rows = await QUERIES["recorded_payments"].rows(connection, source_id=source_id, **_columns(ids))
    return {ExternalId(row["kind"], row["external_id"]): _recorded(row) for row in rows}


async def add_statement_ids(connection: Connection, ids: Sequence[ExternalId]) -> set[ExternalId]:
    """Add ids of the statement; returns those that are new."""
    rows = await QUERIES["add_statement_ids"].rows(connection, **_columns(ids))
    return {ExternalId(*row) for row in rows}


async def save(
    connection: Connection, run_id: UUID, source_id: SourceId, check: model.PaymentCheck
) -> None:
    """Store the difference, as a new finding or as seen again; resolve the payment's others."""
    finding = {
        "run_id": run_id,
        "source_id": source_id,
        "id_kind": check.id.kind,
        "external_id": check.id.value,
        "kind": check.difference,
    }
    if check.difference is not None:
        await _save_finding(connection, check, finding)
    await QUERIES["resolve"].run(connection, **finding)


async def _save_finding(
    connection: Connection, check: model.PaymentCheck, finding: dict[str, object]
) -> None:
    entry, recorded, repair = check.entry, check.recorded, check.repair
    reported = entry.amount if entry else None
    order = entry.order if entry else recorded.order if recorded else None
    await QUERIES["save_finding"].run(
        connection,
        **finding,
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


async def events(
    connection: Connection, event_ids: Collection[EventId]
) -> dict[EventId, asyncpg.Record]:
    """Status and error code of these events."""
    rows = await QUERIES["events"].rows(
        connection, event_id=list(event_ids), first_id=min(event_ids), last_id=max(event_ids)
    )
    return {row["id"]: row for row in rows}


async def findings(
    connection: Connection, run_id: UUID, limit: int
) -> list[model.ReconciliationFinding]:
    """The findings of a run, open ones first."""
    rows = await QUERIES["findings"].rows(connection, run_id=run_id, limit=limit)
    return [model.finding(row) for row in rows]


def _columns(ids: Sequence[ExternalId]) -> dict[str, list[str]]:
    return {"kind": [one.kind for one in ids], "external_id": [one.value for one in ids]}


def _recorded(row: asyncpg.Record) -> model.RecordedPayment:
    captured = Money(row["captured_minor"], row["currency"]) if row["captured_minor"] else None
    facts = Facts(
        captured=captured,
        refund_total_minor=row["refunded_minor"],
        refund_currency=None if captured else row["currency"],
        canceled_at=row["canceled_at"],
        is_expired=row["is_expired"],
    )
    return model.RecordedPayment(row["id"], row["order_reference"], facts)
