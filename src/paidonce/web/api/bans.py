"""Bans: who is refused at the door."""

from fastapi import FastAPI

from paidonce.views import BanView
from paidonce.web.api.shapes import Limit, Page, Text, page
from paidonce.web.auth import Operator, Reader, Verbs


def add_to(api: FastAPI) -> None:
    """Add these calls."""

    @api.get("/api/v1/bans", tags=["bans"])
    async def list_bans(
        verbs: Verbs, actor: Reader, limit: Limit = 50, cursor: Text | None = None
    ) -> Page[BanView]:
        """Addresses that are banned now, in their order; of IPv6, networks of /64."""
        return page(await verbs.bans(limit=limit, cursor=cursor))

    @api.delete("/api/v1/bans/{address:path}", status_code=204, tags=["bans"])
    async def lift_ban(address: Text, verbs: Verbs, actor: Operator) -> None:
        """Let an address in again, and hold nothing against it."""
        await verbs.lift_ban(address, actor)
