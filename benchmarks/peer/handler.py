"""Part 2 of the reference, steps 2 to 5, in its order, in one transaction."""

from datetime import UTC, datetime

from sqlalchemy import and_, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from benchmarks.peer.app import Handler
from benchmarks.peer.delivery import PROVIDER, Answer, Delivery, Trail
from benchmarks.peer.models import (
    HAS_EVENT_ID,
    EventStatus,
    Payment,
    PaymentStatus,
    Subscription,
    SubscriptionStatus,
    User,
    WebhookEvent,
)
from benchmarks.peer.rules import FINISHED, SUCCESS, forward_only, plan_of


def open_handler(engine: AsyncEngine, secret: bytes) -> Handler:
    """The handler on this database, with a session and a transaction per delivery."""
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    async def handle_delivery(delivery: Delivery, trail: Trail) -> Answer:
        async with sessions() as session, session.begin():
            return await handle(session, delivery, secret, trail)

    return handle_delivery


async def handle(session: AsyncSession, delivery: Delivery, secret: bytes, trail: Trail) -> Answer:
    """Decide about one delivery and write everything that follows from it."""
    # 2.1, 2.2: the inbox.
    event = await record_event(session, delivery)
    if event is None:
        # 2.3: it has been here before.
        event = await find_event(session, delivery)
        if event.status in FINISHED:
            trail.webhook_event_id = event.id
            return Answer(200, "duplicate")
    trail.webhook_event_id = event.id

    # 3: the signature.
    event.signature_valid = trail.signature_valid = delivery.is_signed_with(secret)
    if not event.signature_valid:
        trail.error_code, trail.error_message = "INVALID_SIGNATURE", "signature check failed"
        close_event(event, EventStatus.FAILED_FINAL, trail)
        return Answer(401, "failed_final")
    event.status = EventStatus.VALIDATED  # The next query writes it first, as it does below.

    # 4: a payment that did not succeed.
    if delivery.payload.status not in SUCCESS:
        trail.error_code = "NON_SUCCESS_STATUS"
        close_event(event, EventStatus.IGNORED, trail)
        return Answer(200, "ignored")
    return await apply(session, event, delivery, trail)


async def record_event(session: AsyncSession, delivery: Delivery) -> WebhookEvent | None:
    """Steps 2.1 and 2.2: the new event; None if it is there already."""
    payload = delivery.payload
    new_event = insert(WebhookEvent).values(
        provider=PROVIDER,
        external_event_id=payload.event_id,
        external_payment_id=payload.external_payment_id,
        payload=delivery.document,
        payload_hash=delivery.payload_hash,
        status=EventStatus.RECEIVED,
    )
    if payload.event_id is not None:
        key = [WebhookEvent.provider, WebhookEvent.external_event_id]
        unless_known = new_event.on_conflict_do_nothing(
            index_elements=key, index_where=HAS_EVENT_ID
        )
    else:
        unless_known = new_event.on_conflict_do_nothing(
            index_elements=[WebhookEvent.provider, WebhookEvent.payload_hash]
        )
    # The whole row, so that the later steps need not read it to change it.
    return (await session.scalars(unless_known.returning(WebhookEvent))).one_or_none()


async def find_event(session: AsyncSession, delivery: Delivery) -> WebhookEvent:
    """Step 2.3: the event as it was recorded first."""
    found = await session.scalars(
        select(WebhookEvent).where(
            WebhookEvent.provider == PROVIDER,
            or_(
                WebhookEvent.external_event_id == delivery.payload.event_id,
                and_(
                    WebhookEvent.external_event_id.is_(None),
                    WebhookEvent.payload_hash == delivery.payload_hash,
                ),
            ),
        )
    )
    return found.one()


async def apply(
    session: AsyncSession, event: WebhookEvent, delivery: Delivery, trail: Trail
) -> Answer:
    """Step 5: payment, user and subscription, locked in this order."""
    # 5.1: the payment.
    payment = await upsert_payment(session, delivery, trail)
    plan = plan_of(delivery.payload.plan_id)
    if (payment.amount, payment.currency) != (plan.price, plan.currency):
        trail.error_code = "AMOUNT_MISMATCH"
        close_event(event, EventStatus.FAILED_FINAL, trail)
        return Answer(200, "failed_final")

    # 5.2: its user.
    if payment.user_id is None and payment.email is not None:
        by_email = select(User.id).where(User.email == payment.email)
        payment.user_id = await session.scalar(by_email)
    trail.user_id = payment.user_id
    if payment.user_id is None:
        trail.error_code = "UNLINKED_PAYMENT" if payment.email is None else "USER_MISSING"
        close_event(event, EventStatus.FAILED_RETRYABLE, trail)
        return Answer(200, "unlinked")

    # 5.3: the user's subscription.
    now = datetime.now(UTC)
    subscription = await session.scalar(
        select(Subscription).where(Subscription.user_id == payment.user_id).with_for_update()
    )
    if subscription is None:
        subscription = Subscription(
            user_id=payment.user_id, status=SubscriptionStatus.INACTIVE, current_period_end=now
        )
        session.add(subscription)
        await session.flush()

    # 5.4: exactly once.
    applied = await session.execute(
        update(Payment)
        .where(Payment.id == payment.id, Payment.subscription_applied_at.is_(None))
        .values(subscription_applied_at=now, subscription_id=subscription.id)
        .returning(Payment.id)
    )
    trail.applied_after = True
    if applied.one_or_none() is not None:
        # 5.5: the extension.
        trail.subscription_end_before = subscription.current_period_end
        subscription.status = SubscriptionStatus.ACTIVE
        subscription.current_period_end = max(subscription.current_period_end, now) + plan.duration
        subscription.updated_at = now
        trail.subscription_end_after = subscription.current_period_end

    # 5.6: the end; the commit writes what has changed.
    event.status, event.processed_at = EventStatus.PROCESSED, now
    return Answer(200, "processed")


async def upsert_payment(session: AsyncSession, delivery: Delivery, trail: Trail) -> Payment:
    """Step 5.1: the locked payment, inserted if it is new, otherwise with its status advanced."""
    payload = delivery.payload
    payment = await session.scalar(
        select(Payment)
        .where(
            Payment.provider == PROVIDER,
            Payment.external_payment_id == payload.external_payment_id,
        )
        .with_for_update()
    )
    if payment is None:
        payment = Payment(
            provider=PROVIDER,
            external_payment_id=payload.external_payment_id,
            email=payload.email,
            amount=payload.amount,
            currency=payload.currency,
            status=PaymentStatus.SUCCEEDED,
            paid_at=payload.paid_at or datetime.now(UTC),
        )
        session.add(payment)
        await session.flush()
    else:
        trail.payment_status_before = payment.status
        payment.status = forward_only(payment.status, PaymentStatus.SUCCEEDED)
        payment.paid_at = payment.paid_at or payload.paid_at
        payment.email = payment.email or payload.email
    trail.payment_status_after = payment.status
    trail.applied_before = payment.subscription_applied_at is not None
    return payment


def close_event(event: WebhookEvent, status: EventStatus, trail: Trail) -> None:
    """Finish an event that did not succeed. The commit writes it."""
    event.status, event.processed_at = status, datetime.now(UTC)
    event.error_code, event.error_message = trail.error_code, trail.error_message
