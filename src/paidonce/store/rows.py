"""Values of the domain as the rows that `settle` reads and writes.

The order of what is written is that of the types `written_…` in the schema, of what is read that of
the query `load`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from paidonce.domain.email import email_key
from paidonce.domain.events import EventId, ExternalId, PaymentId, SourceId, reason_of
from paidonce.domain.money import Money
from paidonce.domain.orders import Kind, Order, OrderStatus
from paidonce.domain.payments import Facts, Payment
from paidonce.domain.state import Movement
from paidonce.domain.subscriptions import Subscription, SubscriptionStatus
from paidonce.domain.wallets import Wallet

KeyName = tuple[SourceId, bytes]
"""A source and the digest of an event's key."""

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class KnownKey:
    """An event that was accepted before under this key."""

    event_id: EventId
    fingerprint: bytes
    fingerprint_version: int


def key_row(name: KeyName, key: KnownKey) -> Row:
    return (*name, key.event_id, key.fingerprint, key.fingerprint_version)


def id_row(source_id: SourceId, one: ExternalId, payment_id: PaymentId) -> Row:
    return (source_id, one.kind, one.value, payment_id)


def payment_row(payment: Payment, messages: int) -> Row:
    """The row to be written. Each message about it has a version of its own, and so has the row."""
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
        facts.is_stale,
        payment.review,
        payment.version,
        payment.version + max(messages, 1),
    )


def subscription_row(one: Subscription) -> Row:
    end = one.current_period_end
    return (one.id, one.user_id, one.product, one.status, end, one.version or 1)


def order_row(order: Order) -> Row:
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


def wallet_row(wallet: Wallet) -> Row:
    return (wallet.id, wallet.balance_minor, wallet.receivable_minor, wallet.version)


def entry_rows(movement_id: UUID, movement: Movement, now: datetime) -> list[Row]:
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


def payment_of(
    cells: Sequence[Any], ids: tuple[ExternalId, ...], refunds: Mapping[str, int]
) -> Payment:
    (
        payment_id, source_id, order, email, user_id, plan_id, currency, captured_minor,
        refund_total_minor, refunded_minor, paid_at, failed_at, voided_at, canceled_at, refunded_at,
        processing_at, disputed_at, dispute_won_at, applied_at, applied_minor, reversed_minor,
        subscription_id, period_start, period_end, is_linked, is_contested, is_accepted,
        is_for_refund, is_test, is_stale, review, version,
    ) = cells  # fmt: skip
    # A refund whose id another payment has taken is not among these, but was counted: as a total.
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
        is_stale=is_stale,
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
        review=reason_of(review) if review else None,
        version=version,
    )


def subscription_of(cells: Sequence[Any]) -> Subscription:
    subscription_id, user_id, product, status, current_period_end, version = cells
    return Subscription(
        id=subscription_id,
        user_id=user_id,
        product=product,
        status=SubscriptionStatus(status),
        current_period_end=current_period_end,
        version=version,
    )


def order_of(cells: Sequence[Any]) -> Order:
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
