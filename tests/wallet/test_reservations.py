"""Every command on a reservation in every state, without a database (WAL-1 WAL-2)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import pytest

from paidonce.core.events import WalletId
from paidonce.core.wallets import Wallet
from paidonce.wallet.reservations import (
    Command,
    CommandResult,
    Commit,
    Expire,
    LateCapture,
    RejectReason,
    Release,
    Reservation,
    ReservationStatus,
    Reserve,
    decide,
)

NOW: Final = datetime(2026, 11, 16, tzinfo=UTC)
SOON: Final = NOW + timedelta(seconds=1)
ID: Final = WalletId(UUID(int=1))
RESERVE: Final = Reserve("p", ID, 40)

RESERVED: Final = ReservationStatus.RESERVED
COMMITTED: Final = ReservationStatus.COMMITTED
RELEASED: Final = ReservationStatus.RELEASED
EXPIRED: Final = ReservationStatus.EXPIRED
REJECTED: Final = ReservationStatus.REJECTED

FUNDS: Final = RejectReason.INSUFFICIENT_FUNDS

TABLE: Final[dict[Command, dict[ReservationStatus, ReservationStatus | RejectReason]]] = {
    RESERVE: {
        RESERVED: RESERVED,
        COMMITTED: COMMITTED,
        RELEASED: RELEASED,
        EXPIRED: EXPIRED,
        REJECTED: FUNDS,
    },
    replace(RESERVE, amount_minor=41): dict.fromkeys(
        ReservationStatus, RejectReason.IDEMPOTENCY_CONFLICT
    ),
    replace(RESERVE, wallet_id=WalletId(UUID(int=2))): dict.fromkeys(
        ReservationStatus, RejectReason.IDEMPOTENCY_CONFLICT
    ),
    Commit("p"): {
        RESERVED: COMMITTED,
        COMMITTED: COMMITTED,
        RELEASED: RejectReason.ALREADY_RELEASED,
        EXPIRED: RejectReason.EXPIRED,
        REJECTED: FUNDS,
    },
    Commit("p", 41): {
        RESERVED: RejectReason.AMOUNT_TOO_LARGE,
        COMMITTED: RejectReason.ALREADY_COMMITTED,
        RELEASED: RejectReason.ALREADY_RELEASED,
        EXPIRED: RejectReason.EXPIRED,
        REJECTED: FUNDS,
    },
    Release("p"): {
        RESERVED: RELEASED,
        COMMITTED: RejectReason.ALREADY_COMMITTED,
        RELEASED: RELEASED,
        EXPIRED: RejectReason.EXPIRED,
        REJECTED: FUNDS,
    },
    Expire("p"): {status: status for status in ReservationStatus},
    LateCapture("p"): dict.fromkeys(ReservationStatus, COMMITTED),
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


def assert_consistent(before: Wallet, result: CommandResult) -> None:
    """The entries explain the balance, sum to zero, and a refusal changes nothing."""
    if result.wallet is None:
        return
    assert result.wallet.available_minor >= 0
    assert result.wallet.reserved_minor >= 0
    of_wallet = [one for one in result.entries if one.account == f"wallet:{ID}"]
    moved = sum(one.amount_minor for one in of_wallet)
    assert result.wallet.balance_minor == before.balance_minor + moved
    assert sum(one.amount_minor for one in result.entries) == 0
    if result.reject_reason is not None:
        assert result.wallet == before


@pytest.mark.parametrize(("command", "status"), CASES, ids=str)
def test_each_command_on_each_status(command: Command, status: ReservationStatus) -> None:
    """WAL-1: it leads to a status, or is refused with its own code, and then nothing changes."""
    before, known = held(status), reservation(status)
    result = decide(before, known, command, NOW)
    leads_to = TABLE[command][status]
    assert result.reservation is not None
    assert_consistent(before, result)
    assert not result.is_new
    if isinstance(leads_to, RejectReason):
        assert (result.reject_reason, result.reservation, result.wallet) == (
            leads_to,
            known,
            before,
        )
        return
    assert (result.reject_reason, result.reservation.status) == (None, leads_to)
    if leads_to is status:
        assert (result.reservation, result.wallet, result.entries) == (known, before, ())


@pytest.mark.parametrize(
    "command", [Commit("p"), Release("p"), Expire("p"), LateCapture("p")], ids=str
)
def test_a_command_without_a_reservation_is_rejected(command: Command) -> None:
    """WAL-1"""
    assert decide(None, None, command, NOW).reject_reason is RejectReason.RESERVATION_MISSING


def test_a_reserve_without_a_wallet_is_rejected() -> None:
    """WAL-1: and nothing is remembered of it."""
    result = decide(None, None, RESERVE, NOW)
    assert (result.reject_reason, result.reservation) == (RejectReason.WALLET_MISSING, None)


def test_a_reserve_changes_the_reserved_amount_only() -> None:
    """WAL-2"""
    result = decide(wallet(balance=100), None, replace(RESERVE, expires_in=SOON - NOW), NOW)
    assert result.is_new
    assert result.wallet == wallet(balance=100, reserved=40)
    assert result.entries == ()
    assert result.reservation is not None
    assert (result.reservation.expires_at, result.reservation.ended_at) == (SOON, None)


@pytest.mark.parametrize(("balance", "reserved"), [(39, 0), (100, 61), (0, 0)])
def test_a_reserve_above_the_available_amount_is_rejected(balance: int, reserved: int) -> None:
    """WAL-2: and the answer is remembered."""
    before = wallet(balance=balance, reserved=reserved)
    result = decide(before, None, RESERVE, NOW)
    assert (result.reject_reason, result.wallet, result.is_new) == (FUNDS, before, True)
    assert result.reservation is not None
    again = decide(wallet(), result.reservation, RESERVE, NOW)
    assert (again.reject_reason, again.reservation) == (FUNDS, result.reservation)


def test_the_last_unit_can_be_reserved() -> None:
    """WAL-2"""
    result = decide(wallet(balance=40), None, RESERVE, NOW)
    assert result.wallet == wallet(balance=40, reserved=40)


def test_a_partial_commit_releases_the_rest() -> None:
    """WAL-2"""
    result = decide(held(RESERVED), reservation(RESERVED), Commit("p", 15), NOW)
    assert result.wallet == wallet(balance=85, reserved=0)
    assert result.reservation is not None
    assert result.reservation.committed_minor == 15
    assert [one.amount_minor for one in result.entries] == [-15, 15]
    for command, refusal in (
        (Commit("p", 15), None),
        (Commit("p"), None),
        (Commit("p", 16), RejectReason.ALREADY_COMMITTED),
        (LateCapture("p"), RejectReason.ALREADY_COMMITTED),
    ):
        again = decide(result.wallet, result.reservation, command, NOW)
        assert (again.reject_reason, again.wallet, again.entries) == (refusal, result.wallet, ())


@pytest.mark.parametrize("status", [RESERVED, COMMITTED, RELEASED, EXPIRED, REJECTED], ids=str)
def test_only_an_open_expired_reservation_expires(status: ReservationStatus) -> None:
    """WAL-2: with the same guard as all other commands."""
    result = decide(held(status), reservation(status), Expire("p"), SOON)
    assert result.reservation is not None
    expected = EXPIRED if status is RESERVED else status
    assert (result.reject_reason, result.reservation.status) == (None, expected)
    assert result.wallet == wallet()


def test_an_expired_reservation_cannot_be_committed_before_the_janitor_runs() -> None:
    """WAL-2: whether the janitor was there does not matter; releasing it is fine."""
    result = decide(held(RESERVED), reservation(RESERVED), Commit("p"), SOON)
    assert (result.reject_reason, result.wallet) == (RejectReason.EXPIRED, held(RESERVED))
    assert decide(held(RESERVED), reservation(RESERVED), Release("p"), SOON).reject_reason is None


def test_a_reservation_without_expiry_never_expires() -> None:
    """WAL-2"""
    lasting = reservation(RESERVED, expires_at=None)
    assert decide(held(RESERVED), lasting, Expire("p"), NOW).reservation == lasting
    assert (
        decide(held(RESERVED), lasting, Commit("p"), NOW + timedelta(days=999)).reject_reason
        is None
    )


@pytest.mark.parametrize("status", [RELEASED, EXPIRED, REJECTED], ids=str)
def test_a_late_capture_of_a_released_reservation_needs_available_money(
    status: ReservationStatus,
) -> None:
    """SVC-1: a success that comes late."""
    poor = wallet(balance=39)
    result = decide(poor, reservation(status), LateCapture("p"), NOW)
    assert (result.reject_reason, result.wallet, result.reservation) == (
        FUNDS,
        poor,
        reservation(status),
    )
    result = decide(wallet(), reservation(status), LateCapture("p"), NOW)
    assert result.wallet == wallet(balance=60)


@pytest.mark.parametrize("amount_minor", [0, -1])
def test_an_amount_has_to_be_positive(amount_minor: int) -> None:
    """WAL-1: to commit nothing is not to commit all of it, and less would fill the wallet."""
    with pytest.raises(ValueError, match="above zero"):
        Reserve("p", WalletId(UUID(int=1)), amount_minor)
    with pytest.raises(ValueError, match="above zero"):
        Commit("p", amount_minor)


def test_a_reserve_can_remove_the_expiry() -> None:
    """SVC-1 WAL-2: a payment under way relies on money that somebody had set aside for a while."""
    wallet = Wallet(WalletId(UUID(int=1)), "o", "RUB", 100, 0)
    asked = Reserve("p", wallet.id, 40, timedelta(hours=1))
    made = decide(wallet, None, asked, NOW)
    assert made.reservation is not None
    lasting = replace(asked, expires_in=None, remove_expiry=True)
    kept = decide(made.wallet, made.reservation, lasting, NOW)
    assert kept.reservation == replace(made.reservation, expires_at=None)
    assert (kept.wallet, kept.reject_reason) == (made.wallet, None)
    again = decide(made.wallet, made.reservation, asked, NOW)
    assert again.reservation == made.reservation, "a repeat lengthens nothing"
    late = decide(made.wallet, made.reservation, lasting, NOW + timedelta(hours=1))
    assert (late.reject_reason, late.reservation) == (RejectReason.EXPIRED, made.reservation)


def test_the_request_hash_depends_on_wallet_and_amount_only() -> None:
    """WAL-1: for how long is not a part of it: a retry may ask for what is left of its time."""
    assert RESERVE.request_hash == replace(RESERVE, expires_in=SOON - NOW).request_hash
    others = (replace(RESERVE, amount_minor=4), replace(RESERVE, wallet_id=WalletId(UUID(int=2))))
    assert len({RESERVE.request_hash, *(one.request_hash for one in others)}) == 3
