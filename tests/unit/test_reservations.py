"""Every command on a reservation in every state, without a database (WAL-1 WAL-2)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import pytest

from paidonce.domain.events import WalletId
from paidonce.domain.reservations import (
    Command,
    Commit,
    Expire,
    Judged,
    Refusal,
    Release,
    Reservation,
    ReservationStatus,
    Reserve,
    TakeAfterAll,
    judge,
)
from paidonce.domain.wallets import Wallet

NOW: Final = datetime(2026, 11, 16, tzinfo=UTC)
SOON: Final = NOW + timedelta(seconds=1)
ID: Final = WalletId(UUID(int=1))
RESERVE: Final = Reserve("p", ID, 40)

RESERVED: Final = ReservationStatus.RESERVED
COMMITTED: Final = ReservationStatus.COMMITTED
RELEASED: Final = ReservationStatus.RELEASED
EXPIRED: Final = ReservationStatus.EXPIRED
REJECTED: Final = ReservationStatus.REJECTED

FUNDS: Final = Refusal.INSUFFICIENT_FUNDS

TABLE: Final[dict[Command, dict[ReservationStatus, ReservationStatus | Refusal]]] = {
    RESERVE: {
        RESERVED: RESERVED,
        COMMITTED: COMMITTED,
        RELEASED: RELEASED,
        EXPIRED: EXPIRED,
        REJECTED: FUNDS,
    },
    replace(RESERVE, amount_minor=41): dict.fromkeys(
        ReservationStatus, Refusal.IDEMPOTENCY_CONFLICT
    ),
    replace(RESERVE, wallet_id=WalletId(UUID(int=2))): dict.fromkeys(
        ReservationStatus, Refusal.IDEMPOTENCY_CONFLICT
    ),
    Commit("p"): {
        RESERVED: COMMITTED,
        COMMITTED: COMMITTED,
        RELEASED: Refusal.ALREADY_RELEASED,
        EXPIRED: Refusal.EXPIRED,
        REJECTED: FUNDS,
    },
    Commit("p", 41): {
        RESERVED: Refusal.AMOUNT_TOO_LARGE,
        COMMITTED: Refusal.ALREADY_COMMITTED,
        RELEASED: Refusal.ALREADY_RELEASED,
        EXPIRED: Refusal.EXPIRED,
        REJECTED: FUNDS,
    },
    Release("p"): {
        RESERVED: RELEASED,
        COMMITTED: Refusal.ALREADY_COMMITTED,
        RELEASED: RELEASED,
        EXPIRED: Refusal.EXPIRED,
        REJECTED: FUNDS,
    },
    Expire("p"): {status: status for status in ReservationStatus},
    TakeAfterAll("p"): dict.fromkeys(ReservationStatus, COMMITTED),
}
"""Where each command leads to from where; of one whose time is not over."""
CASES: Final = [(command, status) for command in TABLE for status in ReservationStatus]


def wallet(*, balance: int = 100, reserved: int = 0) -> Wallet:
    return Wallet(ID, "owner", "EUR", balance, reserved)


def reservation(status: ReservationStatus, **changes: object) -> Reservation:
    """One of 40 that was made a while ago."""
    made = Reservation(
        payment_id="p",
        wallet_id=ID,
        request_hash=RESERVE.request_hash,
        amount_minor=40,
        status=status,
        created_at=NOW - timedelta(hours=1),
        committed_minor=40 if status is COMMITTED else 0,
        expires_at=SOON,
        ended_at=None if status is RESERVED else NOW - timedelta(minutes=1),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def held(status: ReservationStatus) -> Wallet:
    return wallet(reserved=40 if status is RESERVED else 0)


def assert_consistent(before: Wallet, judged: Judged) -> None:
    """The entries explain the balance, sum to zero, and a refusal changes nothing."""
    if judged.wallet is None:
        return
    assert judged.wallet.available_minor >= 0
    assert judged.wallet.reserved_minor >= 0
    of_wallet = [one for one in judged.entries if one.account == f"wallet:{ID}"]
    moved = sum(one.amount_minor for one in of_wallet)
    assert judged.wallet.balance_minor == before.balance_minor + moved
    assert sum(one.amount_minor for one in judged.entries) == 0
    if judged.refusal is not None:
        assert judged.wallet == before


@pytest.mark.parametrize(("command", "status"), CASES, ids=str)
def test_each_command_on_each_status(command: Command, status: ReservationStatus) -> None:
    """WAL-1: it leads to a status, or is refused with its own code, and then nothing changes."""
    before, known = held(status), reservation(status)
    judged = judge(before, known, command, NOW)
    leads_to = TABLE[command][status]
    assert judged.reservation is not None
    assert_consistent(before, judged)
    assert not judged.is_new
    if isinstance(leads_to, Refusal):
        assert (judged.refusal, judged.reservation, judged.wallet) == (leads_to, known, before)
        return
    assert (judged.refusal, judged.reservation.status) == (None, leads_to)
    if leads_to is status:
        assert (judged.reservation, judged.wallet, judged.entries) == (known, before, ())


@pytest.mark.parametrize(
    "command", [Commit("p"), Release("p"), Expire("p"), TakeAfterAll("p")], ids=str
)
def test_what_was_never_reserved_is_missing(command: Command) -> None:
    """WAL-1"""
    assert judge(None, None, command, NOW).refusal is Refusal.RESERVATION_MISSING


def test_a_wallet_that_is_not_there_is_missing() -> None:
    """WAL-1: and nothing is remembered of it."""
    judged = judge(None, None, RESERVE, NOW)
    assert (judged.refusal, judged.reservation) == (Refusal.WALLET_MISSING, None)


def test_reserving_sets_aside_and_moves_nothing() -> None:
    """WAL-2"""
    judged = judge(wallet(balance=100), None, replace(RESERVE, expires_in=SOON - NOW), NOW)
    assert judged.is_new
    assert judged.wallet == wallet(balance=100, reserved=40)
    assert judged.entries == ()
    assert judged.reservation is not None
    assert (judged.reservation.expires_at, judged.reservation.ended_at) == (SOON, None)


@pytest.mark.parametrize(("balance", "reserved"), [(39, 0), (100, 61), (0, 0)])
def test_what_is_not_available_is_not_set_aside(balance: int, reserved: int) -> None:
    """WAL-2: and the answer is remembered."""
    before = wallet(balance=balance, reserved=reserved)
    judged = judge(before, None, RESERVE, NOW)
    assert (judged.refusal, judged.wallet, judged.is_new) == (FUNDS, before, True)
    assert judged.reservation is not None
    again = judge(wallet(), judged.reservation, RESERVE, NOW)
    assert (again.refusal, again.reservation) == (FUNDS, judged.reservation)


def test_the_last_unit_can_be_reserved() -> None:
    """WAL-2"""
    judged = judge(wallet(balance=40), None, RESERVE, NOW)
    assert judged.wallet == wallet(balance=40, reserved=40)


def test_a_partial_commit_releases_the_rest() -> None:
    """WAL-2"""
    judged = judge(held(RESERVED), reservation(RESERVED), Commit("p", 15), NOW)
    assert judged.wallet == wallet(balance=85, reserved=0)
    assert judged.reservation is not None
    assert judged.reservation.committed_minor == 15
    assert [one.amount_minor for one in judged.entries] == [-15, 15]
    for command, refusal in (
        (Commit("p", 15), None),
        (Commit("p"), None),
        (Commit("p", 16), Refusal.ALREADY_COMMITTED),
        (TakeAfterAll("p"), Refusal.ALREADY_COMMITTED),
    ):
        again = judge(judged.wallet, judged.reservation, command, NOW)
        assert (again.refusal, again.wallet, again.entries) == (refusal, judged.wallet, ())


@pytest.mark.parametrize("status", [RESERVED, COMMITTED, RELEASED, EXPIRED, REJECTED], ids=str)
def test_only_what_is_reserved_and_over_expires(status: ReservationStatus) -> None:
    """WAL-2: with the same guard as all other commands."""
    judged = judge(held(status), reservation(status), Expire("p"), SOON)
    assert judged.reservation is not None
    expected = EXPIRED if status is RESERVED else status
    assert (judged.refusal, judged.reservation.status) == (None, expected)
    assert judged.wallet == wallet()


def test_what_is_over_cannot_be_committed_though_nobody_has_swept_it_yet() -> None:
    """WAL-2: whether the janitor was there does not matter; releasing it is fine."""
    judged = judge(held(RESERVED), reservation(RESERVED), Commit("p"), SOON)
    assert (judged.refusal, judged.wallet) == (Refusal.EXPIRED, held(RESERVED))
    assert judge(held(RESERVED), reservation(RESERVED), Release("p"), SOON).refusal is None


def test_what_never_expires_does_not() -> None:
    """WAL-2"""
    lasting = reservation(RESERVED, expires_at=None)
    assert judge(held(RESERVED), lasting, Expire("p"), NOW).reservation == lasting
    assert judge(held(RESERVED), lasting, Commit("p"), NOW + timedelta(days=999)).refusal is None


@pytest.mark.parametrize("status", [RELEASED, EXPIRED, REJECTED], ids=str)
def test_what_was_let_go_is_taken_after_all_only_if_the_money_is_there(
    status: ReservationStatus,
) -> None:
    """SVC-1: a success that comes late."""
    poor = wallet(balance=39)
    judged = judge(poor, reservation(status), TakeAfterAll("p"), NOW)
    assert (judged.refusal, judged.wallet, judged.reservation) == (FUNDS, poor, reservation(status))
    judged = judge(wallet(), reservation(status), TakeAfterAll("p"), NOW)
    assert judged.wallet == wallet(balance=60)


@pytest.mark.parametrize("amount_minor", [0, -1])
def test_nothing_and_less_is_no_amount(amount_minor: int) -> None:
    """WAL-1: to commit nothing is not to commit all of it, and less would fill the wallet."""
    with pytest.raises(ValueError, match="above zero"):
        Reserve("p", WalletId(UUID(int=1)), amount_minor)
    with pytest.raises(ValueError, match="above zero"):
        Commit("p", amount_minor)


def test_what_is_to_last_ends_no_more_by_itself() -> None:
    """SVC-1 WAL-2: a payment under way relies on money that somebody had set aside for a while."""
    wallet = Wallet(WalletId(UUID(int=1)), "o", "RUB", 100, 0)
    asked = Reserve("p", wallet.id, 40, timedelta(hours=1))
    made = judge(wallet, None, asked, NOW)
    assert made.reservation is not None
    lasting = replace(asked, expires_in=None, is_lasting=True)
    kept = judge(made.wallet, made.reservation, lasting, NOW)
    assert kept.reservation == replace(made.reservation, expires_at=None)
    assert (kept.wallet, kept.refusal) == (made.wallet, None)
    again = judge(made.wallet, made.reservation, asked, NOW)
    assert again.reservation == made.reservation, "a repeat lengthens nothing"
    late = judge(made.wallet, made.reservation, lasting, NOW + timedelta(hours=1))
    assert (late.refusal, late.reservation) == (Refusal.EXPIRED, made.reservation)


def test_two_requests_are_told_apart_by_wallet_and_amount_alone() -> None:
    """WAL-1: for how long is not a part of it: a retry may ask for what is left of its time."""
    assert RESERVE.request_hash == replace(RESERVE, expires_in=SOON - NOW).request_hash
    others = (replace(RESERVE, amount_minor=4), replace(RESERVE, wallet_id=WalletId(UUID(int=2))))
    assert len({RESERVE.request_hash, *(one.request_hash for one in others)}) == 3
