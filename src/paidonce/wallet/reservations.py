"""The rules of reservations: reserve, commit, release, expire (WAL-1).

`decide(wallet, reservation, command, now)` holds all rules, without I/O. A repeated command returns
the first result and changes nothing. A command that contradicts an earlier one is rejected and
changes nothing. Only one rejection is stored: INSUFFICIENT_FUNDS.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from paidonce.core.events import WalletId
from paidonce.core.wallets import LedgerEntry, Wallet

MAX_PAYMENT_ID: Final = 255


def is_payment_id(text: str) -> bool:
    """Whether a column, a header and a path can hold the text as the id of a payment."""
    return 0 < len(text) <= MAX_PAYMENT_ID and text.isprintable() and text.strip(". ") != ""


class ReservationStatus(StrEnum):
    """The status of a reservation."""

    RESERVED = "RESERVED"
    COMMITTED = "COMMITTED"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"  # insufficient funds


class RejectReason(StrEnum):
    """Why a command is rejected."""

    WALLET_MISSING = "WALLET_MISSING"
    RESERVATION_MISSING = "RESERVATION_MISSING"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    AMOUNT_TOO_LARGE = "AMOUNT_TOO_LARGE"
    ALREADY_COMMITTED = "ALREADY_COMMITTED"
    ALREADY_RELEASED = "ALREADY_RELEASED"
    EXPIRED = "EXPIRED"


ENDED: Final = {
    ReservationStatus.COMMITTED: RejectReason.ALREADY_COMMITTED,
    ReservationStatus.RELEASED: RejectReason.ALREADY_RELEASED,
    ReservationStatus.EXPIRED: RejectReason.EXPIRED,
    ReservationStatus.REJECTED: RejectReason.INSUFFICIENT_FUNDS,
}
"""Why a command that needs an open reservation is rejected."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An amount that is, or was, reserved for one payment."""

    payment_id: str
    wallet_id: WalletId
    request_hash: bytes
    amount_minor: int
    committed_minor: int
    status: ReservationStatus
    expires_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve an amount. A repeat under one payment id has to ask for the same."""

    payment_id: str
    wallet_id: WalletId
    amount_minor: int
    expires_in: timedelta | None = None
    remove_expiry: bool = False
    """Whether an existing reservation no longer expires either."""

    def __post_init__(self) -> None:
        _require_positive(self.amount_minor)

    @property
    def request_hash(self) -> bytes:
        """Identifies the request: the wallet and the amount, but not the expiry."""
        return hashlib.sha256(f"{self.wallet_id}:{self.amount_minor}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Commit:
    """Take the reserved amount, or a part of it; the rest becomes available again."""

    payment_id: str
    amount_minor: int | None = None  # the whole amount

    def __post_init__(self) -> None:
        if self.amount_minor is not None:
            _require_positive(self.amount_minor)


@dataclass(frozen=True, slots=True)
class Release:
    """Make the reserved amount available again."""

    payment_id: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Release a reservation that has expired; no effect on others."""

    payment_id: str


@dataclass(frozen=True, slots=True)
class LateCapture:
    """Commit the whole amount, even of a released reservation: the payment has succeeded."""

    payment_id: str


Command = Reserve | Commit | Release | Expire | LateCapture


