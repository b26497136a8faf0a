"""Canonical events: the same for every gateway."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NewType
from uuid import UUID

from paidonce.core.money import Money

EventId = NewType("EventId", UUID)
UserId = NewType("UserId", UUID)
PaymentId = NewType("PaymentId", UUID)
SubscriptionId = NewType("SubscriptionId", UUID)
OrderId = NewType("OrderId", UUID)
WalletId = NewType("WalletId", UUID)
SourceId = NewType("SourceId", int)

MAX_EXTERNAL_ID: Final = 255
"""The longest accepted id of a gateway. An index entry has to hold it."""

LOST_DISPUTE_PREFIX: Final = "dispute:"
"""Prefix of refund ids that are lost disputes. Gateways do not count these among refunds."""

OPERATOR_REFUND_PREFIX: Final = "operator:"
"""Prefix of refund ids that an operator recorded. The gateway may report the same money, too."""

OUTSIDE_REFUND_PREFIX: Final = "outside:"
"""Prefix of refund ids that an operator recorded and the gateway does not know of, as cash."""


class EventType(StrEnum):
    """What happened to a payment."""

    PENDING = "pending"
    PROCESSING = "processing"
    PAID = "paid"
    FAILED = "failed"
    VOIDED = "voided"  # canceled before it was paid
    CANCELED = "canceled"  # money returned, confirmed by the gateway
    REFUNDED = "refunded"
    DISPUTED = "disputed"  # a lost dispute is REFUNDED
    DISPUTE_WON = "dispute_won"
    UNREADABLE = "unreadable"  # reported as paid, but how much and for what cannot be read


class EventStatus(StrEnum):
    """The status of an event. The schema ties each status to its timestamps."""

    VALIDATED = "VALIDATED"
    PROCESSED = "PROCESSED"
    IGNORED = "IGNORED"
    FAILED_RETRYABLE = "FAILED_RETRYABLE"
    FAILED_FINAL = "FAILED_FINAL"
    DEAD_LETTER = "DEAD_LETTER"


class Code(StrEnum):
    """Why an event did not succeed. Stable: other programs depend on these."""

    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    TIMESTAMP_EXPIRED = "TIMESTAMP_EXPIRED"
    REPLAYED_NONCE = "REPLAYED_NONCE"
    MALFORMED = "MALFORMED"
    NOT_APPROVED = "NOT_APPROVED"
    NON_SUCCESS_STATUS = "NON_SUCCESS_STATUS"
    AMOUNT_MISMATCH = "AMOUNT_MISMATCH"
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"
    EXCESS = "EXCESS"
    REFUND_EXCESS = "REFUND_EXCESS"
    REFUND_CURRENCY_MISMATCH = "REFUND_CURRENCY_MISMATCH"
    USER_MISSING = "USER_MISSING"
    UNLINKED_PAYMENT = "UNLINKED_PAYMENT"
    REFUND_WANTED = "REFUND_WANTED"
    PAYMENT_MISSING = "PAYMENT_MISSING"
    ORDER_MISSING = "ORDER_MISSING"
    ORDER_CLOSED = "ORDER_CLOSED"
    ORDER_EXPIRED = "ORDER_EXPIRED"
    SUBSCRIPTION_CANCELED = "SUBSCRIPTION_CANCELED"
    PLAN_UNKNOWN = "PLAN_UNKNOWN"
    LINK_CONFLICT = "LINK_CONFLICT"
    TEST_PAYMENT = "TEST_PAYMENT"
    DUPLICATE_PAYMENT = "DUPLICATE_PAYMENT"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    PAYLOAD_CONFLICT = "PAYLOAD_CONFLICT"
    PROVIDER_UNREACHABLE = "PROVIDER_UNREACHABLE"
    PROVIDER_MISMATCH = "PROVIDER_MISMATCH"
    HANDLER_FAILED = "HANDLER_FAILED"
    INTERNAL = "INTERNAL"


CODES: Final = frozenset(Code)

CustomCode = NewType("CustomCode", str)
"""A code of a user's own handler. It is never one of ours."""
Reason = Code | CustomCode


def parse_reason(text: str) -> Reason:
    return Code(text) if text in CODES else CustomCode(text)


@dataclass(frozen=True, slots=True, order=True)
class ExternalId:
    """An id of a payment at its gateway."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Refund:
    """A single refund, of gateways that give each refund an id."""

    id: str
    amount: Money


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    """A canonical event about one payment.

    `amount` is the total captured amount, on every event that contains it: so a refund event alone
    is enough to create the payment. `refunded` is the total refunded so far; gateways that report
    each refund separately give `refund` instead.
    """

    event_type: EventType
    ids: tuple[ExternalId, ...]
    amount: Money | None = None
    refunded: Money | None = None
    refund: Refund | None = None
    order: str | None = None  # the merchant's own reference
    email: str | None = None
    plan_id: str | None = None
    occurred_at: datetime | None = None
    paid_at: datetime | None = None  # where it differs from occurred_at
    answer_by: datetime | None = None  # until when a dispute can be answered
    announced: EventType | None = None  # what the delivery itself said, if the rest was looked up


@dataclass(frozen=True, slots=True)
class Ignored:
    """A valid event that has no effect."""

    code: Code
    reason: str


APPROVED: Final = Ignored(
    Code.NON_SUCCESS_STATUS, "approved: a pending order had this reference and amount"
)
"""The outcome of a request for confirmation that was approved."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of processing an event."""

    status: EventStatus
    code: Reason | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class EventProblem:
    """Why a payment that has money cannot be applied now."""

    code: Reason
    message: str
    is_final: bool = True
    blocked_on: str | None = None

    @property
    def outcome(self) -> Outcome:
        status = EventStatus.FAILED_FINAL if self.is_final else EventStatus.FAILED_RETRYABLE
        return Outcome(status, self.code, self.message)


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """A canonical event with the properties of its delivery and its source."""

    source_id: SourceId
    event: PaymentEvent | Ignored
    received_at: datetime
    link_by_email: bool
    blocked_by: EventProblem | None = None
    """Why a hook does not let the payment be applied or reversed now."""
    is_test: bool = False
    is_expired: bool = False
    """The delivery was refused because its timestamp expired: only its captured money counts."""


PROCESSED: Final = Outcome(EventStatus.PROCESSED)
DEFERRED: Final = Outcome(EventStatus.VALIDATED)
