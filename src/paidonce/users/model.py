"""Users and subscriptions as operators see them."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """The subscription of a user to a product."""

    id: UUID
    user_id: UUID
    product: str
    status: str
    current_period_end: datetime | None
    created_at: datetime
    updated_at: datetime
