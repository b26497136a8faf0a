"""What operators can do with bans."""

from typing import Final

from paidonce.audit.store import record_action
from paidonce.core.actors import Actor
from paidonce.db.paging import Page, page_of
from paidonce.db.pool import Database
from paidonce.db.queries import load_queries
from paidonce.errors import NotFoundError
from paidonce.guard.addresses import parse_sender_unit
from paidonce.guard.model import BanQuery, BanView

QUERIES: Final = load_queries(__file__)


class BanService:
    """Lists and lifts bans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(self, query: BanQuery) -> Page[BanView]:
        """Banned addresses, in order."""
        async with self._database.connection() as connection:
            rows = await QUERIES["list"].rows(connection, after=query.cursor, limit=query.limit + 1)
        return page_of([BanView(**dict(row)) for row in rows], query.limit, lambda ban: ban.address)

    async def lift(self, address: str, actor: Actor) -> None:
        """Lift a ban and reset the risk score; every process follows within seconds.

        Raises NotFoundError if the address is not banned.
        """
        unit = parse_sender_unit(address)
        async with self._database.transaction() as connection:
            if await QUERIES["lift"].row(connection, address=unit) is None:
                raise NotFoundError("this address is not banned")
            await record_action(connection, actor.name, "ban_lifted", address=unit)

    async def count(self) -> int:
        """The number of banned addresses."""
        async with self._database.connection() as connection:
            return int(await QUERIES["count"].value(connection))
