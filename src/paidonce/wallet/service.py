"""Wallets and reservations: what operators and programs can ask for."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from paidonce.audit.store import record_action
from paidonce.core.actors import HOST, Actor
from paidonce.core.events import WalletId
from paidonce.core.money import known_currency, money
from paidonce.core.orders import MAX_REFERENCE
from paidonce.db.paging import Page, page_of
from paidonce.db.pool import Database
from paidonce.db.search import read_in_order
from paidonce.errors import (
    ConflictError,
    InvalidMoneyError,
    InvalidRequestError,
    NotFoundError,
)
from paidonce.ids import new_id
from paidonce.settings.sections import LONGEST_RESERVATION_S, WalletSettings
from paidonce.wallet import ledger, model, reservations, store
from paidonce.wallet.commands import WalletCommands
from paidonce.wallet.model import ReservationView, WalletView
from paidonce.wallet.reservations import MAX_PAYMENT_ID, RejectReason

_MESSAGES: Final = {
    RejectReason.INSUFFICIENT_FUNDS: "the wallet has insufficient funds",
    RejectReason.IDEMPOTENCY_CONFLICT: "another wallet or amount is reserved for this payment_id",
    RejectReason.AMOUNT_TOO_LARGE: "the amount is larger than the reservation",
    RejectReason.ALREADY_COMMITTED: "the reservation is already committed",
    RejectReason.ALREADY_RELEASED: "the reservation is already released",
    RejectReason.EXPIRED: "the reservation has expired",
}


class WalletService:
    """Wallets, their reservations and their ledger."""

    def __init__(
        self, database: Database, commands: WalletCommands, settings: WalletSettings
    ) -> None:
        self._database = database
        self._commands = commands
        self._settings = settings

    async def create(
        self, owner: str, currency: str, actor: Actor = HOST
    ) -> tuple[WalletView, bool]:
        """Create the owner's wallet in a currency; returns it, and whether it is new."""
        code = currency_code(currency)
        if not owner or len(owner) > MAX_REFERENCE:
            raise InvalidRequestError(f"owner: give 1 to {MAX_REFERENCE} characters")
        async with self._database.transaction() as connection:
            owner = await store.owner_of(connection, owner)
            row, is_new = await store.create_wallet(connection, new_id(), owner, code)
            wallet = model.wallet_view(row)
            if is_new:  # audited without the owner, which may be an e-mail address
                await record_action(
                    connection,
                    actor.name,
                    "wallet_created",
                    wallet_id=str(wallet.id),
                    currency=code,
                )
        return wallet, is_new

    async def list_by_owner(self, owner: str) -> list[WalletView]:
        """The owner's wallets, one for each currency."""
        async with self._database.transaction() as connection:
            owner = await store.owner_of(connection, owner)
            rows = await store.find_wallets(connection, owner=owner)
        return [model.wallet_view(row) for row in rows]

    async def get(self, wallet_id: UUID, at: datetime | None = None) -> WalletView:
        """A wallet now, or as it was at a time. Raises NotFoundError.

        The id of a wallet that was merged leads to the remaining one; its past is its own.
        """
        async with self._database.connection() as connection:
            if at is not None:
                rows = await store.QUERIES["wallet_at"].rows(connection, id=wallet_id, at=at)
            else:
                rows = await store.find_wallets(connection, id=wallet_id)
        if not rows:
            raise NotFoundError(f"there is no wallet {wallet_id}")
        return model.wallet_view(rows[0], at)

    async def entries(self, wallet_id: UUID, query: model.EntryQuery) -> Page[model.EntryView]:
        """A page of a wallet's ledger entries, newest first. Raises NotFoundError."""
        await self.get(wallet_id)
        accounts = [f"wallet:{wallet_id}", f"receivable:{wallet_id}"]
        before = store.LAST_ENTRY if query.cursor is None else query.cursor
        async with self._database.connection() as connection, read_in_order(connection):
            rows = await store.QUERIES["entries"].rows(
                connection, accounts=accounts, before=before, limit=query.limit + 1
            )
        return page_of([model.entry_view(row) for row in rows], query.limit, lambda one: one.id)

    async def verify(
        self, progress: ledger.Progress = lambda what, done, total: None
    ) -> list[model.Discrepancy]:
        """Verify every wallet and every movement against the ledger."""
        return await ledger.verify(self._database, progress)

    async def reserve(
        self,
        wallet_id: UUID,
        payment_id: str,
        amount: str,
        *,
        expires_in_s: int | None = None,
        actor: Actor = HOST,
    ) -> tuple[ReservationView, bool]:
        """Reserve an amount for a payment; returns the reservation, and whether it is new.

        `expires_in_s` overrides the setting; 0 means never. Raises InvalidRequestError,
        NotFoundError, and ConflictError: INSUFFICIENT_FUNDS, which is stored for this
        payment id, or IDEMPOTENCY_CONFLICT.
        """
        require_payment_id(payment_id)
        expires_s = self._settings.reservation_expires_s if expires_in_s is None else expires_in_s
        if not 0 <= expires_s <= LONGEST_RESERVATION_S:
            raise InvalidRequestError(f"expires_in_s: give 0 to {LONGEST_RESERVATION_S}")
        wallet = await self.get(wallet_id)
        command = reservations.Reserve(
            payment_id,
            await self._wallet_to_reserve(wallet_id, wallet.id, payment_id),
            positive_minor(amount, wallet.currency),
            timedelta(seconds=expires_s) if expires_s else None,
        )
        result = await self._commands.execute(command, actor.name)
        return _view(payment_id, result), result.is_new

    async def commit(
        self, payment_id: str, amount: str | None = None, actor: Actor = HOST
    ) -> ReservationView:
        """Commit a reservation, or a part of it; the rest becomes available again.

        Raises InvalidRequestError, NotFoundError, and ConflictError.
        """
        minor = None
        if amount is not None:
            minor = positive_minor(amount, (await self.get_reservation(payment_id)).currency)
        return await self._execute(reservations.Commit(payment_id, minor), actor)

    async def release(self, payment_id: str, actor: Actor = HOST) -> ReservationView:
        """Release a reservation. Raises NotFoundError, and ConflictError."""
        return await self._execute(reservations.Release(payment_id), actor)

    async def get_reservation(self, payment_id: str) -> ReservationView:
        """The reservation of a payment. Raises NotFoundError."""
        async with self._database.connection() as connection:
            found = await store.find_reservation(connection, payment_id)
        if found is None:
            raise _no_reservation(payment_id)
        return model.reservation_view(*found)

    async def _wallet_to_reserve(
        self, wallet_id: UUID, remaining_id: UUID, payment_id: str
    ) -> WalletId:
        """The remaining wallet of a merged one, except for a repeat from before the merge."""
        if wallet_id != remaining_id:
            async with self._database.connection() as connection:
                found = await store.find_reservation(connection, payment_id)
            if found is not None and found[0].wallet_id == wallet_id:
                return WalletId(wallet_id)
        return WalletId(remaining_id)

    async def _execute(self, command: reservations.Command, actor: Actor) -> ReservationView:
        return _view(command.payment_id, await self._commands.execute(command, actor.name))


