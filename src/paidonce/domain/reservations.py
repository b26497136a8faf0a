"""Money that is set aside for a payment, then taken or let go: reserve, commit, release (WAL-1).

`judge(wallet, reservation, command, now)` is all of it, without any I/O. A command that was obeyed
before is answered with what it led to, and changes nothing; one that contradicts what was done is
refused, and changes nothing. The one refusal that is remembered is that the money was not there.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from paidonce.domain.events import WalletId
from paidonce.domain.wallets import Entry, Wallet


class ReservationStatus(StrEnum):
    """Where a reservation stands."""

    RESERVED = "RESERVED"
    COMMITTED = "COMMITTED"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"  # the money was not there


class Refusal(StrEnum):
    """Why a command is refused."""

    WALLET_MISSING = "WALLET_MISSING"
    RESERVATION_MISSING = "RESERVATION_MISSING"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    AMOUNT_TOO_LARGE = "AMOUNT_TOO_LARGE"
    ALREADY_COMMITTED = "ALREADY_COMMITTED"
    ALREADY_RELEASED = "ALREADY_RELEASED"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is, or was, set aside for one payment."""

    payment_id: str
    wallet_id: WalletId
    request_hash: bytes
    amount_minor: int
    status: ReservationStatus
    created_at: datetime
    committed_minor: int = 0
    expires_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set so much aside. Repeated under one payment id, it has to ask for the same."""

    payment_id: str
    wallet_id: WalletId
    amount_minor: int
    expires_in: timedelta | None = None
    is_lasting: bool = False
    """Whether one that is there already does not end by itself any more, either."""

    def __post_init__(self) -> None:
        _refuse_nothing(self.amount_minor)

    @property
    def request_hash(self) -> bytes:
        """What tells it from another one: of which wallet, and how much. Not for how long."""
        return hashlib.sha256(f"{self.wallet_id}:{self.amount_minor}".encode()).digest()


@dataclass(frozen=True, slots=True)
class Commit:
    """Take what was set aside, or a part of it; the rest is free again."""

    payment_id: str
    amount_minor: int | None = None  # all of it

    def __post_init__(self) -> None:
        if self.amount_minor is not None:
            _refuse_nothing(self.amount_minor)


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of what was set aside."""

    payment_id: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Let go of it because its time is over; nothing happens to one whose time is not."""

    payment_id: str


@dataclass(frozen=True, slots=True)
class TakeAfterAll:
    """Take all of it although it was let go: the payment turned out to have been made."""

    payment_id: str


Command = Reserve | Commit | Release | Expire | TakeAfterAll


def _refuse_nothing(amount_minor: int) -> None:
    """Raise ValueError: less than nothing would fill the wallet out of which it is taken."""
    if amount_minor <= 0:
        raise ValueError("an amount has to be above zero")


@dataclass(frozen=True, slots=True)
class Judged:
    """What a command leads to. Without a refusal, `wallet` and `reservation` are there."""

    wallet: Wallet | None
    reservation: Reservation | None
    entries: tuple[Entry, ...] = ()
    refusal: Refusal | None = None
    is_new: bool = False
    """Whether a reservation was made now; a repeat gets the one that is there."""


def judge(
    wallet: Wallet | None, reservation: Reservation | None, command: Command, now: datetime
) -> Judged:
    """What the command does. `reservation` is the one with its payment id, `wallet` is its wallet.

    Pure: what is to be written are the wallet and the reservation, where they differ.
    """
    if isinstance(command, Reserve):
        return _reserve(wallet, reservation, command, now)
    if reservation is None:
        return Judged(wallet, None, refusal=Refusal.RESERVATION_MISSING)
    assert wallet is not None, "a reservation has its wallet"
    match command:
        case Commit():
            return _commit(wallet, reservation, command, now)
        case Release():
            return _release(wallet, reservation, now)
        case Expire():
            return _expire(wallet, reservation, now)
        case TakeAfterAll():
            return _take_after_all(wallet, reservation, now)
        case _:
            assert_never(command)


def _reserve(
    wallet: Wallet | None, known: Reservation | None, command: Reserve, now: datetime
) -> Judged:
    if known is not None:
        return _reserved_before(wallet, known, command, now)
    if wallet is None:
        return Judged(None, None, refusal=Refusal.WALLET_MISSING)
    made = Reservation(
        payment_id=command.payment_id,
        wallet_id=wallet.id,
        request_hash=command.request_hash,
        amount_minor=command.amount_minor,
        status=ReservationStatus.RESERVED,
        created_at=now,
        expires_at=None if command.expires_in is None else now + command.expires_in,
    )
    if wallet.available_minor < command.amount_minor:
        rejected = replace(made, status=ReservationStatus.REJECTED, ended_at=now)
        return Judged(wallet, rejected, refusal=Refusal.INSUFFICIENT_FUNDS, is_new=True)
    after = replace(wallet, reserved_minor=wallet.reserved_minor + command.amount_minor)
    return Judged(after, made, is_new=True)


def _reserved_before(
    wallet: Wallet | None, known: Reservation, command: Reserve, now: datetime
) -> Judged:
    """The same answer again, also when that was a refusal, or the money has been taken since."""
    if known.request_hash != command.request_hash:
        return Judged(wallet, known, refusal=Refusal.IDEMPOTENCY_CONFLICT)
    if known.status is ReservationStatus.REJECTED:
        return Judged(wallet, known, refusal=Refusal.INSUFFICIENT_FUNDS)
    if command.is_lasting and known.status is ReservationStatus.RESERVED:
        is_over = _is_over(known, now)
        kept = known if is_over else replace(known, expires_at=None)
        return Judged(wallet, kept, refusal=Refusal.EXPIRED if is_over else None)
    return Judged(wallet, known)


def _commit(wallet: Wallet, reservation: Reservation, command: Commit, now: datetime) -> Judged:
    amount_minor = command.amount_minor
    if amount_minor is None:
        amount_minor = reservation.amount_minor
    match reservation.status:
        case ReservationStatus.RESERVED if _is_over(reservation, now):
            return Judged(wallet, reservation, refusal=Refusal.EXPIRED)
        case ReservationStatus.RESERVED if amount_minor > reservation.amount_minor:
            return Judged(wallet, reservation, refusal=Refusal.AMOUNT_TOO_LARGE)
        case ReservationStatus.RESERVED:
            return _taken(_let_go(wallet, reservation), reservation, amount_minor, now)
        case ReservationStatus.COMMITTED:
            is_same = command.amount_minor in (None, reservation.committed_minor)
            refusal = None if is_same else Refusal.ALREADY_COMMITTED
            return Judged(wallet, reservation, refusal=refusal)
        case ReservationStatus.RELEASED:
            return Judged(wallet, reservation, refusal=Refusal.ALREADY_RELEASED)
        case ReservationStatus.EXPIRED:
            return Judged(wallet, reservation, refusal=Refusal.EXPIRED)
        case ReservationStatus.REJECTED:
            return Judged(wallet, reservation, refusal=Refusal.INSUFFICIENT_FUNDS)
        case _:
            assert_never(reservation.status)


def _release(wallet: Wallet, reservation: Reservation, now: datetime) -> Judged:
    match reservation.status:
        case ReservationStatus.RESERVED:
            ended = replace(reservation, status=ReservationStatus.RELEASED, ended_at=now)
            return Judged(_let_go(wallet, reservation), ended)
        case ReservationStatus.COMMITTED:
            return Judged(wallet, reservation, refusal=Refusal.ALREADY_COMMITTED)
        case ReservationStatus.RELEASED:
            return Judged(wallet, reservation)
        case ReservationStatus.EXPIRED:
            return Judged(wallet, reservation, refusal=Refusal.EXPIRED)
        case ReservationStatus.REJECTED:
            return Judged(wallet, reservation, refusal=Refusal.INSUFFICIENT_FUNDS)
        case _:
            assert_never(reservation.status)


def _expire(wallet: Wallet, reservation: Reservation, now: datetime) -> Judged:
    if reservation.status is not ReservationStatus.RESERVED or not _is_over(reservation, now):
        return Judged(wallet, reservation)
    ended = replace(reservation, status=ReservationStatus.EXPIRED, ended_at=now)
    return Judged(_let_go(wallet, reservation), ended)


def _take_after_all(wallet: Wallet, reservation: Reservation, now: datetime) -> Judged:
    """All of it, whatever became of it, if the money is there."""
    amount_minor = reservation.amount_minor
    match reservation.status:
        case ReservationStatus.RESERVED:
            return _taken(_let_go(wallet, reservation), reservation, amount_minor, now)
        case ReservationStatus.COMMITTED:
            is_whole = reservation.committed_minor == amount_minor
            refusal = None if is_whole else Refusal.ALREADY_COMMITTED
            return Judged(wallet, reservation, refusal=refusal)
        case _ if wallet.available_minor < amount_minor:
            return Judged(wallet, reservation, refusal=Refusal.INSUFFICIENT_FUNDS)
        case _:
            return _taken(wallet, reservation, amount_minor, now)


def _taken(wallet: Wallet, reservation: Reservation, amount_minor: int, now: datetime) -> Judged:
    """The wallet with so much less, and the movement that explains it."""
    after = replace(wallet, balance_minor=wallet.balance_minor - amount_minor)
    ended = replace(
        reservation,
        status=ReservationStatus.COMMITTED,
        committed_minor=amount_minor,
        ended_at=now,
    )
    entries = (
        Entry(f"wallet:{wallet.id}", -amount_minor),
        Entry(f"spent:{wallet.currency}", amount_minor),
    )
    return Judged(after, ended, entries)


def _let_go(wallet: Wallet, reservation: Reservation) -> Wallet:
    return replace(wallet, reserved_minor=wallet.reserved_minor - reservation.amount_minor)


def _is_over(reservation: Reservation, now: datetime) -> bool:
    return reservation.expires_at is not None and reservation.expires_at <= now
