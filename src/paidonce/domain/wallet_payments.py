"""Payments out of a wallet, which a gateway carries out (SVC-1).

A payment is initiated, then its money is set aside and it is PROCESSING, or it has FAILED. What the
gateway says of it makes it COMPLETED or FAILED, and only from PROCESSING; the one word that counts
later is that a FAILED one was made after all. `command_for` says what the wallet has to do about a
word, `concluded` what becomes of the payment then. Both are pure.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from paidonce.domain.events import Code, EventStatus, Outcome, Says, SourceId, WalletId
from paidonce.domain.money import Money, format_minor, matches
from paidonce.domain.reservations import (
    Command,
    Judged,
    Refusal,
    Release,
    ReservationStatus,
    TakeAfterAll,
)

MAX_PAYMENT_ID: Final = 255
MAX_TRANSACTION_ID: Final = 255


def is_payment_id(text: str) -> bool:
    """Whether a payment can have this name: one that a column, a header and a path can hold."""
    return 0 < len(text) <= MAX_PAYMENT_ID and text.isprintable() and text.strip(". ") != ""


class WalletPaymentStatus(StrEnum):
    """Where a payment out of a wallet stands, in the order in which it can get there."""

    INITIATED = "INITIATED"
    PROCESSING = "PROCESSING"
    FAILED = "FAILED"
    COMPLETED = "COMPLETED"


class Word(StrEnum):
    """What the gateway says of a transaction, each at most once."""

    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Said:
    """A word of the gateway's, and how much it has paid, where it tells."""

    word: Word
    paid: Money | None = None


class FactType(StrEnum):
    """What the outside is told of a payment. The first one starts it."""

    INITIATED = "PaymentInitiated"
    PROCESSING = "PaymentProcessing"
    COMPLETED = "PaymentCompleted"
    FAILED = "PaymentFailed"
    RECOVERED = "PaymentRecovered"  # it had failed, and was made after all


STATUS_AFTER: Final = {
    FactType.INITIATED: WalletPaymentStatus.INITIATED,
    FactType.PROCESSING: WalletPaymentStatus.PROCESSING,
    FactType.COMPLETED: WalletPaymentStatus.COMPLETED,
    FactType.FAILED: WalletPaymentStatus.FAILED,
    FactType.RECOVERED: WalletPaymentStatus.COMPLETED,
}


class Failure(StrEnum):
    """Why a payment failed, where it was not for a refusal of the wallet's."""

    DECLINED = "DECLINED"  # the gateway says that it failed
    GATEWAY_REFUSED = "GATEWAY_REFUSED"  # the gateway did not take it at all
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"  # the wallet has another currency
    GIVEN_UP = "GIVEN_UP"  # a person has looked at it, and let go of the money


class Review(StrEnum):
    """Why a person should look at a payment."""

    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"  # it was made, and the wallet cannot pay for it
    ALREADY_COMMITTED = "ALREADY_COMMITTED"  # somebody else had taken its money, or a part of it
    GATEWAY_SILENT = "GATEWAY_SILENT"  # the gateway has not answered for long
    GATEWAY_PENDING = "GATEWAY_PENDING"  # the gateway has said for long that it is under way
    TRANSACTION_CONFLICT = "TRANSACTION_CONFLICT"  # the gateway contradicts its own ids
    AMOUNT_MISMATCH = "AMOUNT_MISMATCH"  # the gateway says that it has paid another amount
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"  # the gateway says that it has paid another currency


MISMATCHES: Final = frozenset({Review.AMOUNT_MISMATCH, Review.CURRENCY_MISMATCH})
RECOVERABLE: Final = frozenset({Review.INSUFFICIENT_FUNDS, *MISMATCHES})
"""Why a payment that was made is not paid for yet: a person can say that it is to be."""


@dataclass(frozen=True, slots=True)
class Initiation:
    """What is asked for. The same again under one payment id is the same payment."""

    payment_id: str
    wallet_id: WalletId
    amount: Money
    source_id: SourceId

    @property
    def request_hash(self) -> bytes:
        """What tells it from another one: of which wallet, how much, by which gateway."""
        said = f"{self.wallet_id}:{self.amount.amount_minor}:{self.amount.currency}"
        return hashlib.sha256(f"{said}:{self.source_id}".encode()).digest()


