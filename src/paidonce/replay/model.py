"""Replays, and results of processing stored events again."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, NewType
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from paidonce.core.events import Code, EventId, EventStatus
from paidonce.core.money import Money, format_minor
from paidonce.core.state import Applied
from paidonce.events.model import DeadLetterFilter, EventDetail, EventFilter
from paidonce.processing.items import Rejected, Result, ResultKind
from paidonce.queue.store import StoredEvent

MAX_RATE: Final = 10_000
MAX_SAMPLE: Final = 20
"""How many of the first changes a replay shows one by one."""

ReplayId = NewType("ReplayId", UUID)
Rate = Annotated[int, Field(ge=1, le=MAX_RATE)]
"""How many events per second at most."""


class ReplayRequest(BaseModel):
    """Which events to process again. A dry run shows what would change, and changes nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: EventFilter
    dry_run: bool
    rate: Rate | None = None


class RetryRequest(BaseModel):
    """Which dead letters to process again (without a filter: all), and how many per second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: DeadLetterFilter
    rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class DiscardResult:
    """How many dead letters were discarded, and whether more match."""

    discarded: int
    more: bool


class ReplayStatus(StrEnum):
    """The status of a replay. The schema ties each to its timestamps."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_active(self) -> bool:
        """Whether a worker has to run it."""
        return self in (ReplayStatus.PENDING, ReplayStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class AppliedPayments:
    """Payments that were applied, or would be: how many, and the sum of each currency."""

    number: int
    sums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay. `counts` holds the number of events by change of status.

    `total` is null if there were too many events to count at the start. `sample` lists the first
    changes.
    """

    id: ReplayId
    status: ReplayStatus
    filter: dict[str, Any]
    dry_run: bool
    rate: int
    total: int | None
    done: int
    counts: dict[str, int]
    applied: AppliedPayments
    sample: list[dict[str, Any]]
    actor: str
    error: str | None
    created_at: datetime
    started_at: datetime | None
    paused_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ReplayState(Replay):
    """A replay with what its worker needs to continue it."""

    cursor: UUID | None
    skipped: list[EventId]  # locked by others: to be tried again
    sums_minor: dict[str, int]
    version: int
    wait_s: float  # until the rate allows more

    @property
    def events(self) -> EventFilter:
        return EventFilter(**self.filter)


class SignatureCheck(StrEnum):
    """The result of verifying a stored delivery again."""

    VERIFIED = "verified"
    UNCHECKED = "could not be checked any more"
    NONE = "none"  # its gateway does not sign


class ReprocessKind(StrEnum):
    """How processing an event again ended."""

    PROCESSED = "processed"  # its status tells the rest
    DUPLICATE = "duplicate"  # refused evidence of an event that has arrived since
    REFUSED = "refused"  # it stays refused
    SOURCE_UNKNOWN = "source not configured"
    ERASED = "erased"  # its user was erased: there is nothing to read
    LOCKED = "skipped"  # another transaction holds it
    NEEDS_LOOKUP = "would be looked up"  # dry run only
    CALLS_HANDLERS = "would call handlers"  # dry run only


@dataclass(frozen=True, slots=True, eq=False)
class ReprocessResult:
    """The result of processing one event again, or of its dry run."""

    stored: StoredEvent
    kind: ReprocessKind
    signature: SignatureCheck | None = None
    code: str | None = None
    message: str | None = None
    result: Result | None = None
    applied: tuple[Money, ...] = ()

    @property
    def new_status(self) -> str:
        """The event's status now, or why it has none."""
        outcome = self.result.outcome if self.result else None
        is_processed = self.kind is ReprocessKind.PROCESSED and outcome is not None
        return outcome.status if is_processed and outcome else self.kind

    @property
    def event_id(self) -> EventId:
        """The event's id, or that of the event which refused evidence became or repeats."""
        new_id = self.result.event_id if self.result else None
        return new_id or self.stored.event_id

    @property
    def new_event_id(self) -> str | None:
        """The other event's id, if evidence became or repeats one."""
        return None if self.event_id == self.stored.event_id else str(self.event_id)

    @property
    def is_changed(self) -> bool:
        """Whether the event's status or error code changed, or a payment was applied."""
        is_other = self.new_status != self.stored.status or self.code != self.stored.error_code
        is_done = self.kind in (ReprocessKind.PROCESSED, ReprocessKind.DUPLICATE)
        return bool(self.applied) or (is_done and is_other)


@dataclass(frozen=True, slots=True)
class ReprocessReport:
    """What processing an event again changed.

    `event_id` is its own, or that of the event which refused evidence became or repeats.
    """

    result: str
    was: EventStatus
    was_error_code: str | None
    event_id: UUID
    signature: str | None
    applied: bool  # whether a payment was applied by it now


@dataclass(frozen=True, slots=True)
class ReprocessedEvent(EventDetail):
    """An event after it was processed again."""

    reprocessed: ReprocessReport


def reprocess_result(
    stored: StoredEvent, signature: SignatureCheck, result: Result
) -> ReprocessResult:
    """What the result of processing means for the stored event."""
    match result.kind:
        case ResultKind.LOCKED | ResultKind.NOT_STORED:
            return ReprocessResult(stored, ReprocessKind.LOCKED, code=stored.error_code)
        case ResultKind.DUPLICATE:
            return ReprocessResult(stored, ReprocessKind.DUPLICATE, signature, result=result)
        case ResultKind.CONFLICT:
            message = result.outcome.message if result.outcome else None
            return ReprocessResult(
                stored, ReprocessKind.REFUSED, signature, Code.PAYLOAD_CONFLICT, message
            )
        case _:
            return _processed(stored, signature, result)


def _processed(stored: StoredEvent, signature: SignatureCheck, result: Result) -> ReprocessResult:
    if isinstance(result.item, Rejected):
        refusal = result.item.refusal
        return ReprocessResult(stored, ReprocessKind.REFUSED, signature, refusal.code, str(refusal))
    outcome = result.outcome
    assert outcome is not None
    done = result.decision.effects if result.decision else ()
    captured = (one.payment.facts.captured for one in done if isinstance(one, Applied))
    return ReprocessResult(
        stored,
        ReprocessKind.PROCESSED,
        signature,
        outcome.code,
        outcome.message,
        result,
        applied=tuple(money for money in captured if money is not None),
    )


def reprocessed_event(done: ReprocessResult, event: EventDetail) -> ReprocessedEvent:
    """The event, and what processing it again changed."""
    assert done.result is not None
    report = ReprocessReport(
        result=done.result.kind,
        was=done.stored.status,
        was_error_code=done.stored.error_code,
        event_id=done.event_id,
        signature=done.signature,
        applied=bool(done.applied),
    )
    detail = {field.name: getattr(event, field.name) for field in fields(event)}
    return ReprocessedEvent(**detail, reprocessed=report)


def add_results(replay: ReplayState, results: Iterable[ReprocessResult]) -> dict[str, Any]:
    """The columns that count the results of a replay, after these results."""
    counts, sample = Counter(replay.counts), list(replay.sample)
    number, sums_minor = replay.applied.number, Counter(replay.sums_minor)
    for one in results:
        counts[f"{one.stored.status} → {one.new_status}"] += 1
        if one.is_changed and len(sample) < MAX_SAMPLE:
            sample.append(_sample_item(one))
        for money in one.applied:
            number += 1
            sums_minor[money.currency] += money.amount_minor
    applied = {"number": number, "sums_minor": sums_minor}
    return {"counts": counts, "applied": applied, "sample": sample}


def _sample_item(done: ReprocessResult) -> dict[str, Any]:
    item = {
        "event_id": str(done.stored.event_id),
        "was": done.stored.status,
        "was_error_code": done.stored.error_code,
        "is": done.new_status,
        "error_code": done.code,
        "new_event_id": done.new_event_id,
        "applied": [
            f"{format_minor(one.amount_minor, one.currency)} {one.currency}" for one in done.applied
        ],
    }
    return {name: value for name, value in item.items() if value}
