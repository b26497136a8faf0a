"""Rows that a batch writes, built from what was decided."""

from datetime import datetime

import orjson
from uuid_utils.compat import uuid7

from paidonce.domain.events import EventId, EventStatus, Outcome, PaymentEvent
from paidonce.domain.money import format_minor
from paidonce.domain.orders import Order
from paidonce.domain.payments import Payment
from paidonce.domain.state import Reversed
from paidonce.domain.wallet_payments import word_of
from paidonce.engine.items import Incoming, Refused, Waiting
from paidonce.store.rows import Row


def event_row(
    item: Incoming | Refused,
    outcome: Outcome,
    attempts: int,
    now: datetime,
    conflicts_with: EventId | None = None,
) -> Row:
    identity = item.identity
    is_final = outcome.status not in (
        EventStatus.VALIDATED,
        EventStatus.FAILED_RETRYABLE,
    )
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
        now if is_final else None,
        identity.occurred_at if identity else None,
        item.request.remote_address,
        item.request.id,
        orjson.dumps(provider.evidence(item.delivery.headers)).decode(),
        item.delivery.body,
    )


def finished_row(event_id: EventId, outcome: Outcome, attempts: int, now: datetime) -> Row:
    is_final = outcome.status not in (
        EventStatus.VALIDATED,
        EventStatus.FAILED_RETRYABLE,
    )
    processed_at = now if is_final else None
    return (
        event_id,
        outcome.status,
        outcome.code,
        outcome.message,
        attempts,
        processed_at,
    )


def callback_row(item: Incoming | Waiting, event: PaymentEvent) -> Row | None:
    """What the payment service is to hear, in the order of `gateway_callbacks.COLUMNS`.

    None when that is nothing it knows: a refund, or a dispute.
    """
    word = word_of(event.says)
    if word is None:
        return None
    received_at = item.delivery.received_at if isinstance(item, Incoming) else item.received_at
    told = (uuid7(), item.source.id, event.ids[0].value, word, item.event_id, received_at)
    paid = event.amount
    return (*told, paid.amount_minor if paid else None, paid.currency if paid else None)


def applied_message(
    payment: Payment, order: Order | None, source: str | None, version: int, now: datetime
) -> Row:
    """What the outside is told, once, of a payment that was applied (FUL-6)."""
    said = _said_of(payment, order, source) | {
        "amount": _shown(payment, payment.facts.captured_minor),
        "user_id": payment.user_id,
        "plan_id": payment.plan_id,
        "subscription_id": payment.subscription_id,
        "period_start": payment.period_start,
        "period_end": payment.period_end,
    }
    return _message(payment, "payment.applied", version, said, now)


def reversed_message(
    done: Reversed, order: Order | None, source: str | None, version: int, now: datetime
) -> Row:
    """What the outside is told of money that went back, of each unit once (FUL-6)."""
    payment = done.payment
    said = _said_of(payment, order, source) | {
        "amount": _shown(payment, done.amount_minor),
        "reversed": _shown(payment, payment.reversed_minor),
        "effect": "kept" if done.is_kept else "reversed",
    }
    return _message(payment, "payment.reversed", version, said, now)


def _said_of(payment: Payment, order: Order | None, source: str | None) -> dict[str, object]:
    captured = payment.facts.captured
    assert captured is not None
    return {
        "payment_id": payment.id,
        "source": source,
        "order": payment.order,
        "kind": order.kind if order else None,
        "currency": captured.currency,
        "test": payment.is_test,
    }


def _shown(payment: Payment, amount_minor: int) -> str:
    assert payment.facts.captured is not None
    return format_minor(amount_minor, payment.facts.captured.currency)


def _message(
    payment: Payment, name: str, version: int, said: dict[str, object], now: datetime
) -> Row:
    payload = orjson.dumps(said, default=str).decode()
    return ("payment", payment.id, name, version, payload, now)
