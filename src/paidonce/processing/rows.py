"""Values as database rows, and back.

Rows to be written have the order of the composite types `written_…` in the schema; rows that are
read have the order of the query `load`. `tests/processing/test_rows.py` fails when they differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from uuid_utils.compat import uuid7

from paidonce.core.callbacks import gateway_status_of
from paidonce.core.email import email_key
from paidonce.core.events import (
    EventId,
    EventStatus,
    ExternalId,
    Outcome,
    PaymentEvent,
    PaymentId,
    SourceId,
    parse_reason,
)
from paidonce.core.money import Money, format_minor
from paidonce.core.orders import Kind, Order, OrderStatus
from paidonce.core.payments import Facts, Payment
from paidonce.core.state import Applied, Effect, Movement
from paidonce.core.subscriptions import Subscription, SubscriptionStatus
from paidonce.core.wallets import Wallet
from paidonce.db.queries import WrittenRow
from paidonce.processing.items import EventKey, Incoming, QueuedEvent, Rejected

_PENDING = (EventStatus.VALIDATED, EventStatus.FAILED_RETRYABLE)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The event that was stored first under a key."""

    event_id: EventId
    fingerprint: bytes
    fingerprint_version: int


def key_row(event_key: EventKey, key: StoredKey) -> WrittenRow:
    return (*event_key, key.event_id, key.fingerprint, key.fingerprint_version)


def payment_id_row(
    source_id: SourceId, external_id: ExternalId, payment_id: PaymentId
) -> WrittenRow:
    return (source_id, external_id.kind, external_id.value, payment_id)


def payment_row(payment: Payment, messages: int) -> WrittenRow:
    """The row to be written. Each message about a payment has a version of its own."""
    facts = payment.facts
    return (
        payment.id,
        payment.source_id,
        payment.order,
        payment.email,
        email_key(payment.email) if payment.email else None,
        payment.user_id,
        payment.plan_id,
        facts.currency,
        facts.captured_minor,
        facts.refund_total_minor,
        facts.refunded_minor,
        facts.paid_at,
        facts.failed_at,
        facts.voided_at,
        facts.canceled_at,
        facts.refunded_at,
        facts.processing_at,
        facts.disputed_at,
        facts.dispute_won_at,
        payment.applied_at,
        payment.applied_minor if payment.applied_at else None,
        payment.reversed_minor,
        payment.subscription_id,
        payment.period_start,
        payment.period_end,
        payment.is_linked,
        payment.is_contested,
        payment.is_accepted,
        payment.is_for_refund,
        payment.is_test,
        facts.is_expired,
        payment.review,
        payment.version,
        payment.version + max(messages, 1),
    )


def subscription_row(subscription: Subscription) -> WrittenRow:
    return (
        subscription.id,
        subscription.user_id,
        subscription.product,
        subscription.status,
        subscription.current_period_end,
        subscription.version or 1,
    )


def order_row(order: Order) -> WrittenRow:
    return (
        order.id,
        order.status,
        order.applied_payment_id,
        order.paid_at,
        order.canceled_at,
        order.refunded_at,
        order.fulfilled_at,
        order.reversed_at,
        order.version,
    )


def wallet_row(wallet: Wallet) -> WrittenRow:
    return (wallet.id, wallet.balance_minor, wallet.receivable_minor, wallet.version)


def entry_rows(movement_id: UUID, movement: Movement, now: datetime) -> list[WrittenRow]:
    return [
        (
            movement_id,
            movement.payment_id,
            entry.account,
            movement.currency,
            entry.amount_minor,
            now,
        )
        for entry in movement.entries
    ]


def read_payment(
    cells: Sequence[Any], ids: tuple[ExternalId, ...], refunds: Mapping[str, int]
) -> Payment:
    (
        payment_id, source_id, order, email, user_id, plan_id, currency, captured_minor,
        refund_total_minor, refunded_minor, paid_at, failed_at, voided_at, canceled_at, refunded_at,
        processing_at, disputed_at, dispute_won_at, applied_at, applied_minor, reversed_minor,
        subscription_id, period_start, period_end, is_linked, is_contested, is_accepted,
        is_for_refund, is_test, is_expired, review, version,
    ) = cells  # fmt: skip
    # A refund id may belong to another payment. Such a refund is only part of the total.
    is_explained = max(refund_total_minor, sum(refunds.values())) >= refunded_minor
    facts = Facts(
        captured=Money(captured_minor, currency) if currency and paid_at else None,
        refund_total_minor=refund_total_minor if is_explained else refunded_minor,
        refunds=refunds,
        refund_currency=None if paid_at else currency,
        paid_at=paid_at,
        failed_at=failed_at,
        voided_at=voided_at,
        canceled_at=canceled_at,
        refunded_at=refunded_at,
        processing_at=processing_at,
        disputed_at=disputed_at,
        dispute_won_at=dispute_won_at,
        is_expired=is_expired,
    )
    was_applied_whole = applied_at is not None and applied_minor is None
    return Payment(
        id=payment_id,
        source_id=source_id,
        ids=ids,
        facts=facts,
        order=order,
        email=email,
        user_id=user_id,
        plan_id=plan_id,
        applied_at=applied_at,
        applied_minor=captured_minor if was_applied_whole else applied_minor or 0,
        reversed_minor=reversed_minor,
        subscription_id=subscription_id,
        period_start=period_start,
        period_end=period_end,
        is_linked=is_linked,
        is_contested=is_contested,
        is_accepted=is_accepted,
        is_for_refund=is_for_refund,
        is_test=is_test,
        review=parse_reason(review) if review else None,
        version=version,
    )


