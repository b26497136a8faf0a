"""Wallets."""

from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query, Response, status
from pydantic import BaseModel, ConfigDict

from paidonce.views import EntryView, WalletView
from paidonce.web.api.shapes import Limit, Page, Reference, Text, Time, page
from paidonce.web.auth import Operator, Reader, Verbs

EntryId = Annotated[int, Query(ge=0, lt=2**63)]


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
    async def get_wallet(
        wallet_id: UUID, verbs: Verbs, actor: Reader, at: Time | None = None
    ) -> WalletView:
        """One wallet: what is in it, and what of it is free; or what was in it at a time."""
        return await (verbs.wallet(wallet_id) if at is None else verbs.wallet_at(wallet_id, at))

    @api.get("/api/v1/wallets/{wallet_id}/entries", tags=["wallets"])
    async def list_entries(
        wallet_id: UUID,
        verbs: Verbs,
        actor: Reader,
        limit: Limit = 50,
        cursor: EntryId | None = None,
    ) -> Page[EntryView]:
        """The ledger of one wallet, the newest first: all that ever moved it."""
        return page(await verbs.wallet_entries(wallet_id, limit=limit, cursor=cursor))
