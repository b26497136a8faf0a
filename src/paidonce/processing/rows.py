"""Values as database rows, and back.

Rows to be written have the order of the composite types `written_…` in the schema. Rows that are
read have the order of the query `load`, which is the order of the fields of their dataclasses.
`tests/processing/test_rows.py` fails when they differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, assert_never
from uuid import UUID

import orjson

from paidonce.core import events
from paidonce.core.callbacks import gateway_status_of
from paidonce.core.email import email_key
from paidonce.core.facts import Facts
from paidonce.core.money import Money, format_minor
from paidonce.core.orders import Kind, Order, OrderStatus
from paidonce.core.payments import Acceptance, Payment
from paidonce.core.refunds import foreign_ids, gateway_total
from paidonce.core.state import Applied, Effect, Movement, Reinstated, Reversed
from paidonce.core.subscriptions import Subscription, SubscriptionStatus
from paidonce.core.wallets import Wallet
from paidonce.db.queries import WrittenRow
from paidonce.ids import new_id
from paidonce.processing.items import EventKey, Incoming, QueuedEvent, Rejected

_PENDING = (events.EventStatus.VALIDATED, events.EventStatus.FAILED_RETRYABLE)

FACT_COLUMNS: Final = (
    "currency", "captured_minor", "refund_total_minor", "refunded_minor", "paid_at", "failed_at",
    "voided_at", "canceled_at", "refunded_at", "processing_at", "disputed_at", "dispute_won_at",
    "dispute_answer_by", "unreadable_at",
)  # fmt: skip
EFFECT_COLUMNS: Final = (
    "reversed_minor", "subscription_id", "period_start", "period_end", "granted_at", "is_linked",
    "is_contested", "is_for_refund", "is_test",
)  # fmt: skip
_LATER: Final = (
    "is_expired", "other_captures", "refund_times", "acceptance", "review", "version",
)  # fmt: skip
PAYMENT_COLUMNS: Final = (
    "order_reference", "email", "email_key", "user_id", "plan_id", *FACT_COLUMNS, "applied_at",
    "applied_minor", *EFFECT_COLUMNS, *_LATER[:-1],
)  # fmt: skip
"""The columns of a payment that can change."""

_FACTS: Final = len(FACT_COLUMNS)
_fact_values: Final = attrgetter(*FACT_COLUMNS)
_effect_values: Final = attrgetter(*EFFECT_COLUMNS)
_subscription_values: Final = attrgetter(
    "id", "user_id", "product", "status", "current_period_end", "anchor_day"
)
order_row: Final[Callable[[Order], WrittenRow]] = attrgetter(
    "id", "status", "applied_payment_id", "paid_at", "canceled_at", "refunded_at", "fulfilled_at",
    "reversed_at", "version",
)  # fmt: skip
wallet_row: Final[Callable[[Wallet], WrittenRow]] = attrgetter(
    "id", "balance_minor", "receivable_minor", "version"
)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The event that was stored first under a key."""

    event_id: events.EventId
    fingerprint: bytes
    fingerprint_version: int
    purpose: bytes | None = None  # see `purpose_digest`


def key_row(event_key: EventKey, key: StoredKey) -> WrittenRow:
    return (*event_key, key.event_id, key.fingerprint, key.fingerprint_version, key.purpose)


def payment_id_row(
    source_id: events.SourceId, external_id: events.ExternalId, payment_id: events.PaymentId
) -> WrittenRow:
    return (source_id, external_id.kind, external_id.value, payment_id)


def payment_row(payment: Payment, messages: int) -> WrittenRow:
    """The row to be written. Each message about a payment has a version of its own."""
    return (
        payment.id,
        payment.source_id,
        payment.order,
        payment.email,
        email_key(payment.email) if payment.email else None,
        payment.user_id,
        payment.plan_id,
        *_fact_values(payment.facts),
        payment.applied_at,
        payment.applied_minor if payment.applied_at else None,
        *_effect_values(payment),
        payment.facts.is_expired,
        _captures_cell(payment.facts.other_captures) if payment.facts.other_captures else None,
        _times_cell(payment.facts.refund_times) if payment.facts.refund_times else None,
        _acceptance_cell(payment.acceptance) if payment.acceptance else None,
        payment.review,
        payment.version,
        payment.version + max(messages, 1),
    )


def subscription_row(subscription: Subscription) -> WrittenRow:
    return (*_subscription_values(subscription), subscription.version or 1)


def entry_rows(movement_id: UUID, movement: Movement, now: datetime) -> list[WrittenRow]:
    payment_id, currency = movement.payment_id, movement.currency
    return [
        (movement_id, payment_id, entry.account, currency, entry.amount_minor, now)
        for entry in movement.entries
    ]


