"""What becomes of payments out of a wallet, without a database or a gateway."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paidonce.domain.events import Says, SourceId, WalletId
from paidonce.domain.money import Money
from paidonce.domain.reservations import (
    Judged,
    Refusal,
    Release,
    Reservation,
    ReservationStatus,
    TakeAfterAll,
)
from paidonce.domain.wallet_payments import (
    FactType,
    Initiation,
    Pauses,
    Review,
    Said,
    WalletPayment,
    WalletPaymentStatus,
    Word,
    answered,
    begun,
    command_for,
    concluded,
    held,
    initiated,
    is_payment_id,
    mismatch,
    unanswered,
    word_of,
)

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ASKED = Initiation("p-1", WalletId(UUID(int=1)), Money(1000, "RUB"), SourceId(1))
NEW = initiated(ASKED, NOW)
GOING = replace(NEW, status=WalletPaymentStatus.PROCESSING, version=2, ask_at=NOW)
FAILED = replace(NEW, status=WalletPaymentStatus.FAILED, version=3, failure="DECLINED")
DONE = replace(NEW, status=WalletPaymentStatus.COMPLETED, version=3)


def reserved(status: ReservationStatus, refusal: Refusal | None = None) -> Judged:
    reservation = Reservation("p-1", ASKED.wallet_id, b"", 1000, status, NOW)
    return Judged(None, reservation, refusal=refusal)


def test_a_payment_goes_on_when_its_money_is_set_aside() -> None:
    """SVC-1: the gateway is to be told at once."""
    step = begun(NEW, reserved(ReservationStatus.RESERVED), NOW)
    assert step.told is FactType.PROCESSING
    assert step.payment == replace(
        NEW, status=WalletPaymentStatus.PROCESSING, version=2, ask_at=NOW
    )


@pytest.mark.parametrize(
    ("judged", "failure"),
    [
        (None, "CURRENCY_MISMATCH"),
        (Judged(None, None, refusal=Refusal.WALLET_MISSING), "WALLET_MISSING"),
        (reserved(ReservationStatus.REJECTED, Refusal.INSUFFICIENT_FUNDS), "INSUFFICIENT_FUNDS"),
        (
            reserved(ReservationStatus.RESERVED, Refusal.IDEMPOTENCY_CONFLICT),
            "IDEMPOTENCY_CONFLICT",
        ),
        (reserved(ReservationStatus.COMMITTED), "ALREADY_COMMITTED"),
        (reserved(ReservationStatus.RELEASED), "ALREADY_RELEASED"),
        (reserved(ReservationStatus.EXPIRED), "EXPIRED"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_payment_whose_money_is_not_set_aside_has_failed(
    judged: Judged | None, failure: str
) -> None:
    """SVC-1: also when somebody has ended a reservation of that name before."""
    step = begun(NEW, judged, NOW)
    assert (step.payment.status, step.payment.failure) == (WalletPaymentStatus.FAILED, failure)
    assert (step.told, step.payment.version, step.payment.ask_at) == (FactType.FAILED, 2, None)


@pytest.mark.parametrize(
    ("payment", "word", "command"),
    [
        (GOING, Word.SUCCEEDED, TakeAfterAll("p-1")),
        (GOING, Word.FAILED, Release("p-1")),
        (GOING, Word.PENDING, None),
        (FAILED, Word.SUCCEEDED, TakeAfterAll("p-1")),
        (FAILED, Word.FAILED, None),
        (FAILED, Word.PENDING, None),
        (DONE, Word.SUCCEEDED, None),
        (DONE, Word.FAILED, None),
        (DONE, Word.PENDING, None),
        (NEW, Word.SUCCEEDED, None),
        (NEW, Word.FAILED, None),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
def test_only_a_payment_under_way_ends_and_only_success_is_heard_later(
    payment: WalletPayment, word: Word, command: object
) -> None:
    """SVC-1: a status changes only from PROCESSING, or from FAILED to COMPLETED."""
    assert command_for(payment, word) == command


def test_success_completes_and_success_after_failure_recovers() -> None:
    """SVC-1"""
    done = concluded(GOING, Word.SUCCEEDED, None, NOW)
    assert (done.payment.status, done.told) == (
        WalletPaymentStatus.COMPLETED,
        FactType.COMPLETED,
    )
    late = concluded(replace(FAILED, review="X"), Word.SUCCEEDED, None, NOW)
    assert (late.told, late.payment.failure, late.payment.review) == (
        FactType.RECOVERED,
        None,
        None,
    )


def test_success_that_the_wallet_cannot_pay_for_is_for_a_person() -> None:
    """SVC-1: known once, told once, never dropped."""
    late = concluded(FAILED, Word.SUCCEEDED, Refusal.INSUFFICIENT_FUNDS, NOW)
    assert late.payment == replace(FAILED, review="INSUFFICIENT_FUNDS")
    assert late.told is None
    early = concluded(GOING, Word.SUCCEEDED, Refusal.INSUFFICIENT_FUNDS, NOW)
    assert (early.payment.status, early.payment.review) == (
        WalletPaymentStatus.FAILED,
        "INSUFFICIENT_FUNDS",
    )


def test_failure_whose_money_somebody_took_is_for_a_person() -> None:
    """SVC-1"""
    step = concluded(GOING, Word.FAILED, Refusal.ALREADY_COMMITTED, NOW)
    assert step.payment.review == Review.ALREADY_COMMITTED
    assert concluded(GOING, Word.FAILED, Refusal.EXPIRED, NOW).payment.review is None


def test_facts_of_a_payment_never_go_back_in_time() -> None:
    """QRY-1: whoever started it may have a clock that is ahead."""
    ahead = replace(GOING, updated_at=NOW + timedelta(minutes=5))
    assert concluded(ahead, Word.SUCCEEDED, None, NOW).payment.updated_at == ahead.updated_at


@pytest.mark.parametrize("order", list(permutations(Word)), ids="-".join)
def test_words_end_a_payment_the_same_in_every_order(order: tuple[Word, ...]) -> None:
    """SVC-1: where success is among them and the money is there, it has succeeded."""
    payment = GOING
    for word in order:
        if command_for(payment, word) is not None:
            payment = concluded(payment, word, None, NOW).payment
    assert payment.status is WalletPaymentStatus.COMPLETED


def test_a_silent_gateway_is_asked_with_growing_pauses_and_then_slowly_for_ever() -> None:
    """SVC-1 RET-1: after an hour a person knows."""
    pauses, asked_at, payment = Pauses(), NOW, GOING
    gaps: list[float] = []
    for number in range(40):
        payment = unanswered(replace(payment, asked=number + 1), pauses, asked_at)
        assert payment.ask_at is not None
        gaps.append((payment.ask_at - asked_at).total_seconds())
        is_late = asked_at - NOW >= timedelta(hours=1)
        assert (payment.review == Review.GATEWAY_SILENT) is is_late
        asked_at = payment.ask_at
    assert gaps[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 3_600
    heard = answered(payment, pauses, asked_at)
    assert heard.review is None
    assert heard.ask_at is not None


def test_a_payment_that_stays_pending_is_asked_about_ever_more_slowly() -> None:
    """SVC-1 RET-1: after a day a person knows, and goes on knowing while nobody answers."""
    pauses, asked_at, payment = Pauses(), NOW, GOING
    gaps: list[float] = []
    for number in range(400):
        payment = answered(replace(payment, asked=number + 1), pauses, asked_at)
        assert payment.ask_at is not None
        gaps.append((payment.ask_at - asked_at).total_seconds())
        is_late = asked_at - NOW >= timedelta(days=1)
        assert (payment.review == Review.GATEWAY_PENDING) is is_late
        asked_at = payment.ask_at
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (1, 3_600)
    assert unanswered(payment, pauses, asked_at).review == Review.GATEWAY_PENDING


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
def test_what_was_paid_is_compared_with_what_was_asked_for(
    paid: Money | None, wrong: Review | None
) -> None:
    """SVC-1 PAY-4: to within 0.01 unit, as everywhere; of what was not paid nothing is said."""
    assert mismatch(GOING, Said(Word.SUCCEEDED, paid)) is wrong
    assert mismatch(GOING, Said(Word.FAILED, paid)) is None


@pytest.mark.parametrize("word", Word)
@pytest.mark.parametrize("payment", [GOING, FAILED, DONE], ids=lambda one: str(one.status))
def test_a_payment_of_another_sum_waits_for_a_person(payment: WalletPayment, word: Word) -> None:
    """SVC-1 PAY-4: it moves by no word, and nobody is asked."""
    step = held(payment, Review.AMOUNT_MISMATCH)
    assert (step.payment.status, step.payment.ask_at, step.told) == (payment.status, None, None)
    assert command_for(step.payment, word) is None
    later = NOW + timedelta(days=30)
    assert answered(step.payment, Pauses(), later) == step.payment
    assert unanswered(step.payment, Pauses(), later) == step.payment


@given(asked=st.integers(min_value=0, max_value=10**9))
def test_a_pause_is_never_longer_than_the_longest(asked: int) -> None:
    """RET-1"""
    assert timedelta(0) < Pauses().after(asked) <= timedelta(seconds=Pauses().longest_s)


def test_every_word_of_a_webhook_is_understood_or_left_to_a_person() -> None:
    """SVC-1: that money went back, or may, is nothing that a payment can hear."""
    unheard = {Says.CANCELED, Says.REFUNDED, Says.DISPUTED, Says.DISPUTE_WON}
    assert {says for says in Says if word_of(says) is None} == unheard
    assert word_of(Says.PAID) is Word.SUCCEEDED


@pytest.mark.parametrize("text", ["", ".", "..", " ", "a\nb", "a\x00", "x" * 256, "a\tb"], ids=repr)
def test_what_no_header_or_path_can_hold_names_no_payment(text: str) -> None:
    """SVC-1"""
    assert not is_payment_id(text)
    assert is_payment_id("order 7/платёж")
