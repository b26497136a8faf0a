"""The rules of the reference: the gateway's statuses, their order, the plans."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from benchmarks.peer.models import EventStatus, PaymentStatus

FINISHED = frozenset({EventStatus.PROCESSED, EventStatus.IGNORED, EventStatus.FAILED_FINAL})
SUCCESS = frozenset({"paid", "succeeded"})
STATUS_ORDER = (
    PaymentStatus.RECEIVED,
    PaymentStatus.FAILED,
    PaymentStatus.SUCCEEDED,
    PaymentStatus.REFUNDED,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a subscription costs and how long one payment lasts."""

    price: Decimal
    currency: str
    duration: timedelta


DEFAULT_PLAN = "monthly"
PLANS = {"monthly": Plan(price=Decimal("990.00"), currency="RUB", duration=timedelta(days=30))}


def forward_only(known: PaymentStatus, reported: PaymentStatus) -> PaymentStatus:
    """The later status: a payment never goes back."""
    return max(known, reported, key=STATUS_ORDER.index)


def plan_of(plan_id: str | None) -> Plan:
    """The plan that was paid for; the default one if it is unknown."""
    return PLANS.get(plan_id or DEFAULT_PLAN, PLANS[DEFAULT_PLAN])
