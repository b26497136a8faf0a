"""One current subscription per user and product, extended by each payment (FUL-1)."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from paidonce.core.events import SubscriptionId, UserId
from paidonce.core.plans import Plan


class SubscriptionStatus(StrEnum):
    """The stored status. An ACTIVE subscription whose period is over counts as INACTIVE."""

    INACTIVE = "INACTIVE"
    ACTIVE = "ACTIVE"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A user's access to a product until `current_period_end`."""

    id: SubscriptionId
    user_id: UserId
    product: str
    status: SubscriptionStatus
    current_period_end: datetime | None
    version: int = 0  # 0: not in the database yet

    @property
    def is_new(self) -> bool:
        return self.version == 0


def extend_subscription(
    subscription: Subscription, plan: Plan, now: datetime
) -> tuple[Subscription, datetime]:
    """The subscription one period longer, and the start of that period: never in the past."""
    start = max(subscription.current_period_end or now, now)
    longer = Subscription(
        id=subscription.id,
        user_id=subscription.user_id,
        product=subscription.product,
        status=SubscriptionStatus.ACTIVE,
        current_period_end=plan.extend(start),
        version=subscription.version,
    )
    return longer, start


def shorten_subscription(
    subscription: Subscription, granted: timedelta, now: datetime
) -> Subscription:
    """The subscription without a granted period. It does not end before now because of that."""
    end = subscription.current_period_end
    if end is None or end <= now:
        return subscription
    left = max(end - granted, now)
    status = SubscriptionStatus.INACTIVE if left <= now else subscription.status
    return replace(subscription, current_period_end=left, status=status)


def lengthen_subscription(
    subscription: Subscription, granted: timedelta, now: datetime
) -> Subscription:
    """The subscription with a period that was taken back before."""
    end = max(subscription.current_period_end or now, now) + granted
    return replace(subscription, current_period_end=end, status=SubscriptionStatus.ACTIVE)
