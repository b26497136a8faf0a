"""Entries of the audit log: as they are written and shown, and how they are searched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID

import orjson
from pydantic import Field, StringConstraints

from paidonce.core.input import Text, Time
from paidonce.db.paging import ListQuery
from paidonce.db.queries import Row, from_row

OURSELVES: Final = "paidonce"
"""The actor of what no operator asked for."""
FREQUENT: Final = frozenset(
    {
        "event_deduped",
        "retry_scheduled",
        "processing_attempt_started",
        "processing_attempt_failed",
        "processing_succeeded",
        "wallet_reserved",
        "wallet_committed",
        "wallet_released",
        "wallet_expired",
    }
)
"""Actions that are written for many events, or for each wallet command. No index finds them."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry to be written. Without a time it gets the time of writing."""

    actor: str
    action: str
    success: bool = True
    event_id: UUID | None = None
    payment_id: UUID | None = None
    order: str | None = None
    user_id: UUID | None = None
    reason: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    at: datetime | None = None


class Position(NamedTuple):
    """The place of an entry in the list, which is ordered by time and then by id."""

    at: datetime
    id: int

    def __str__(self) -> str:
        return f"{(self.at - _EPOCH) // _MICROSECOND}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        microseconds, _, number = text.partition("-")
        return cls(_EPOCH + int(microseconds) * _MICROSECOND, int(number))


class AuditQuery(ListQuery):
    """Which entries of the audit log."""

    payment: UUID | None = Field(None, description="About this payment, by our id.")
    order: Text | None = Field(None, description="About the order with this reference.")
    user: UUID | None = Field(None, description="About this user.")
    event: UUID | None = Field(None, description="About this event.")
    actor: Text | None = Field(None, description="By this actor, such as `cli:root`.")
    action: Text | None = Field(None, description="Of this kind, such as `payment_linked`.")
    since: Time | None = Field(None, description="At or after this time.")
    until: Time | None = Field(None, description="Before this time.")
    cursor: Annotated[str, StringConstraints(pattern=r"^\d{1,17}-\d{1,18}$")] | None = Field(  # type: ignore[assignment]
        None, description="`next_cursor` of the previous page."
    )


@dataclass(frozen=True, slots=True)
class TrailItem:
    """What was done to an event, a payment or an order."""

    at: datetime
    actor: str
    action: str
    reason: str | None
    success: bool
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditView(TrailItem):
    """An entry of the audit log: who did what, when, why, and to what."""

    id: int
    payment_id: UUID | None
    order: str | None
    user_id: UUID | None
    event_id: UUID | None


def audit_view(row: Row) -> AuditView:
    """From a row of the search."""
    return from_row(AuditView, row, details=orjson.loads(row["details"]))


def trail_item(row: Row) -> TrailItem:
    """The same without what the trail is of."""
    return from_row(TrailItem, row, details=orjson.loads(row["details"]))
