"""HTTP routes of bans."""

from fastapi import FastAPI

from paidonce.api.requests import FromQuery, Operator, Reader
from paidonce.core.input import Text
from paidonce.db.paging import Page
from paidonce.guard.model import BanQuery, BanView
from paidonce.guard.service import BanService


def add_to(api: FastAPI, bans: BanService) -> None:
    @api.get("/api/v1/bans", tags=["bans"])
    async def list_bans(query: FromQuery[BanQuery], actor: Reader) -> Page[BanView]:
        """Banned addresses, in order; for IPv6, networks of /64."""
        return await bans.search(query)

    @api.delete("/api/v1/bans/{address:path}", status_code=204, tags=["bans"])
    async def lift_ban(address: Text, actor: Operator) -> None:
        """Lift a ban and reset the risk score of the address."""
        await bans.lift(address, actor)
