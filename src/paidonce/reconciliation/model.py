"""Reconciliations: how a gateway's statement is compared with stored payments (PAY-9).

Facts about a payment only grow. So facts that the gateway reports beyond the stored ones are added:
the payment is repaired. Facts that it lacks, or reports differently, need a person.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, TypeVar
from uuid import UUID

import asyncpg
import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from paidonce.core.events import EventId, ExternalId, PaymentEvent, PaymentId
from paidonce.core.facts import Facts, facts_from_event
from paidonce.core.input import Text, to_utc
from paidonce.core.money import format_minor
from paidonce.db.paging import ListQuery
from paidonce.db.queries import from_row


class Difference(StrEnum):
    """How a payment of the gateway and the stored one differ."""

    BEHIND = "behind"  # the gateway reports more
    DIFFERS = "differs"  # the gateway reports less, or something else
    MISSING_HERE = "missing_here"
    MISSING_THERE = "missing_there"


REPAIRABLE: Final = frozenset({Difference.BEHIND, Difference.MISSING_HERE})


def compare(recorded: Facts | None, entry: PaymentEvent | None, now: datetime) -> Difference | None:
    """How the stored facts and the gateway's entry differ; None if they agree.

    Only money counts: a payment that never had any is not missing.
    """
    if entry is None:
        is_missing = recorded is not None and recorded.captured_minor > 0
        return Difference.MISSING_THERE if is_missing else None
    reported = facts_from_event(entry, now)
    if recorded is None:
        return Difference.MISSING_HERE if reported.captured_minor > 0 else None
    if _has_less(reported, recorded):
        return Difference.DIFFERS
    return Difference.BEHIND if _has_less(recorded, reported) else None


def _has_less(one: Facts, other: Facts) -> bool:
    """Whether the one lacks facts of the other, or has another currency."""
    if one.currency and other.currency and one.currency != other.currency:
        return True
    return (
        one.captured_minor < other.captured_minor
        or one.refunded_minor < other.refunded_minor
        or (one.canceled_at is None and other.canceled_at is not None)
        or (one.is_expired and other.has_timely_capture)
    )


@dataclass(slots=True)
class CurrencyTotals:
    """Money of one currency that a gateway reports, and how much of it is stored here."""

    reported_minor: int = 0
    explained_minor: int = 0

    @property
    def explained_percent(self) -> float:
        """100 if nothing was reported."""
        if self.reported_minor == 0:
            return 100.0
        return self.explained_minor * 100 / self.reported_minor


@dataclass(slots=True)
class ComparisonCounts:
    """What a reconciliation has counted so far. Findings are counted in the database."""

    compared: int = 0
    agreed: int = 0  # at once, or after a repair
    unreadable: int = 0
    totals: dict[str, CurrencyTotals] = field(default_factory=dict)

    def add_reported(self, entry: PaymentEvent) -> None:
        """Count an entry of the statement."""
        self.compared += 1
        if entry.amount is not None:
            totals = self.totals.setdefault(entry.amount.currency, CurrencyTotals())
            totals.reported_minor += entry.amount.amount_minor

    def add_agreed(self, entry: PaymentEvent | None) -> None:
        """Count a payment that agrees. `entry` is its entry in the statement, if it has one."""
        self.agreed += 1
        if entry is not None and entry.amount is not None:
            self.totals[entry.amount.currency].explained_minor += entry.amount.amount_minor


@dataclass(frozen=True, slots=True)
class Run:
    """A reconciliation that runs."""

    id: UUID
    since: datetime
    until: datetime
    repairs: bool
    actor: str
    starts: int  # this one included
    now: datetime  # of the database, when it started


@dataclass(frozen=True, slots=True)
class RecordedPayment:
    """A payment as it is stored here."""

    payment_id: PaymentId
    order: str | None
    facts: Facts


@dataclass(frozen=True, slots=True)
class Repair:
    """An entry of a statement that is processed as the event with this id."""

    event_id: EventId
    entry: PaymentEvent


@dataclass(frozen=True, slots=True)
class PaymentCheck:
    """A payment that may differ, and what its last comparison found."""

    ids: tuple[ExternalId, ...]
    entry: PaymentEvent | None = None  # what the gateway reported last; None: to be looked up
    statement_entry: PaymentEvent | None = None
    is_in_window: bool = True  # else an earlier run left its finding open
    is_counted: bool = True  # whether it is counted when it agrees
    recorded: RecordedPayment | None = None
    difference: Difference | None = None
    reason: str = ""
    repair: Repair | None = None  # the last one

    @property
    def id(self) -> ExternalId:
        return self.ids[0]


# What operators see


def _with_zone(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


UtcTime = Annotated[datetime, AfterValidator(_with_zone), AfterValidator(to_utc)]
"""A time; without a zone it is UTC."""


class ReconciliationRequest(BaseModel):
    """Which source and period. A time without a zone is UTC; `until` defaults to now."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Text
    since: UtcTime
    until: UtcTime | None = None
    dry_run: bool = False


