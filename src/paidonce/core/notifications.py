"""The kinds of notifications, and which failures cause them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from paidonce.core.events import Code, EventStatus, Outcome, Reason


class NotificationKind(StrEnum):
    """The kind of a notification, as in the settings."""

    DEAD_LETTER = "dead_letter"  # the attempts of an event ran out
    CONFLICT = "conflict"  # a delivery that contradicts an earlier one under the same key
    MISMATCH = "mismatch"  # the amount or currency differs from the price
    DUPLICATE_PAYMENT = "duplicate_payment"  # money for an order that is already paid
    LINK_CONFLICT = "link_conflict"  # events disagree on what a payment is for
    ORDER_CLOSED = "order_closed"  # money for an order that was closed or had expired
    PAYMENT_MISSING = "payment_missing"  # a refund whose payment did not arrive within a day
    PROVIDER_MISMATCH = "provider_mismatch"  # the gateway contradicts its own event
    EXPIRED = "expired"  # an authentic delivery was refused because its time had expired
    DISPUTE = "dispute"  # a customer disputes a payment
    UNAPPLIED = "unapplied"  # money that waits for its user, its order or a link
    RECEIVABLE = "receivable"  # a refund took more than its wallet holds
    FAILED = "failed"  # any other final failure
    HANDLER_FAILING = "handler_failing"  # a handler of the user's own fails again and again
    SIGNATURES = "signatures"  # verified senders of a source fail: its secret is wrong
    BAN = "ban"  # an address was banned
    EVIDENCE = "evidence"  # no more evidence of rejected deliveries is stored today
    WALLET_PAYMENT = "wallet_payment"  # a payout needs a person
    CALLBACK = "callback"  # a gateway reported a transaction that no payout has
    FINDING = "finding"  # a reconciliation found a disagreement
    BUS_DEAD_LETTER = "bus_dead_letter"  # a consumer could not process a message
    BUS_LOSS = "bus_loss"  # Kafka deleted messages before they were consumed


_KINDS: Final[Mapping[Reason, NotificationKind]] = {
    Code.AMOUNT_MISMATCH: NotificationKind.MISMATCH,
    Code.CURRENCY_MISMATCH: NotificationKind.MISMATCH,
    Code.EXCESS: NotificationKind.MISMATCH,
    Code.REFUND_EXCESS: NotificationKind.MISMATCH,
    Code.REFUND_CURRENCY_MISMATCH: NotificationKind.MISMATCH,
    Code.DUPLICATE_PAYMENT: NotificationKind.DUPLICATE_PAYMENT,
    Code.LINK_CONFLICT: NotificationKind.LINK_CONFLICT,
    Code.ORDER_CLOSED: NotificationKind.ORDER_CLOSED,
    Code.ORDER_EXPIRED: NotificationKind.ORDER_CLOSED,
    Code.PAYMENT_MISSING: NotificationKind.PAYMENT_MISSING,
    Code.PAYLOAD_CONFLICT: NotificationKind.CONFLICT,
    Code.PROVIDER_MISMATCH: NotificationKind.PROVIDER_MISMATCH,
    Code.TIMESTAMP_EXPIRED: NotificationKind.EXPIRED,
}

WAITING: Final = frozenset({Code.USER_MISSING, Code.UNLINKED_PAYMENT, Code.ORDER_MISSING})
"""Reasons for which money waits for something that may still come by itself."""

_SILENT: Final = frozenset(
    {
        # Retried; a dead letter is notified when the attempts run out.
        Code.HANDLER_FAILED,
        Code.PROVIDER_UNREACHABLE,
        # Caused by an operator.
        Code.REFUND_WANTED,
        Code.NOT_APPROVED,
        # Anybody can send any number of these.
        Code.INVALID_SIGNATURE,
    }
)


def kind_of_outcome(outcome: Outcome) -> NotificationKind | None:
    """The kind for an event with this outcome; None if it did not fail for good."""
    if outcome.status is EventStatus.DEAD_LETTER:
        return NotificationKind.DEAD_LETTER
    if outcome.status is not EventStatus.FAILED_FINAL or outcome.code is None:
        return None
    return None if outcome.code in WAITING else kind_of_reason(outcome.code)


def kind_of_reason(reason: Reason) -> NotificationKind | None:
    """The kind for a payment that needs review for this reason."""
    if reason in WAITING:
        return NotificationKind.UNAPPLIED
    return None if reason in _SILENT else _KINDS.get(reason, NotificationKind.FAILED)
