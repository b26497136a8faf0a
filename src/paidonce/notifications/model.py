"""Notifications, and the messages that carry them to a channel."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson

from paidonce.core.email import mask_email, mask_emails
from paidonce.core.events import EventId, PaymentId
from paidonce.core.input import storable
from paidonce.core.notifications import NotificationKind
from paidonce.db.queries import WrittenRow
from paidonce.telemetry import masked

MAX_TEXT: Final = 200

COLUMNS: Final = (
    "channel", "at", "kind", "source", "event_id", "payment_id", "details", "not_before",
)  # fmt: skip

Routes = Mapping[NotificationKind, Sequence[str]]
"""The channels of each kind."""

Content = Mapping[str, Any]
"""The content of a message, as JSON."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A problem to notify people of. Use `clean` for the details: no secrets, no payloads.

    With `not_before` it is sent at that time, and only if the payment still needs review for the
    code in the details, or still waits.
    """

    kind: NotificationKind
    at: datetime
    source: str = ""
    event_id: EventId | None = None
    payment_id: PaymentId | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    not_before: datetime | None = None

    def rows(self, routes: Routes) -> Iterator[WrittenRow]:
        """A row for each channel of its kind, in the order of COLUMNS."""
        channels = routes.get(self.kind, ())
        if not channels:
            return
        details = orjson.dumps(
            dict(self.details), default=str, option=orjson.OPT_PASSTHROUGH_DATACLASS
        ).decode()
        values = (self.kind, self.source, self.event_id, self.payment_id, details, self.not_before)
        for channel in channels:
            yield (channel, self.at, *values)


@dataclass(frozen=True, slots=True)
class PendingNotification:
    """A stored notification, and how many others of its kind and source were only counted."""

    kind: str
    source: str
    at: datetime
    event_id: UUID | None
    payment_id: UUID | None
    details: Mapping[str, Any]
    suppressed: int


@dataclass(frozen=True, slots=True)
class NotificationMessage:
    """A message to a channel. `attempts` includes the current one."""

    id: UUID
    at: datetime
    content: Content
    attempts: int
    age_s: float


@dataclass(frozen=True, slots=True)
class PendingCount:
    """How many notifications a channel has not received, and the age of the oldest."""

    channel: str
    number: int
    oldest_s: float


def clean(details: Mapping[str, object]) -> dict[str, object]:
    """Details as short, masked texts that PostgreSQL can store."""
    email = details.get("email")
    masked_details = dict(details, email=mask_email(email) if isinstance(email, str) else None)
    return {
        name: clean_text(str(value)) for name, value in masked_details.items() if value is not None
    }


def clean_text(text: str) -> str:
    """Masked, because an id may contain whatever its sender puts there, such as a card number."""
    return mask_emails(masked(storable(text)))[:MAX_TEXT]
