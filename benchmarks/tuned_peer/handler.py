"""Part 2 of the reference, steps 2 to 5, in its order, in one transaction."""

from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from benchmarks.peer.app import Handler
from benchmarks.peer.delivery import PROVIDER, Answer, Delivery, Trail
from benchmarks.peer.models import EventStatus, PaymentStatus
from benchmarks.peer.rules import FINISHED, SUCCESS, Plan, forward_only, plan_of
from benchmarks.tuned_peer import statements

AnyRow: TypeAlias = Row[*tuple[Any, ...]]


def open_handler(engine: AsyncEngine, secret: bytes) -> Handler:
    """The handler on this database, with a connection and a transaction per delivery."""

    async def handle_delivery(delivery: Delivery, trail: Trail) -> Answer:
        async with engine.begin() as db:
            return await handle(db, delivery, secret, trail)

    return handle_delivery


async def handle(db: AsyncConnection, delivery: Delivery, secret: bytes, trail: Trail) -> Answer:
    """Decide about one delivery and write everything that follows from it."""
    event_id, finished = await record_event(db, delivery)
    trail.webhook_event_id = event_id
    if finished:
        return Answer(200, "duplicate")
    trail.signature_valid = delivery.is_signed_with(secret)
    if not trail.signature_valid:
        trail.error_code, trail.error_message = "INVALID_SIGNATURE", "signature check failed"
        return await close_event(db, EventStatus.FAILED_FINAL, Answer(401, "failed_final"), trail)
    await db.execute(statements.validate_event, {"event_id": event_id})
    if delivery.payload.status not in SUCCESS:
        trail.error_code = "NON_SUCCESS_STATUS"
        return await close_event(db, EventStatus.IGNORED, Answer(200, "ignored"), trail)
    return await apply(db, delivery, trail)


async def record_event(db: AsyncConnection, delivery: Delivery) -> tuple[UUID, bool]:
    """Step 2: put the event in the inbox; also says whether it was finished before."""
    values = {
        "provider": PROVIDER,
        "external_event_id": delivery.payload.event_id,
        "external_payment_id": delivery.payload.external_payment_id,
        "payload": delivery.document,
        "payload_hash": delivery.payload_hash,
    }
    has_id = delivery.payload.event_id is not None
    insert = statements.insert_event_by_id if has_id else statements.insert_event_by_hash
    new_id = await db.scalar(insert, values)
    if new_id is not None:
        return new_id, False
    existing = (await db.execute(statements.select_event, values)).one()
    return existing.id, existing.status in FINISHED


async def apply(db: AsyncConnection, delivery: Delivery, trail: Trail) -> Answer:
    """Step 5: payment, user and subscription, locked in this order."""
    payment = await upsert_payment(db, delivery, trail)
    plan = plan_of(delivery.payload.plan_id)
    if (payment.amount, payment.currency) != (plan.price, plan.currency):
        trail.error_code = "AMOUNT_MISMATCH"
        return await close_event(db, EventStatus.FAILED_FINAL, Answer(200, "failed_final"), trail)
    trail.user_id = payment.user_id or await link_user(db, payment)
    if trail.user_id is None:
        trail.error_code = "UNLINKED_PAYMENT" if payment.email is None else "USER_MISSING"
        return await close_event(db, EventStatus.FAILED_RETRYABLE, Answer(200, "unlinked"), trail)
    await extend_once(db, payment.id, trail.user_id, plan, trail)
    await db.execute(statements.process_event, {"event_id": trail.webhook_event_id})
    return Answer(200, "processed")


async def upsert_payment(db: AsyncConnection, delivery: Delivery, trail: Trail) -> AnyRow:
    """Step 5.1: the locked payment, inserted if it is new, otherwise with its status advanced."""
    payload = delivery.payload
    key = {"provider": PROVIDER, "external_payment_id": payload.external_payment_id}
    known = (await db.execute(statements.lock_payment, key)).one_or_none()
    if known is None:
        values = key | payload.model_dump(include={"email", "amount", "currency", "paid_at"})
        payment: AnyRow = (await db.execute(statements.insert_payment, values)).one()
    else:
        payment = await update_payment(db, known, delivery)
        trail.payment_status_before = known.status
    trail.payment_status_after = payment.status
    trail.applied_before = payment.subscription_applied_at is not None
    return payment


async def update_payment(db: AsyncConnection, known: AnyRow, delivery: Delivery) -> AnyRow:
    """Step 5.1, second branch: never backwards, never overwriting known values."""
    values = {
        "payment_id": known.id,
        "new_status": forward_only(known.status, PaymentStatus.SUCCEEDED),
        "new_paid_at": delivery.payload.paid_at,
        "new_email": delivery.payload.email,
    }
    payment: AnyRow = (await db.execute(statements.update_payment, values)).one()
    return payment


async def link_user(db: AsyncConnection, payment: AnyRow) -> UUID | None:
    """Step 5.2: find the user by e-mail."""
    if payment.email is None:
        return None
    user_id: UUID | None = await db.scalar(statements.select_user, {"email": payment.email})
    if user_id is not None:
        values = {"payment_id": payment.id, "owner_id": user_id}
        await db.execute(statements.link_payment, values)
    return user_id


async def extend_once(
    db: AsyncConnection, payment_id: UUID, user_id: UUID, plan: Plan, trail: Trail
) -> None:
    """Steps 5.3 to 5.5: extend the subscription unless this payment did so before."""
    subscription = await lock_subscription(db, user_id)
    values = {"payment_id": payment_id, "applied_to": subscription.id}
    trail.applied_after = True
    if await db.scalar(statements.apply_once, values) is None:
        return
    trail.subscription_end_before = subscription.current_period_end
    end = max(subscription.current_period_end, datetime.now(UTC)) + plan.duration
    trail.subscription_end_after = end
    extension = {"own_id": subscription.id, "new_end": end}
    await db.execute(statements.extend_subscription, extension)


async def lock_subscription(db: AsyncConnection, user_id: UUID) -> AnyRow:
    """Step 5.3: the user's only subscription, inserted if there is none."""
    key = {"user_id": user_id}
    found = (await db.execute(statements.lock_subscription, key)).one_or_none()
    return found or (await db.execute(statements.insert_subscription, key)).one()


async def close_event(
    db: AsyncConnection, status: EventStatus, answer: Answer, trail: Trail
) -> Answer:
    """Finish an event that did not succeed."""
    values = {
        "event_id": trail.webhook_event_id,
        "new_status": status,
        "is_signed": trail.signature_valid,
        "code": trail.error_code,
        "message": trail.error_message,
    }
    await db.execute(statements.close_event, values)
    return answer
