"""Reconciliations: whose turn it is, what they compare, and what they find."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce.domain.events import EventId, ExternalId, PaymentId, SourceId
from paidonce.domain.money import Money
from paidonce.domain.payments import Facts
from paidonce.domain.reconciling import Tally
from paidonce.store.queries import Connection, load_queries

QUERIES: Final = load_queries(__file__)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A reconciliation that somebody works on."""

    id: UUID
    since: datetime
    until: datetime
    repairs: bool
    actor: str
    starts: int  # this one included
    now: datetime  # of the database, when it was begun


@dataclass(frozen=True, slots=True)
class Known:
    """What is known here of a payment."""

    payment_id: PaymentId
    order: str | None
    facts: Facts


@dataclass(frozen=True, slots=True)
class Found:
    """A payment on which a gateway and we do not agree, as it is kept."""

    id: ExternalId
    kind: str
    reason: str
    known: Known | None
    order: str | None
    reported: Money | None
    refunded_minor: int | None
    repair: EventId | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """A finding that was left open."""

    id: ExternalId
    is_named: bool  # whether the statement names the payment


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
    """One more to be done."""
    await QUERIES["add"].run(
        connection,
        id=run_id,
        source_id=source_id,
        since=since,
        until=until,
        repairs=repairs,
        actor=actor,
    )


async def add_timed(
    connection: Connection,
    *,
    run_id: UUID,
    source_id: SourceId,
    every: timedelta,
    soon: timedelta,
    window: timedelta,
    settling: timedelta,
) -> bool:
    """The next of a source that has them regularly, if it is time; returns whether it was."""
    tag = await QUERIES["add_timed"].run(
        connection,
        id=run_id,
        source_id=source_id,
        every=every,
        soon=soon,
        window=window,
        settling=settling,
    )
    return tag.endswith(" 1")


async def sources_with_work(connection: Connection) -> set[SourceId]:
    """Those of which a reconciliation is not finished."""
    rows = await QUERIES["sources_with_work"].rows(connection)
    return {SourceId(row["source_id"]) for row in rows}


async def try_lock(connection: Connection, source_id: SourceId) -> bool:
    """Be the one who reconciles this source, for as long as this session lives."""
    row = await QUERIES["try_lock"].row(connection, source_id=source_id)
    return row is not None and bool(row["is_ours"])


async def unlock(connection: Connection, source_id: SourceId) -> None:
    """Let others do it."""
    await QUERIES["unlock"].row(connection, source_id=source_id)


async def begin(connection: Connection, source_id: SourceId) -> Run | None:
    """The oldest that is not finished. The source has to be locked."""
    row = await QUERIES["begin"].row(connection, source_id=source_id)
    return None if row is None else Run(**dict(row))


async def put_back(connection: Connection, run_id: UUID) -> None:
    """Leave it to whoever comes next, as if it had not been begun."""
    await QUERIES["put_back"].run(connection, id=run_id)


async def give_back_starts(connection: Connection, run_ids: Collection[UUID]) -> None:
    """Count one start less of each, whoever works on it now."""
    await QUERIES["give_back_starts"].run(connection, id=list(run_ids))


async def progress(connection: Connection, run_id: UUID, tally: Tally) -> None:
    """Say how far it is."""
    await QUERIES["progress"].run(
        connection, id=run_id, compared=tally.compared, agreed=tally.agreed
    )


async def finish(
    connection: Connection,
    run_id: UUID,
    source_id: SourceId,
    tally: Tally,
    error_message: str | None = None,
) -> None:
    """Keep its report. It is DONE, or FAILED if there is a message."""
    sums = {
        currency: {"reported_minor": one.reported_minor, "explained_minor": one.explained_minor}
        for currency, one in tally.sums.items()
    }
    await QUERIES["finish"].run(
        connection,
        id=run_id,
        source_id=source_id,
        status="DONE" if error_message is None else "FAILED",
        error_message=error_message,
        compared=tally.compared,
        agreed_or_repaired=tally.agreed,
        unreadable=tally.unreadable,
        sums=orjson.dumps(sums).decode(),
    )


async def known_payments(
    connection: Connection, source_id: SourceId, ids: Sequence[ExternalId]
) -> dict[ExternalId, Known]:
    """What is known here, by each of these ids that is."""
    rows = await QUERIES["payments_of"].rows(
        connection,
        source_id=source_id,
        kind=[one.kind for one in ids],
        external_id=[one.value for one in ids],
    )
    return {ExternalId(row["kind"], row["external_id"]): _known(dict(row)) for row in rows}


async def forget_named(connection: Connection) -> None:
    """Begin to note what a statement names. It is kept for as long as this session lives."""
    await QUERIES["make_named"].run(connection)
    await QUERIES["empty_named"].run(connection)