def read_subscription(cells: Sequence[Any]) -> Subscription:
    subscription_id, user_id, product, status, current_period_end, version = cells
    return Subscription(
        id=subscription_id,
        user_id=user_id,
        product=product,
        status=SubscriptionStatus(status),
        current_period_end=current_period_end,
        version=version,
    )


def read_order(cells: Sequence[Any]) -> Order:
    (
        order_id, reference, kind, amount_minor, currency, user_id, email, plan_id, wallet_id,
        sources, status, applied_payment_id, paid_at, canceled_at, refunded_at, closed_at,
        fulfilled_at, reversed_at, version,
    ) = cells  # fmt: skip
    return Order(
        id=order_id,
        reference=reference,
        kind=Kind(kind),
        amount=Money(amount_minor, currency),
        user_id=user_id,
        email=email,
        plan_id=plan_id,
        wallet_id=wallet_id,
        sources=None if sources is None else frozenset(sources),
        status=OrderStatus(status),
        applied_payment_id=applied_payment_id,
        paid_at=paid_at,
        canceled_at=canceled_at,
        refunded_at=refunded_at,
        closed_at=closed_at,
        fulfilled_at=fulfilled_at,
        reversed_at=reversed_at,
        version=version,
    )


def event_row(
    item: Incoming | Rejected,
    outcome: Outcome,
    attempts: int,
    now: datetime,
    conflicts_with: EventId | None = None,
) -> WrittenRow:
    identity = item.identity
    provider = item.source.provider
    return (
        item.event_id,
        item.source.id,
        outcome.status,
        item.identity.key if isinstance(item, Incoming) else None,
        identity.type if identity else None,
        identity.event_id if identity else None,
        identity.payment_id if identity else None,
        identity.order if identity else None,
        True if isinstance(item, Incoming) else item.signature_valid,
        provider.signature_method(item.delivery),
        item.request.is_test,
        outcome.code,
        outcome.message,
        conflicts_with,
        attempts,
        item.delivery.received_at,
        None if outcome.status in _PENDING else now,
        identity.occurred_at if identity else None,
        item.request.remote_address,
        item.request.id,
        orjson.dumps(provider.evidence_headers(item.delivery.headers)).decode(),
        item.delivery.body,
    )


def event_update_row(
    event_id: EventId, outcome: Outcome, attempts: int, now: datetime
) -> WrittenRow:
    processed_at = None if outcome.status in _PENDING else now
    return (event_id, outcome.status, outcome.code, outcome.message, attempts, processed_at)


def callback_row(item: Incoming | QueuedEvent, event: PaymentEvent) -> WrittenRow | None:
    """The callback for the payout service, in the order of `store.CALLBACK_COLUMNS`.

    None for refunds and disputes: the service does not handle them.
    """
    status = gateway_status_of(event.event_type)
    if status is None:
        return None
    paid = event.amount
    return (
        uuid7(),
        item.source.id,
        event.ids[0].value,
        status,
        item.event_id,
        item.received_at,
        paid.amount_minor if paid else None,
        paid.currency if paid else None,
    )


def message_row(
    effect: Effect, order: Order | None, source: str | None, version: int, now: datetime
) -> WrittenRow:
    """The outbox message about an applied or reversed payment (FUL-6)."""
    payment = effect.payment
    captured = payment.facts.captured
    assert captured is not None
    payload: dict[str, object] = {
        "payment_id": payment.id,
        "source": source,
        "order": payment.order,
        "kind": order.kind if order else None,
        "currency": captured.currency,
        "test": payment.is_test,
    }
    if isinstance(effect, Applied):
        event_type = "payment.applied"
        payload |= {
            "amount": format_minor(captured.amount_minor, captured.currency),
            "user_id": payment.user_id,
            "plan_id": payment.plan_id,
            "subscription_id": payment.subscription_id,
            "period_start": payment.period_start,
            "period_end": payment.period_end,
        }
    else:
        event_type = "payment.reversed"
        payload |= {
            "amount": format_minor(effect.amount_minor, captured.currency),
            "reversed": format_minor(payment.reversed_minor, captured.currency),
            "effect": "kept" if effect.effect_kept else "reversed",
        }
    body = orjson.dumps(payload, default=str).decode()
    return ("payment", payment.id, event_type, version, body, now)
