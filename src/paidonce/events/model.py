"""Events as operators see them, and how they are searched."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from paidonce.audit.model import OURSELVES, TrailItem
from paidonce.core.events import Code, EventStatus
from paidonce.core.input import Text, Time
from paidonce.core.masking import MAX_SHOWN, Masker
from paidonce.db.paging import Filter, ListQuery
from paidonce.db.queries import Row, from_row


class _EventFields(Filter):
    """Filters that every search for events has."""

    source: Text | None = Field(None, description="From this source.")
    error_code: Text | None = Field(None, description="With this error code.")
    order: Text | None = Field(None, description="Of the order with this reference.")
    payment: Text | None = Field(
        None, description="Of this payment, by the gateway's id or by ours."
    )


class DeadLetterFilter(_EventFields):
    """Which dead letters."""

    since: Time | None = Field(None, description="Received at or after this time.")
    until: Time | None = Field(None, description="Received before this time.")


class EventFilter(DeadLetterFilter):
    """Which stored events."""

    status: EventStatus | None = Field(None, description="With this status.")


class NewEventFilter(_EventFields):
    """Which of the events that arrive from now on."""

    status: EventStatus | None = Field(None, description="With this status.")
    test: bool | None = Field(None, description="Test data, or not.")


class DeadLetterQuery(DeadLetterFilter, ListQuery):
    """A page of dead letters."""


class EventQuery(NewEventFilter, DeadLetterQuery):
    """A page of events."""


@dataclass(frozen=True, slots=True)
class EventView:
    """A stored delivery and its status."""

    id: UUID
    source: str
    provider: str
    key: str | None
    type: str | None
    status: EventStatus
    error_code: str | None
    error_message: str | None
    payment: str | None
    order: str | None
    attempts: int
    next_attempt_at: datetime | None
    received_at: datetime
    processed_at: datetime | None
    occurred_at: datetime | None
    signature_valid: bool
    signature_method: str
    conflicts_with: UUID | None
    remote_address: str | None
    request_id: str
    erased_at: datetime | None
    transaction_id: str | None
    test: bool


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """A delivery as it arrived, with card numbers and secrets masked.

    `size` is the size of the whole body in bytes; of a large body, only the beginning is shown. A
    body that is not text is in base64.
    """

    headers: dict[str, str]
    body: str
    encoding: Literal["text", "base64"]
    size: int
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class EventDetail(EventView):
    """An event with its audit trail. `evidence` is for keys of scope `operate` and up."""

    trail: list[TrailItem]
    evidence: EvidenceView | None


def event_view(row: Row) -> EventView:
    return from_row(EventView, row, **_changed(row))


def event_detail(row: Row, trail: list[TrailItem], evidence: EvidenceView | None) -> EventDetail:
    return from_row(EventDetail, row, **_changed(row), trail=trail, evidence=evidence)


def _changed(row: Row) -> dict[str, Any]:
    """The fields that are not as in the row."""
    is_sandbox = row["error_code"] == Code.TEST_PAYMENT
    return {"status": EventStatus(row["status"]), "test": row["is_test"] or is_sandbox}


def evidence_view(row: Row, masker: Masker) -> EvidenceView:
    body = masker.body(row["body"])
    return EvidenceView(
        headers={name: masker.field(name, value) for name, value in row["headers"].items()},
        body=body if isinstance(body, str) else b64encode(body).decode(),
        encoding="text" if isinstance(body, str) else "base64",
        size=row["size"],
        is_truncated=row["size"] > MAX_SHOWN,
    )


def basic_trail(event: EventView) -> Iterator[TrailItem]:
    """The steps that are stored in the columns of the event, and not in the audit log."""
    received: dict[str, Any] = {
        "remote_address": event.remote_address,
        "request_id": event.request_id,
        "signature_valid": event.signature_valid,
    }
    if event.test:
        received["test"] = True
    is_evidence = event.key is None or event.conflicts_with is not None
    if not is_evidence:
        yield _step(event.received_at, "event_received", True, received)
        yield _step(event.received_at, "event_inserted", True, {"key": event.key})
    elif event.conflicts_with is None:
        refused = {**received, "error_code": event.error_code}
        yield _step(event.received_at, "event_received", False, refused)
    else:
        yield _step(event.received_at, "event_received", True, received)
        first = {"first_event_id": str(event.conflicts_with)}
        yield _step(event.received_at, "conflict_detected", False, first)
    if event.processed_at:
        for action, details in first_attempt(event.attempts, event.status, event.error_code):
            yield _step(event.processed_at, action, True, details)


def _step(at: datetime, action: str, success: bool, details: dict[str, Any]) -> TrailItem:
    return TrailItem(at, OURSELVES, action, None, success, details)


def first_attempt(
    attempts: int, status: EventStatus, error_code: str | None
) -> list[tuple[str, dict[str, Any]]]:
    """The steps of a first attempt that is stored only in the columns of its event."""
    if attempts != 1 or status not in (EventStatus.PROCESSED, EventStatus.IGNORED):
        return []
    attempt = {"attempt": 1}
    reason = {"reason": error_code} if error_code else {}
    return [("processing_attempt_started", attempt), ("processing_succeeded", attempt | reason)]
