"""Payments out of a wallet (payouts) that a gateway carries out, and their rules (SVC-1).

A payment is INITIATED. Then its amount is reserved and it is PROCESSING, or it is FAILED. Reports
of the gateway make it COMPLETED or FAILED, only from PROCESSING. The only later change is a success
after FAILED. `command_for` returns the wallet command for a report, `conclude` the payment after
that command. All rules are pure.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from paidonce.core.callbacks import GatewayStatus
from paidonce.core.events import SourceId, WalletId
from paidonce.core.input import Reference, Text
from paidonce.core.money import Money, format_minor, matches
from paidonce.db.paging import ListQuery
from paidonce.settings.sections import PayoutSettings
from paidonce.wallet import reservations
from paidonce.wallet.reservations import RejectReason

MAX_TRANSACTION_ID: Final = 255
MAX_DOUBLINGS: Final = 30
NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of a payment without a message: the current time counts."""


class TransactionKey(NamedTuple):
    """A source, and the gateway's id of a transaction."""

    source_id: SourceId
    transaction_id: str


class WalletPaymentStatus(StrEnum):
    """The status of a payment, in the order in which it can change."""

    INITIATED = "INITIATED"
    PROCESSING = "PROCESSING"
    FAILED = "FAILED"
    COMPLETED = "COMPLETED"


class MessageType(StrEnum):
    """The messages about a payment. The first one starts it."""

    INITIATED = "PaymentInitiated"
    PROCESSING = "PaymentProcessing"
    COMPLETED = "PaymentCompleted"
    FAILED = "PaymentFailed"
    RECOVERED = "PaymentRecovered"  # succeeded after FAILED


class FailureReason(StrEnum):
    """Why a payment failed, if not for a RejectReason of the wallet."""

    DECLINED = "DECLINED"  # the gateway reports a failure
    GATEWAY_REFUSED = "GATEWAY_REFUSED"  # the gateway did not accept it
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"  # the wallet has another currency
    FAILED_BY_OPERATOR = "FAILED_BY_OPERATOR"


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """The status of a transaction, and the amount that was paid, if the gateway reports it."""

    status: GatewayStatus
    paid: Money | None = None
    failure: FailureReason = FailureReason.DECLINED
    """The reason, if the status is FAILED."""


class Review(StrEnum):
    """Why a person should look at a payment."""

    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"  # it succeeded, and the wallet cannot pay for it
    ALREADY_COMMITTED = "ALREADY_COMMITTED"  # somebody else committed its reservation
    GATEWAY_SILENT = "GATEWAY_SILENT"  # no answer from the gateway for long
    GATEWAY_PENDING = "GATEWAY_PENDING"  # pending at the gateway for long
    TRANSACTION_CONFLICT = "TRANSACTION_CONFLICT"  # the gateway contradicts its own ids
    AMOUNT_MISMATCH = "AMOUNT_MISMATCH"  # the gateway reports another amount
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"  # the gateway reports another currency


MISMATCHES: Final = frozenset({Review.AMOUNT_MISMATCH, Review.CURRENCY_MISMATCH})
CAPTURABLE: Final = frozenset({Review.INSUFFICIENT_FUNDS, *MISMATCHES})
"""Reviews of payments that succeeded: an operator may capture the amount."""


class WalletPaymentRequest(BaseModel):
    """The payment to start. The currency is the wallet's."""

    model_config = ConfigDict(extra="forbid")
    payment_id: Reference
    wallet_id: UUID
    amount: Text
    currency: Text | None = None


class WalletPaymentQuery(ListQuery):
    """Which payments."""

    cursor: Reference | None = Field(  # type: ignore[assignment]
        None, description="`next_cursor` of the previous page."
    )
    review: Text | None = Field(
        None,
        description="That need a review for this reason, such as `INSUFFICIENT_FUNDS`, or `any`.",
    )


@dataclass(frozen=True, slots=True)
class Initiation:
    """A request for a payment. A repeat under one payment id has to ask for the same."""

    payment_id: str
    wallet_id: WalletId
    amount_minor: int
    currency: str
    source_id: SourceId
    started_at: datetime = NO_TIME

    @property
    def request_hash(self) -> bytes:
        """Identifies the request: the wallet, the amount and the gateway."""
        text = f"{self.wallet_id}:{self.amount_minor}:{self.currency}:{self.source_id}"
        return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True, slots=True)
class WalletPayment:
    """A payment. `version` counts its messages."""

    payment_id: str
    wallet_id: WalletId
    source_id: SourceId
    source: str
    amount_minor: int
    currency: str
    request_hash: bytes
    status: WalletPaymentStatus
    created_at: datetime
    updated_at: datetime
    transaction_id: str | None = None
    failure: str | None = None
    review: str | None = None
    next_attempt_at: datetime | None = None
    attempts: int = 0
    version: int = 1

    @property
    def has_mismatch(self) -> bool:
        """Whether the gateway paid another amount: only an operator may continue."""
        return self.review in MISMATCHES

    @property
    def amount(self) -> str:
        return format_minor(self.amount_minor, self.currency)


@dataclass(frozen=True, slots=True)
class WalletPaymentView:
    """A payment out of a wallet. `review` is why a person should look at it, or null."""

    payment_id: str
    wallet_id: UUID
    source: str
    amount: str
    currency: str
    status: WalletPaymentStatus
    transaction_id: str | None
    failure: str | None
    review: str | None
    version: int
    created_at: datetime
    updated_at: datetime


def wallet_payment_view(payment: WalletPayment) -> WalletPaymentView:
    names = WalletPaymentView.__slots__
    return WalletPaymentView(**{name: getattr(payment, name) for name in names})


