"""Reconciliations: what a gateway's own books say, and what was found wanting."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.money import format_minor
from paidonce.domain.reconciling import Sums
from paidonce.engine.items import Source
from paidonce.engine.reconciler import SETTLING
from paidonce.errors import InvalidRequestError, NotFoundError
from paidonce.operations.desk import Actor, Desk, Found, first_of
from paidonce.store import listings, reconciliations

MAX_FINDINGS: Final = 500
"""How many findings are listed with a report; it counts all of them."""


@dataclass(frozen=True, slots=True)
class ExplainedView:
    """Money that the gateway reports, and how much of it is here with the same amount."""

    currency: str
    reported: str
    explained: str
    explained_percent: float


@dataclass(frozen=True, slots=True)
class UnappliedView:
    """Money of the source that was received and not applied."""

    currency: str
    number: int
    amount: str
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class FindingView:
    """A payment on which the gateway and we do not agree, or did not.

    `reported` and `reported_refunded` are what the gateway says, `known` and `known_refunded` what
    is known here. `resolution` is null while it is open.
    """

    external_payment_id: str
    kind: str
    payment_id: UUID | None
    order: str | None
    currency: str | None
    reported: str | None
    reported_refunded: str | None
    known: str | None
    known_refunded: str | None
    reason: str
    new: bool
    resolution: str | None
    first_seen_at: datetime
    last_seen_at: datetime


@dataclass(frozen=True, slots=True)
class ReconciliationView:
    """A reconciliation and its report. `behind` to `missing_there` are what is left to a person."""

    id: UUID
    source: str
    status: str
    since: datetime
    until: datetime
    dry_run: bool
    actor: str
    compared: int
    agreed: int
    repaired: int
    behind: int
    differs: int
    missing_here: int
    missing_there: int
    unreadable: int
    new_findings: int
    explained: list[ExplainedView]
    unapplied: list[UnappliedView]
    error_message: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None

    @property
    def needs_a_person(self) -> bool:
        """Whether not all could be compared, or not all that was found could be repaired."""
        left = self.behind + self.differs + self.missing_here + self.missing_there
        return self.status == "FAILED" or left + self.unreadable > 0


@dataclass(frozen=True, slots=True)
class ReconciliationDetail(ReconciliationView):
    """The same with its findings: those it opened, and those it was the last one to see."""

    findings: list[FindingView]


class ReconciliationVerbs(Desk):
    """What can be asked of reconciliations, and that one is to be made."""

    async def start_reconciliation(
        self,
        actor: Actor,
        *,
        source: str,
        since: datetime,
        until: datetime | None = None,
        dry_run: bool = False,
    ) -> ReconciliationView:
        """Want one; a worker does it. What is younger than some minutes is left for the next one.

        Raises InvalidRequestError, and NotFoundError for a source that there is not.
        """
        chosen = self._source_with_books(source)
        begin, settled = _in_utc(since), datetime.now(UTC) - SETTLING
        end = settled if until is None else min(_in_utc(until), settled)
        if begin >= end:
            raise InvalidRequestError(
                "since: give a time before until, and more than "
                f"{SETTLING.seconds // 60} minutes ago"
            )
        run_id = uuid7()
        async with self._database.transaction() as connection:
            await reconciliations.add(
                connection,
                run_id=run_id,
                source_id=chosen.id,
                since=begin,
                until=end,
                repairs=not dry_run,
                actor=actor.name,
            )
            await listings.record_action(
                connection,
                actor.name,
                "reconciliation_started",
                reconciliation=str(run_id),
                source=source,
                since=begin.isoformat(),
                until=end.isoformat(),
                dry_run=dry_run,
            )
        return await self.reconciliation(run_id)

    async def reconciliations(
        self, *, limit: int, cursor: UUID | None = None, source: str | None = None
    ) -> Found[ReconciliationView]:
        """A page of reconciliations, the newest first."""
        async with self._database.connection() as connection:
            rows = await reconciliations.listed(
                connection, limit=limit + 1, before=cursor, source=source
            )
        found = [ReconciliationView(**_fields(row)) for row in rows]
        return first_of(found, limit, lambda one: one.id)

    async def reconciliation(self, run_id: UUID) -> ReconciliationDetail:
        """One with its findings. Raises NotFoundError."""
        async with self._database.connection() as connection:
            rows = await reconciliations.listed(connection, limit=1, run_id=run_id)
            if not rows:
                raise NotFoundError(f"there is no reconciliation {run_id}")
            found = await reconciliations.findings(connection, run_id, MAX_FINDINGS)
        return ReconciliationDetail(**_fields(rows[0]), findings=[_finding(one) for one in found])

    async def open_findings(self) -> list[Mapping[str, Any]]:
        """How many findings are open, by source and kind."""
        async with self._database.connection() as connection:
            return await reconciliations.open_findings(connection)

    async def last_reconciled(self) -> list[Mapping[str, Any]]:
        """How long ago each source was last reconciled."""
        async with self._database.connection() as connection:
            return await reconciliations.last_done(connection)

    def _source_with_books(self, name: str) -> Source:
        sources = {source.name: source for source in self._rules.sources.values()}
        if name not in sources:
            raise NotFoundError(f"there is no source {name}; known are {', '.join(sources)}")
        provider = sources[name].provider
        if provider.books() is None:
            raise InvalidRequestError(
                f"source {name}: {provider.name} has no list of payments to reconcile with"
            )
        return sources[name]


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    counted = (
        "compared agreed repaired behind differs missing_here missing_there unreadable new_findings"
    )
    told = "id source status since until actor error_message created_at started_at finished_at"
    return {name: row[name] for name in f"{counted} {told}".split()} | {
        "dry_run": not row["repairs"],
        "explained": [_explained(*one) for one in orjson.loads(row["sums"]).items()],
        "unapplied": [_unapplied(one) for one in orjson.loads(row["unapplied"])],
    }


def _explained(currency: str, sums: Mapping[str, int]) -> ExplainedView:
    counted = Sums(**sums)
    return ExplainedView(
        currency=currency,
        reported=format_minor(counted.reported_minor, currency),
        explained=format_minor(counted.explained_minor, currency),
        explained_percent=round(counted.explained_percent, 4),
    )


def _unapplied(said: Mapping[str, Any]) -> UnappliedView:
    return UnappliedView(
        currency=said["currency"],
        number=said["number"],
        amount=format_minor(said["sum_minor"], said["currency"]),
        oldest_at=datetime.fromisoformat(said["oldest_at"]),
    )


def _finding(row: Mapping[str, Any]) -> FindingView:
    told = "kind payment_id reason resolution first_seen_at last_seen_at"
    there, here = row["currency"], row["known_currency"]
    return FindingView(
        external_payment_id=row["external_id"],
        order=row["order_reference"],
        currency=there or here,
        reported=_shown(row["reported_minor"], there),
        reported_refunded=_shown(row["reported_refunded_minor"], there),
        known=_shown(row["known_minor"], here),
        known_refunded=_shown(row["known_refunded_minor"], here),
        new=row["is_new"],
        **{name: row[name] for name in told.split()},
    )


def _shown(amount_minor: int | None, currency: str | None) -> str | None:
    if amount_minor is None or currency is None:
        return None
    return format_minor(amount_minor, currency)
