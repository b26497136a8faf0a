"""What a delivery says, in words that are the same for every gateway."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NewType
from uuid import UUID

from paidonce.domain.money import Money

EventId = NewType("EventId", UUID)
UserId = NewType("UserId", UUID)
PaymentId = NewType("PaymentId", UUID)
SubscriptionId = NewType("SubscriptionId", UUID)
OrderId = NewType("OrderId", UUID)
WalletId = NewType("WalletId", UUID)
SourceId = NewType("SourceId", int)

MAX_EXTERNAL_ID: Final = 255
"""The longest id of a gateway's that is accepted; an index entry has to hold it."""

LOST_DISPUTE: Final = "dispute:"
"""How the id of a refund begins that is a lost dispute. Gateways do not count it among refunds."""


class Says(StrEnum):
    """What an event says has happened to a payment."""

    PENDING = "pending"
    PROCESSING = "processing"
    PAID = "paid"
    FAILED = "failed"
    VOIDED = "voided"  # given up unpaid
    CANCELED = "canceled"  # money returned, on the gateway's own confirmed word
    REFUNDED = "refunded"
    DISPUTED = "disputed"  # a dispute that is lost is said by REFUNDED
    DISPUTE_WON = "dispute_won"


class EventStatus(StrEnum):
    """Where an event stands. The schema ties each to its timestamps."""

    RECEIVED = "RECEIVED"
    VALIDATED = "VALIDATED"
    PROCESSED = "PROCESSED"
    IGNORED = "IGNORED"
    FAILED_RETRYABLE = "FAILED_RETRYABLE"
    FAILED_FINAL = "FAILED_FINAL"
    DEAD_LETTER = "DEAD_LETTER"


WAITING: Final = frozenset(
    {EventStatus.RECEIVED, EventStatus.VALIDATED, EventStatus.FAILED_RETRYABLE}
)
"""The statuses of an event that is still to be settled."""


class Code(StrEnum):
    """Why an event did not simply succeed. Stable: other programs are written against these."""

    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    TIMESTAMP_EXPIRED = "TIMESTAMP_EXPIRED"
    REPLAYED_NONCE = "REPLAYED_NONCE"
    MALFORMED = "MALFORMED"
    NOT_APPROVED = "NOT_APPROVED"
    NON_SUCCESS_STATUS = "NON_SUCCESS_STATUS"
    AMOUNT_MISMATCH = "AMOUNT_MISMATCH"
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"
    USER_MISSING = "USER_MISSING"
    UNLINKED_PAYMENT = "UNLINKED_PAYMENT"
    REFUND_WANTED = "REFUND_WANTED"
    PAYMENT_MISSING = "PAYMENT_MISSING"
    ORDER_MISSING = "ORDER_MISSING"
    ORDER_CLOSED = "ORDER_CLOSED"
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

OwnCode = NewType("OwnCode", str)
"""A code that a user's own handler gave. It is never one of ours."""
Reason = Code | OwnCode


def reason_of(text: str) -> Reason:
    """A code as it is stored."""
    return Code(text) if text in CODES else OwnCode(text)


@dataclass(frozen=True, slots=True, order=True)
class ExternalId:
    """One of the ids by which a gateway knows a payment."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Refund:
    """One of the refunds of a payment, where the gateway names each."""

    id: str
    amount: Money


@dataclass(frozen=True, slots=True)
class PaymentEvent:
    """A canonical event: what one delivery says of one payment.

    `amount` is what was captured in all, on any event that tells it, so that an event about a
    refund is enough to know of the payment. `refunded` is all that was returned so far; gateways
    that tell each refund by itself give `refund` instead.
    """

    says: Says
    ids: tuple[ExternalId, ...]
    amount: Money | None = None
    refunded: Money | None = None
    refund: Refund | None = None
    order: str | None = None  # the merchant's own reference
    email: str | None = None
    plan_id: str | None = None
    occurred_at: datetime | None = None
    paid_at: datetime | None = None  # where it differs from occurred_at


@dataclass(frozen=True, slots=True)
class Ignored:
    """An authentic event that concerns no payment, or says nothing that counts."""

    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an event."""

    status: EventStatus
    code: Reason | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a payment that holds money cannot be applied now."""

    code: Reason
    message: str
    is_final: bool = True
    awaits: str | None = None

    @property
    def outcome(self) -> Outcome:
        """What becomes of an event because of it."""
        status = EventStatus.FAILED_FINAL if self.is_final else EventStatus.FAILED_RETRYABLE
        return Outcome(status, self.code, self.message)


PROCESSED: Final = Outcome(EventStatus.PROCESSED)
DEFERRED: Final = Outcome(EventStatus.VALIDATED)
