"""One current subscription per user and product, extended by each payment (FUL-1, FUL-7).

The periods of a subscription are a pure function of its grants: see `schedule`. A new payment is
the last grant, so it extends the subscription without a look at the others. A refund computes the
schedule anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from paidonce.core.events import OrderId, PaymentId, SubscriptionId, UserId
from paidonce.core.plans import Duration, Plan


class SubscriptionStatus(StrEnum):
    """The stored status. An ACTIVE subscription whose period is over counts as INACTIVE.

    A CANCELED one lasts until its period is over, or until an operator ended it. It takes no
    further payment.
    """

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
    anchor_day: int | None = None  # on which day its months end; None: the day of the next start
    version: int = 0  # 0: not in the database yet

    @property
    def is_new(self) -> bool:
        return self.version == 0

    @property
    def is_canceled(self) -> bool:
        return self.status is SubscriptionStatus.CANCELED


@dataclass(frozen=True, slots=True)
class Grant:
    """A period that a payment granted, or a free order."""

    payment_id: PaymentId | OrderId
    at: datetime
    duration: Duration
    returned_at: datetime | None = None  # when all of its money was back


@dataclass(frozen=True, slots=True)
class Period:
    """From `start` to `end`. Months that follow without a gap end on the anchor day."""

    start: datetime
    end: datetime
    anchor_day: int | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The period of each grant, and the last one."""

    periods: Mapping[PaymentId | OrderId, Period]
    last: Period


def next_period(
    end: datetime | None, anchor_day: int | None, at: datetime, duration: Duration
) -> Period:
    """The period that is granted at a time, after a subscription that ends at `end`.

    It is never in the past. The anchor is the day on which an unbroken run of months began.
    """
    is_unbroken = end is not None and end >= at
    start = end if is_unbroken and end is not None else at
    if duration.months == 0:
        return Period(start, duration.extend(start, start.day), None)
    day = anchor_day if is_unbroken and anchor_day is not None else start.day
    return Period(start, duration.extend(start, day), day)


def schedule(grants: Iterable[Grant], *, takes_back_used: bool = False) -> Schedule:
    """The periods that follow from the grants, in whatever order their refunds arrived.

    Of a returned grant, the part that was not used yet falls out, or all of it, and later grants
    move up. The end may be in the past.
    """
    end: datetime | None = None
    anchor_day: int | None = None
    periods: dict[PaymentId | OrderId, Period] = {}
    for grant in sorted(grants, key=lambda one: (one.at, one.payment_id)):
        period = next_period(end, anchor_day, grant.at, grant.duration)
        if grant.returned_at is not None:
            used = period.start if takes_back_used else max(grant.returned_at, period.start)
            if used < period.end:
                period = Period(period.start, used, None)
        periods[grant.payment_id] = period
        end, anchor_day = period.end, period.anchor_day
    return Schedule(periods, period)


def extend_subscription(
    subscription: Subscription, plan: Plan, now: datetime
) -> tuple[Subscription, datetime]:
    """The subscription one period longer, and the start of that period."""
    period = next_period(
        subscription.current_period_end, subscription.anchor_day, now, plan.duration
    )
    longer = Subscription(
        id=subscription.id,
        user_id=subscription.user_id,
        product=subscription.product,
        status=SubscriptionStatus.ACTIVE,
        current_period_end=period.end,
        anchor_day=period.anchor_day,
        version=subscription.version,
    )
    return longer, period.start


def reschedule_subscription(
    subscription: Subscription, last: Period, now: datetime
) -> Subscription:
    """The subscription with another last period."""
    status = SubscriptionStatus.ACTIVE if last.end > now else SubscriptionStatus.INACTIVE
    if subscription.is_canceled:
        status = SubscriptionStatus.CANCELED
    return replace(
        subscription, status=status, current_period_end=last.end, anchor_day=last.anchor_day
    )