@dataclass(frozen=True, slots=True)
class DeadCallback:
    """A callback about a transaction that belongs to no payment; it is not tried any more."""

    id: UUID
    source: str
    transaction_id: str
    gateway_status: GatewayStatus
    event_id: UUID
    attempts: int
    received_at: datetime
    ended_at: datetime


def message_about(before: WalletPayment, after: WalletPayment) -> MessageType | None:
    """The message about a change: there is one for each version."""
    if after.version == before.version:
        return None
    if before.status is WalletPaymentStatus.FAILED:
        return MessageType.RECOVERED
    return MessageType[after.status.name]


def begin(
    payment: WalletPayment, result: reservations.CommandResult | None, now: datetime
) -> WalletPayment:
    """The payment after its reservation; None: the wallet has another currency.

    An existing reservation that is no longer RESERVED fails the payment.
    """
    if result is None:
        return _fail(payment, FailureReason.CURRENCY_MISMATCH, now)
    if result.reject_reason is not None:
        return _fail(payment, result.reject_reason, now)
    assert result.reservation is not None
    if result.reservation.status is not reservations.ReservationStatus.RESERVED:
        return _fail(payment, reservations.ENDED[result.reservation.status], now)
    processing = replace(payment, status=WalletPaymentStatus.PROCESSING, next_attempt_at=now)
    return _next_version(processing, now)


def command_for(payment: WalletPayment, status: GatewayStatus) -> reservations.Command | None:
    """The wallet command for a report of the gateway; None if it has no effect.

    A success captures the amount even if the reservation was released: the gateway has paid.
    """
    if payment.has_mismatch:
        return None
    match status, payment.status:
        case GatewayStatus.SUCCEEDED, WalletPaymentStatus.PROCESSING | WalletPaymentStatus.FAILED:
            return reservations.LateCapture(payment.payment_id)
        case GatewayStatus.FAILED, WalletPaymentStatus.PROCESSING:
            return reservations.Release(payment.payment_id)
        case _:
            return None


def find_mismatch(payment: WalletPayment, report: GatewayReport) -> Review | None:
    """The mismatch between the paid and the requested amount; None without a paid amount."""
    if report.status is not GatewayStatus.SUCCEEDED or report.paid is None:
        return None
    if report.paid.currency != payment.currency:
        return Review.CURRENCY_MISMATCH
    requested = Money(payment.amount_minor, payment.currency)
    return None if matches(report.paid, requested) else Review.AMOUNT_MISMATCH


def hold(payment: WalletPayment, review: Review) -> WalletPayment:
    """Hold the payment for a person: nothing moves, and the gateway is not asked any more."""
    return replace(payment, review=review, next_attempt_at=None)


def conclude(
    payment: WalletPayment, report: GatewayReport, reject_reason: RejectReason | None, now: datetime
) -> WalletPayment:
    """The payment after a report and its wallet command."""
    if report.status is GatewayStatus.FAILED:
        is_committed = reject_reason is RejectReason.ALREADY_COMMITTED
        return _fail(payment, report.failure, now, reject_reason if is_committed else None)
    assert report.status is GatewayStatus.SUCCEEDED
    if reject_reason is None:
        done = replace(payment, status=WalletPaymentStatus.COMPLETED, failure=None, review=None)
        return _next_version(done, now)
    if payment.status is WalletPaymentStatus.FAILED:
        return replace(payment, review=reject_reason)
    return _fail(payment, reject_reason, now, reject_reason)


def after_silence(payment: WalletPayment, settings: PayoutSettings, now: datetime) -> WalletPayment:
    """The payment after a call without an answer. The gateway is asked again, finally slowly."""
    if payment.has_mismatch:
        return payment
    return _poll_again(payment, settings, now, settings.silent_after_s, Review.GATEWAY_SILENT)


def after_answer(payment: WalletPayment, settings: PayoutSettings, now: datetime) -> WalletPayment:
    """The payment after an answer. If it is still processing, the gateway is asked again."""
    if payment.review == Review.GATEWAY_SILENT:
        payment = replace(payment, review=None)
    if payment.status is not WalletPaymentStatus.PROCESSING or payment.has_mismatch:
        return payment
    return _poll_again(payment, settings, now, settings.pending_after_s, Review.GATEWAY_PENDING)


def pause_after(attempts: int, settings: PayoutSettings) -> timedelta:
    """Doubles with each attempt, up to `longest_pause_s`."""
    doublings = min(max(attempts - 1, 0), MAX_DOUBLINGS)
    return timedelta(seconds=min(settings.first_pause_s * 2**doublings, settings.longest_pause_s))


def _poll_again(
    payment: WalletPayment, settings: PayoutSettings, now: datetime, after_s: float, review: Review
) -> WalletPayment:
    """Ask again; an old payment slowly, and a person reviews it."""
    if now - payment.created_at < timedelta(seconds=after_s):
        return replace(payment, next_attempt_at=now + pause_after(payment.attempts, settings))
    slowly = now + timedelta(seconds=settings.slow_pause_s)
    return replace(payment, next_attempt_at=slowly, review=payment.review or review)


def _fail(
    payment: WalletPayment, failure: str, now: datetime, review: str | None = None
) -> WalletPayment:
    failed = replace(payment, status=WalletPaymentStatus.FAILED, failure=failure, review=review)
    return _next_version(failed, now)


def _next_version(payment: WalletPayment, now: datetime) -> WalletPayment:
    """The version that the next message is about. `updated_at` never decreases."""
    is_processing = payment.status is WalletPaymentStatus.PROCESSING
    return replace(
        payment,
        version=payment.version + 1,
        updated_at=max(now, payment.updated_at),
        next_attempt_at=payment.next_attempt_at if is_processing else None,
    )