def read_payment(
    cells: Sequence[Any], ids: tuple[events.ExternalId, ...], refunds: Mapping[str, int]
) -> Payment:
    payment_id, source_id, order, email, _, user_id, plan_id, *cells = cells
    currency, captured_minor, total_minor, refunded_minor, *times = cells[:_FACTS]
    (
        applied_at,
        applied_minor,
        *effect,
        is_expired,
        captures,
        refund_times,
        accepted,
        review,
        version,
    ) = cells[_FACTS:]
    was_paid = times[0] is not None
    known_times = _read_times(refund_times) if refund_times else {}
    if foreign := foreign_ids(known_times):
        refunds = {name: one for name, one in refunds.items() if name not in foreign}
    times += (is_expired, _read_captures(captures) if captures else frozenset())
    times.append(known_times)
    facts = Facts(
        Money(captured_minor, currency) if currency and was_paid else None,
        gateway_total(total_minor, refunds, refunded_minor) if refunded_minor else 0,
        refunds,
        None if was_paid else currency,
        *times,
    )
    if applied_minor is None:
        applied_minor = 0 if applied_at is None else captured_minor
    acceptance = _read_acceptance(accepted) if accepted else None
    effect += (events.parse_reason(review) if review else None, acceptance, version)
    return Payment(
        payment_id,
        source_id,
        ids,
        facts,
        order,
        email,
        user_id,
        plan_id,
        applied_at,
        applied_minor,
        *effect,
    )


def _captures_cell(captures: frozenset[Money]) -> list[str]:
    return [f"{one.amount_minor} {one.currency}" for one in sorted(captures)]


def _read_captures(cells: Sequence[str]) -> frozenset[Money]:
    pairs = (one.split() for one in cells)
    return frozenset(Money(int(amount_minor), currency) for amount_minor, currency in pairs)


def _times_cell(times: Mapping[str, datetime]) -> str:
    return orjson.dumps(times, option=orjson.OPT_SORT_KEYS).decode()


def _read_times(cell: str) -> Mapping[str, datetime]:
    return {key: datetime.fromisoformat(at) for key, at in orjson.loads(cell).items()}


def _acceptance_cell(accepted: Acceptance) -> str:
    return orjson.dumps(
        {
            "by": accepted.by,
            "at": accepted.at,
            "reason": accepted.reason,
            "amount_minor": accepted.amount.amount_minor,
            "currency": accepted.amount.currency,
            "for": accepted.target,
            "only_expiry": accepted.only_expiry,
        }
    ).decode()


def _read_acceptance(cell: str) -> Acceptance:
    cells = orjson.loads(cell)
    return Acceptance(
        cells["by"],
        datetime.fromisoformat(cells["at"]),
        cells["reason"],
        Money(cells["amount_minor"], cells["currency"]),
        cells["for"],
        cells["only_expiry"],
    )


def read_subscription(cells: Sequence[Any]) -> Subscription:
    subscription_id, user_id, product, status, *others = cells
    return Subscription(subscription_id, user_id, product, SubscriptionStatus(status), *others)


def read_order(cells: Sequence[Any]) -> Order:
    order_id, reference, kind, amount_minor, currency, *cells = cells
    user_id, email, plan_id, wallet_id, sources, status, *others = cells
    return Order(
        order_id,
        reference,
        Kind(kind),
        Money(amount_minor, currency),
        user_id,
        email,
        plan_id,
        wallet_id,
        None if sources is None else tuple(sources),
        OrderStatus(status),
        *others,
    )


def event_row(
    item: Incoming | Rejected,
    outcome: events.Outcome,
    attempts: int,
    now: datetime,
    conflicts_with: events.EventId | None = None,
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
        identity.payment_id if identity else _unreadable_payment_id(item),
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


def _unreadable_payment_id(item: Incoming | Rejected) -> str | None:
    """The payment of a delivery that cannot be read otherwise."""
    event = item.event
    return event.ids[0].value if isinstance(event, events.PaymentEvent) else None


def event_update_row(
    event_id: events.EventId, outcome: events.Outcome, attempts: int, now: datetime
) -> WrittenRow:
    processed_at = None if outcome.status in _PENDING else now
    return (event_id, outcome.status, outcome.code, outcome.message, attempts, processed_at)


def callback_row(item: Incoming | QueuedEvent, event: events.PaymentEvent) -> WrittenRow | None:
    """The callback for the payout service, in the order of the query `write_callbacks`.

    None for refunds and disputes: the service does not handle them.
    """
    status = gateway_status_of(event.event_type)
    if status is None:
        return None
    paid = event.amount
    return (
        new_id(),
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
    match effect:
        case Applied():
            event_type = "payment.applied"
            payload |= {
                "amount": format_minor(payment.applied_minor, captured.currency),
                "user_id": payment.user_id,
                "plan_id": payment.plan_id,
                "subscription_id": payment.subscription_id,
                "period_start": payment.period_start,
                "period_end": payment.period_end,
            }
        case Reversed():
            event_type = "payment.reversed"
            payload |= {
                "amount": format_minor(effect.amount_minor, captured.currency),
                "reversed": format_minor(payment.reversed_minor, captured.currency),
                "effect": "kept" if effect.effect_kept else "reversed",
            }
        case Reinstated():
            event_type = "payment.reinstated"
            payload |= {
                "amount": format_minor(effect.amount_minor, captured.currency),
                "applied": format_minor(payment.applied_minor, captured.currency),
                "reversed": format_minor(payment.reversed_minor, captured.currency),
            }
        case _:
            assert_never(effect)
    body = orjson.dumps(payload, default=str).decode()
    return ("payment", payment.id, event_type, version, body, now)
