"""Which facts people are told of, and under which name."""

from enum import StrEnum
from typing import Final

from paidonce.domain.events import Code, EventStatus, Outcome, Reason


class NoticeKind(StrEnum):
    """What a notice is about. Settings name these."""

    DEAD_LETTER = "dead_letter"  # an event that nothing more is tried with
    CONFLICT = "conflict"  # a delivery that contradicts an earlier one under the same key
    MISMATCH = "mismatch"  # another amount or currency than the price
    DUPLICATE_PAYMENT = "duplicate_payment"  # money for an order that is paid already
    LINK_CONFLICT = "link_conflict"  # events disagree on what a payment is for
    ORDER_CLOSED = "order_closed"  # money for an order that takes none any more
    PAYMENT_MISSING = "payment_missing"  # a refund whose payment did not come within a day
    PROVIDER_MISMATCH = "provider_mismatch"  # the gateway contradicts its own event
    STALE = "stale"  # authentic, but refused for its time
    RECEIVABLE = "receivable"  # a refund took more than its wallet holds
    FAILED = "failed"  # whatever else has failed for good
    BAN = "ban"  # an address is let in no more for a while
    WALLET_PAYMENT = "wallet_payment"  # a payment out of a wallet that a person has to look at
    CALLBACK = "callback"  # what a gateway told of a transaction that no payment has
    FINDING = "finding"  # what the gateway knows and what is here do not agree
    BUS_DEAD_LETTER = "bus_dead_letter"  # a message of the bus that a consumer could not take
    BUS_LOSS = "bus_loss"  # messages that Kafka has deleted before a consumer took them


_KINDS: Final = {
    Code.AMOUNT_MISMATCH: NoticeKind.MISMATCH,
    Code.CURRENCY_MISMATCH: NoticeKind.MISMATCH,
    Code.DUPLICATE_PAYMENT: NoticeKind.DUPLICATE_PAYMENT,
    Code.LINK_CONFLICT: NoticeKind.LINK_CONFLICT,
    Code.ORDER_CLOSED: NoticeKind.ORDER_CLOSED,
    Code.PAYMENT_MISSING: NoticeKind.PAYMENT_MISSING,
    Code.PAYLOAD_CONFLICT: NoticeKind.CONFLICT,
    Code.PROVIDER_MISMATCH: NoticeKind.PROVIDER_MISMATCH,
    Code.TIMESTAMP_EXPIRED: NoticeKind.STALE,
}

_UNTOLD: Final = frozenset(
    {
        # What still waits is in order until it is given up, and then a dead letter.
        Code.USER_MISSING,
        Code.UNLINKED_PAYMENT,
        Code.ORDER_MISSING,
        Code.HANDLER_FAILED,
        Code.PROVIDER_UNREACHABLE,
        # Whoever said so knows it.
        Code.REFUND_WANTED,
        Code.NOT_APPROVED,
        # Anybody can send these, as many as he likes.
        Code.INVALID_SIGNATURE,
    }
)


def kind_of_outcome(outcome: Outcome) -> NoticeKind | None:
    """What people are told of an event that ended so; nothing of one that did not fail for good."""
    if outcome.status is EventStatus.DEAD_LETTER:
        return NoticeKind.DEAD_LETTER
    if outcome.status is not EventStatus.FAILED_FINAL or outcome.code is None:
        return None
    return kind_of_reason(outcome.code)


def kind_of_reason(reason: Reason) -> NoticeKind | None:
    """What people are told of a payment that somebody should look at for this reason."""
    if reason in _UNTOLD:
        return None
    return _KINDS.get(reason, NoticeKind.FAILED) if isinstance(reason, Code) else NoticeKind.FAILED