class ReconciliationQuery(ListQuery):
    """Which reconciliations."""

    source: Text | None = Field(None, description="Of this source.")


@dataclass(frozen=True, slots=True)
class ExplainedMoney:
    """Money that the gateway reports, and how much of it is stored with the same amount."""

    currency: str
    reported: str
    explained: str
    explained_percent: float


@dataclass(frozen=True, slots=True)
class UnappliedMoney:
    """Money of the source that was received and not applied."""

    currency: str
    number: int
    amount: str
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class ReconciliationFinding:
    """A payment on which the gateway and the stored payment differ, or differed.

    `reported` and `reported_refunded` are from the gateway, `recorded` and `recorded_refunded` are
    stored here. `resolution` is null while the finding is open.
    """

    external_payment_id: str
    kind: str
    payment_id: PaymentId | None
    order: str | None
    currency: str | None
    reported: str | None
    reported_refunded: str | None
    recorded: str | None
    recorded_refunded: str | None
    reason: str
    new: bool
    resolution: str | None
    first_seen_at: datetime
    last_seen_at: datetime


@dataclass(frozen=True, slots=True)
class ReconciliationSummary:
    """A reconciliation with its counts. `behind` to `missing_there` need a person."""

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
    explained: list[ExplainedMoney]
    unapplied: list[UnappliedMoney]
    error_message: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None

    @property
    def needs_review(self) -> bool:
        """Whether payments were left uncompared or unrepaired."""
        left = self.behind + self.differs + self.missing_here + self.missing_there
        return self.status == "FAILED" or left + self.unreadable > 0


@dataclass(frozen=True, slots=True)
class ReconciliationReport(ReconciliationSummary):
    """A reconciliation with its findings: those it opened, and those it was the last to see."""

    findings: list[ReconciliationFinding]


S = TypeVar("S", bound=ReconciliationSummary)


def summary(record: type[S], row: asyncpg.Record, **others: object) -> S:
    """A summary or a report, from a row."""
    totals = {name: CurrencyTotals(**one) for name, one in orjson.loads(row["sums"]).items()}
    explained = [_explained(currency, one) for currency, one in totals.items()]
    unapplied = [_unapplied(**one) for one in orjson.loads(row["unapplied"])]
    return from_row(record, row, explained=explained, unapplied=unapplied, **others)


def _explained(currency: str, totals: CurrencyTotals) -> ExplainedMoney:
    return ExplainedMoney(
        currency=currency,
        reported=format_minor(totals.reported_minor, currency),
        explained=format_minor(totals.explained_minor, currency),
        explained_percent=round(totals.explained_percent, 4),
    )


def _unapplied(currency: str, number: int, sum_minor: int, oldest_at: str) -> UnappliedMoney:
    amount = format_minor(sum_minor, currency)
    return UnappliedMoney(currency, number, amount, datetime.fromisoformat(oldest_at))


def finding(row: asyncpg.Record) -> ReconciliationFinding:
    """A finding, from a row."""
    reported, recorded = row["reported_currency"], row["recorded_currency"]
    return from_row(
        ReconciliationFinding,
        row,
        reported=_amount(row["reported_minor"], reported),
        reported_refunded=_amount(row["reported_refunded_minor"], reported),
        recorded=_amount(row["recorded_minor"], recorded),
        recorded_refunded=_amount(row["recorded_refunded_minor"], recorded),
    )


def _amount(amount_minor: int | None, currency: str | None) -> str | None:
    if amount_minor is None or currency is None:
        return None
    return format_minor(amount_minor, currency)
