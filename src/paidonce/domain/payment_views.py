"""What is shown of a payment, made of events alone (QRY-1)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from paidonce.domain.wallet_payments import WalletPaymentStatus

_RANKS: Final = {status: rank for rank, status in enumerate(WalletPaymentStatus)}


@dataclass(frozen=True, slots=True)
class ShownPayment:
    """A payment as one event, or the newest of several, tells it."""

    payment_id: str
    status: WalletPaymentStatus
    amount_minor: int
    currency: str
    version: int
    updated_at: datetime


def follows(later: ShownPayment, shown: ShownPayment) -> bool:
    """Whether this is to be shown in place of that.

    Only a newer version that is not older in time, and only onwards: what is COMPLETED stays, and
    FAILED gives way to COMPLETED alone.
    """
    is_newer = later.version > shown.version and later.updated_at >= shown.updated_at
    return is_newer and _RANKS[later.status] > _RANKS[shown.status]


def newest(told: Iterable[ShownPayment]) -> list[ShownPayment]:
    """One for each payment, as if all of them had been shown one after the other."""
    shown: dict[str, ShownPayment] = {}
    for one in told:
        known = shown.get(one.payment_id)
        if known is None or follows(one, known):
            shown[one.payment_id] = one
    return list(shown.values())
