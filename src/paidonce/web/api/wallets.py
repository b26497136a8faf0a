"""Wallets."""

from uuid import UUID

from fastapi import FastAPI, Response, status
from pydantic import BaseModel, ConfigDict

from paidonce.views import WalletView
from paidonce.web.api.shapes import Page, Reference, Text
from paidonce.web.auth import Operator, Reader, Verbs


class NewWallet(BaseModel):
    """One per owner and currency."""

    model_config = ConfigDict(extra="forbid")
    owner: Reference
    currency: Text


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.post("/api/v1/wallets", status_code=status.HTTP_201_CREATED, tags=["wallets"])
    async def create_wallet(
        body: NewWallet, verbs: Verbs, actor: Operator, answer: Response
    ) -> WalletView:
        """Create a wallet. A repeat returns the one that is there, with 200."""
        wallet, is_new = await verbs.create_wallet(body.owner, body.currency, actor)
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return wallet

    @api.get("/api/v1/wallets", tags=["wallets"])
    async def find_wallets(owner: Reference, verbs: Verbs, actor: Reader) -> Page[WalletView]:
        """An owner's wallets, one for each currency."""
        return Page(items=await verbs.wallets_of(owner))

    @api.get("/api/v1/wallets/{wallet_id}", tags=["wallets"])
    async def get_wallet(wallet_id: UUID, verbs: Verbs, actor: Reader) -> WalletView:
        """One wallet: what is in it, and what of it is free."""
        return await verbs.wallet(wallet_id)