def currency_code(code: str) -> str:
    """The currency in capital letters. Raises InvalidRequestError if it does not exist."""
    try:
        return known_currency(code)
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"currency: {error}") from None


def positive_minor(amount: str, currency: str) -> int:
    """The amount in minor units. Raises InvalidRequestError unless it is above zero."""
    try:
        minor = money(amount, currency).amount_minor
    except InvalidMoneyError as error:
        raise InvalidRequestError(f"amount: {error}") from None
    if minor == 0:
        raise InvalidRequestError("amount: give one above zero")
    return minor


def require_payment_id(payment_id: str) -> None:
    """Raise InvalidRequestError unless it can be the id of a payment."""
    if not reservations.is_payment_id(payment_id):
        raise InvalidRequestError(f"payment_id: give 1 to {MAX_PAYMENT_ID} printable characters")


def _view(payment_id: str, result: reservations.CommandResult) -> ReservationView:
    """Raises NotFoundError or ConflictError if the command was rejected."""
    match result.reject_reason:
        case None:
            assert result.reservation is not None
            assert result.wallet is not None
            return model.reservation_view(result.reservation, result.wallet.currency)
        case RejectReason.WALLET_MISSING:
            raise NotFoundError("there is no such wallet")
        case RejectReason.RESERVATION_MISSING:
            raise _no_reservation(payment_id)
        case reason:
            raise ConflictError(_MESSAGES[reason], reason)


def _no_reservation(payment_id: str) -> NotFoundError:
    return NotFoundError(f"there is no reservation for {payment_id}")
