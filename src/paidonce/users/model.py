"""Users and subscriptions as merchants see them, and how they are searched."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints

from paidonce.core.input import Input, Reason, Text
from paidonce.db.paging import ListQuery


class UserQuery(ListQuery):
    """Which users."""

    email: Text | None = Field(
        None, description="With this e-mail address, current or former, in any letter case."
    )


class Email(Input):
    """A verified e-mail address: payments under it belong to the user."""

    email: Text


class MergeRequest(Input):
    """The user that remains, and the reason for the audit log."""

    into: UUID
    reason: Annotated[Text, StringConstraints(min_length=1)]


class CancelAt(StrEnum):
    """When a canceled subscription ends."""

    NOW = "now"
    PERIOD_END = "period_end"


class CancelRequest(Reason):
    """When the subscription ends, and the reason for the audit log."""

    at: CancelAt = Field(description="Whether it ends now, or when its period is over.")


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """The subscription of a user to a product.

    A canceled one has `canceled_at`. It is ACTIVE until `current_period_end`, then CANCELED.
    """

    id: UUID
    user_id: UUID
    product: str
    status: str
    current_period_end: datetime | None
    canceled_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PeriodView:
    """A period of a subscription, and the payment that granted it."""

    start: datetime
    end: datetime
    granted_at: datetime
    payment_id: UUID
    payment_status: str
    plan_id: str | None


@dataclass(frozen=True, slots=True)
class SubscriptionDetail(SubscriptionView):
    """A subscription with its periods, the last one first. `truncated`: there are more."""

    periods: list[PeriodView]
    truncated: bool
