"""The queries of operators and of Prometheus."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from paidonce.audit.model import AuditQuery
from paidonce.bootstrap.services import Services
from paidonce.core.events import EventStatus
from paidonce.core.facts import PaymentStatus
from paidonce.core.orders import Kind
from paidonce.events.model import EventQuery
from paidonce.orders.model import OrderQuery
from paidonce.payments.model import PaymentQuery

Ask = Callable[[Services], Awaitable[Any]]

LIMIT = 50


@dataclass(frozen=True, slots=True)
class Question:
    """One query, written as in the API."""

    name: str
    ask: Ask


def questions() -> list[Question]:
    """Each filter alone, some combinations, and the counts."""
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
                 lambda services: services.orders.search(
                     OrderQuery(limit=LIMIT, kind=Kind.BOOKING))),
        Question("audit?order, of a third of all entries",
                 lambda services: services.audit.search(AuditQuery(limit=LIMIT, order="o-hot"))),
        Question("audit until a month ago",
                 lambda services: services.audit.search(AuditQuery(limit=LIMIT, until=month_ago))),
        Question("stats?days=7", lambda services: services.statistics.report(days=7)),
        Question("stats?days=366", lambda services: services.statistics.report(days=366)),
        Question("metrics: backlog", lambda services: services.events.backlog()),
        Question("metrics: unapplied money", lambda services: services.payments.unapplied_money()),
        Question("metrics: to review", lambda services: services.payments.to_review()),
    ]  # fmt: skip


def _events(name: str, **filters: Any) -> Question:
    title = f"events?{name}" if name else "events"
    return Question(
        title, lambda services: services.events.search(EventQuery(limit=LIMIT, **filters))
    )


def _payments(name: str, **filters: Any) -> Question:
    return Question(
        f"payments?{name}",
        lambda services: services.payments.search(PaymentQuery(limit=LIMIT, **filters)),
    )
