"""The reference schema, with all its unique constraints and indexes, as SQLAlchemy tables."""

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    Index,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData()


def _id() -> Column[object]:
    return Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid())


def _moment(name: str, *, nullable: bool = False) -> Column[object]:
    default = None if nullable else func.now()
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


users = Table(
    "users",
    metadata,
    _id(),
    Column("email", Text, nullable=False, unique=True),
    _moment("created_at"),
    _moment("updated_at"),
)

subscriptions = Table(
    "subscriptions",
    metadata,
    _id(),
    Column("user_id", ForeignKey(users.c.id), nullable=False, unique=True),
    Column(
        "status", Enum("INACTIVE", "ACTIVE", "CANCELED", name="subscription_status"), nullable=False
    ),
    _moment("current_period_end"),
    _moment("created_at"),
    _moment("updated_at"),
    Index("subscriptions_by_status_and_end", "status", "current_period_end"),
)

payments = Table(
    "payments",
    metadata,
    _id(),
    Column("provider", Text, nullable=False),
    Column("external_payment_id", Text, nullable=False),
    Column("user_id", ForeignKey(users.c.id)),
    Column("email", Text),
    Column("amount", Numeric(12, 2)),
    Column("currency", Text),
    Column(
        "status",
        Enum("RECEIVED", "SUCCEEDED", "FAILED", "REFUNDED", name="payment_status"),
        nullable=False,
    ),
    _moment("paid_at", nullable=True),
    _moment("subscription_applied_at", nullable=True),
    Column("subscription_id", Uuid),
    _moment("created_at"),
    UniqueConstraint("provider", "external_payment_id"),
    Index("payments_by_status", "status"),
    Index("payments_by_email", "email"),
)
Index("payments_of_user", payments.c.user_id, payments.c.created_at.desc())

webhook_events = Table(
    "webhook_events",
    metadata,
    _id(),
    Column("provider", Text, nullable=False),
    Column("external_event_id", Text),
    Column("external_payment_id", Text),
    Column("payload", JSONB, nullable=False),
    Column("payload_hash", Text, nullable=False),
    Column("signature_valid", Boolean),
    Column(
        "status",
        Enum(
            "RECEIVED",
            "VALIDATED",
            "PROCESSED",
            "IGNORED",
            "FAILED_RETRYABLE",
            "FAILED_FINAL",
            name="webhook_event_status",
        ),
        nullable=False,
    ),
    _moment("received_at"),
    _moment("processed_at", nullable=True),
    Column("error_code", Text),
    Column("error_message", Text),
    UniqueConstraint("provider", "payload_hash"),
    Index("webhook_events_by_payment", "external_payment_id"),
    Index("webhook_events_by_status", "status", "received_at"),
)
HAS_EVENT_ID = text("external_event_id IS NOT NULL")
Index(
    "webhook_events_by_event_id",
    webhook_events.c.provider,
    webhook_events.c.external_event_id,
    unique=True,
    postgresql_where=HAS_EVENT_ID,
)
