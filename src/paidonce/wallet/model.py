"""Wallets, reservations and ledger entries as the API shows them, and requests."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import asyncpg
from pydantic import BaseModel, ConfigDict, Field

from paidonce.core.input import Reference, Text
from paidonce.core.money import format_minor
from paidonce.db.paging import ListQuery
from paidonce.db.queries import from_row
from paidonce.settings.sections import LONGEST_RESERVATION_S
from paidonce.wallet.reservations import Reservation, ReservationStatus

DiscrepancyKind = Literal["balance", "receivable", "reserved", "movement"]


class WalletRequest(BaseModel):
    """An owner has one wallet for each currency."""

    model_config = ConfigDict(extra="forbid")
    owner: Reference
    currency: Text


class ReservationRequest(BaseModel):
    """The payment, and the amount in the wallet's currency.

    `expires_in_s`: the default is the setting `wallet.reservation_expires_s`; 0 means never.
    """

    model_config = ConfigDict(extra="forbid")
    payment_id: Reference
    amount: Text
    expires_in_s: Annotated[int, Field(ge=0, le=LONGEST_RESERVATION_S, strict=True)] | None = None


class CommitRequest(BaseModel):
    """The amount to commit; the default is the whole amount."""

    model_config = ConfigDict(extra="forbid")
    amount: Text | None = None


class EntryQuery(ListQuery):
    """Which page of a wallet's entries."""

    cursor: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(  # type: ignore[assignment]
        None, description="`next_cursor` of the previous page."
    )


@dataclass(frozen=True, slots=True)
class WalletView:
    """The wallet of an owner in one currency. `receivable`: the part of refunds that it owes.

    `at` is the requested time; null means now. `reserved` and `available` of the past are null: the
    ledger does not record reservations.
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
    """The reservation of a payment. `committed` is the amount that was taken.

    `REJECTED`: the wallet had insufficient funds, so nothing was reserved.
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
    """A change of a wallet's `balance`, or of its `receivable`, which is negative while it owes.

    Either `payment` (the payment at a gateway) or `reservation` (the payment id of the committed
    reservation) is given.
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
class Discrepancy:
    """A recorded amount that differs from what the ledger entries sum to.

    `id` is a wallet, or for `movement` a movement whose entries do not sum to zero.
    """

    kind: DiscrepancyKind
    id: UUID
    currency: str
    recorded: str
    expected: str


def wallet_view(row: asyncpg.Record, at: datetime | None = None) -> WalletView:
    """From a row; of the past, it has no reserved amount."""
    currency, balance = row["currency"], row["balance_minor"]
    reserved = row["reserved_minor"] if at is None else None
    return from_row(
        WalletView,
        row,
        balance=format_minor(balance, currency),
        reserved=None if reserved is None else format_minor(reserved, currency),
        available=None if reserved is None else format_minor(balance - reserved, currency),
        receivable=format_minor(row["receivable_minor"], currency),
        at=at,
    )


def reservation_view(reservation: Reservation, currency: str) -> ReservationView:
    return from_row(
        ReservationView,
        asdict(reservation),
        amount=format_minor(reservation.amount_minor, currency),
        committed=format_minor(reservation.committed_minor, currency),
        currency=currency,
    )


def entry_view(row: asyncpg.Record) -> EntryView:
    return from_row(
        EntryView,
        row,
        account="balance" if row["account"].startswith("wallet:") else "receivable",
        amount=format_minor(row["amount_minor"], row["currency"]),
    )
