"""Wallets, what is reserved in them, and what explains them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from paidonce.domain.money import format_minor
from paidonce.domain.reservations import Reservation, ReservationStatus


@dataclass(frozen=True, slots=True)
class WalletView:
    """What somebody has in one currency. `receivable`: what a refund could not take back.

    `at` is the time that was asked for; null is now. Of the past, `reserved` and `available` are
    null: the ledger tells what was there, not what was set aside.
    """

    id: UUID
    owner: str
    currency: str
    balance: str
    reserved: str | None
    available: str | None
    receivable: str
    created_at: datetime
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReservationView:
    """What is set aside for a payment, or was. `committed` is how much of it was taken.

    One that is `REJECTED` never held anything: the money was not there.
    """

    payment_id: str
    wallet_id: UUID
    amount: str
    committed: str
    currency: str
    status: ReservationStatus
    expires_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class EntryView:
    """So much more, or less, in a wallet (`balance`), or owed by its owner (`receivable`).

    What is owed is below zero. `payment` is the id of the payment at a gateway, `reservation` the
    payment id of the reservation that was committed: one of the two is there.
    """

    id: int
    movement_id: UUID
    account: Literal["balance", "receivable"]
    amount: str
    currency: str
    payment: UUID | None
    reservation: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class WalletFlaw:
    """Something that the ledger does not explain: what is recorded, and what should be.

    `id` is the wallet's, or that of a movement whose entries do not sum to zero.
    """

    what: Literal["balance", "receivable", "reserved", "movement"]
    id: UUID
    currency: str
    recorded: str
    explained: str


def wallet_view(row: Mapping[str, Any]) -> WalletView:
    currency = row["currency"]
    balance, reserved = row["balance_minor"], row["reserved_minor"]
    return WalletView(
        id=row["id"],
        owner=row["owner"],
        currency=currency,
        balance=format_minor(balance, currency),
        reserved=format_minor(reserved, currency),
        available=format_minor(balance - reserved, currency),
        receivable=format_minor(row["receivable_minor"], currency),
        created_at=row["created_at"],
    )


def past_wallet_view(row: Mapping[str, Any], at: datetime) -> WalletView:
    currency = row["currency"]
    return WalletView(
        id=row["id"],
        owner=row["owner"],
        currency=currency,
        balance=format_minor(row["balance_minor"], currency),
        reserved=None,
        available=None,
        receivable=format_minor(row["receivable_minor"], currency),
        created_at=row["created_at"],
        at=at,
    )


def reservation_view(one: Reservation, currency: str) -> ReservationView:
    return ReservationView(
        payment_id=one.payment_id,
        wallet_id=one.wallet_id,
        amount=format_minor(one.amount_minor, currency),
        committed=format_minor(one.committed_minor, currency),
        currency=currency,
        status=one.status,
        expires_at=one.expires_at,
        created_at=one.created_at,
        ended_at=one.ended_at,
    )


def entry_view(row: Mapping[str, Any]) -> EntryView:
    is_balance = row["account"].startswith("wallet:")
    return EntryView(
        id=row["id"],
        movement_id=row["movement_id"],
        account="balance" if is_balance else "receivable",
        amount=format_minor(row["amount_minor"], row["currency"]),
        currency=row["currency"],
        payment=row["payment_id"],
        reservation=row["reservation"],
        at=row["at"],
    )
