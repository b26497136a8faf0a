"""Every statement of the handler, built once, so that a request only binds its values."""

from sqlalchemy import and_, bindparam, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from benchmarks.peer.models import Base

users = Base.metadata.tables["users"]
subscriptions = Base.metadata.tables["subscriptions"]
payments = Base.metadata.tables["payments"]
webhook_events = Base.metadata.tables["webhook_events"]

EVENT_KEY = ["provider", "external_event_id"]
HASH_KEY = ["provider", "payload_hash"]

_new_event = insert(webhook_events).values(
    provider=bindparam("provider"),
    external_event_id=bindparam("external_event_id"),
    external_payment_id=bindparam("external_payment_id"),
    payload=bindparam("payload"),
    payload_hash=bindparam("payload_hash"),
    status="RECEIVED",
)
insert_event_by_id = _new_event.on_conflict_do_nothing(
    index_elements=EVENT_KEY, index_where=webhook_events.c.external_event_id.is_not(None)
).returning(webhook_events.c.id)
insert_event_by_hash = _new_event.on_conflict_do_nothing(index_elements=HASH_KEY).returning(
    webhook_events.c.id
)

select_event = select(webhook_events.c.id, webhook_events.c.status).where(
    webhook_events.c.provider == bindparam("provider"),
    or_(
        webhook_events.c.external_event_id == bindparam("external_event_id"),
        and_(
            webhook_events.c.external_event_id.is_(None),
            webhook_events.c.payload_hash == bindparam("payload_hash"),
        ),
    ),
)

_this_event = update(webhook_events).where(webhook_events.c.id == bindparam("event_id"))
validate_event = _this_event.values(signature_valid=True, status="VALIDATED")
process_event = _this_event.values(status="PROCESSED", processed_at=func.now())
close_event = _this_event.values(
    status=bindparam("new_status"),
    processed_at=func.now(),
    signature_valid=bindparam("is_signed"),
    error_code=bindparam("code"),
    error_message=bindparam("message"),
)

lock_payment = (
    select(payments)
    .where(
        payments.c.provider == bindparam("provider"),
        payments.c.external_payment_id == bindparam("external_payment_id"),
    )
    .with_for_update()
)

insert_payment = (
    insert(payments)
    .values(
        provider=bindparam("provider"),
        external_payment_id=bindparam("external_payment_id"),
        email=bindparam("email"),
        amount=bindparam("amount"),
        currency=bindparam("currency"),
        status="SUCCEEDED",
        paid_at=func.coalesce(bindparam("paid_at", type_=payments.c.paid_at.type), func.now()),
    )
    .returning(payments)
)

_this_payment = update(payments).where(payments.c.id == bindparam("payment_id"))
update_payment = _this_payment.values(
    status=bindparam("new_status"),
    paid_at=func.coalesce(
        payments.c.paid_at, bindparam("new_paid_at", type_=payments.c.paid_at.type)
    ),
    email=func.coalesce(payments.c.email, bindparam("new_email", type_=payments.c.email.type)),
).returning(payments)

select_user = select(users.c.id).where(users.c.email == bindparam("email"))
link_payment = _this_payment.values(user_id=bindparam("owner_id"))

_subscription = (subscriptions.c.id, subscriptions.c.current_period_end)
lock_subscription = (
    select(*_subscription).where(subscriptions.c.user_id == bindparam("user_id")).with_for_update()
)
insert_subscription = (
    insert(subscriptions)
    .values(user_id=bindparam("user_id"), status="INACTIVE")
    .on_conflict_do_update(index_elements=["user_id"], set_={"updated_at": func.now()})
    .returning(*_subscription)
)

apply_once = (
    _this_payment.where(payments.c.subscription_applied_at.is_(None))
    .values(subscription_applied_at=func.now(), subscription_id=bindparam("applied_to"))
    .returning(payments.c.id)
)
extend_subscription = (
    update(subscriptions)
    .where(subscriptions.c.id == bindparam("own_id"))
    .values(status="ACTIVE", current_period_end=bindparam("new_end"), updated_at=func.now())
)
