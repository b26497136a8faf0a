"""Events, their trail, and what arrived."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from paidonce.domain.events import Code, EventStatus
from paidonce.domain.masking import MAX_SHOWN, Masker


@dataclass(frozen=True, slots=True)
class EventView:
    """A delivery that was kept, and what became of it."""

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
    transaction_id: str | None
    test: bool


@dataclass(frozen=True, slots=True)
class TrailItem:
    at: datetime
    action: str
    success: bool
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """A delivery as it arrived, with card numbers and secrets masked.

    `size` is that of the whole body, in bytes, of which only the beginning is shown if it is large.
    Bytes that are no text are in base64.
    """

    headers: dict[str, str]
    body: str
    encoding: Literal["text", "base64"]
    size: int
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class EventDetail(EventView):
    """An event with all that happened to it. `evidence` is for keys of scope `operate` and up."""

    trail: list[TrailItem]
    evidence: EvidenceView | None


@dataclass(frozen=True, slots=True)
class ReprocessedView:
    """What became of an event that was processed again.

    `event_id` is its own, or that of the event which refused evidence has become, or repeats.
    """

    result: str
    was: EventStatus
    was_error_code: str | None
    event_id: UUID
    signature: str | None
    applied: bool  # whether a payment was applied by it now


@dataclass(frozen=True, slots=True)
class ReprocessedEvent(EventDetail):
    """An event after it was processed again, and what became of it."""

    reprocessed: ReprocessedView


def event_view(row: Mapping[str, Any]) -> EventView:
    return EventView(**event_fields(row))


def event_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row under the names that the outside knows."""
    fields = dict(row)
    fields["status"] = EventStatus(fields["status"])
    fields["payment"] = fields.pop("external_payment_id")
    fields["order"] = fields.pop("order_reference")
    is_sandbox = fields["error_code"] == Code.TEST_PAYMENT
    fields["test"] = fields.pop("is_test") or is_sandbox
    return fields


def evidence_view(row: Mapping[str, Any], masker: Masker) -> EvidenceView:
    shown = masker.body(row["body"])
    is_text = isinstance(shown, str)
    return EvidenceView(
        headers={name: masker.field(name, value) for name, value in row["headers"].items()},
        body=shown if isinstance(shown, str) else b64encode(shown).decode(),
        encoding="text" if is_text else "base64",
        size=row["size"],
        is_truncated=row["size"] > MAX_SHOWN,
    )


def reprocessed_event(event: EventDetail, reprocessed: ReprocessedView) -> ReprocessedEvent:
    fields = {one.name: getattr(event, one.name) for one in dataclass_fields(event)}
    return ReprocessedEvent(**fields, reprocessed=reprocessed)


def happy_trail(event: EventView) -> Iterator[TrailItem]:
    """What every event of its kind goes through, read off its own columns."""
    received: dict[str, Any] = {
        "remote_address": event.remote_address,
        "request_id": event.request_id,
        "signature_valid": event.signature_valid,
    }
    if event.test:
        received["test"] = True
    is_evidence = event.key is None or event.conflicts_with is not None
    if not is_evidence:
        yield TrailItem(event.received_at, "event_received", True, received)
        yield TrailItem(event.received_at, "event_inserted", True, {"key": event.key})
    elif event.conflicts_with is None:
        refused = {**received, "error_code": event.error_code}
        yield TrailItem(event.received_at, "event_received", False, refused)
    else:
        yield TrailItem(event.received_at, "event_received", True, received)
        first = {"first_event_id": str(event.conflicts_with)}
        yield TrailItem(event.received_at, "conflict_detected", False, first)
    if event.attempts == 1 and event.processed_at and event.status in ("PROCESSED", "IGNORED"):
        attempt = {"attempt": 1}
        reason = {"reason": event.error_code} if event.error_code else {}
        yield TrailItem(event.processed_at, "processing_attempt_started", True, attempt)
        yield TrailItem(event.processed_at, "processing_succeeded", True, attempt | reason)