async def name(connection: Connection, ids: Sequence[ExternalId]) -> set[ExternalId]:
    """Note that the statement names these; returns those that it had not named before."""
    rows = await QUERIES["name"].rows(
        connection, kind=[one.kind for one in ids], external_id=[one.value for one in ids]
    )
    return {ExternalId(row["kind"], row["external_id"]) for row in rows}


async def walk(
    connection: Connection,
    source_id: SourceId,
    since: datetime,
    until: datetime,
    after: UUID,
    limit: int,
) -> tuple[list[UUID], UUID | None]:
    """Payments of the time that the statement did not name, and where to go on; None at the end."""
    rows = await QUERIES["walk"].rows(
        connection, source_id=source_id, since=since, until=until, after=after, limit=limit
    )
    unnamed = [row["id"] for row in rows if row["is_unnamed"]]
    return unnamed, rows[-1]["id"] if len(rows) == limit else None


async def ids_of(
    connection: Connection, payment_ids: Collection[UUID]
) -> dict[UUID, list[ExternalId]]:
    """The ids by which the gateway knows each of these payments."""
    rows = await QUERIES["ids_of"].rows(connection, payment_id=list(payment_ids))
    found: dict[UUID, list[ExternalId]] = {}
    for row in rows:
        one = ExternalId(row["kind"], row["external_id"])
        found.setdefault(row["payment_id"], []).append(one)
    return found


async def keep(connection: Connection, run_id: UUID, source_id: SourceId, found: Found) -> None:
    """Keep a finding: a new one, or one more sight of one that is open."""
    known, reported = found.known, found.reported
    await QUERIES["keep"].run(
        connection,
        run_id=run_id,
        source_id=source_id,
        id_kind=found.id.kind,
        external_id=found.id.value,
        kind=found.kind,
        payment_id=known.payment_id if known else None,
        order_reference=found.order,
        currency=reported.currency if reported else None,
        reported_minor=reported.amount_minor if reported else None,
        reported_refunded_minor=found.refunded_minor,
        known_currency=known.facts.currency if known else None,
        known_minor=known.facts.captured_minor if known else None,
        known_refunded_minor=known.facts.refunded_minor if known else None,
        reason=found.reason,
        repair_event_id=found.repair,
    )


async def resolve(
    connection: Connection,
    run_id: UUID,
    source_id: SourceId,
    external_id: ExternalId,
    kind: str | None = None,
) -> None:
    """Nothing is found of the payment any more, or nothing but what is of this kind."""
    await QUERIES["resolve"].run(
        connection,
        run_id=run_id,
        source_id=source_id,
        id_kind=external_id.kind,
        external_id=external_id.value,
        kind=kind,
    )


async def open_before(
    connection: Connection, source_id: SourceId, before: datetime, limit: int
) -> list[Left]:
    """Findings that are open and were last seen before then, the longest ago first."""
    rows = await QUERIES["open_before"].rows(
        connection, source_id=source_id, before=before, limit=limit
    )
    return [Left(ExternalId(row["id_kind"], row["external_id"]), row["is_named"]) for row in rows]


async def events(connection: Connection, event_ids: Collection[EventId]) -> dict[EventId, Row]:
    """Status and error code of these events."""
    rows = await QUERIES["events"].rows(
        connection, event_id=list(event_ids), first_id=min(event_ids), last_id=max(event_ids)
    )
    return {EventId(row["id"]): dict(row) for row in rows}


async def listed(
    connection: Connection,
    *,
    limit: int,
    before: UUID | None = None,
    run_id: UUID | None = None,
    source: str | None = None,
) -> list[Row]:
    """Reconciliations with their reports, the newest first."""
    rows = await QUERIES["list"].rows(
        connection, before=before, id=run_id, source=source, limit=limit
    )
    return [dict(row) for row in rows]


async def findings(connection: Connection, run_id: UUID, limit: int) -> list[Row]:
    """What a reconciliation found, what is open first."""
    rows = await QUERIES["findings"].rows(connection, run_id=run_id, limit=limit)
    return [dict(row) for row in rows]


async def open_findings(connection: Connection) -> list[Row]:
    """How many findings are open, by source and kind."""
    return [dict(row) for row in await QUERIES["open_findings"].rows(connection)]


async def last_done(connection: Connection) -> list[Row]:
    """How long ago each source was last reconciled."""
    return [dict(row) for row in await QUERIES["last_done"].rows(connection)]


def _known(row: Mapping[str, Any]) -> Known:
    captured = Money(row["captured_minor"], row["currency"]) if row["captured_minor"] else None
    facts = Facts(
        captured=captured,
        refund_total_minor=row["refunded_minor"],
        refund_currency=None if captured else row["currency"],
        canceled_at=row["canceled_at"],
        is_stale=row["is_stale"],
    )
    return Known(row["id"], row["order_reference"], facts)