@dataclass(frozen=True, slots=True)
class WalletPayment:
    """One payment. `version` counts what the outside was told of it."""

    payment_id: str
    wallet_id: WalletId
    source_id: SourceId
    amount_minor: int
    currency: str
    request_hash: bytes
    status: WalletPaymentStatus
    created_at: datetime
    updated_at: datetime
    transaction_id: str | None = None
    failure: str | None = None
    review: str | None = None
    ask_at: datetime | None = None
    asked: int = 0
    version: int = 1

    @property
    def is_held(self) -> bool:
        """Whether another sum was paid than was asked for: nobody but a person goes on with it."""
        return self.review in MISMATCHES

    def said(self) -> dict[str, object]:
        """What every fact about it tells."""
        return {
            "payment_id": self.payment_id,
            "wallet_id": str(self.wallet_id),
            "amount": format_minor(self.amount_minor, self.currency),
            "currency": self.currency,
            "status": self.status,
            "transaction_id": self.transaction_id,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a payment, and what the outside is told of it, if anything."""

    payment: WalletPayment
    told: FactType | None = None


def initiated(asked: Initiation, now: datetime) -> WalletPayment:
    """A payment that nothing was done for yet."""
    return WalletPayment(
        payment_id=asked.payment_id,
        wallet_id=asked.wallet_id,
        source_id=asked.source_id,
        amount_minor=asked.amount.amount_minor,
        currency=asked.amount.currency,
        request_hash=asked.request_hash,
        status=WalletPaymentStatus.INITIATED,
        created_at=now,
        updated_at=now,
    )


def begun(payment: WalletPayment, judged: Judged | None, now: datetime) -> Step:
    """The payment after its money was to be set aside; None stands for a wallet that is not asked.

    It goes on only if the money is set aside now. Whoever has committed or released a reservation
    of this name before has ended the payment before it began.
    """
    if judged is None:
        return _failed(payment, Failure.CURRENCY_MISMATCH, now)
    if judged.refusal is not None:
        return _failed(payment, judged.refusal, now)
    assert judged.reservation is not None
    match judged.reservation.status:
        case ReservationStatus.RESERVED:
            going = replace(payment, status=WalletPaymentStatus.PROCESSING, ask_at=now)
            return _told(going, FactType.PROCESSING, now)
        case ReservationStatus.COMMITTED:
            return _failed(payment, Refusal.ALREADY_COMMITTED, now)
        case ReservationStatus.RELEASED:
            return _failed(payment, Refusal.ALREADY_RELEASED, now)
        case ReservationStatus.EXPIRED:
            return _failed(payment, Refusal.EXPIRED, now)
        case ReservationStatus.REJECTED:
            return _failed(payment, Refusal.INSUFFICIENT_FUNDS, now)
        case _:
            assert_never(judged.reservation.status)


def command_for(payment: WalletPayment, word: Word) -> Command | None:
    """What the wallet has to do when the gateway says this; None when the word changes nothing.

    Success takes the money even if somebody has let go of it meanwhile: it was paid.
    """
    if payment.is_held:
        return None
    match word, payment.status:
        case Word.SUCCEEDED, WalletPaymentStatus.PROCESSING | WalletPaymentStatus.FAILED:
            return TakeAfterAll(payment.payment_id)
        case Word.FAILED, WalletPaymentStatus.PROCESSING:
            return Release(payment.payment_id)
        case _:
            return None


def mismatch(payment: WalletPayment, said: Said) -> Review | None:
    """Why what was paid is not what was asked for; None when it is, or nobody tells how much."""
    if said.word is not Word.SUCCEEDED or said.paid is None:
        return None
    if said.paid.currency != payment.currency:
        return Review.CURRENCY_MISMATCH
    asked = Money(payment.amount_minor, payment.currency)
    return None if matches(said.paid, asked) else Review.AMOUNT_MISMATCH


def held(payment: WalletPayment, review: Review) -> Step:
    """The payment until a person has looked: nothing moves, and the gateway is asked no more."""
    return Step(replace(payment, review=str(review), ask_at=None))


def concluded(
    payment: WalletPayment,
    word: Word,
    refusal: Refusal | None,
    now: datetime,
    failure: Failure = Failure.DECLINED,
) -> Step:
    """The payment after the word and what the wallet did about it."""
    if word is Word.FAILED:
        is_taken = refusal is Refusal.ALREADY_COMMITTED
        return _failed(payment, failure, now, refusal if is_taken else None)
    assert word is Word.SUCCEEDED
    has_failed = payment.status is WalletPaymentStatus.FAILED
    if refusal is None:
        done = replace(payment, status=WalletPaymentStatus.COMPLETED, failure=None, review=None)
        return _told(done, FactType.RECOVERED if has_failed else FactType.COMPLETED, now)
    if has_failed:
        return Step(replace(payment, review=str(refusal)))
    return _failed(payment, refusal, now, refusal)


NOT_HEARD: Final = Outcome(
    EventStatus.FAILED_FINAL,
    Code.NON_SUCCESS_STATUS,
    "what went back of a payment out of a wallet is seen to by hand",
)
"""What becomes of an event that says nothing which a payment out of a wallet can hear."""


def word_of(says: Says) -> Word | None:
    """What a webhook's event says of its transaction; None when it is of something else."""
    match says:
        case Says.PAID:
            return Word.SUCCEEDED
        case Says.FAILED | Says.VOIDED:
            return Word.FAILED
        case Says.PENDING | Says.PROCESSING:
            return Word.PENDING
        case Says.CANCELED | Says.REFUNDED | Says.DISPUTED | Says.DISPUTE_WON:
            return None  # money that was paid has gone back, or may
        case _:
            assert_never(says)


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long to wait before the gateway is asked again, and when a person is told."""

    first_s: float = 1.0
    longest_s: float = 300.0
    silent_after_s: float = 3_600.0
    pending_after_s: float = 86_400.0
    slow_s: float = 3_600.0

    def after(self, asked: int) -> timedelta:
        """The pause after it was asked so often: twice as long each time, up to the longest."""
        doublings = min(max(asked - 1, 0), _MAX_DOUBLINGS)
        return timedelta(seconds=min(self.first_s * 2**doublings, self.longest_s))


_MAX_DOUBLINGS: Final = 30


def unanswered(payment: WalletPayment, pauses: Pauses, now: datetime) -> WalletPayment:
    """The payment after the gateway did not answer. It is asked again, for ever; at last slowly."""
    if payment.is_held:
        return payment
    if now - payment.created_at < timedelta(seconds=pauses.silent_after_s):
        return replace(payment, ask_at=now + pauses.after(payment.asked))
    slowly = now + timedelta(seconds=pauses.slow_s)
    return replace(payment, ask_at=slowly, review=payment.review or Review.GATEWAY_SILENT)


def answered(payment: WalletPayment, pauses: Pauses, now: datetime) -> WalletPayment:
    """The payment after the gateway answered: it is heard of, and asked again if it still runs.

    One that runs for very long is asked about slowly, and a person knows.
    """
    is_silent = payment.review == Review.GATEWAY_SILENT
    heard = replace(payment, review=None if is_silent else payment.review)
    if heard.status is not WalletPaymentStatus.PROCESSING or heard.is_held:
        return heard
    if now - heard.created_at < timedelta(seconds=pauses.pending_after_s):
        return replace(heard, ask_at=now + pauses.after(heard.asked))
    slowly = now + timedelta(seconds=pauses.slow_s)
    return replace(heard, ask_at=slowly, review=heard.review or Review.GATEWAY_PENDING)


def _failed(payment: WalletPayment, failure: str, now: datetime, review: str | None = None) -> Step:
    seen = None if review is None else str(review)
    ended = replace(payment, status=WalletPaymentStatus.FAILED, failure=str(failure), review=seen)
    return _told(ended, FactType.FAILED, now)


def _told(payment: WalletPayment, told: FactType, now: datetime) -> Step:
    """The next version. Its time is never before that of the last one."""
    is_over = payment.status is not WalletPaymentStatus.PROCESSING
    after = replace(
        payment,
        version=payment.version + 1,
        updated_at=max(now, payment.updated_at),
        ask_at=None if is_over else payment.ask_at,
    )
    return Step(after, told)
