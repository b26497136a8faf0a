"""Payments out of a wallet, as they are, and as the query service shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from paidonce.domain.money import format_minor
from paidonce.domain.wallet_payments import WalletPaymentStatus


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


@dataclass(frozen=True, slots=True)
class PaymentStateView:
    """What the query service shows of a payment."""

    payment_id: str
    status: WalletPaymentStatus
    amount: str
    currency: str
    version: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class CallbackView:
    """What a gateway told of a transaction that no payment has."""

    id: UUID
    source: str
    transaction_id: str
    says: str
    event_id: UUID
    attempts: int
    received_at: datetime
    ended_at: datetime


def wallet_payment_view(row: Mapping[str, Any]) -> WalletPaymentView:
    return WalletPaymentView(**_fields(row, WalletPaymentView))


def payment_state_view(row: Mapping[str, Any]) -> PaymentStateView:
    return PaymentStateView(**_fields(row, PaymentStateView))


def _fields(row: Mapping[str, Any], view: type) -> dict[str, Any]:
    fields = {name: row[name] for name in row.keys() & set(view.__slots__)}  # type: ignore[attr-defined]
    fields["amount"] = format_minor(row["amount_minor"], row["currency"])
    fields["status"] = WalletPaymentStatus(row["status"])
    return fields
