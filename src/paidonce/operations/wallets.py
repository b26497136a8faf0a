"""Wallets, and money that is set aside in them for a payment, then taken or let go."""

from datetime import timedelta
from typing import Final
from uuid import UUID

from uuid_utils.compat import uuid7

from paidonce.domain.events import WalletId
from paidonce.domain.money import known_currency, money
from paidonce.domain.orders import MAX_REFERENCE
from paidonce.domain.reservations import Commit, Judged, Refusal, Release, Reserve
from paidonce.domain.wallet_payments import MAX_PAYMENT_ID, is_payment_id
from paidonce.errors import (
    InvalidMoneyError,
    InvalidRequestError,
    NotFoundError,
    ReservationRefusedError,
)
from paidonce.operations.desk import HOST, Actor, Desk
from paidonce.settings import LONGEST_RESERVATION_S
from paidonce.store import listings, reservations, wallets
from paidonce.views import ReservationView, WalletView, reservation_view, wallet_view

_TOLD: Final = {
    Refusal.INSUFFICIENT_FUNDS: "there was not enough money in the wallet",
    Refusal.IDEMPOTENCY_CONFLICT: "something else was reserved under this payment id",
    Refusal.AMOUNT_TOO_LARGE: "more is to be taken than was reserved",
    Refusal.ALREADY_COMMITTED: "the reservation was committed already",
    Refusal.ALREADY_RELEASED: "the reservation was released already",
    Refusal.EXPIRED: "the reservation has expired",
}


class WalletVerbs(Desk):
    """What can be asked of wallets, and done with the money in them."""

    async def create_wallet(
        self, owner: str, currency: str, actor: Actor = HOST
    ) -> tuple[WalletView, bool]:
        """The owner's wallet in this currency, and whether it is new.

        A new one is audited, by its id: an owner may be named by an e-mail address.
        """
        code = currency_code(currency)
        if not owner or len(owner) > MAX_REFERENCE:
            raise InvalidRequestError(f"owner: give 1 to {MAX_REFERENCE} characters")
        async with self._database.transaction() as connection:
            row, is_new = await wallets.create_wallet(connection, uuid7(), owner, code)
            if is_new:
                wallet_id = str(row["id"])
                await listings.record_action(
                    connection, actor.name, "wallet_created", wallet_id=wallet_id, currency=code
                )
        return wallet_view(dict(row)), is_new

    async def wallets_of(self, owner: str) -> list[WalletView]:
        """What an owner has, in each currency."""
        async with self._database.connection() as connection:
            rows = await wallets.wallets_of(connection, owner)
        return [wallet_view(dict(row)) for row in rows]

    async def wallet(self, wallet_id: UUID) -> WalletView:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            row = await wallets.wallet_by_id(connection, wallet_id)
        if row is None:
            raise NotFoundError(f"there is no wallet {wallet_id}")
        return wallet_view(dict(row))

    async def reserve(
        self,
        wallet_id: UUID,
        payment_id: str,
        amount: str,
        *,
        expires_in_s: int | None = None,
        actor: Actor = HOST,
    ) -> tuple[ReservationView, bool]:
        """Set an amount aside for a payment; and whether that was done now or before.

        `expires_in_s` is the setting's unless it is given; 0 is never. Raises InvalidRequestError,
        NotFoundError for the wallet, and ReservationRefusedError: INSUFFICIENT_FUNDS, which is
        remembered for this payment id, or IDEMPOTENCY_CONFLICT.
        """
        _refuse_unfit_id(payment_id)
        lasts_s = self._reservation_expires_s if expires_in_s is None else expires_in_s
        if not 0 <= lasts_s <= LONGEST_RESERVATION_S:
            raise InvalidRequestError(f"expires_in_s: give 0 to {LONGEST_RESERVATION_S}")
        currency = (await self.wallet(wallet_id)).currency
        command = Reserve(
            payment_id,
            WalletId(wallet_id),
            _above_zero(amount, currency),
            timedelta(seconds=lasts_s) if lasts_s else None,
        )
        judged = await self.wallets.do(command, actor.name)
        return _view(payment_id, judged), judged.is_new

    async def commit_reservation(
        self, payment_id: str, amount: str | None = None, actor: Actor = HOST
    ) -> ReservationView:
        """Take what was set aside, or a part of it; the rest is free again.

        Raises InvalidRequestError, NotFoundError, and ReservationRefusedError.
        """
        minor = None
        if amount is not None:
            minor = _above_zero(amount, (await self.reservation(payment_id)).currency)
        return _view(payment_id, await self.wallets.do(Commit(payment_id, minor), actor.name))

    async def release_reservation(self, payment_id: str, actor: Actor = HOST) -> ReservationView:
        """Let go of what was set aside. Raises NotFoundError, and ReservationRefusedError."""
        return _view(payment_id, await self.wallets.do(Release(payment_id), actor.name))

    async def reservation(self, payment_id: str) -> ReservationView:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            found = await reservations.reservation_by_id(connection, payment_id)
        if found is None:
            raise _no_reservation(payment_id)
        return reservation_view(*found)


def currency_code(code: str) -> str:
    """The currency in capital letters. Raises InvalidRequestError when there is none such."""
    try:
        return known_currency(code)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"currency: {error}") from None


def _above_zero(amount: str, currency: str) -> int:
    try:
        minor = money(amount, currency).amount_minor
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount: {error}") from None
    if minor == 0:
        raise InvalidRequestError("amount: give one above zero")
    return minor


def _refuse_unfit_id(payment_id: str) -> None:
    """One rule for whoever may pay under it: the payment service reserves by the same ids."""
    if not is_payment_id(payment_id):
        raise InvalidRequestError(f"payment_id: give 1 to {MAX_PAYMENT_ID} printable characters")


def _view(payment_id: str, judged: Judged) -> ReservationView:
    """Raises NotFoundError and ReservationRefusedError, as the wallet has judged."""
    match judged.refusal:
        case None:
            assert judged.reservation is not None
            assert judged.wallet is not None
            return reservation_view(judged.reservation, judged.wallet.currency)
        case Refusal.WALLET_MISSING:
            raise NotFoundError("there is no such wallet")
        case Refusal.RESERVATION_MISSING:
            raise _no_reservation(payment_id)
        case refusal:
            raise ReservationRefusedError(refusal, _TOLD[refusal])


def _no_reservation(payment_id: str) -> NotFoundError:
    return NotFoundError(f"there is no reservation for {payment_id}")
