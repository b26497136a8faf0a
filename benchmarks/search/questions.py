"""What operators, and Prometheus, ask."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from paidonce.domain.events import EventStatus
from paidonce.domain.payments import PaymentStatus
from paidonce.operations import Operations

Ask = Callable[[Operations], Awaitable[Any]]

LIMIT = 50


@dataclass(frozen=True, slots=True)
class Question:
    """One question, by the words of the API."""

    name: str
    ask: Ask


def questions() -> list[Question]:
    """Each filter alone, some together, and what counts."""
    month_ago = datetime.now(UTC) - timedelta(days=30)
    return [
        _events(""),
        _events("source=common", source="common"),
        _events("source=rare", source="rare"),
        _events("status=DEAD_LETTER", status=EventStatus.DEAD_LETTER),
        _events("status=FAILED_FINAL, months ago", status=EventStatus.FAILED_FINAL),
        _events("error_code=HANDLER_FAILED", error_code="HANDLER_FAILED"),
        _events("order, of a third of all events", order="o-hot"),
        _events("payment, of a third of all events", payment="p-hot"),
        _events("payment", payment="p-7000"),
        _events("until a month ago", until=month_ago),
        _events("test=true", test=True),
        _events("status=FAILED_FINAL&test=true: nothing in its budget",
                status=EventStatus.FAILED_FINAL, test=True),
        _events("payment&status: nothing in its budget", payment="p-hot",
                status=EventStatus.DEAD_LETTER),
        _payments("applied=false", applied=False),
        _payments("email, of a third of all payments", email="hot@example.com"),
        _payments("status=SUCCEEDED&source=rare: nothing in its budget",
                  status=PaymentStatus.SUCCEEDED, source="rare"),
        _payments("review=USER_MISSING", review="USER_MISSING"),
        Question("orders?kind=booking: nothing in its budget",
                 lambda verbs: verbs.orders(limit=LIMIT, kind="booking")),
        Question("stats?days=7", lambda verbs: verbs.statistics(days=7)),
        Question("stats?days=366", lambda verbs: verbs.statistics(days=366)),
        Question("metrics: backlog", lambda verbs: verbs.backlog()),
        Question("metrics: unapplied money", lambda verbs: verbs.unapplied_money()),
        Question("metrics: to review", lambda verbs: verbs.to_review()),
    ]  # fmt: skip


def _events(name: str, **filters: Any) -> Question:
    title = f"events?{name}" if name else "events"
    return Question(title, lambda verbs: verbs.events(limit=LIMIT, **filters))


def _payments(name: str, **filters: Any) -> Question:
    return Question(f"payments?{name}", lambda verbs: verbs.payments(limit=LIMIT, **filters))
