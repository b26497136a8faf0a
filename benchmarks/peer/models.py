"""The reference schema, with all its unique constraints and indexes, as declarative models."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum, auto
from typing import Annotated, Any, ClassVar
from uuid import UUID

from sqlalchemy import DateTime, ForeignKey, Index, Numeric, Text, UniqueConstraint, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class _UpperCase(StrEnum):
    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name


class SubscriptionStatus(_UpperCase):
    """Whether the subscription is active."""

    INACTIVE = auto()
    ACTIVE = auto()
    CANCELED = auto()


class PaymentStatus(_UpperCase):
    """The status of a payment at the provider."""

    RECEIVED = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    REFUNDED = auto()


class EventStatus(_UpperCase):
    """The state of an event."""

    RECEIVED = auto()
    VALIDATED = auto()
    PROCESSED = auto()
    IGNORED = auto()
    FAILED_RETRYABLE = auto()
    FAILED_FINAL = auto()


Id = Annotated[UUID, mapped_column(primary_key=True, server_default=func.gen_random_uuid())]
Moment = Annotated[datetime, mapped_column(server_default=func.now())]


class Base(DeclarativeBase):
    """Maps annotations to column types."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text,
        datetime: DateTime(timezone=True),
        Decimal: Numeric(12, 2),
        dict[str, Any]: JSONB,
    }


class User(Base):
    """A customer, known by e-mail."""

    __tablename__ = "users"

    id: Mapped[Id]
    email: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class Subscription(Base):
    """The only subscription of a user; every payment makes it longer."""

    __tablename__ = "subscriptions"
    __table_args__ = (Index("subscriptions_by_status_and_end", "status", "current_period_end"),)

    id: Mapped[Id]
    user_id: Mapped[UUID] = mapped_column(ForeignKey(User.id), unique=True)
    status: Mapped[SubscriptionStatus]
    current_period_end: Mapped[Moment]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class Payment(Base):
    """A payment, and whether it was applied to a subscription."""

    __tablename__ = "payments"
    __table_args__ = (
        UniqueConstraint("provider", "external_payment_id"),
        Index("payments_by_status", "status"),
        Index("payments_by_email", "email"),
    )

    id: Mapped[Id]
    provider: Mapped[str]
    external_payment_id: Mapped[str]
    user_id: Mapped[UUID | None] = mapped_column(ForeignKey(User.id))
    email: Mapped[str | None]
    amount: Mapped[Decimal | None]
    currency: Mapped[str | None]
    status: Mapped[PaymentStatus]
    paid_at: Mapped[datetime | None]
    subscription_applied_at: Mapped[datetime | None]
    subscription_id: Mapped[UUID | None]
    created_at: Mapped[Moment]


Index("payments_of_user", Payment.user_id, Payment.created_at.desc())


class WebhookEvent(Base):
    """The inbox: one row per event, however often it is delivered."""

    __tablename__ = "webhook_events"
    __table_args__ = (
        UniqueConstraint("provider", "payload_hash"),
        Index("webhook_events_by_payment", "external_payment_id"),
        Index("webhook_events_by_status", "status", "received_at"),
    )

    id: Mapped[Id]
    provider: Mapped[str]
    external_event_id: Mapped[str | None]
    external_payment_id: Mapped[str | None]
    payload: Mapped[dict[str, Any]]
    payload_hash: Mapped[str]
    signature_valid: Mapped[bool | None]
    status: Mapped[EventStatus]
    received_at: Mapped[Moment]
    processed_at: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]


HAS_EVENT_ID = WebhookEvent.external_event_id.is_not(None)
Index(
    "webhook_events_by_event_id",
    WebhookEvent.provider,
    WebhookEvent.external_event_id,
    unique=True,
    postgresql_where=HAS_EVENT_ID,
)
