"""Options that say which events."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from paidonce.domain.events import EventStatus
from paidonce.errors import ConfigurationError

if TYPE_CHECKING:
    from paidonce.operations import EventFilter

MAX_LISTED: Final = 100_000
_AGO: Final = re.compile(r"([0-9]{1,4})([dh])")

Source = Annotated[str | None, typer.Option(help="Of this source.")]
Status = Annotated[EventStatus | None, typer.Option(help="That have this status.")]
ErrorCode = Annotated[str | None, typer.Option(help="That have this error code.")]
Order = Annotated[str | None, typer.Option(help="Of the order with this reference.")]
Payment = Annotated[str | None, typer.Option(help="Of this payment, by the gateway's id or ours.")]
Since = Annotated[str | None, typer.Option(help="Not before this: ISO 8601, or 7d, 12h ago.")]
Until = Annotated[str | None, typer.Option(help="Before this: the same.")]
Test = Annotated[bool | None, typer.Option("--test/--no-test", help="Test data, or none of it.")]
Limit = Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many at most.")]
Rate = Annotated[int | None, typer.Option(min=1, help="How many a second at most.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def chosen(
    *,
    source: str | None,
    error_code: str | None,
    order: str | None,
    payment: str | None,
    since: str | None,
    until: str | None,
    status: EventStatus | None = None,
) -> "EventFilter":
    """The events that the options name. Raises ConfigurationError."""
    from paidonce.operations import EventFilter

    return EventFilter(
        source=source,
        status=status,
        error_code=error_code,
        order=order,
        payment=payment,
        since=time_of("--since", since),
        until=time_of("--until", until),
    )


def time_of(option: str, text: str | None) -> datetime | None:
    """The time that an option names: so many days or hours ago, or a time, which is UTC unless it
    has a zone. Raises ConfigurationError.
    """
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        unit = {"d": "days", "h": "hours"}[ago[2]]
        return datetime.now(UTC) - timedelta(**{unit: int(ago[1])})
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        example = "2026-11-15T10:00:00Z"
        raise ConfigurationError(
            f"{option} {text}: give a time such as {example}, or 7d, or 12h"
        ) from None