def _require_positive(amount_minor: int) -> None:
    if amount_minor <= 0:
        raise ValueError("an amount has to be above zero")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The effect of a command. If it is not rejected, `wallet` and `reservation` are not None."""

    wallet: Wallet | None
    reservation: Reservation | None
    entries: tuple[LedgerEntry, ...] = ()
    reject_reason: RejectReason | None = None
    is_new: bool = False
    """Whether the reservation was created now; a repeat returns the existing one."""


def decide(
    wallet: Wallet | None, reservation: Reservation | None, command: Command, now: datetime
) -> CommandResult:
    """The effect of a command on the reservation with its payment id, and on its wallet."""
    if isinstance(command, Reserve):
        return _reserve(wallet, reservation, command, now)
    if reservation is None:
        return CommandResult(wallet, None, reject_reason=RejectReason.RESERVATION_MISSING)
    assert wallet is not None, "a reservation has a wallet"
    match command:
        case Commit():
            return _commit(wallet, reservation, command, now)
        case Release():
            return _release(wallet, reservation, now)
        case Expire():
            return _expire(wallet, reservation, now)
        case LateCapture():
            return _capture(wallet, reservation, now)
        case _:
            assert_never(command)


def _reserve(
    wallet: Wallet | None, existing: Reservation | None, command: Reserve, now: datetime
) -> CommandResult:
    if existing is not None:
        return _repeat(wallet, existing, command, now)
    if wallet is None:
        return CommandResult(None, None, reject_reason=RejectReason.WALLET_MISSING)
    reserved = Reservation(
        payment_id=command.payment_id,
        wallet_id=wallet.id,
        request_hash=command.request_hash,
        amount_minor=command.amount_minor,
        committed_minor=0,
        status=ReservationStatus.RESERVED,
        expires_at=None if command.expires_in is None else now + command.expires_in,
        created_at=now,
        ended_at=None,
    )
    if wallet.available_minor < command.amount_minor:
        rejected = replace(reserved, status=ReservationStatus.REJECTED, ended_at=now)
        reason = RejectReason.INSUFFICIENT_FUNDS
        return CommandResult(wallet, rejected, reject_reason=reason, is_new=True)
    after = replace(wallet, reserved_minor=wallet.reserved_minor + command.amount_minor)
    return CommandResult(after, reserved, is_new=True)


def _repeat(
    wallet: Wallet | None, existing: Reservation, command: Reserve, now: datetime
) -> CommandResult:
    """The first answer again, even after a commit or a rejection."""
    reason: RejectReason | None = None
    if existing.request_hash != command.request_hash:
        reason = RejectReason.IDEMPOTENCY_CONFLICT
    elif existing.status is ReservationStatus.REJECTED:
        reason = RejectReason.INSUFFICIENT_FUNDS
    elif command.remove_expiry and existing.status is ReservationStatus.RESERVED:
        if _is_expired(existing, now):
            reason = RejectReason.EXPIRED
        else:
            existing = replace(existing, expires_at=None)
    return CommandResult(wallet, existing, reject_reason=reason)


def _commit(
    wallet: Wallet, reservation: Reservation, command: Commit, now: datetime
) -> CommandResult:
    amount_minor = command.amount_minor or reservation.amount_minor
    reason: RejectReason | None
    match reservation.status:
        case ReservationStatus.RESERVED if _is_expired(reservation, now):
            reason = RejectReason.EXPIRED
        case ReservationStatus.RESERVED if amount_minor > reservation.amount_minor:
            reason = RejectReason.AMOUNT_TOO_LARGE
        case ReservationStatus.RESERVED:
            return _take(_unreserve(wallet, reservation), reservation, amount_minor, now)
        case ReservationStatus.COMMITTED:
            is_same = command.amount_minor in (None, reservation.committed_minor)
            reason = None if is_same else RejectReason.ALREADY_COMMITTED
        case status:
            reason = ENDED[status]
    return CommandResult(wallet, reservation, reject_reason=reason)


def _release(wallet: Wallet, reservation: Reservation, now: datetime) -> CommandResult:
    match reservation.status:
        case ReservationStatus.RESERVED:
            ended = replace(reservation, status=ReservationStatus.RELEASED, ended_at=now)
            return CommandResult(_unreserve(wallet, reservation), ended)
        case ReservationStatus.RELEASED:
            return CommandResult(wallet, reservation)
        case status:
            return CommandResult(wallet, reservation, reject_reason=ENDED[status])


def _expire(wallet: Wallet, reservation: Reservation, now: datetime) -> CommandResult:
    if reservation.status is not ReservationStatus.RESERVED or not _is_expired(reservation, now):
        return CommandResult(wallet, reservation)
    ended = replace(reservation, status=ReservationStatus.EXPIRED, ended_at=now)
    return CommandResult(_unreserve(wallet, reservation), ended)


def _capture(wallet: Wallet, reservation: Reservation, now: datetime) -> CommandResult:
    """Commit the whole amount in any status, if the wallet has it."""
    amount_minor = reservation.amount_minor
    reason: RejectReason | None
    match reservation.status:
        case ReservationStatus.RESERVED:
            return _take(_unreserve(wallet, reservation), reservation, amount_minor, now)
        case ReservationStatus.COMMITTED:
            is_whole = reservation.committed_minor == amount_minor
            reason = None if is_whole else RejectReason.ALREADY_COMMITTED
        case _ if wallet.available_minor < amount_minor:
            reason = RejectReason.INSUFFICIENT_FUNDS
        case _:
            return _take(wallet, reservation, amount_minor, now)
    return CommandResult(wallet, reservation, reject_reason=reason)


def _take(
    wallet: Wallet, reservation: Reservation, amount_minor: int, now: datetime
) -> CommandResult:
    """Debit the wallet, with the ledger entries of the movement."""
    after = replace(wallet, balance_minor=wallet.balance_minor - amount_minor)
    committed = replace(
        reservation, status=ReservationStatus.COMMITTED, committed_minor=amount_minor, ended_at=now
    )
    entries = (
        LedgerEntry(f"wallet:{wallet.id}", -amount_minor),
        LedgerEntry(f"spent:{wallet.currency}", amount_minor),
    )
    return CommandResult(after, committed, entries)


def _unreserve(wallet: Wallet, reservation: Reservation) -> Wallet:
    return replace(wallet, reserved_minor=wallet.reserved_minor - reservation.amount_minor)


def _is_expired(reservation: Reservation, now: datetime) -> bool:
    return reservation.expires_at is not None and reservation.expires_at <= now
