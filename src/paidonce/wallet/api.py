"""HTTP routes of wallets and reservations."""

from typing import Final
from uuid import UUID

from fastapi import FastAPI, Response

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.core.input import Reference, Time
from paidonce.db.paging import Page
from paidonce.wallet import model
from paidonce.wallet.service import WalletService

WHOLE_AMOUNT: Final = model.CommitRequest()


def add_to(api: FastAPI, wallets: WalletService) -> None:
    _add_wallets(api, wallets)
    _add_reservations(api, wallets)


def _add_wallets(api: FastAPI, wallets: WalletService) -> None:
    @api.post("/api/v1/wallets", status_code=201, tags=["wallets"])
    async def create_wallet(
        body: model.WalletRequest, actor: Operator, answer: Response
    ) -> model.WalletView:
        """Create a wallet. A repeat returns the existing one, with 200."""
        wallet, is_new = await wallets.create(body.owner, body.currency, actor)
        answer.status_code = 201 if is_new else 200
        return wallet

    @api.get("/api/v1/wallets", tags=["wallets"])
    async def find_wallets(owner: Reference, actor: Reader) -> Page[model.WalletView]:
        """An owner's wallets, one for each currency."""
        return Page(await wallets.list_by_owner(owner))

    @api.get("/api/v1/wallets/{wallet_id}", tags=["wallets"])
    async def get_wallet(
        wallet_id: UUID, actor: Reader, at: Time | None = None
    ) -> model.WalletView:
        """One wallet, now or as it was at a time."""
        return await wallets.get(wallet_id, at)

    @api.get("/api/v1/wallets/{wallet_id}/entries", tags=["wallets"])
    async def list_entries(
        wallet_id: UUID, query: FromQuery[model.EntryQuery], actor: Reader
    ) -> Page[model.EntryView]:
        """The ledger entries of a wallet, newest first."""
        return await wallets.entries(wallet_id, query)


def _add_reservations(api: FastAPI, wallets: WalletService) -> None:
    @api.post("/api/v1/wallets/{wallet_id}/reservations", status_code=201, tags=["reservations"])
    async def reserve(
        wallet_id: UUID, body: model.ReservationRequest, actor: Operator, answer: Response
    ) -> model.ReservationView:
        """Reserve an amount. A repeat returns the existing reservation, with 200.

        409 `INSUFFICIENT_FUNDS` is final for this payment id: try again with another one. Another
        wallet or amount under the same payment id is 409 `IDEMPOTENCY_CONFLICT`.
        """
        reservation, is_new = await wallets.reserve(
            wallet_id, body.payment_id, body.amount, expires_in_s=body.expires_in_s, actor=actor
        )
        answer.status_code = 201 if is_new else 200
        return reservation

    @api.post("/api/v1/reservations/{payment_id:path}/commit", tags=["reservations"])
    async def commit_reservation(
        payment_id: Reference, actor: Operator, body: model.CommitRequest = WHOLE_AMOUNT
    ) -> model.ReservationView:
        """Commit a reservation, or a part of it; the rest becomes available. Repeats do nothing.

        409 is `ALREADY_COMMITTED` (another amount), `ALREADY_RELEASED`, `EXPIRED`,
        `AMOUNT_TOO_LARGE`, or `INSUFFICIENT_FUNDS` if nothing was reserved.
        """
        return await wallets.commit(payment_id, body.amount, actor)

    @api.post("/api/v1/reservations/{payment_id:path}/release", tags=["reservations"])
    async def release_reservation(payment_id: Reference, actor: Operator) -> model.ReservationView:
        """Release a reservation. Repeats do nothing.

        409 is `ALREADY_COMMITTED`, `EXPIRED`, or `INSUFFICIENT_FUNDS`.
        """
        return await wallets.release(payment_id, actor)

    @api.get("/api/v1/reservations/{payment_id:path}", tags=["reservations"])
    async def get_reservation(payment_id: Reference, actor: Reader) -> model.ReservationView:
        """The reservation of a payment."""
        return await wallets.get_reservation(payment_id)
