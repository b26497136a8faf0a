"""What becomes of payments out of a wallet, without a database or a gateway."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.core.callbacks import GatewayStatus, gateway_status_of
from paidonce.core.events import EventType, SourceId, WalletId
from paidonce.core.money import Money
from paidonce.payouts.model import (
    GatewayReport,
    Initiation,
    MessageType,
    Review,
    WalletPayment,
    WalletPaymentStatus,
    after_answer,
    after_silence,
    begin,
    command_for,
    conclude,
    find_mismatch,
    hold,
    message_about,
    pause_after,
)
from paidonce.settings.sections import PayoutSettings
from paidonce.wallet.reservations import (
    CommandResult,
    LateCapture,
    RejectReason,
    Release,
    Reservation,
    ReservationStatus,
    is_payment_id,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ASKED = Initiation("p-1", WalletId(UUID(int=1)), 1000, "RUB", SourceId(1))
NEW = WalletPayment(
    payment_id="p-1",
    wallet_id=ASKED.wallet_id,
    source_id=ASKED.source_id,
    source="bank",
    amount_minor=1000,
    currency="RUB",
    request_hash=ASKED.request_hash,
    status=WalletPaymentStatus.INITIATED,
    created_at=NOW,
    updated_at=NOW,
)
GOING = replace(NEW, status=WalletPaymentStatus.PROCESSING, version=2, next_attempt_at=NOW)
FAILED = replace(NEW, status=WalletPaymentStatus.FAILED, version=3, failure="DECLINED")
DONE = replace(NEW, status=WalletPaymentStatus.COMPLETED, version=3)

SUCCEEDED, DECLINED = GatewayReport(GatewayStatus.SUCCEEDED), GatewayReport(GatewayStatus.FAILED)


def reserved(status: ReservationStatus, refusal: RejectReason | None = None) -> CommandResult:
    reservation = Reservation("p-1", ASKED.wallet_id, b"", 1000, 0, status, None, NOW, None)
    return CommandResult(None, reservation, reject_reason=refusal)


def test_a_payment_with_a_reservation_is_processing() -> None:
    """SVC-1: the gateway is to be told at once."""
    after = begin(NEW, reserved(ReservationStatus.RESERVED), NOW)
    assert message_about(NEW, after) is MessageType.PROCESSING
    assert after == replace(
        NEW, status=WalletPaymentStatus.PROCESSING, version=2, next_attempt_at=NOW
    )


@pytest.mark.parametrize(
    ("result", "failure"),
    [
        (None, "CURRENCY_MISMATCH"),
        (CommandResult(None, None, reject_reason=RejectReason.WALLET_MISSING), "WALLET_MISSING"),
        (
            reserved(ReservationStatus.REJECTED, RejectReason.INSUFFICIENT_FUNDS),
            "INSUFFICIENT_FUNDS",
        ),
        (
            reserved(ReservationStatus.RESERVED, RejectReason.IDEMPOTENCY_CONFLICT),
            "IDEMPOTENCY_CONFLICT",
        ),
        (reserved(ReservationStatus.COMMITTED), "ALREADY_COMMITTED"),
        (reserved(ReservationStatus.RELEASED), "ALREADY_RELEASED"),
        (reserved(ReservationStatus.EXPIRED), "EXPIRED"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_payment_without_a_reservation_fails(result: CommandResult | None, failure: str) -> None:
    """SVC-1: also when somebody has ended a reservation of that name before."""
    after = begin(NEW, result, NOW)
    assert (after.status, after.failure) == (WalletPaymentStatus.FAILED, failure)
    assert (message_about(NEW, after), after.version, after.next_attempt_at) == (
        MessageType.FAILED,
        2,
        None,
    )


@pytest.mark.parametrize(
    ("payment", "word", "command"),
    [
        (GOING, GatewayStatus.SUCCEEDED, LateCapture("p-1")),
        (GOING, GatewayStatus.FAILED, Release("p-1")),
        (GOING, GatewayStatus.PENDING, None),
        (FAILED, GatewayStatus.SUCCEEDED, LateCapture("p-1")),
        (FAILED, GatewayStatus.FAILED, None),
        (FAILED, GatewayStatus.PENDING, None),
        (DONE, GatewayStatus.SUCCEEDED, None),
        (DONE, GatewayStatus.FAILED, None),
        (DONE, GatewayStatus.PENDING, None),
        (NEW, GatewayStatus.SUCCEEDED, None),
        (NEW, GatewayStatus.FAILED, None),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
def test_reports_count_while_processing_and_success_also_after_failure(
    payment: WalletPayment, word: GatewayStatus, command: object
) -> None:
    """SVC-1: a status changes only from PROCESSING, or from FAILED to COMPLETED."""
    assert command_for(payment, word) == command


def test_success_completes_and_success_after_failure_recovers() -> None:
    """SVC-1"""
    done = conclude(GOING, SUCCEEDED, None, NOW)
    assert (done.status, message_about(GOING, done)) == (
        WalletPaymentStatus.COMPLETED,
        MessageType.COMPLETED,
    )
    late = conclude(replace(FAILED, review="X"), SUCCEEDED, None, NOW)
    assert (message_about(FAILED, late), late.failure, late.review) == (
        MessageType.RECOVERED,
        None,
        None,
    )


def test_success_without_funds_needs_a_review() -> None:
    """SVC-1: known once, told once, never dropped."""
    late = conclude(FAILED, SUCCEEDED, RejectReason.INSUFFICIENT_FUNDS, NOW)
    assert late == replace(FAILED, review="INSUFFICIENT_FUNDS")
    assert message_about(FAILED, late) is None
    early = conclude(GOING, SUCCEEDED, RejectReason.INSUFFICIENT_FUNDS, NOW)
    assert (early.status, early.review) == (
        WalletPaymentStatus.FAILED,
        "INSUFFICIENT_FUNDS",
    )


def test_failure_with_a_committed_reservation_needs_a_review() -> None:
    """SVC-1"""
    after = conclude(GOING, DECLINED, RejectReason.ALREADY_COMMITTED, NOW)
    assert after.review == Review.ALREADY_COMMITTED
    assert conclude(GOING, DECLINED, RejectReason.EXPIRED, NOW).review is None


def test_the_time_of_a_payment_never_decreases() -> None:
    """QRY-1: whoever started it may have a clock that is ahead."""
    ahead = replace(GOING, updated_at=NOW + timedelta(minutes=5))
    assert conclude(ahead, SUCCEEDED, None, NOW).updated_at == ahead.updated_at


@pytest.mark.parametrize("order", list(permutations(GatewayStatus)), ids="-".join)
def test_reports_in_every_order_end_alike(order: tuple[GatewayStatus, ...]) -> None:
    """SVC-1: where success is among them and the money is there, it has succeeded."""
    payment = GOING
    for word in order:
        if command_for(payment, word) is not None:
            payment = conclude(payment, GatewayReport(word), None, NOW)
    assert payment.status is WalletPaymentStatus.COMPLETED


def test_a_silent_gateway_is_polled_with_growing_pauses_then_slowly() -> None:
    """SVC-1 RET-1: after an hour a person knows."""
    schedule, asked_at, payment = PayoutSettings(), NOW, GOING
    gaps: list[float] = []
    for number in range(40):
        payment = after_silence(replace(payment, attempts=number + 1), schedule, asked_at)
        assert payment.next_attempt_at is not None
        gaps.append((payment.next_attempt_at - asked_at).total_seconds())
        is_late = asked_at - NOW >= timedelta(hours=1)
        assert (payment.review == Review.GATEWAY_SILENT) is is_late
        asked_at = payment.next_attempt_at
    assert gaps[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 3_600
    heard = after_answer(payment, schedule, asked_at)
    assert heard.review is None
    assert heard.next_attempt_at is not None


def test_a_pending_payment_is_polled_with_growing_pauses_then_slowly() -> None:
    """SVC-1 RET-1: after a day a person knows, and goes on knowing while nobody answers."""
    schedule, asked_at, payment = PayoutSettings(), NOW, GOING
    gaps: list[float] = []
    for number in range(400):
        payment = after_answer(replace(payment, attempts=number + 1), schedule, asked_at)
        assert payment.next_attempt_at is not None
        gaps.append((payment.next_attempt_at - asked_at).total_seconds())
        is_late = asked_at - NOW >= timedelta(days=1)
        assert (payment.review == Review.GATEWAY_PENDING) is is_late
        asked_at = payment.next_attempt_at
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (1, 3_600)
    assert after_silence(payment, schedule, asked_at).review == Review.GATEWAY_PENDING


@pytest.mark.parametrize(
    ("paid", "wrong"),
    [
        (None, None),
        (Money(1000, "RUB"), None),
        (Money(1001, "RUB"), None),
        (Money(1002, "RUB"), Review.AMOUNT_MISMATCH),
        (Money(0, "RUB"), Review.AMOUNT_MISMATCH),
        (Money(1000, "KZT"), Review.CURRENCY_MISMATCH),
    ],
    ids=str,
)
def test_the_paid_amount_is_compared_with_the_requested_one(
    paid: Money | None, wrong: Review | None
) -> None:
    """SVC-1 PAY-4: to within 0.01 unit, as everywhere; of what was not paid nothing is said."""
    assert find_mismatch(GOING, GatewayReport(GatewayStatus.SUCCEEDED, paid)) is wrong
    assert find_mismatch(GOING, GatewayReport(GatewayStatus.FAILED, paid)) is None


@pytest.mark.parametrize("word", GatewayStatus)
@pytest.mark.parametrize("payment", [GOING, FAILED, DONE], ids=lambda one: str(one.status))
def test_a_payment_with_a_mismatch_is_held_for_a_person(
    payment: WalletPayment, word: GatewayStatus
) -> None:
    """SVC-1 PAY-4: it moves by no word, and nobody is asked."""
    held = hold(payment, Review.AMOUNT_MISMATCH)
    assert (held.status, held.next_attempt_at) == (payment.status, None)
    assert message_about(payment, held) is None
    assert command_for(held, word) is None
    later = NOW + timedelta(days=30)
    assert after_answer(held, PayoutSettings(), later) == held
    assert after_silence(held, PayoutSettings(), later) == held


@given(asked=st.integers(min_value=0, max_value=10**9))
def test_pauses_are_limited(asked: int) -> None:
    """RET-1"""
    assert (
        timedelta(0)
        < pause_after(asked, PayoutSettings())
        <= timedelta(seconds=PayoutSettings().longest_pause_s)
    )


def test_every_event_type_has_a_gateway_status_or_is_for_a_person() -> None:
    """SVC-1: that money went back, or may, is nothing that a payment can hear."""
    unheard = {
        EventType.CANCELED,
        EventType.REFUNDED,
        EventType.DISPUTED,
        EventType.DISPUTE_WON,
        EventType.UNREADABLE,
    }
    assert {
        event_type for event_type in EventType if gateway_status_of(event_type) is None
    } == unheard
    assert gateway_status_of(EventType.PAID) is GatewayStatus.SUCCEEDED


@pytest.mark.parametrize("text", ["", ".", "..", " ", "a\nb", "a\x00", "x" * 256, "a\tb"], ids=repr)
def test_a_payment_id_fits_a_header_and_a_path(text: str) -> None:
    """SVC-1"""
    assert not is_payment_id(text)
    assert is_payment_id("order 7/платёж")
